"""Packing one or two texts: layout, truncation, and empty sides."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzoo import KzooError
from kzoo.text.packing import pack, truncated_lengths

CLS, SEP = 101, 102

pieces = st.lists(st.integers(0, 100), max_size=30)


def packed(a, b=None, sequence_length=None):
    token_ids, segment_ids = pack(a, b, cls_id=CLS, sep_id=SEP, sequence_length=sequence_length)
    assert token_ids.dtype == segment_ids.dtype == np.int32
    return token_ids.tolist(), segment_ids.tolist()


@pytest.mark.parametrize(
    ("a", "b", "token_ids", "segment_ids"),
    [
        ([7, 8], None, [CLS, 7, 8, SEP], [0, 0, 0, 0]),
        ([7, 8], [9], [CLS, 7, 8, SEP, 9, SEP], [0, 0, 0, 0, 1, 1]),
        ([], None, [CLS, SEP], [0, 0]),
        ([], [9], [CLS, SEP, 9, SEP], [0, 0, 1, 1]),
        ([7], [], [CLS, 7, SEP, SEP], [0, 0, 0, 1]),
        ([], [], [CLS, SEP, SEP], [0, 0, 1]),
    ],
)
def test_layout(a, b, token_ids, segment_ids):
    assert packed(a, b) == (token_ids, segment_ids)


def test_arrays_pack_as_lists_do():
    assert packed(np.array([7, 8], np.int32), np.array([], np.int32)) == packed([7, 8], [])


@pytest.mark.parametrize(
    ("a_length", "b_length", "room", "kept"),
    [
        (5, 5, 10, (5, 5)),
        (9, 2, 8, (6, 2)),
        (2, 9, 8, (2, 6)),
        (9, 9, 8, (4, 4)),
        (9, 9, 7, (4, 3)),
        (3, 9, 0, (0, 0)),
        (5, 0, 3, (3, 0)),
    ],
)
def test_the_longer_side_gives_first(a_length, b_length, room, kept):
    assert truncated_lengths(a_length, b_length, room) == kept


@given(st.integers(0, 60), st.integers(0, 60), st.integers(0, 80))
def test_lengths_are_those_of_taking_piece_after_piece_from_the_longer(a_length, b_length, room):
    expected = [a_length, b_length]
    while sum(expected) > room:
        expected[0 if expected[0] > expected[1] else 1] -= 1
    assert truncated_lengths(a_length, b_length, room) == tuple(expected)


@given(pieces, st.none() | pieces, st.integers(3, 40))
def test_what_is_packed_fits_and_keeps_the_beginnings(a, b, sequence_length):
    token_ids, segment_ids = packed(a, b, sequence_length)
    assert len(token_ids) == len(segment_ids) <= sequence_length
    first = token_ids.index(SEP)
    assert token_ids[0] == CLS
    assert token_ids[1:first] == a[: first - 1]
    assert segment_ids == [0] * (first + 1) + [1] * (len(token_ids) - first - 1)
    if b is None:
        assert first == len(token_ids) - 1
    else:
        assert token_ids[-1] == SEP
        assert token_ids[first + 1 : -1] == b[: len(token_ids) - first - 2]
    specials = 2 if b is None else 3
    whole = len(a) + len(b or []) + specials
    assert len(token_ids) == min(whole, sequence_length)


@pytest.mark.parametrize(("b", "sequence_length"), [(None, 1), ([9], 2)])
def test_a_length_without_room_for_the_special_pieces_is_refused(b, sequence_length):
    with pytest.raises(KzooError, match=f"Received: sequence_length={sequence_length}$"):
        packed([7], b, sequence_length)
