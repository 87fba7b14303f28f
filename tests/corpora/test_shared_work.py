"""Shards made in two steps by workers that may come twice, late, or never."""

import os
import pathlib
import shutil

import pytest

from kzoo import sample
from kzoo.corpora.prepare import prepare
from kzoo.corpora.shared_work import Shard, SharedWork, Stopped
from kzoo.errors import KzooError
from tests.corpora.text_files import write_documents

SHARD_BYTES = 2000


@pytest.fixture
def corpus(tmp_path) -> dict[str, list[str]]:
    """Two languages, the second in several files of which one has only blanks."""
    text = (sample.folder() / "train-en.txt").read_text("utf-8")
    documents = [document.split("\n") for document in text.strip().split("\n\n")]
    (tmp_path / "train-en-0.txt").write_bytes(b"\n \n")
    return {
        "de": [write_documents(tmp_path, "train-de.parquet", documents)],
        "en": [
            str(tmp_path / "train-en-0.txt"),
            write_documents(tmp_path, "train-en-1.txt.gz", documents[:3]),
            write_documents(tmp_path, "train-en-2.jsonl.xz", documents[3:]),
        ],
    }


def prepared(corpus, vocabulary, output: pathlib.Path, engine=None, **options):
    options |= {"workers": 1, "shard_bytes": SHARD_BYTES, "engine": engine}
    return prepare(corpus, None, vocabulary, 32, output, **options)


