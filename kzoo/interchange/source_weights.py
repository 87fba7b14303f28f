"""The tensors of a file, or of many, by name; read one at a time."""

import collections
import dataclasses
from collections.abc import Callable, Iterable

import numpy as np

from kzoo.errors import KzooError


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """A tensor that has not been read.

    Attributes:
        shape: of the tensor.
        source: the file that it is in, for messages.
        load: reads it, float32 of `shape`.
    """

    shape: tuple[int, ...]
    source: str
    load: Callable[[], np.ndarray]


class SourceWeights:
    """Where weights come from, whatever kind of file holds them.

    A tensor is in memory only from `read` until its reader lets it go. `DerivedWeights` has the
    same four methods.

    Args:
        tensors: pairs of a name and a tensor.

    Raises:
        KzooError: two tensors have one name; all such names are listed.
    """

    def __init__(self, tensors: Iterable[tuple[str, StoredTensor]]):
        found: dict[str, list[StoredTensor]] = collections.defaultdict(list)
        for name, tensor in tensors:
            found[name].append(tensor)
        doubled = [
            f"{name} (in {' and '.join(tensor.source for tensor in same)})"
            for name, same in found.items()
            if len(same) > 1
        ]
        if doubled:
            raise KzooError(f"tensors that are there twice: {'; '.join(doubled)}")
        self._tensors = {name: same[0] for name, same in found.items()}

    def names(self) -> list[str]:
        """Every tensor, in the order of the file."""
        return list(self._tensors)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a tensor."""
        return self._tensors[name].shape

    def read(self, name: str) -> np.ndarray:
        """A tensor, float32.

        Raises:
            KzooError: it cannot be read, or is of a type that is no weight's.
        """
        return self._tensors[name].load()

    def source(self, name: str) -> str:
        """The file that a tensor is in, for messages."""
        return self._tensors[name].source

    def renamed(self, new_name: Callable[[str], str]) -> "SourceWeights":
        """The same tensors under other names.

        Raises:
            KzooError: two tensors get one name.
        """
        return SourceWeights((new_name(name), tensor) for name, tensor in self._tensors.items())
