"""What a model without context achieves: the baseline that a masked language model must beat."""

from collections.abc import Iterable, Sequence

import numpy as np

from kzoo.corpora.batching import Batch


def unigram_log_probabilities(
    piece_counts: dict[str, np.ndarray],
    language_probabilities: dict[str, float],
    ordinary_ids: np.ndarray,
) -> np.ndarray:
    """The unigram model of the training mixture.

    The languages' distributions over ordinary pieces are mixed with their probabilities, scaled to
    as many pieces as were counted in all, and smoothed by adding one to each. Control, unknown
    and unused pieces, which are never targets, have probability 0.

    Args:
        piece_counts: of each language, integer `[V]`: how often each piece occurs in training.
        language_probabilities: share of each language in training; they sum to 1.
        ordinary_ids: integer `[m]`: the pieces that can be targets.

    Returns:
        float64 `[V]`, in nats; the exponentials sum to 1.
    """
    counts = {name: piece_counts[name][ordinary_ids] for name in language_probabilities}
    totals = {name: max(1, int(count.sum())) for name, count in counts.items()}
    mixture = sum(
        probability * counts[name] / totals[name]
        for name, probability in language_probabilities.items()
    )
    smoothed = mixture * sum(totals.values()) + 1
    log_probabilities = np.full(len(next(iter(piece_counts.values()))), -np.inf)
    log_probabilities[ordinary_ids] = np.log(smoothed / smoothed.sum())
    return log_probabilities


def unigram_losses(
    log_probabilities: np.ndarray, batches: Iterable[Sequence[Batch]], languages: Sequence[str]
) -> dict[str, float]:
    """The mean loss of a unigram model on the targets of each language.

    Args:
        log_probabilities: float `[V]`, in nats.
        batches: as `pipeline.batches` gives them.
        languages: names, which the batches' `language` is an index into.

    Returns:
        Nats per target; languages without targets are left out.
    """
    losses = np.zeros(len(languages))
    targets = np.zeros(len(languages))
    for batch in batches:
        for share in batch:
            rows, columns = np.nonzero(share["mask_weights"])
            language = share["language"][rows]
            nats = -log_probabilities[share["mask_ids"][rows, columns]]
            losses += np.bincount(language, nats, len(languages))
            targets += np.bincount(language, minlength=len(languages))
    return {
        name: float(losses[index] / targets[index])
        for index, name in enumerate(languages)
        if targets[index]
    }
