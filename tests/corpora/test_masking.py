import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzoo.corpora.masking import MaskingVocabulary, mask_window, num_targets
from kzoo.corpora.random_bits import RandomBits
from tests.corpora.memory_examples import CLS, EOS, MASK, PAD, SEP, UNK, MemoryVocabulary, windows

VOCABULARY = MaskingVocabulary(MemoryVocabulary(1000))
CONTROLS = (PAD, EOS, UNK, CLS, SEP, MASK)


def mask(token_ids, *key, **arguments):
    return mask_window(
        np.asarray(token_ids, np.int32), RandomBits("test", *key), VOCABULARY, **arguments
    )


token_ids_lists = st.lists(st.sampled_from([UNK]) | st.integers(MASK + 1, 999), max_size=60)


@given(
    token_ids=token_ids_lists,
    seed=st.integers(0, 2**32),
    mask_rate=st.floats(0.01, 1),
    max_predictions=st.none() | st.integers(1, 20),
)
def test_targets_are_ordinary_pieces_and_the_rest_is_untouched(
    token_ids, seed, mask_rate, max_predictions
):
    masked = mask(token_ids, seed, mask_rate=mask_rate, max_predictions=max_predictions)
    framed = np.array([CLS, *token_ids, SEP])
    positions = masked.mask_positions
    assert masked.token_ids.dtype == positions.dtype == masked.mask_ids.dtype == np.int32
    assert (np.diff(positions) > 0).all()
    np.testing.assert_array_equal(masked.mask_ids, framed[positions])
    assert not np.isin(masked.mask_ids, CONTROLS).any()
    np.testing.assert_array_equal(
        np.delete(masked.token_ids, positions), np.delete(framed, positions)
    )
    # What hides a target is [MASK] or an ordinary piece.
    assert not np.isin(masked.token_ids[positions], [PAD, EOS, UNK, CLS, SEP]).any()
    ordinary = sum(token_id > MASK for token_id in token_ids)
    assert len(positions) == num_targets(ordinary, mask_rate, max_predictions)


@pytest.mark.parametrize(
    ("ordinary", "rate", "most", "count"),
    [
        (0, 0.15, None, 0),
        (1, 0.15, None, 1),
        (9, 0.15, None, 1),
        (10, 0.15, None, 2),
        (126, 0.15, None, 19),
        (126, 0.15, 10, 10),
        (510, 0.15, None, 77),
        (4, 1.0, None, 4),
    ],
)
def test_the_rate_gives_the_nearest_number_of_targets_and_at_least_one(ordinary, rate, most, count):
    assert num_targets(ordinary, rate, most) == count


def test_unknown_pieces_are_read_but_neither_predicted_nor_made_up():
    for seed in range(50):
        masked = mask([UNK, 500, UNK, UNK], seed, mask_rate=1.0)
        assert masked.mask_positions.tolist() == [2]
        assert masked.token_ids[[1, 3, 4]].tolist() == [UNK] * 3
    assert mask([UNK, UNK]).token_ids.tolist() == [CLS, UNK, UNK, SEP]


def test_an_empty_window_has_no_target():
    masked = mask([])
    assert masked.token_ids.tolist() == [CLS, SEP]
    assert masked.mask_ids.size == 0


def test_hundred_thousand_targets_are_split_80_10_10():
    hidden, targets = [], []
    for index, window in enumerate(windows(9_000, 160, "split")):
        masked = mask(window, index)
        hidden.append(masked.token_ids[masked.mask_positions])
        targets.append(masked.mask_ids)
    hidden, targets = np.concatenate(hidden)[:100_000], np.concatenate(targets)[:100_000]
    assert len(targets) == 100_000
    is_masked, is_kept = hidden == MASK, hidden == targets
    # One random replacement in 994 is the target itself, and looks kept.
    assert abs(is_masked.mean() - 0.8) < 0.005
    assert abs(is_kept.mean() - 0.1) < 0.005
    assert abs((~is_masked & ~is_kept).mean() - 0.1) < 0.005
    replacements = hidden[~is_masked & ~is_kept]
    counts = np.bincount(replacements, minlength=1000)[MASK + 1 :]
    chi_square = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert abs(chi_square - len(counts)) < 5 * np.sqrt(2 * len(counts))


def test_every_place_of_a_window_is_equally_often_a_target():
    counts = np.zeros(42)
    for index in range(5_000):
        counts[mask(np.arange(100, 140), index).mask_positions] += 1
    assert counts[0] == counts[41] == 0
    # 6 of 40 are targets: 750 of 5,000, with a standard deviation of 25.
    assert np.abs(counts[1:41] - 750).max() < 5 * 25


def test_all_three_fates_occur_within_one_window():
    masked = mask(np.arange(100, 500), mask_rate=1.0)
    hidden = masked.token_ids[masked.mask_positions]
    assert (hidden == MASK).any()
    assert (hidden == masked.mask_ids).any()
    assert ((hidden != MASK) & (hidden != masked.mask_ids)).any()


def test_the_same_key_masks_the_same_and_another_differently():
    window = np.arange(100, 200)
    for one, other in zip(mask(window, 0), mask(window, 0), strict=True):
        np.testing.assert_array_equal(one, other)
    assert mask(window, 0).mask_positions.tolist() != mask(window, 1).mask_positions.tolist()


def test_masks_stay_the_same_from_release_to_release():
    masked = mask(np.arange(100, 120), 0)
    assert masked.mask_positions.tolist() == [1, 10, 20]
    assert masked.token_ids[masked.mask_positions].tolist() == [5, 5, 5]
