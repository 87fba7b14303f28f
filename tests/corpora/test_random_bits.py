import numpy as np
import pytest

from kzoo.corpora.random_bits import RandomBits


def test_a_key_gives_the_same_integers_for_ever():
    assert RandomBits(17, "masking", "de", 0).raw(3).tolist() == [
        16742052960248106324,
        6258337310064014721,
        15739399451587488470,
    ]
    assert RandomBits(17, "masking", "de", 1).raw(3).tolist() == [
        5506248406730189969,
        1423684188513265837,
        1387051471064540233,
    ]
    assert RandomBits(17, "masking", "de", 0).integers(1000, 8).tolist() == [
        324,
        721,
        470,
        883,
        34,
        232,
        967,
        432,
    ]
    assert RandomBits(17, "masking", "de", 0).uniform(2).tolist() == [
        0.9075885095684183,
        0.33926514538592456,
    ]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 2), (2, 1)),
        ((1,), (1, 0)),
        ((1,), ("1",)),
        (("ab", "c"), ("a", "bc")),
        ((-1,), (1,)),
        ((), (0,)),
    ],
)
def test_keys_that_differ_anywhere_give_other_integers(one, other):
    assert not np.intersect1d(RandomBits(*one).raw(100), RandomBits(*other).raw(100)).size


def test_integers_of_python_and_numpy_are_one_key():
    assert RandomBits(np.int64(5)).raw(1) == RandomBits(5).raw(1)


def test_a_stream_goes_on_where_it_stopped():
    stream = RandomBits(0)
    parts = [stream.raw(count) for count in (0, 1, 2, 3, 5)]
    np.testing.assert_array_equal(np.concatenate(parts), RandomBits(0).raw(11))


def test_uniform_numbers_fill_the_unit_interval():
    numbers = RandomBits(0).uniform(100_000)
    assert numbers.min() >= 0
    assert numbers.max() < 1
    counts = np.histogram(numbers, bins=100, range=(0, 1))[0]
    assert _chi_square(counts) < 150  # 99 degrees of freedom: 1 in 1,000 is beyond 149


@pytest.mark.parametrize("bound", [1, 2, 3, 7, 10, 100])
def test_bounded_integers_are_equally_frequent(bound):
    counts = np.bincount(RandomBits(bound).integers(bound, 100_000), minlength=bound)
    assert len(counts) == bound
    assert _chi_square(counts) < bound + 6 * np.sqrt(2 * bound)


def test_bounded_integers_have_no_bias_where_the_bound_is_large():
    # Without rejection, 56 % of them would lie in the lower half.
    bound = 3 * 2**61
    numbers = RandomBits(0).integers(bound, 10_000)
    assert numbers.max() < bound
    assert abs((numbers < bound // 2).mean() - 0.5) < 0.02


def _chi_square(counts: np.ndarray) -> float:
    return float(((counts - counts.mean()) ** 2 / counts.mean()).sum())
