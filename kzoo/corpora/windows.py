"""How a document is cut into windows, each of which becomes one training example."""

from collections.abc import Iterable


def window_lengths(line_lengths: Iterable[int], limit: int) -> list[int]:
    """Cuts the pieces of one document, taken as one sequence, into windows.

    A window is filled with whole lines for as long as the next one fits, so that most windows
    begin where a line begins. A line that is longer than a window must be cut in any case: it
    first fills the open window, then as many whole ones as it can, and its tail opens the next,
    which following lines join. So no piece is lost, and of two neighbouring windows that are both
    less than full, the second began with a line that did not fit into the first.

    Args:
        line_lengths: number of pieces in each line of the document, in order.
        limit: number of pieces that a window can hold, at least 1.

    Returns:
        Number of pieces in each window, in order: from 1 to `limit`; their sum is that of
        `line_lengths`.
    """
    windows = []
    filled = 0
    for length in line_lengths:
        if filled + length <= limit:
            filled += length
        elif length <= limit:
            windows.append(filled)
            filled = length
        else:
            full, filled = divmod(filled + length, limit)
            windows.extend([limit] * full)
    if filled:
        windows.append(filled)
    return windows
