"""Settings that must stand in the environment before TensorFlow or Keras is first imported."""

import os


def prepare() -> None:
    """Chooses Keras's TensorFlow backend and silences TensorFlow's start-up noise.

    What the user has set is left alone; a wrong `KERAS_BACKEND` is reported where it matters,
    by `kzoo.models`.
    """
    os.environ.setdefault("KERAS_BACKEND", "tensorflow")
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
