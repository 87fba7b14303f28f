"""Masked language modelling: which pieces of a window are to be predicted, and what hides them."""

import math
from typing import NamedTuple

import numpy as np

from kzoo.corpora.random_bits import RandomBits
from kzoo.corpora.words import WordBoundaries
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
        words: where words begin and end, for whole-word masking; None without it.
    """

    def __init__(self, vocabulary: Vocabulary, *, whole_words: bool = False):
        self.pad_id = vocabulary.pad_id
        self.cls_id = vocabulary.cls_id
        self.sep_id = vocabulary.sep_id
        self.mask_id = vocabulary.mask_id
        self.ordinary_ids = np.asarray(vocabulary.ordinary_ids, np.int32)
        self.is_ordinary = np.zeros(vocabulary.size, bool)
        self.is_ordinary[self.ordinary_ids] = True
        self.words = WordBoundaries(vocabulary) if whole_words else None


def mask_window(
    token_ids: np.ndarray,
    bits: RandomBits,
    vocabulary: MaskingVocabulary,
    *,
    mask_rate: float = 0.15,
    max_predictions: int | None = None,
) -> MaskedWindow:
    """Frames a window with [CLS] and [SEP] and hides some of its pieces.

    Targets are ordinary pieces, chosen without replacement, all equally likely; or words, if the
    vocabulary knows them, see `_pieces_of_words`. [CLS], [SEP] and padding are never targets. Nor
    are unknown pieces, though they stay in the input: that some character has no piece is not worth
    predicting. Each target draws its own fate: [MASK], a random ordinary piece (which may be the
    target itself), or no change. The pieces of one word draw theirs independently too, as in
    BERT's own whole-word masking (google-research/bert, create_pretraining_data.py): only the
    choice of targets differs, and what is learnt at a target stays the same.

    Args:
        token_ids: integer `[n]`, without [CLS] and [SEP]; n may be 0.
        bits: where the draws come from; how many are used depends on the window alone.
        vocabulary: control and ordinary pieces, and words or not.
        mask_rate: share of the ordinary pieces that become targets, see `num_targets`.
        max_predictions: at most so many targets; None for no limit.
    """
    framed = np.empty(len(token_ids) + 2, np.int32)
    framed[0] = vocabulary.cls_id
    framed[1:-1] = token_ids
    framed[-1] = vocabulary.sep_id

    candidates = np.flatnonzero(vocabulary.is_ordinary[token_ids])
    count = num_targets(len(candidates), mask_rate, max_predictions)
    if vocabulary.words is None:
        chosen = np.argsort(bits.raw(len(candidates)), kind="stable")[:count]
    else:
        chosen = _pieces_of_words(vocabulary.words.numbers(token_ids)[candidates], count, bits)
    positions = np.sort(candidates[chosen] + 1).astype(np.int32)
    targets = framed[positions]

    fates = bits.uniform(len(targets))
    num_ordinary = len(vocabulary.ordinary_ids)
    replacements = vocabulary.ordinary_ids[bits.integers(num_ordinary, len(targets))]
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


def _pieces_of_words(words: np.ndarray, count: int, bits: RandomBits) -> np.ndarray:
    """Chooses whole words until `count` of their pieces are targets.

    Words are drawn without replacement, all equally likely, and taken in the order of the draw; one
    that has more pieces than are still to be chosen is passed over. So there are never more than
    `count` targets, and fewer only where no word that is left is short enough. Where not even the
    first word taken would be (all have more than `count` pieces), the first `count` pieces of the
    word drawn first are the targets. This is the rule of google-research/bert, which ends there
    without a target. It favours short words: with 77 targets, a piece of a word of 3 is chosen 2 %
    less often than others, with 15 targets 10 %; words of more than `count` pieces never are.

    Args:
        words: integer `[m]`, ascending: the word of each piece that can be a target.
        count: how many pieces; at most m.
        bits: where the draw comes from.

    Returns:
        Indices into `words`; int64, `[count]` or fewer.
    """
    begins = np.ones(len(words), bool)
    np.not_equal(words[1:], words[:-1], out=begins[1:])
    first = np.append(np.flatnonzero(begins), len(words))
    sizes = first[1:] - first[:-1]
    order = bits.raw(len(sizes)).argsort(kind="stable")
    taken = _that_fit(sizes[order], count)
    if not taken:
        return first[order[:1]].repeat(count) + np.arange(count)
    is_target = np.zeros(len(sizes), bool)
    is_target[order[taken]] = True
    return np.flatnonzero(is_target.repeat(sizes))


def _that_fit(sizes: np.ndarray, room: int) -> list[int]:
    """The indices of the sizes, in their order, that still fit into what the ones before left."""
    taken, start = [], 0
    while room and start < len(sizes):
        # A size is 1 or more, so no more than `room` of them fit at once.
        totals = sizes[start : start + room].cumsum()
        fitting = int(totals.searchsorted(room, side="right"))
        if fitting:
            taken.extend(range(start, start + fitting))
            room -= int(totals[fitting - 1])
        start += fitting
        fits = sizes[start:] <= room
        start += int(fits.argmax()) if room and fits.any() else len(fits)
    return taken
