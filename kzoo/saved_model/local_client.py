"""A SavedModel that is run in this process, by TensorFlow and TensorFlow Text alone."""

import os
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

# Registers the SentencePiece operations; a graph that has them cannot be loaded without.
import tensorflow_text  # noqa: F401

from kzoo.errors import KzooError
from kzoo.saved_model.loading import load_saved_model, reason
from kzoo.saved_model.prediction import Signature

MODEL_FILE = "saved_model.pb"


class LocalClient:
    """Runs the signatures of a SavedModel.

    Attributes:
        source: its folder.
    """

    def __init__(self, folder: str | os.PathLike):
        """Loads a SavedModel.

        Raises:
            KzooError: if there is none in `folder`, or it cannot be read.
        """
        self.source = os.fspath(folder)
        _check(Path(folder))
        self._loaded = load_saved_model(folder)

    def signatures(self) -> Mapping[str, Signature]:
        """The model's signatures by name."""
        return {
            name: Signature(
                {
                    key: _numpy_type(spec)
                    for key, spec in found.structured_input_signature[1].items()
                },
                {key: _numpy_type(spec) for key, spec in found.structured_outputs.items()},
            )
            for name, found in self._loaded.signatures.items()
        }

    def run(self, signature: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs a signature; see `Client.run`."""
        tensors = {name: tf.convert_to_tensor(value) for name, value in inputs.items()}
        try:
            outputs = self._loaded.signatures[signature](**tensors)
        except tf.errors.OpError as error:
            raise KzooError(f"signature {signature!r} of {self.source}: {reason(error)}") from error
        return {name: value.numpy() for name, value in outputs.items()}


def _check(folder: Path) -> None:
    """Raises a KzooError that says what to name instead, where that can be told."""
    if (folder / MODEL_FILE).is_file():
        return
    if not folder.is_dir():
        raise KzooError(f"{folder}: no such folder; `python -m kzoo.export` makes one")
    # Of a whole export the versions for a server, which take text.
    base = folder / "serving" if (folder / "serving").is_dir() else folder
    versions = [child.name for child in base.iterdir() if (child / MODEL_FILE).is_file()]
    advice = f"; did you mean {base / max(versions, key=_as_number)}?" if versions else ""
    raise KzooError(f"{folder} is no SavedModel: it has no {MODEL_FILE}{advice}")


def _as_number(name: str) -> tuple[int, str]:
    return (int(name) if name.isdecimal() else -1, name)


def _numpy_type(spec: tf.TensorSpec) -> type:
    return spec.dtype.as_numpy_dtype
