"""Weights in memory, where files are not what a test is about."""

from collections.abc import Callable

import keras
import numpy as np


class Arrays:
    """A source of weights over a dictionary."""

    def __init__(self, arrays: dict[str, np.ndarray]):
        self._arrays = arrays

    def names(self) -> list[str]:
        return list(self._arrays)

    def shape(self, name: str) -> tuple[int, ...]:
        return self._arrays[name].shape

    def read(self, name: str) -> np.ndarray:
        return self._arrays[name]

    def source(self, name: str) -> str:
        return "weights.safetensors"


def arrays_of(model: keras.Model) -> Arrays:
    """The weights of a model under the paths of its variables."""
    return Arrays({variable.path: variable.numpy() for variable in model.variables})


def assign(
    model: keras.Model, weights, name_of: Callable[[str], str] = str, transpose: bool = False
) -> set[str]:
    """Assigns every variable of a model, and returns the names that are left over."""
    left = set(weights.names())
    for variable in model.variables:
        name = name_of(variable.path)
        value = weights.read(name)
        assert value.shape == weights.shape(name), name
        variable.assign(value.T if transpose and variable.path.endswith("/kernel") else value)
        left.remove(name)
    return left
