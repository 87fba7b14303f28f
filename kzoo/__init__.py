"""kzoo: multilingual encoders with decoupled embeddings, for TensorFlow and Keras.

Importing this package imports nothing heavy: TensorFlow is loaded when a class that needs it is
first asked for.
"""

import importlib

from kzoo import environment as _environment
from kzoo.errors import KzooError
from kzoo.version import __version__

_environment.prepare()

_LAZY = {
    "RemBertBackbone": "kzoo.models.backbone",
    "RemBertMaskedLM": "kzoo.models.masked_lm",
    "RemBertTokenizer": "kzoo.text.tokenizer",
}

__all__ = ["KzooError", "__version__", *_LAZY]


def __getattr__(name: str):
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'kzoo' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
