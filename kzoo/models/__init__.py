"""Backbone, masked language model, and the table of presets."""

import os
import sys

from kzoo.errors import KzooError


def _check_backend() -> None:
    """Says in one line what would otherwise fail inside Keras, or much later."""
    backend = os.environ["KERAS_BACKEND"]
    if "keras" in sys.modules:
        backend = sys.modules["keras"].config.backend()
    if backend != "tensorflow":
        raise KzooError(
            "kzoo needs Keras's TensorFlow backend: set KERAS_BACKEND=tensorflow before Keras is "
            f"first imported. Received: {backend}"
        )


_check_backend()
