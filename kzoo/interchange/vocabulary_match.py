"""The rows of one vocabulary's tables for another vocabulary's pieces."""

import dataclasses

import numpy as np

from kzoo.interchange.piece_spelling import spellings
from kzoo.interchange.sentencepiece_proto import ModelProto, PieceType
from kzoo.interchange.vocabulary_change import VocabularyChange
from kzoo.text.special_pieces import SPECIAL_PIECES
from kzoo.text.vocabulary import Vocabulary

_TEXT = (PieceType.NORMAL, PieceType.USER_DEFINED)


@dataclasses.dataclass(frozen=True)
class MatchedVocabulary:
    """What becomes of the rows of an old vocabulary.

    Attributes:
        change: what happens to tables.
        both: number of pieces that both vocabularies have.
        new: pieces whose rows are the mean of those that have spelled them.
        without_text: number of rows that begin as the padding's: of control pieces that the old
            vocabulary lacks, and of no piece.
        gone: number of pieces of the old vocabulary that the new one lacks.
    """

    change: VocabularyChange
    both: int
    new: list[str]
    without_text: int
    gone: int


def match_vocabulary(
    old: Vocabulary, old_rows: int, new: Vocabulary, new_rows: int
) -> MatchedVocabulary:
    """Finds for every piece of a new vocabulary the rows that it begins with.

    A piece that both have keeps its row, whatever its id; the special pieces are found by their
    strings too, which are the same in all vocabularies, of whatever type they are. Text that is a
    control piece elsewhere is not the same piece. What stands for no text begins as the padding's
    row, which is never predicted.

    Args:
        old: the vocabulary that the tables were trained with.
        old_rows: their rows, at least its pieces. What is more is spare.
        new: the vocabulary that they are to have.
        new_rows: rows that they are to have, at least its pieces.
    """
    old_ids = {key: index for index, key in enumerate(_keys(old))}
    keys = _keys(new)
    row_ids = np.full(new_rows, old.pad_id, np.int64)
    matched = {row: old_ids[key] for row, key in enumerate(keys) if key in old_ids}
    row_ids[list(matched)] = list(matched.values())
    spare = np.arange(max(old.size, new.size), min(old_rows, new_rows))
    row_ids[spare] = spare
    new_rows_of_text = [
        row for row, (_, kind) in enumerate(keys) if kind == "text" and row not in matched
    ]
    pieces = [keys[row][0] for row in new_rows_of_text]
    means = dict(zip(new_rows_of_text, spellings(old, pieces), strict=True))
    return MatchedVocabulary(
        change=VocabularyChange(row_ids, means),
        both=len(matched),
        new=pieces,
        without_text=new_rows - len(matched) - len(means) - len(spare),
        gone=old.size - len(matched),
    )


def _keys(vocabulary: Vocabulary) -> list[tuple[str, str]]:
    """What makes a piece the same piece: its string, and what it stands for."""
    keys = []
    for piece in ModelProto.FromString(vocabulary.model).pieces:
        kind = "text" if piece.type in _TEXT else PieceType(piece.type).name
        keys.append((piece.piece, "special" if piece.piece in SPECIAL_PIECES else kind))
    return keys
