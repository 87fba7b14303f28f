"""Example files: what was written is read, from anywhere; what is damaged is named."""

import concurrent.futures
import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

from kzoo import sample
from kzoo.corpora import examples
from kzoo.corpora.examples import ExampleFiles, shard_path, token_dtype, write_records
from kzoo.corpora.prepare import prepare
from kzoo.corpora.reading import read_documents
from kzoo.errors import KzooError
from kzoo.text.vocabulary import Vocabulary

LENGTH = 24


@pytest.fixture
def folder(tmp_path, vocabulary_folder):
    train = {language: [_sample("train", language)] for language in ("de", "hi")}
    output = tmp_path / "examples"
    held_out = {"hi": [_sample("dev", "hi")]}
    prepare(train, held_out, vocabulary_folder, LENGTH, output, workers=1, shard_bytes=3000)
    return output


def _sample(split: str, language: str) -> str:
    return str(sample.folder() / f"{split}-{language}.txt")


def rewrite_shard(folder, records: list[bytes], num_windows: int | None = None) -> None:
    """Puts other records into the first German shard, and says so in dataset.json."""
    info = json.loads((folder / "dataset.json").read_text())
    entry = info["splits"]["train"]["de"]
    num_shards = len(entry["shard_windows"])
    entry["shard_windows"][0] = len(records) if num_windows is None else num_windows
    entry["windows"] = sum(entry["shard_windows"])
    (folder / "dataset.json").write_text(json.dumps(info))
    write_records(shard_path(str(folder), "train", "de", 0, num_shards), records)


def test_the_windows_are_the_text_in_its_order(folder, vocabulary_folder):
    vocabulary = Vocabulary.load(vocabulary_folder)
    read = ExampleFiles.open(folder)
    assert read.languages("train") == ["de", "hi"]
    assert read.languages("held_out") == ["hi"]
    for split, language, name in [("train", "de", "train"), ("held_out", "hi", "dev")]:
        lines = [line for lines in read_documents(_sample(name, language)) for line in lines]
        windows = [read.read(split, language, i) for i in range(read.num_windows(split, language))]
        assert windows[0].dtype == np.int32
        assert max(map(len, windows)) == LENGTH - 2
        pieces = np.concatenate([vocabulary.encode(line) for line in lines])
        np.testing.assert_array_equal(np.concatenate(windows), pieces)
        assert read.sentences(split, language) == len(lines)
    pieces = np.concatenate([vocabulary.encode(line) for line in lines])
    assert len(read.info.splits["train"]["de"].shard_windows) > 2


def test_piece_counts_are_those_of_the_training_windows(folder):
    read = ExampleFiles.open(folder)
    counts = read.piece_counts()
    assert sorted(counts) == ["de", "hi"]
    for language, count in counts.items():
        windows = read.read_many("train", language, range(read.num_windows("train", language)))
        np.testing.assert_array_equal(count, np.bincount(np.concatenate(windows), minlength=600))


def test_piece_counts_that_were_cut_short_are_one_clear_error(folder):
    for size in (0, 100):
        os.truncate(folder / "piece_counts.npz", size)
        with pytest.raises(KzooError, match=r"piece_counts\.npz: .*; prepare the examples again"):
            ExampleFiles.open(folder).piece_counts()


def test_any_order_from_many_threads_and_another_process(folder):
    read = ExampleFiles.open(folder)
    order = np.random.default_rng(0).permutation(read.num_windows("train", "de"))
    expected = [read.read("train", "de", index).tolist() for index in order]
    assert [window.tolist() for window in read.read_many("train", "de", order)] == expected
    copy = pickle.loads(pickle.dumps(read))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda index: copy.read("train", "de", index).tolist(), order))
    assert found == expected
    code = (
        "import pickle, sys; read = pickle.load(sys.stdin.buffer);"
        "print(read.read('train', 'de', 5).tolist(), 'tensorflow' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], input=pickle.dumps(read), capture_output=True, check=True
    )
    assert done.stdout.decode().strip() == f"{read.read('train', 'de', 5).tolist()} False"


