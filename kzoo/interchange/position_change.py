"""A position table of another length."""

from typing import Literal

import numpy as np

PositionMethod = Literal["interpolate", "repeat"]


def change_positions(table: np.ndarray, rows: int, method: PositionMethod | None) -> np.ndarray:
    """A longer or shorter position table.

    - Shorter: the first rows, as they are.
    - `repeat`: the old rows, and then the same again from the first on, as Longformer begins
      (arXiv 2004.05150, section 5). Every old row stays where it was.
    - `interpolate`: the old rows are spread evenly from the first to the last new one, with what
      lies on the line between two of them in between. The first and the last row are old ones, and
      every other one that an old one falls on.

    Args:
        table: float32 [old rows, width].
        rows: new rows.
        method: for a longer table.

    Returns:
        float32 [rows, width].
    """
    old_rows = len(table)
    if rows <= old_rows:
        return table[:rows]
    if method == "repeat":
        return table[np.arange(rows) % old_rows]
    # In integers, so that an old row that falls on a new one is copied to the bit.
    below, rest = np.divmod(np.arange(rows) * (old_rows - 1), rows - 1)
    above = np.minimum(below + 1, old_rows - 1)
    share = (rest / (rows - 1)).astype(np.float32)[:, None]
    return table[below] + share * (table[above] - table[below])