def content(folder: pathlib.Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def by_one_worker(folder, request, vocabulary):
    """An engine that does the work as one remote worker would."""
    launched = SharedWork.begin(folder, request, vocabulary)
    work = SharedWork.join(folder.output, request.digest())
    for split, language in work.languages():
        for shard in list(work.cut(split, language)):
            work.make(shard)
    return launched.num_shards()


def test_it_gives_the_files_and_warnings_of_a_pool(corpus, vocabulary_folder, tmp_path, caplog):
    # One document, longer than any shard may be, with a bad line in a later shard.
    (tmp_path / "train-fr.txt").write_bytes(b"une ligne de texte\n" * 400 + b"caf\xe9\nfin\n")
    corpus["fr"] = [str(tmp_path / "train-fr.txt")]
    said = {}
    for name, engine in (("pool", None), ("shared", by_one_worker)):
        caplog.clear()
        info = prepared(corpus, vocabulary_folder, tmp_path / name, engine, on_bad_text="skip")
        assert info.splits["train"]["fr"].documents == 1
        said[name] = [record.getMessage() for record in caplog.records]
    assert said["shared"] == said["pool"]
    assert "train-en-0.txt holds no text" in said["pool"][0]
    assert "train-fr.txt, line 401: byte 0xe9" in said["pool"][1]
    expected = content(tmp_path / "pool")
    assert content(tmp_path / "shared") == expected
    for language in ("en", "fr"):
        assert sum(name.startswith(f"train/{language}/") for name in expected) > 2
    assert not (tmp_path / "shared.partial").exists()


def test_steps_that_are_done_twice_leave_the_same(corpus, vocabulary_folder, tmp_path):
    def twice(folder, request, vocabulary):
        work = SharedWork.begin(folder, request, vocabulary)
        other = SharedWork.join(folder.output, request.digest())
        for of in work.languages():
            shards = list(work.cut(*of))
            work.make(shards[0])
            # Its text is gone, but nobody makes it again.
            assert list(other.cut(*of)) == shards[1:]
            for shard in shards:
                other.make(shard)
                work.make(shard)
            assert list(work.cut(*of)) == []
        assert not list(pathlib.Path(folder.making, "text").rglob("*.feather"))
        return work.num_shards()

    prepared(corpus, vocabulary_folder, tmp_path / "pool")
    prepared(corpus, vocabulary_folder, tmp_path / "twice", twice)
    assert content(tmp_path / "twice") == content(tmp_path / "pool")


def test_text_is_not_read_again_where_it_is_cut(corpus, vocabulary_folder, tmp_path):
    def resumed(folder, request, vocabulary):
        work = SharedWork.begin(folder, request, vocabulary)
        shards = [shard for of in work.languages() for shard in work.cut(*of)]
        for path in pathlib.Path(folder.making, "text").rglob("*.feather"):
            os.utime(path, (0, 0))
        work = SharedWork.begin(folder, request, vocabulary)
        assert [shard for of in work.languages() for shard in work.cut(*of)] == shards
        # One that was lost is cut once more.
        lost = pathlib.Path(folder.making, "text/train/de/00001.feather")
        lost.unlink()
        assert [shard for of in work.languages() for shard in work.cut(*of)] == shards
        times = {path.stat().st_mtime for path in lost.parent.glob("*.feather") if path != lost}
        assert times == {0}
        assert lost.stat().st_mtime > 0
        for shard in shards:
            work.make(shard)
        return work.num_shards()

    prepared(corpus, vocabulary_folder, tmp_path / "pool")
    prepared(corpus, vocabulary_folder, tmp_path / "resumed", resumed)
    assert content(tmp_path / "resumed") == content(tmp_path / "pool")


def test_what_workers_began_a_pool_can_finish(corpus, vocabulary_folder, tmp_path):
    class GiveUpError(Exception):
        pass

    def begun(folder, request, vocabulary):
        work = SharedWork.begin(folder, request, vocabulary)
        work.make(next(work.cut("train", "en")))
        raise GiveUpError

    prepared(corpus, vocabulary_folder, tmp_path / "pool")
    with pytest.raises(GiveUpError):
        prepared(corpus, vocabulary_folder, tmp_path / "both", begun)
    prepared(corpus, vocabulary_folder, tmp_path / "both")
    assert content(tmp_path / "both") == content(tmp_path / "pool")


def test_one_that_fails_stops_all_and_is_heard(corpus, vocabulary_folder, tmp_path):
    (tmp_path / "train-fr.txt").write_bytes(b"bonjour\ncaf\xe9 ok\n")
    corpus["fr"] = [str(tmp_path / "train-fr.txt")]

    def failing(folder, request, vocabulary):
        work = SharedWork.begin(folder, request, vocabulary)
        other = SharedWork.join(folder.output, request.digest())
        shards = list(other.cut("train", "de"))
        assert work.failure() is None
        with pytest.raises(KzooError, match="line 2: byte 0xe9"):
            other.make(next(other.cut("train", "fr")))
        assert "train-fr.txt, line 2: byte 0xe9" in work.failure()
        for step in (lambda: other.make(shards[0]), lambda: list(other.cut("train", "en"))):
            with pytest.raises(Stopped):
                step()
        # What failed was text, which may be mended: the next attempt tries again.
        assert SharedWork.begin(folder, request, vocabulary).failure() is None
        raise KzooError(work.failure() or "as it should be")

    with pytest.raises(KzooError, match="as it should be"):
        prepared(corpus, vocabulary_folder, tmp_path / "examples", failing)


def test_shards_that_no_worker_has_made_are_missed(corpus, vocabulary_folder, tmp_path):
    def idle(folder, request, vocabulary):
        work = SharedWork.begin(folder, request, vocabulary)
        for of in work.languages():
            for shard in list(work.cut(*of))[:-1]:
                work.make(shard)
        assert work.num_finished() > 3
        return work.num_shards()

    with pytest.raises(KzooError, match=r"shards of 'de' \(train\) are missing"):
        prepared(corpus, vocabulary_folder, tmp_path / "examples", idle)
    assert not (tmp_path / "examples").exists()


def test_a_worker_that_comes_late_brings_nothing_back(corpus, vocabulary_folder, tmp_path):
    prepared(corpus, vocabulary_folder, tmp_path / "examples", by_one_worker)
    late = []

    def engine(folder, request, vocabulary):
        num_shards = by_one_worker(folder, request, vocabulary)
        late.append(SharedWork.join(folder.output, request.digest()))
        return num_shards

    prepared(corpus, vocabulary_folder, tmp_path / "again", engine)
    for step in (
        lambda: late[0].make(Shard("train", "de", 0)),
        lambda: list(late[0].cut("train", "de")),
    ):
        with pytest.raises(KzooError, match="cannot read or write"):
            step()
    assert not (tmp_path / "again.partial").exists()


def test_a_worker_of_an_abandoned_preparation_leaves_the_next_alone(
    corpus, vocabulary_folder, tmp_path
):
    left_over = []

    def abandoned(folder, request, vocabulary):
        SharedWork.begin(folder, request, vocabulary)
        work = SharedWork.join(folder.output, request.digest())
        left_over.append((work, list(work.cut("train", "de"))))
        raise KzooError("given up")

    def next_one(folder, request, vocabulary):
        launched = SharedWork.begin(folder, request, vocabulary)
        (work, shards) = left_over[0]
        with pytest.raises(KzooError, match="left over from an earlier one"):
            SharedWork.join(folder.output, work.request.digest())
        for step in (lambda: work.make(shards[0]), lambda: list(work.cut("train", "en"))):
            with pytest.raises(KzooError, match="cannot read or write"):
                step()
        assert (launched.num_finished(), launched.failure()) == (0, None)
        return by_one_worker(folder, request, vocabulary)

    with pytest.raises(KzooError, match="given up"):
        prepared(corpus, vocabulary_folder, tmp_path / "examples", abandoned)
    options = {"overwrite": True, "on_bad_text": "skip"}
    prepared(corpus, vocabulary_folder, tmp_path / "examples", next_one, **options)
    prepared(corpus, vocabulary_folder, tmp_path / "pool", **options)
    assert content(tmp_path / "examples") == content(tmp_path / "pool")


def test_a_worker_that_sees_other_things_says_so(corpus, vocabulary_folder, tmp_path, monkeypatch):
    messages = []

    def strange(folder, request, vocabulary):
        work = SharedWork.begin(folder, request, vocabulary)
        with monkeypatch.context() as patch:
            patch.setattr("kzoo.corpora.shared_work.__version__", "9.9")
            with pytest.raises(KzooError, match=r"has kzoo 9\.9, .*install the same everywhere"):
                SharedWork.join(folder.output, request.digest())
        shutil.move(corpus["de"][0], tmp_path / "elsewhere")
        with pytest.raises(KzooError, match=r"does not find .*train-de\.parquet with its"):
            list(work.cut("train", "de"))
        messages.append(work.failure())
        raise KzooError("enough")

    with pytest.raises(KzooError, match="enough"):
        prepared(corpus, vocabulary_folder, tmp_path / "examples", strange)
    assert "train-de.parquet" in messages[0]
    with pytest.raises(KzooError, match=r"does not find .*nowhere\.partial/request\.json"):
        SharedWork.join(str(tmp_path / "nowhere"), "")


def test_text_that_a_power_cut_has_damaged_is_named(corpus, vocabulary_folder, tmp_path):
    def engine(folder, request, vocabulary):
        SharedWork.begin(folder, request, vocabulary)
        work = SharedWork.join(folder.output, request.digest())
        shard = next(iter(work.cut("train", "de")))
        text = pathlib.Path(folder.making, "text/train/de/00000.feather")
        stored = bytearray(text.read_bytes())
        middle = slice(len(stored) // 4, len(stored) // 2)
        stored[middle] = bytes(len(stored[middle]))
        text.write_bytes(stored)
        work.make(shard)

    with pytest.raises(KzooError, match=r"00000\.feather is damaged"):
        prepared(corpus, vocabulary_folder, tmp_path / "examples", engine)
