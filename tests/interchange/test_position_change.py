"""Position tables of other lengths."""

import numpy as np
import pytest

from kzoo.interchange.position_change import change_positions


@pytest.fixture
def table():
    return np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)


@pytest.mark.parametrize("method", ["interpolate", "repeat", None])
def test_a_shorter_table_is_cut(table, method):
    np.testing.assert_array_equal(change_positions(table, 4, method), table[:4])
    np.testing.assert_array_equal(change_positions(table, 5, method), table)


def test_repeated_rows_are_the_old_ones_over_and_over(table):
    longer = change_positions(table, 12, "repeat")
    np.testing.assert_array_equal(longer, np.concatenate([table, table, table[:2]]))


@pytest.mark.parametrize("rows", [6, 9, 12, 17, 512])
def test_rows_in_between_lie_on_the_line_between_their_neighbours(table, rows):
    longer = change_positions(table, rows, "interpolate")
    where = np.linspace(0, 4, rows)
    expected = np.stack([np.interp(where, np.arange(5), column) for column in table.T], axis=1)
    assert longer.dtype == np.float32
    np.testing.assert_allclose(longer, expected, atol=1e-6)


def test_where_an_old_row_falls_on_a_new_one_it_is_that_to_the_bit(table):
    np.testing.assert_array_equal(change_positions(table, 13, "interpolate")[::3], table)
    for rows in (6, 7, 100):
        longer = change_positions(table, rows, "interpolate")
        np.testing.assert_array_equal(longer[[0, -1]], table[[0, -1]])
        assert len(np.unique(longer, axis=0)) == rows


def test_one_row_is_the_row_of_every_position(table):
    for method in ("interpolate", "repeat"):
        longer = change_positions(table[:1], 4, method)
        np.testing.assert_array_equal(longer, np.repeat(table[:1], 4, axis=0))
