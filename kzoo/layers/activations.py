"""The activations of the feed-forward layers and of the masked-LM head."""

from collections.abc import Callable

import keras

from kzoo.errors import KzooError

_ACTIVATIONS = {
    "gelu": lambda inputs: keras.ops.gelu(inputs, approximate=False),
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
    if name not in _ACTIVATIONS:
        known = ", ".join(f'"{known}"' for known in _ACTIVATIONS)
        raise KzooError(f"`activation` must be one of {known}. Received: activation={name!r}")
    return _ACTIVATIONS[name]
