"""Weights in memory, where files are not what a test is about."""

from collections.abc import Mapping

import keras
import numpy as np

from kzoo.interchange.source_weights import SourceWeights, StoredTensor


def source_of(arrays: Mapping[str, np.ndarray]) -> SourceWeights:
    """Arrays, as if they were read from a file."""
    return SourceWeights(
        (name, StoredTensor(array.shape, "weights.safetensors", lambda array=array: array))
        for name, array in arrays.items()
    )


def weights_of(model: keras.Model) -> SourceWeights:
    """The weights of a model under the paths of its variables."""
    return source_of({variable.path: variable.numpy() for variable in model.variables})
