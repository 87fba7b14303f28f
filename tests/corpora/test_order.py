import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzoo.corpora.order import EpochOrder


@given(size=st.integers(1, 600), seed=st.integers(0, 2**31), epoch=st.integers(0, 10**6))
def test_an_epoch_reads_every_window_once(size, seed, epoch):
    order = EpochOrder(size, seed, "de")
    places = [order.locate(epoch * size + offset) for offset in range(size)]
    assert {found for found, _ in places} == {epoch}
    assert sorted(index for _, index in places) == list(range(size))


@pytest.mark.parametrize("size", [10_000, 2**14, 2**14 + 1])
def test_an_order_shows_no_trace_of_the_files(size):
    order = EpochOrder(size, 0, "de")
    indices = np.array([order.locate(draw)[1] for draw in range(2 * size)])
    first, second = indices[:size], indices[size:]
    places = np.arange(size)
    bound = 4.5 / np.sqrt(size)
    assert abs(np.corrcoef(places, first)[0, 1]) < bound
    assert abs(np.corrcoef(first, second)[0, 1]) < bound
    for lag in (1, 2, 64, 128):
        assert abs(np.corrcoef(first[:-lag], first[lag:])[0, 1]) < bound
    # Neighbours stay neighbours, and windows keep their place, about as often as by chance.
    assert (np.abs(np.diff(first)) == 1).sum() < 12
    assert (first == places).sum() < 10
    assert (first == second).sum() < 10


@pytest.mark.parametrize("size", [2, 3, 5, 8, 13])
def test_every_window_is_equally_likely_in_every_place(size):
    runs = 4_000
    counts = np.zeros((size, size))
    for seed in range(runs):
        order = EpochOrder(size, seed, "de")
        for place in range(size):
            counts[place, order.locate(place)[1]] += 1
    expected = runs / size
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_seeds_languages_and_epochs_have_orders_of_their_own():
    def indices(seed, language, epoch):
        order = EpochOrder(50, seed, language)
        return tuple(order.locate(epoch * 50 + offset)[1] for offset in range(50))

    keys = [(0, "de", 0), (1, "de", 0), (0, "el", 0), (0, "de", 1)]
    assert len({indices(*key) for key in keys}) == len(keys)


def test_an_order_stays_the_same_from_release_to_release():
    order = EpochOrder(1000, 7, "de")
    assert [order.locate(draw) for draw in (0, 1, 2, 1000, 1001)] == [
        (0, 48),
        (0, 240),
        (0, 292),
        (1, 139),
        (1, 202),
    ]
    assert EpochOrder(10**12, 7, "de").locate(10**13)[1] == 844749925722
