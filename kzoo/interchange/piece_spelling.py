"""How the pieces of one vocabulary spell those that it does not have."""

from collections.abc import Sequence

import numpy as np

from kzoo.interchange.sentencepiece_proto import WORD_START, ModelProto, raw_processor
from kzoo.text.vocabulary import Vocabulary


def spellings(vocabulary: Vocabulary, pieces: Sequence[str]) -> list[np.ndarray]:
    """The pieces that have spelled each of some other pieces until now.

    A new piece's row begins as the mean of their rows.

    Args:
        vocabulary: the old one.
        pieces: strings of pieces, `▁` at the front of those that start a word.

    Returns:
        For each of `pieces` int64 [n], n at least 1: ids of the vocabulary. The unknown piece is
        among them only where nothing else says anything.
    """
    processor = raw_processor(ModelProto.FromString(vocabulary.model))
    return [
        _without_unknown(vocabulary, ids) for ids in processor.encode(list(pieces), out_type=int)
    ]


def _without_unknown(vocabulary: Vocabulary, ids: Sequence[int]) -> np.ndarray:
    """The ids of a spelling, without the unknown piece if there is any other.

    Nothing but `▁` before it says less about a word than that it was unknown.
    """
    known = [index for index in ids if index != vocabulary.unk_id]
    says_something = any(vocabulary.processor.id_to_piece(index) != WORD_START for index in known)
    return np.array(known if says_something else ids, np.int64)
