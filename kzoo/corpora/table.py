"""Tables of text."""

from collections.abc import Sequence


def format_table(rows: Sequence[Sequence[str]], names: int) -> str:
    """Aligns cells: the first `names` columns to the left, the others, numbers, to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index < names else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    )
