"""SavedModels that need no kzoo, and the Keras 3 layer that loads the encoder among them."""

import importlib

__all__ = ["EncoderLayer"]


def __getattr__(name: str):
    # On first use, since what is here is also imported where TensorFlow must not be.
    if name == "EncoderLayer":
        return importlib.import_module("kzoo.saved_model.encoder_layer").EncoderLayer
    raise AttributeError(f"module 'kzoo.saved_model' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
