"""What must be settled before TensorFlow or Keras is first imported."""

import logging
import os

from absl import logging as absl_logging


def prepare() -> None:
    """Chooses Keras's TensorFlow backend and silences noise of the libraries' start.

    What the user has set is left alone; a wrong `KERAS_BACKEND` is reported where it matters,
    by `kzoo.models`.
    """
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    absl_logging.get_absl_logger().addFilter(_is_not_about_jax)


def _is_not_about_jax(record: logging.LogRecord) -> bool:
    """Grain, which Keras imports too, warns that JAX is missing; nothing here needs it."""
    return not str(record.msg).startswith("Failed to load jax profiler")
