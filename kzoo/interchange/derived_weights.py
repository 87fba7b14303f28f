"""Weights that are computed from others when they are read."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    # It imports Keras, which processes that only count pieces do without.
    from kzoo.interchange.accounting import Weights


@dataclasses.dataclass(frozen=True)
class Derived:
    """A tensor that is made from others.

    Attributes:
        shape: of the result.
        sources: names of the tensors that it is made from.
        make: takes these tensors, float32, and returns the result.
    """

    shape: tuple[int, ...]
    sources: Sequence[str]
    make: Callable[..., np.ndarray]


class DerivedWeights:
    """Source weights some of whose tensors are replaced; a source of weights itself.

    What a derived tensor is made from is not there any more under its own name, unless a derived
    tensor has that name. Nothing is computed before it is read, and nothing is kept.

    Args:
        weights: where tensors are read from.
        derived: name → how it is made.
    """

    def __init__(self, weights: "Weights", derived: Mapping[str, Derived]):
        self._weights = weights
        self._derived = dict(derived)
        self._used = {source for one in derived.values() for source in one.sources}

    def names(self) -> list[str]:
        """The derived tensors, and those of the source that none is made from."""
        others = [name for name in self._weights.names() if name not in self._used]
        return [*self._derived, *(name for name in others if name not in self._derived)]

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        if name in self._derived:
            return self._derived[name].shape
        return self._weights.shape(name)

    def read(self, name: str) -> np.ndarray:
        """A tensor, float32."""
        if name not in self._derived:
            return self._weights.read(name)
        one = self._derived[name]
        return one.make(*(self._weights.read(source) for source in one.sources))

    def source(self, name: str) -> str:
        """Where a tensor comes from, for messages."""
        if name not in self._derived:
            return self._weights.source(name)
        sources = dict.fromkeys(self._weights.source(one) for one in self._derived[name].sources)
        return ", ".join(sources) or "kzoo"
