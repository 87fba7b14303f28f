"""Windows: nothing lost, nothing too long, nothing empty, and no cut that is not needed."""

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from kzoo.corpora.windows import window_lengths

limits = st.integers(1, 40)


@given(st.lists(st.integers(0, 130)), limits)
@example([], 1)
@example([0, 0], 5)
def test_no_piece_is_lost_and_no_window_is_empty_or_too_long(line_lengths, limit):
    lengths = window_lengths(line_lengths, limit)
    assert sum(lengths) == sum(line_lengths)
    assert all(1 <= length <= limit for length in lengths)


@given(st.lists(st.integers(1, 40)), limits)
def test_lines_that_fit_are_never_cut(line_lengths, limit):
    line_lengths = [min(length, limit) for length in line_lengths]
    line_ends = set(itertools.accumulate(line_lengths))
    assert set(itertools.accumulate(window_lengths(line_lengths, limit))) <= line_ends


@given(st.lists(st.integers(1, 130)), limits)
def test_two_neighbours_never_fit_into_one_window(line_lengths, limit):
    """Where the next line fits it joins, so a tail has a window of its own only at the end."""
    lengths = window_lengths(line_lengths, limit)
    line_starts = {0, *itertools.accumulate(line_lengths)}
    start = 0
    for length, following in itertools.pairwise(lengths):
        start += length
        if length < limit:
            assert start in line_starts
            line = line_lengths[list(itertools.accumulate(line_lengths)).index(start) + 1]
            assert length + line > limit
            assert following >= min(line, limit)


def test_a_long_line_fills_the_open_window_first_and_its_tail_opens_the_next():
    assert window_lengths([4, 23, 3, 3], 10) == [10, 10, 10, 3]
    assert window_lengths([4, 7, 3, 1], 10) == [4, 10, 1]
    assert window_lengths([100_000], 126) == [126] * 793 + [82]
