"""What a change of the vocabulary does to the tables that have a row for each piece."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from kzoo.errors import KzooError
from kzoo.interchange.derived_weights import Derived, DerivedWeights

if TYPE_CHECKING:
    from kzoo.interchange.accounting import Weights

TABLES_OF_PIECES = (
    "embeddings/token_embedding/embeddings",
    "masked_lm_head/table",
    "masked_lm_head/bias",
)
"""Paths of the variables of a `RemBertMaskedLM` that have a row for each piece. Each has its own
width; a tied model has no output table."""


@dataclasses.dataclass(frozen=True)
class VocabularyChange:
    """Which old rows a new table is made of. The same for every table, whatever its width.

    Attributes:
        row_ids: int64 [new size]: the old row that each new row is a copy of.
        means: new row → int64 [n], n at least 1: the old rows whose mean it is instead.
    """

    row_ids: np.ndarray
    means: Mapping[int, np.ndarray] = dataclasses.field(default_factory=dict)

    @property
    def size(self) -> int:
        """Rows of a new table."""
        return len(self.row_ids)

    def rows(self, table: np.ndarray) -> np.ndarray:
        """A new table, or a new bias.

        Args:
            table: float32 [old size, …].

        Returns:
            float32 [new size, …]; copies are equal to the bit.

        Raises:
            IndexError: the table has no such row.
        """
        if self.row_ids.max(initial=0) >= len(table):
            raise IndexError(f"no row {self.row_ids.max()} in a table of {len(table)}")
        new = np.empty((self.size, *table.shape[1:]), np.float32)
        # With any other mode NumPy would make another copy of the table on the way.
        np.take(table, self.row_ids, axis=0, out=new, mode="clip")
        for row, ids in self.means.items():
            new[row] = table[ids].mean(axis=0, dtype=np.float64)
        return new

    def apply(
        self, weights: "Weights", name_of: Callable[[str], str], num_rows: int
    ) -> DerivedWeights:
        """The weights of the model with the new vocabulary.

        Args:
            weights: a source of weights, with or without a head.
            name_of: from the path of a variable to the name of its tensor.
            num_rows: the size of the old vocabulary, as the model's configuration has it.

        Raises:
            KzooError: a table has another number of rows.
        """
        names = set(weights.names())
        derived = {}
        for name in map(name_of, TABLES_OF_PIECES):
            if name not in names:
                continue
            old_rows, *width = weights.shape(name)
            if old_rows != num_rows:
                raise KzooError(
                    f"{weights.source(name)}: {name} has {old_rows:,} rows; the model is said to "
                    f"have a vocabulary of {num_rows:,}"
                )
            derived[name] = Derived((self.size, *width), (name,), self.rows)
        return DerivedWeights(weights, derived)
