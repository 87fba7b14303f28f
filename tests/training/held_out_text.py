"""Held-out windows in memory, and the measurement of a small model on them."""

import numpy as np
import tensorflow as tf

from kzoo.corpora.held_out_examples import HeldOutExamples
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.training.cluster import Cluster
from kzoo.training.evaluation import Evaluation
from tests.corpora.memory_examples import MemoryExamples, windows
from tests.training import small_steps

MIXTURE = {"de": 0.75, "el": 0.25}
BATCH_SIZE = 8


class CountedExamples(MemoryExamples):
    """As `MemoryExamples`, with made-up counts of its pieces."""

    def piece_counts(self) -> dict[str, np.ndarray]:
        random = np.random.default_rng(5)
        return {
            language: random.integers(0, 50, small_steps.VOCABULARY_SIZE) for language in MIXTURE
        }


def examples(num_windows: int) -> CountedExamples:
    """So many held-out windows: one in three in the second language, if there is any."""
    greek = num_windows // 3
    sizes = {"de": num_windows - greek, "el": greek}
    held_out = {
        language: windows(count, 20, language, vocabulary_size=small_steps.VOCABULARY_SIZE)
        for language, count in sizes.items()
        if count
    }
    return CountedExamples({"held_out": held_out}, vocabulary_size=small_steps.VOCABULARY_SIZE)


def evaluation(
    model: RemBertMaskedLM,
    num_windows: int,
    strategy: tf.distribute.Strategy | None = None,
    *,
    static_shapes: bool = False,
) -> tuple[Evaluation, HeldOutExamples]:
    """The measurement, and the masked windows that it is made on."""
    prepared = examples(num_windows)
    held_out = HeldOutExamples(prepared, sequence_length=24, seed=2)
    strategy = strategy or tf.distribute.get_strategy()
    measurement = Evaluation(
        model,
        prepared,
        held_out,
        MIXTURE,
        strategy,
        Cluster(strategy),
        batch_size=BATCH_SIZE,
        static_shapes=static_shapes,
    )
    return measurement, held_out
