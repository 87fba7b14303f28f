import numpy as np
import pytest

from kzoo.corpora.unigram import unigram_log_probabilities, unigram_losses

ORDINARY = np.array([2, 3, 4], np.int32)
COUNTS = {"de": np.array([9, 7, 6, 2, 0]), "el": np.array([0, 0, 0, 1, 1])}


def test_the_languages_are_mixed_with_their_probabilities():
    log_probabilities = unigram_log_probabilities(COUNTS, {"de": 0.25, "el": 0.75}, ORDINARY)
    # Shares (6/8, 2/8, 0) and (0, 1/2, 1/2); 10 ordinary pieces were counted; one is added to each.
    expected = (10 * np.array([0.25 * 0.75, 0.25 * 0.25 + 0.75 / 2, 0.75 / 2]) + 1) / 13
    np.testing.assert_allclose(np.exp(log_probabilities[2:]), expected, rtol=1e-12)
    assert np.exp(log_probabilities).sum() == pytest.approx(1)
    assert log_probabilities[:2].tolist() == [-np.inf, -np.inf]


def test_a_language_without_pieces_leaves_a_proper_distribution():
    counts = {**COUNTS, "eu": np.zeros(5, int)}
    probabilities = {"de": 0.2, "el": 0.3, "eu": 0.5}
    log_probabilities = unigram_log_probabilities(counts, probabilities, ORDINARY)
    assert np.exp(log_probabilities).sum() == pytest.approx(1)


def test_losses_are_means_over_the_targets_of_each_language():
    log_probabilities = np.log([1, 1, 0.5, 0.25, 0.125])
    share = {
        "language": np.array([0, 2, 2], np.int32),
        "mask_ids": np.array([[2, 0], [3, 4], [4, 0]], np.int32),
        "mask_weights": np.array([[1, 0], [1, 1], [1, 0]], np.float32),
    }
    losses = unigram_losses(log_probabilities, [[share], [share, share]], ["de", "el", "eu"])
    assert losses == pytest.approx({"de": np.log(2), "eu": np.log([4, 8, 8]).mean()})
