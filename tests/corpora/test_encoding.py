"""From text to records: no piece is lost or invented, and documents stay apart."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzoo import sample
from kzoo.corpora.encoding import encode_shard
from kzoo.corpora.segments import Segment
from kzoo.text.vocabulary import Vocabulary


@pytest.fixture(scope="module")
def vocabulary(vocabulary_folder) -> Vocabulary:
    return Vocabulary.load(vocabulary_folder)


def encode(content: str, vocabulary, sequence_length: int = 12, **arguments):
    segment = Segment("a.txt", 1, content.encode())
    return encode_shard([segment], vocabulary, sequence_length=sequence_length, **arguments)


def windows_of(shard) -> list[list[int]]:
    return [np.frombuffer(record, "<u2").tolist() for record in shard.records]


def test_windows_hold_the_pieces_of_each_document_and_of_no_other(vocabulary):
    text = (sample.folder() / "train-de.txt").read_text(encoding="utf-8")
    shard = encode(text, vocabulary)
    windows = iter(windows_of(shard))
    documents = [document.splitlines() for document in text.strip().split("\n\n")]
    for lines in documents:
        pieces = [piece for line in lines for piece in vocabulary.encode(line).tolist()]
        read: list[int] = []
        while len(read) < len(pieces):
            window = next(windows)
            assert 1 <= len(window) <= 10
            read += window
        assert read == pieces
    assert next(windows, None) is None
    assert shard.documents == len(documents) > 5
    assert shard.sentences == sum(map(len, documents))


def test_counts_are_those_of_the_records(vocabulary):
    shard = encode("Ein Satz.\nЧто?\n\n漢字 und Wörter\n", vocabulary)
    pieces = np.array(list(itertools.chain(*windows_of(shard))))
    np.testing.assert_array_equal(shard.piece_counts, np.bincount(pieces, minlength=600))
    assert shard.unknown_tokens == (pieces == vocabulary.unk_id).sum() > 0


def test_a_line_of_300_kilobytes_without_spaces_loses_nothing(vocabulary):
    text = (sample.folder() / "train-hi.txt").read_text(encoding="utf-8")
    line = "".join(text.split())
    line *= 300_000 // len(line.encode()) + 1
    shard = encode(line, vocabulary, sequence_length=128)
    windows = windows_of(shard)
    assert list(itertools.chain(*windows)) == vocabulary.encode(line).tolist()
    assert {len(window) for window in windows[:-1]} == {126}
    assert len(windows) > 500


def test_text_cannot_produce_control_pieces(vocabulary):
    text = "[CLS] a [SEP] b [MASK] c <pad> </s> <unk>[MASK]"
    pieces = set(itertools.chain(*windows_of(encode(text, vocabulary))))
    assert not pieces & {
        vocabulary.cls_id,
        vocabulary.sep_id,
        vocabulary.mask_id,
        vocabulary.pad_id,
    }


def test_lines_without_pieces_make_no_windows(vocabulary):
    shard = encode("\u200b\n\n\ufeff\u200b\nok\n\n\u200b", vocabulary)
    assert windows_of(shard) == [vocabulary.encode("ok").tolist()]
    assert encode("\u200b\n", vocabulary).records == []


def test_unreadable_lines_are_counted(vocabulary):
    segment = Segment("a.jsonl", 7, b'{"text": "good"}\n{"text": 1}\n{"text": "caf\xe9"}\n')
    shard = encode_shard([segment], vocabulary, sequence_length=12, on_bad_text="skip")
    assert (shard.documents, shard.bad_text.skipped) == (1, 2)
    assert "a.jsonl, line 8" in shard.bad_text.places[0]


@given(st.lists(st.lists(st.text(st.characters(exclude_categories=["Cs"])))))
def test_any_text_can_be_encoded(vocabulary, documents):
    shard = encode("\n\n".join("\n".join(lines) for lines in documents), vocabulary)
    windows = windows_of(shard)
    assert all(1 <= len(window) <= 10 for window in windows)
    assert sum(map(len, windows)) == shard.piece_counts.sum()
