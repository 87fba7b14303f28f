"""Masked language modelling: which pieces of a window are to be predicted, and what hides them."""

import math
from typing import NamedTuple

import numpy as np

from kzoo.corpora.random_bits import RandomBits
from kzoo.text.vocabulary import Vocabulary

# BERT's split, which the RemBERT paper does not restate: 80 % of the targets are hidden by [MASK],
# 10 % by a random piece, and 10 % are left as they are.
MASKED = 0.8
MASKED_OR_RANDOM = 0.9


class MaskedWindow(NamedTuple):
    """`[CLS] pieces [SEP]` with some pieces hidden, and what was there.

    Attributes:
        token_ids: int32 `[n + 2]` for a window of n pieces.
        mask_positions: int32 `[k]`, ascending, counted from [CLS] = 0.
        mask_ids: int32 `[k]`, the pieces that stood there.
    """

    token_ids: np.ndarray
    mask_positions: np.ndarray
    mask_ids: np.ndarray


class MaskingVocabulary:
    """What masking has to know of a vocabulary, looked up once.

    Attributes:
        pad_id, cls_id, sep_id, mask_id: control pieces.
        ordinary_ids: int32 `[m]`, every piece but control, unknown and unused ones.
        is_ordinary: bool `[vocabulary size]`.
    """

    def __init__(self, vocabulary: Vocabulary):
        self.pad_id = vocabulary.pad_id
        self.cls_id = vocabulary.cls_id
        self.sep_id = vocabulary.sep_id
        self.mask_id = vocabulary.mask_id
        self.ordinary_ids = np.asarray(vocabulary.ordinary_ids, np.int32)
        self.is_ordinary = np.zeros(vocabulary.size, bool)
        self.is_ordinary[self.ordinary_ids] = True


def mask_window(
    token_ids: np.ndarray,
    bits: RandomBits,
    vocabulary: MaskingVocabulary,
    *,
    mask_rate: float = 0.15,
    max_predictions: int | None = None,
) -> MaskedWindow:
    """Frames a window with [CLS] and [SEP] and hides some of its pieces.

    Targets are ordinary pieces, chosen without replacement, all equally likely. [CLS], [SEP] and
    padding are never targets. Nor are unknown pieces, though they stay in the input: that some
    character has no piece is not worth predicting. Each target draws its own fate: [MASK], a
    random ordinary piece (which may be the target itself), or no change.

    Args:
        token_ids: integer `[n]`, without [CLS] and [SEP]; n may be 0.
        bits: where the draws come from; how many are used depends on the window alone.
        vocabulary: control and ordinary pieces.
        mask_rate: share of the ordinary pieces that become targets, see `num_targets`.
        max_predictions: at most so many targets; None for no limit.
    """
    framed = np.empty(len(token_ids) + 2, np.int32)
    framed[0] = vocabulary.cls_id
    framed[1:-1] = token_ids
    framed[-1] = vocabulary.sep_id

    candidates = np.flatnonzero(vocabulary.is_ordinary[token_ids]) + 1
    count = num_targets(len(candidates), mask_rate, max_predictions)
    chosen = np.argsort(bits.raw(len(candidates)), kind="stable")[:count]
    positions = np.sort(candidates[chosen]).astype(np.int32)
    targets = framed[positions]

    fates = bits.uniform(count)
    replacements = vocabulary.ordinary_ids[bits.integers(len(vocabulary.ordinary_ids), count)]
    hidden = np.where(fates < MASKED_OR_RANDOM, replacements, targets)
    framed[positions] = np.where(fates < MASKED, vocabulary.mask_id, hidden)
    return MaskedWindow(framed, positions, targets)


def num_targets(num_candidates: int, mask_rate: float, max_predictions: int | None = None) -> int:
    """How many of the ordinary pieces of a window become targets.

    The nearest integer to `mask_rate * num_candidates` (halves upwards), but at least one where
    there is a candidate, and at most `max_predictions`.
    """
    if num_candidates == 0:
        return 0
    count = max(1, math.floor(mask_rate * num_candidates + 0.5))
    return count if max_predictions is None else min(count, max_predictions)
