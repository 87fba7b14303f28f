"""Examples whose place is on object storage: the same as local ones, and as hard to lose."""

import itertools
import os

import pytest

from kzoo import sample
from kzoo.corpora import remote_partial
from kzoo.corpora.examples import ExampleFiles
from kzoo.corpora.files import find_files
from kzoo.corpora.prepare import prepare
from kzoo.errors import KzooError
from kzoo.storage import remote
from kzoo.storage.listing import LISTING_FILE
from tests.storage import ram


@pytest.fixture
def make(vocabulary_folder, tmp_path):
    """Prepares the sample in German and English, in several shards a language."""
    files = find_files(
        {language: f"{sample.folder()}/train-{language}.txt" for language in ("de", "en")}
    )

    def made(output, **options):
        return prepare(
            options.pop("files", files),
            None,
            options.pop("vocabulary", vocabulary_folder),
            32,
            output,
            workers=1,
            shard_bytes=4000,
            cache_dir=str(tmp_path / "cache"),
            **options,
        )

    return made


@pytest.fixture
def expected(make, tmp_path) -> dict[str, bytes]:
    """The files that a local preparation makes."""
    make(tmp_path / "local")
    return {
        str(path.relative_to(tmp_path / "local")): path.read_bytes()
        for path in (tmp_path / "local").rglob("*")
        if path.is_file()
    }


def made_there(output: str) -> dict[str, bytes]:
    files = ram.read(output)
    files.pop(LISTING_FILE)
    return files


def test_remote_examples_are_the_bytes_of_local_ones(make, expected, tmp_path):
    output = ram.new_folder()
    info = make(output)
    assert made_there(output) == expected
    assert not remote.exists(output + ".partial")
    assert len(info.splits["train"]["de"].shard_windows) > 1
    # Nothing of the work stays here, and again nothing is done.
    assert [name for name in os.listdir(tmp_path / "cache") if name.startswith("making")] == []
    assert make(output) == info
    opened = ExampleFiles.open(output, str(tmp_path / "cache"))
    assert opened.read("train", "de", 0).size


def test_remote_text_and_vocabulary_give_the_same_examples(
    make, expected, vocabulary_folder, tmp_path
):
    folder = ram.new_folder()
    for language in ("de", "en"):
        text = (sample.folder() / f"train-{language}.txt").read_bytes()
        ram.write(folder, {f"train-{language}.txt": text})
    model = (vocabulary_folder / "sentencepiece.model").read_bytes()
    ram.write(f"{folder}/vocabulary", {"sentencepiece.model": model})
    output = ram.new_folder()
    make(output, files=find_files(f"{folder}/*-{{lang}}.txt"), vocabulary=f"{folder}/vocabulary")
    there = made_there(output)
    for files in (there, expected):
        files.pop("dataset.json")  # Which names the text.
    assert there == expected


def test_an_interrupted_preparation_goes_on_on_another_machine(make, expected, monkeypatch):
    output = ram.new_folder()
    stored = []
    # Several are stored at a time: of all attempts, one is the fourth.
    attempts = itertools.count(1)
    usual = remote_partial.RemotePartialFolder._store

    def breaks(self, name):
        if next(attempts) == 4:
            raise OSError(5, "the network is gone", name)
        usual(self, name)
        stored.append(name)

    monkeypatch.setattr(remote_partial.RemotePartialFolder, "_store", breaks)
    with pytest.raises(KzooError, match="the network is gone"):
        make(output)
    assert ram.read(output) == {}
    before = list(stored)
    assert len(before) >= 3
    make(output)
    assert not set(before) & set(stored[len(before) :])
    assert made_there(output) == expected


def test_an_interrupted_move_into_place_is_finished(make, expected, monkeypatch):
    output = ram.new_folder()
    moved = []
    usual = remote.move

    def breaks(path, to):
        if len(moved) == 2:
            raise OSError(5, "the network is gone", path)
        moved.append(to)
        usual(path, to)

    monkeypatch.setattr(remote, "move", breaks)
    monkeypatch.setattr(remote, "at_once", lambda function, items: list(map(function, items)))
    with pytest.raises(KzooError, match="the network is gone"):
        make(output)
    with pytest.raises(KzooError, match="are not complete"):
        remote_partial.DatasetInfo.load(output)
    moved.append("so that it breaks no more")
    make(output)
    assert made_there(output) == expected
    assert not remote.exists(output + ".partial/dataset.json")


def test_shards_that_a_listing_leaves_out_are_not_removed(make, expected, monkeypatch):
    output = ram.new_folder()
    usual = remote.list_files
    with monkeypatch.context() as gaps:
        gaps.setattr(
            remote,
            "list_files",
            lambda folder: {
                name: stat
                for name, stat in usual(folder).items()
                if not name.startswith("train/de")
            },
        )
        with pytest.raises(KzooError, match=r"have not arrived whole .* such as train/de/"):
            make(output)
    make(output)
    assert made_there(output) == expected


def test_other_examples_are_replaced_only_if_that_is_asked_for(make, expected):
    output = ram.new_folder()
    make(output, text_field="other")
    with pytest.raises(KzooError, match=r"made from something else .*--overwrite"):
        make(output)
    make(output, overwrite=True)
    assert made_there(output) == expected


def test_a_folder_with_other_things_is_left_alone(make):
    output = ram.new_folder()
    ram.write(output, {"thesis.txt": b"text"})
    with pytest.raises(KzooError, match="holds other things than examples"):
        make(output)
    assert ram.read(output) == {"thesis.txt": b"text"}


def test_workers_of_a_cluster_need_a_shared_folder(make):
    with pytest.raises(KzooError, match="with --runner, workers write to a file system that all"):
        make("ram://bucket/examples", engine=lambda *_: {})
