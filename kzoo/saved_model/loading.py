"""SavedModels into memory, or one error, whatever is wrong with their files."""

import os

import tensorflow as tf

from kzoo.errors import KzooError

# For graphs that it cannot make sense of, TensorFlow raises whatever its code stumbles over.
UNUSABLE = (
    *(AssertionError, AttributeError, KeyError, OSError, RuntimeError, TypeError, ValueError),
    tf.errors.OpError,
)


def load_saved_model(
    folder: str | os.PathLike[str], options: tf.saved_model.LoadOptions | None = None
):
    """What `tf.saved_model.load` returns.

    Args:
        folder: the SavedModel.
        options: how it is loaded.

    Raises:
        KzooError: if it cannot be loaded.
    """
    try:
        return tf.saved_model.load(os.fspath(folder), options=options)
    except UNUSABLE as error:
        raise KzooError(
            f"{os.fspath(folder)}: cannot load this SavedModel; export it again ({reason(error)})"
        ) from error


def reason(error: Exception) -> str:
    """What an error of TensorFlow says, without the graph's nodes around it."""
    lines = [line.strip() for line in getattr(error, "message", str(error)).splitlines()]
    failed = [line for line in lines if line.startswith("assertion failed: ")]
    return next(filter(None, failed + lines), type(error).__name__)
