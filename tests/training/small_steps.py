"""Small models, batches and training steps, in this process or in one of several devices."""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from kzoo.corpora.batching import Batch, Example, pad_batch
from kzoo.corpora.masking import MaskedWindow
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.training.optimizer import AdamW, decayed_variables
from kzoo.training.step import TrainingStep, trainable_weights
from tests.models import shapes

VOCABULARY_SIZE = 90
# An id that `batch` never draws.
UNUSED_ID = VOCABULARY_SIZE - 1
WEIGHT_DECAY = 0.1
# Far below the gradients' norms, so that clipping bites at every step.
CLIP_NORM = 0.1
RATE = 1e-3


def model(output_embedding_dim: int | str = 40, **changes) -> RemBertMaskedLM:
    """One layer over a small vocabulary; the same weights at every call."""
    keras.utils.set_random_seed(1)
    return shapes.masked_lm(
        output_embedding_dim, **{"num_layers": 1, "vocabulary_size": VOCABULARY_SIZE, **changes}
    )


def batch(targets: Sequence[int], *, seed: int = 0, length: int = 20, slots: int = 6) -> Batch:
    """Rows of random lengths with these numbers of targets, and padding at the end of all."""
    random = np.random.default_rng(seed)
    examples = []
    for count in targets:
        size = int(random.integers(count + 2, length))
        token_ids = random.integers(6, UNUSED_ID, size, dtype=np.int32)
        positions = np.sort(random.permutation(size - 2)[:count] + 1).astype(np.int32)
        mask_ids = random.integers(6, UNUSED_ID, count, dtype=np.int32)
        examples.append(Example(MaskedWindow(token_ids, positions, mask_ids), language=0))
    return pad_batch(examples, sizes=[length], num_predictions=slots, pad_id=0)


def without_targets(full: Batch) -> Batch:
    """The same rows with nothing to predict."""
    return {**full, "mask_weights": np.zeros_like(full["mask_weights"])}


def training_step(
    trained: RemBertMaskedLM, strategy: tf.distribute.Strategy | None = None, **settings
) -> TrainingStep:
    """A step whose clipping and decay are felt; `settings` are `TrainingStep`'s."""
    strategy = strategy or tf.distribute.get_strategy()
    with strategy.scope():
        optimizer = AdamW(
            trainable_weights(trained),
            decayed_variables(trained),
            weight_decay=WEIGHT_DECAY,
            clip_norm=CLIP_NORM,
        )
    return TrainingStep(trained, optimizer, strategy, **settings)


def values(variables: Sequence[keras.Variable]) -> list[np.ndarray]:
    """Copies of what the variables hold."""
    return [variable.numpy().copy() for variable in variables]
