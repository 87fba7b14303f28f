"""How weights start."""

import contextlib
import contextvars
import math
from collections.abc import Iterator

import keras
import tensorflow as tf

STANDARD_DEVIATION = 0.02

_BLOCK_VALUES = 2**24

_LEFT_EMPTY = contextvars.ContextVar("left_empty", default=False)


@contextlib.contextmanager
def left_empty() -> Iterator[None]:
    """Inside, matrices and tables get memory and no values: for who assigns every one of them.

    To draw the weights of the released RemBERT takes half a minute. Memory that nobody has
    written to is none yet, so what is assigned later is never there beside what it replaces.
    """
    token = _LEFT_EMPTY.set(True)
    try:
        yield
    finally:
        _LEFT_EMPTY.reset(token)


@keras.saving.register_keras_serializable(package="kzoo")
class TruncatedNormal(keras.initializers.TruncatedNormal):
    """Keras's initializer, but large tables are drawn in blocks of rows, into their own memory.

    Drawn at once, a table takes three times its memory, and TensorFlow gives none of it back to
    the system: 5 GB for the output table of the released RemBERT.
    """

    def __call__(self, shape, dtype=None):
        if _LEFT_EMPTY.get() and tf.executing_eagerly():
            return tf.raw_ops.Empty(shape=shape, dtype=dtype or keras.config.floatx())
        if math.prod(shape) <= _BLOCK_VALUES or not tf.executing_eagerly():
            return super().__call__(shape, dtype)
        dtype = dtype or keras.config.floatx()
        rows, row_shape = shape[0], tuple(shape[1:])
        step = max(1, _BLOCK_VALUES // math.prod(row_shape))
        with tf.device("CPU:0"):
            table = tf.raw_ops.Empty(shape=shape, dtype=dtype)
            for start in range(0, rows, step):
                block = tf.random.stateless_truncated_normal(
                    (min(step, rows - start), *row_shape),
                    (self.seed, start),
                    self.mean,
                    self.stddev,
                    dtype,
                )
                where = tf.range(start, start + block.shape[0])
                # The result is `table` itself.
                tf.raw_ops.InplaceUpdate(x=table, i=where, v=block)
        return table


def truncated_normal() -> keras.initializers.Initializer:
    """A new truncated normal initializer of standard deviation 0.02, as in BERT.

    An instance gives the same values at every call, so each weight needs one of its own.
    """
    return TruncatedNormal(stddev=STANDARD_DEVIATION)