def test_few_files_are_open_at_a_time(folder, monkeypatch):
    monkeypatch.setattr(examples, "_MAX_OPEN_SHARDS", 2)
    read = ExampleFiles.open(folder)
    read.read_many("train", "de", range(read.num_windows("train", "de")))
    read.read_many("train", "hi", range(read.num_windows("train", "hi")))
    links = [os.path.join("/proc/self/fd", fd) for fd in os.listdir("/proc/self/fd")]
    open_files = [os.readlink(link) for link in links if os.path.exists(link)]
    assert 1 <= sum(path.startswith(str(folder)) for path in open_files) <= 2


def test_a_folder_that_is_not_there_or_not_complete(folder, tmp_path):
    with pytest.raises(KzooError, match=r"no examples at .*nowhere; make them with"):
        ExampleFiles.open(tmp_path / "nowhere")
    os.remove(folder / "dataset.json")
    with pytest.raises(KzooError, match="not complete; run the same"):
        ExampleFiles.open(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "damaged"), ('{"schema_version": 2}', "damaged"), ("{}", "damaged")],
)
def test_a_dataset_json_that_cannot_be_understood(folder, content, message):
    (folder / "dataset.json").write_text(content)
    with pytest.raises(KzooError, match=rf"dataset\.json .*{message}"):
        ExampleFiles.open(folder)


def test_a_window_that_is_not_there(folder):
    read = ExampleFiles.open(folder)
    for index in (-1, read.num_windows("train", "de")):
        with pytest.raises(KzooError, match=f"there is no window {index}"):
            read.read("train", "de", index)
    with pytest.raises(KzooError, match="no 'held_out' examples of 'de', only of: hi"):
        read.read("held_out", "de", 0)


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (b"\x05\x00\x58\x02", "token id 600, but the vocabulary has 600 pieces"),
        (b"\xff\xff", "token id 65535"),
        (b"\x05\x00\x06", "3 bytes"),
        (b"", "0 bytes"),
        (b"\x06\x00" * (LENGTH - 1), f"{LENGTH - 1} pieces, more than {LENGTH - 2}"),
    ],
)
def test_a_record_that_cannot_be_right_is_refused(folder, record, problem):
    rewrite_shard(folder, [b"\x07\x00", record])
    read = ExampleFiles.open(folder)
    assert read.read("train", "de", 0).tolist() == [7]
    with pytest.raises(KzooError, match=rf"window 1 of .*00000-of-.*{problem}"):
        read.read("train", "de", 1)


def test_a_shard_that_is_missing_or_damaged_or_another_one(folder):
    num_shards = len(ExampleFiles.open(folder).info.splits["train"]["de"].shard_windows)
    path = shard_path(str(folder), "train", "de", 0, num_shards)
    with open(path, "r+b") as file:
        file.truncate(os.path.getsize(path) // 2)
    with pytest.raises(KzooError, match="damaged"):
        ExampleFiles.open(folder).read("train", "de", 0)
    os.remove(path)
    with pytest.raises(KzooError, match="is missing; prepare the examples again"):
        ExampleFiles.open(folder).read("train", "de", 0)
    rewrite_shard(folder, [b"\x07\x00"], num_windows=2)
    with pytest.raises(KzooError, match="has 1 windows, not 2"):
        ExampleFiles.open(folder).read("train", "de", 0)


def test_the_vocabulary_travels_with_the_examples(folder, vocabulary_folder):
    read = ExampleFiles.open(folder)
    assert read.vocabulary().sha256 == Vocabulary.load(vocabulary_folder).sha256
    info = json.loads((folder / "dataset.json").read_text())
    (folder / "dataset.json").write_text(json.dumps(info | {"vocabulary_sha256": "0" * 64}))
    with pytest.raises(KzooError, match="is not the vocabulary"):
        ExampleFiles.open(folder).vocabulary()


def test_large_vocabularies_need_four_bytes_an_id(folder):
    assert token_dtype(65_536) == "<u2"
    assert token_dtype(65_537) == "<u4"
    info = json.loads((folder / "dataset.json").read_text())
    info |= {"vocabulary_size": 250_300, "token_dtype": "<u4"}
    (folder / "dataset.json").write_text(json.dumps(info))
    rewrite_shard(folder, [np.array([7, 250_299], "<u4").tobytes()])
    assert ExampleFiles.open(folder).read("train", "de", 0).tolist() == [7, 250_299]
