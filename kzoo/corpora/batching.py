"""Examples of different lengths become the arrays of one batch."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kzoo.corpora.masking import MaskedWindow

Batch = dict[str, np.ndarray]


class Example(NamedTuple):
    """A masked window and its language.

    Attributes:
        window: ids with some pieces hidden, and the pieces that stood there.
        language: index into the `languages` of the source.
    """

    window: MaskedWindow
    language: int


def padding_sizes(sequence_length: int) -> list[int]:
    """The lengths that batches are padded to: eighths of the longest, in multiples of 8.

    Few, so that a step is compiled or planned for few shapes; near enough to each other, so that
    little of a batch is padding.

    >>> padding_sizes(128)
    [16, 32, 48, 64, 80, 96, 112, 128]
    """
    step = max(8, -(-sequence_length // 64) * 8)
    return [*range(step, sequence_length, step), sequence_length]


def pad_batch(
    examples: Sequence[Example], *, sizes: Sequence[int], num_predictions: int | None, pad_id: int
) -> Batch:
    """Pads examples to one length.

    Args:
        examples: b of them, at least one.
        sizes: ascending lengths to choose from; the shortest that fits the longest example is used.
        num_predictions: P; None for the largest number of targets in an example (but at least 1).
        pad_id: fills `token_ids`.

    Returns:
        With S the length chosen, every position in [0, S) and every id in [0, vocabulary size):

        - `token_ids`: int32 `[b, S]`
        - `padding_mask`: int32 `[b, S]`, 1 for a piece and 0 for padding
        - `mask_positions`: int32 `[b, P]`, ascending, then 0
        - `mask_ids`: int32 `[b, P]`, the pieces to predict, then 0
        - `mask_weights`: float32 `[b, P]`, 1 for a target and 0 for the rest
        - `language`: int32 `[b]`
    """
    lengths = np.array([len(example.window.token_ids) for example in examples])
    counts = np.array([len(example.window.mask_ids) for example in examples])
    length = next(size for size in sizes if size >= lengths.max())
    if num_predictions is None:
        num_predictions = max(1, int(counts.max()))
    token_ids = np.full((len(examples), length), pad_id, np.int32)
    mask_positions = np.zeros((len(examples), num_predictions), np.int32)
    mask_ids = np.zeros((len(examples), num_predictions), np.int32)
    for row, (window, _) in enumerate(examples):
        token_ids[row, : lengths[row]] = window.token_ids
        mask_positions[row, : counts[row]] = window.mask_positions
        mask_ids[row, : counts[row]] = window.mask_ids
    return {
        "token_ids": token_ids,
        "padding_mask": (np.arange(length) < lengths[:, None]).astype(np.int32),
        "mask_positions": mask_positions,
        "mask_ids": mask_ids,
        "mask_weights": (np.arange(num_predictions) < counts[:, None]).astype(np.float32),
        "language": np.array([example.language for example in examples], np.int32),
    }


def padding_share(batches: Sequence[Batch]) -> float:
    """The share of padding among all positions of some batches, in [0, 1)."""
    pieces = sum(int(batch["padding_mask"].sum()) for batch in batches)
    return 1 - pieces / sum(batch["padding_mask"].size for batch in batches)
