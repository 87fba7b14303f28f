"""Windows: nothing lost, nothing too long, nothing empty, and as few as can be."""

from hypothesis import given
from hypothesis import strategies as st

from kzoo.corpora.windows import window_lengths


@given(st.integers(0, 5000), st.integers(1, 140))
def test_no_piece_is_lost_and_no_window_is_empty_or_too_long(num_pieces, limit):
    lengths = window_lengths(num_pieces, limit)
    assert sum(lengths) == num_pieces
    assert all(1 <= length <= limit for length in lengths)


@given(st.integers(1, 5000), st.integers(1, 140))
def test_only_the_last_window_has_room_left(num_pieces, limit):
    assert all(length == limit for length in window_lengths(num_pieces, limit)[:-1])


def test_a_document_is_cut_into_full_windows_and_a_rest():
    assert window_lengths(0, 10) == []
    assert window_lengths(10, 10) == [10]
    assert window_lengths(33, 10) == [10, 10, 10, 3]
    assert window_lengths(100_000, 126) == [126] * 793 + [82]
