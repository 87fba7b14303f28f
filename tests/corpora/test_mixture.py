import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kzoo.corpora.mixture import PERIOD, Interleave, apportion, language_probabilities
from kzoo.errors import KzooError

SIZES = {"en": 10_000, "de": 100, "eu": 1}


def draw(interleave: Interleave, positions) -> tuple[np.ndarray, np.ndarray]:
    languages, draws = zip(*map(interleave.locate, positions), strict=True)
    return np.array(languages), np.array(draws)


def test_the_exponent_flattens_the_sizes():
    assert list(language_probabilities(SIZES, 0.5).values()) == pytest.approx(
        [100 / 111, 10 / 111, 1 / 111]
    )
    assert list(language_probabilities(SIZES, 0).values()) == pytest.approx([1 / 3] * 3)
    assert list(language_probabilities(SIZES, 1).values()) == pytest.approx(
        [10_000 / 10_101, 100 / 10_101, 1 / 10_101]
    )
    assert list(language_probabilities(SIZES, 1000).values()) == [1, 0, 0]
    assert list(language_probabilities({"a": 10**300, "b": 1}, 0.01)) == ["a", "b"]


def test_one_language_has_all():
    assert language_probabilities({"sw": 3}, 0.5) == {"sw": 1}
    languages, draws = draw(Interleave([1.0], seed=3), range(PERIOD - 5, PERIOD + 5))
    assert set(languages) == {0}
    # Draws follow the positions, from one period into the next too.
    assert (np.diff(draws) == 1).all()


@pytest.mark.parametrize(
    ("sizes", "exponent", "words"),
    [
        ({"en": 5, "eu": 0}, 0.5, "'eu'"),
        ({}, 0.5, "no language"),
        ({"en": 5}, -1.0, "-1.0"),
        ({"en": 5}, float("nan"), "nan"),
    ],
)
def test_what_cannot_be_mixed_is_one_clear_error(sizes, exponent, words):
    with pytest.raises(KzooError, match=words):
        language_probabilities(sizes, exponent)


def test_fifty_thousand_draws_have_the_shares_of_the_sizes():
    probabilities = list(language_probabilities(SIZES, 0.5).values())
    languages, _ = draw(Interleave(probabilities, seed=0), range(50_000))
    shares = np.bincount(languages) / 50_000
    np.testing.assert_allclose(shares, probabilities, rtol=0.01)


def test_shares_are_exact_to_a_millionth_over_a_period():
    probabilities = np.array([0.5, 0.25, 0.1, 0.1, 0.04, 0.01 - 1e-8, 1e-8])
    interleave = Interleave(probabilities.tolist(), seed=1)
    languages, draws = draw(interleave, range(PERIOD))
    counts = np.bincount(languages)
    np.testing.assert_allclose(counts / PERIOD, probabilities, rtol=0, atol=1.0e-6)
    assert counts[-1] == 1
    for language, count in enumerate(counts):
        np.testing.assert_array_equal(draws[languages == language], np.arange(count))
    later_languages, later_draws = draw(interleave, range(3 * PERIOD, 3 * PERIOD + 1000))
    np.testing.assert_array_equal(later_languages, languages[:1000])
    np.testing.assert_array_equal(later_draws, draws[:1000] + 3 * counts[languages[:1000]])


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_any_stretch_holds_about_the_shares_of_the_whole(seed):
    probabilities = np.array([0.6, 0.25, 0.1, 0.05])
    languages, _ = draw(Interleave(probabilities.tolist(), seed), range(40_000))
    for stretch in (8, 32, 128, 1024):
        counts = np.array(
            [
                np.bincount(part, minlength=4)
                for part in languages[: 40_000 // stretch * stretch].reshape(-1, stretch)
            ]
        )
        assert np.abs(counts - probabilities * stretch).max() < 3


def test_the_seed_shifts_the_sequence():
    one, other = (draw(Interleave([0.5, 0.3, 0.2], seed), range(50))[0] for seed in (0, 1))
    assert one.tolist() != other.tolist()


@settings(max_examples=50)
@given(st.lists(st.floats(1e-9, 1), min_size=1, max_size=40))
def test_positions_are_shared_out_to_within_one(weights):
    probabilities = np.array(weights) / sum(weights)
    counts = apportion(probabilities.tolist(), 1000)
    assert counts.sum() == 1000
    assert counts.min() >= 1
    rounded_up = int((probabilities < 1 / 1000).sum())
    assert np.abs(counts - probabilities * 1000).max() <= 1 + rounded_up


def test_the_sequence_stays_the_same_from_release_to_release():
    interleave = Interleave([0.5, 0.3, 0.2], seed=7)
    assert [interleave.locate(position) for position in range(1000, 1006)] == [
        (1, 300),
        (0, 500),
        (2, 200),
        (1, 301),
        (0, 501),
        (2, 201),
    ]
