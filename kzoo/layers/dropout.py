"""Dropout whose masks are a function of a seed alone."""

import contextlib
import threading
from collections.abc import Iterator

import keras
import tensorflow as tf

# Threefry on a TPU and Philox elsewhere would give another mask for the same seed.
_ALGORITHM = "philox"

_active = threading.local()


@contextlib.contextmanager
def dropout_seed(seed: tf.Tensor) -> Iterator[None]:
    """Sets the seed from which every `Dropout` that runs inside draws its mask.

    The seed belongs to the thread, so that each replica of a `tf.distribute` strategy can set its
    own. A gradient that runs layers again (`keras.RematScope`, `tf.recompute_grad`) must be taken
    inside too: it then sees the masks of the forward pass.

    Args:
        seed: integers [2]; a function of run, step, micro-batch and replica, as the caller likes.
    """
    outer = getattr(_active, "seed", None)
    _active.seed = seed
    try:
        yield
    finally:
        _active.seed = outer


@keras.saving.register_keras_serializable(package="kzoo")
class Dropout(keras.layers.Layer):
    """Dropout without state: the mask depends on the seed of `dropout_seed` and on `stream`.

    Keras's own layer keeps a seed variable, which gives every replica the same mask and a
    recomputed layer another one, and which must be checkpointed and exported. Outside of
    `dropout_seed` (in `fit`, or in an exported module) each call draws a fresh seed.

    Args:
        rate: the share of values that become 0 in training; the others grow by 1 / (1 - rate).
        stream: tells the dropouts of one model apart; two layers with equal numbers draw equal
            masks.
    """

    def __init__(self, rate: float, stream: int, **kwargs):
        super().__init__(**kwargs)
        self.rate = rate
        self.stream = stream
        self.built = True

    def call(self, inputs, training: bool = False):
        """Returns `inputs`, in training with values dropped; shape and dtype stay."""
        if not training or self.rate == 0:
            return inputs
        seed = getattr(_active, "seed", None)
        if seed is None:
            seed = tf.random.uniform([2], tf.int32.min, tf.int32.max, tf.int32)
        seed = tf.random.experimental.stateless_fold_in(seed, self.stream, alg=_ALGORITHM)
        return tf.nn.experimental.stateless_dropout(inputs, self.rate, seed, rng_alg=_ALGORITHM)

    def compute_output_shape(self, input_shape):
        return input_shape
