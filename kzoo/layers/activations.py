"""The activations of the feed-forward layers and of the masked-LM head."""

import math
from collections.abc import Callable

import keras

from kzoo.errors import KzooError


def _gelu(inputs):
    """x·Φ(x), in the form that TensorFlow fuses with the matrix product before it.

    By erf and not by erfc, which is exact in relative terms far below 0, where the result is next
    to nothing, and takes half as long again.
    """
    return 0.5 * (keras.ops.erf(inputs * math.sqrt(0.5)) + 1.0) * inputs


_ACTIVATIONS = {
    "gelu": _gelu,
    "gelu_approximate": lambda inputs: keras.ops.gelu(inputs, approximate=True),
}


def get(name: str) -> Callable:
    """The activation of that name.

    "gelu" is x·Φ(x) with the error function, which Hugging Face's RemBERT uses;
    "gelu_approximate" is the tanh form of Google's BERT code. Taking one for the other moves the
    outputs of a model by about 1e-3.

    Raises:
        KzooError: for any other name.
    """
    check_activation(name)
    return _ACTIVATIONS[name]


def check_activation(name: object) -> None:
    """Raises a KzooError for what is no name of an activation."""
    if not isinstance(name, str) or name not in _ACTIVATIONS:
        known = ", ".join(f'"{known}"' for known in _ACTIVATIONS)
        raise KzooError(f"`activation` must be one of {known}. Received: activation={name!r}")
