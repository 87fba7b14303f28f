"""Layers that run again for their gradient, so that what they computed need not be kept for it."""

import contextlib
import threading
from collections.abc import Callable, Iterator

import tensorflow as tf

_active = threading.local()


@contextlib.contextmanager
def recomputation(on: bool = True) -> Iterator[None]:
    """Sets whether what is `recomputable` and runs inside runs again for its gradient.

    This belongs to a way of training and not to a model, which is saved and exported as ever; and
    to the thread, as `dropout_seed` does. The gradient must be taken within the same
    `dropout_seed`, but may be taken outside of this.
    """
    outer = getattr(_active, "on", False)
    _active.on = on
    try:
        yield
    finally:
        _active.on = outer


def recomputable(function: Callable[[tf.Tensor], tf.Tensor], inputs: tf.Tensor) -> tf.Tensor:
    """`function(inputs)`; inside `recomputation`, nothing but `inputs` is kept for the gradient.

    The second run waits for the gradient of the output, through a number that it adds to the
    inputs, so that neither TensorFlow nor XLA takes both runs for one. `keras.RematScope` cannot
    do this: it is chosen when a layer is made, and fails in a graph where `training` is passed.

    Args:
        function: of one floating-point tensor and any variables. It may be called twice, and must
            do the same each time.
        inputs: what it is called with, of any shape.

    Returns:
        What the function returns, one floating-point tensor.
    """
    if not getattr(_active, "on", False):
        return function(inputs)
    return tf.recompute_grad(function)(inputs)
