"""How one or two texts become one sequence."""

from collections.abc import Sequence

import numpy as np

from kzoo.errors import KzooError


def pack(
    a: Sequence[int] | np.ndarray,
    b: Sequence[int] | np.ndarray | None = None,
    *,
    cls_id: int,
    sep_id: int,
    sequence_length: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Packs pieces into `[CLS] a [SEP]`, or `[CLS] a [SEP] b [SEP]`.

    What is too long loses pieces from its end, the longer of the two first. An empty side keeps
    its [SEP].

    Args:
        a: ids of the first text's pieces.
        b: ids of the second text's, if there is a second text.
        cls_id: id of [CLS].
        sep_id: id of [SEP].
        sequence_length: the most ids that the sequence may have; any number by default.

    Returns:
        token_ids and segment_ids, both int32 [length]: segment 0 up to the first [SEP], 1 after.

    Raises:
        KzooError: if not even the special pieces fit.
    """
    num_special = 2 if b is None else 3
    a_length, b_length = len(a), 0 if b is None else len(b)
    if sequence_length is not None:
        room = sequence_length - num_special
        if room < 0:
            raise KzooError(
                f"a packed sequence has at least {num_special} ids ([CLS] and [SEP]). "
                f"Received: sequence_length={sequence_length}"
            )
        a_length, b_length = truncated_lengths(a_length, b_length, room)
    parts = [[cls_id], a[:a_length], [sep_id]]
    if b is not None:
        parts += [b[:b_length], [sep_id]]
    token_ids = np.concatenate([np.asarray(part, np.int32) for part in parts])
    segment_ids = np.zeros(len(token_ids), np.int32)
    segment_ids[a_length + 2 :] = 1
    return token_ids, segment_ids


def truncated_lengths(a_length: int, b_length: int, room: int) -> tuple[int, int]:
    """What is left of two lengths when the longer gives until both fit into `room`.

    At equal lengths the second gives, so that the first is the longer one by at most 1.
    """
    if a_length + b_length <= room:
        return a_length, b_length
    half = room // 2
    if a_length <= room - half:
        return a_length, room - a_length
    if b_length <= half:
        return room - b_length, b_length
    return room - half, half
