"""The vocabulary of XLM-R, with kzoo's special pieces where XLM-R has its own.

XLM-R's ids are those of its SentencePiece model moved by one: its program puts `<s>`, `<pad>`,
`</s>` and `<unk>` before the first ordinary piece, and `<mask>` after the last.
"""

import dataclasses

import numpy as np

from kzoo.errors import KzooError
from kzoo.interchange.sentencepiece_proto import ModelProto, PieceType, parse_model, serialize
from kzoo.interchange.vocabulary_change import VocabularyChange
from kzoo.text.special_pieces import CLS, END, MASK, PAD, SEP, UNKNOWN
from kzoo.text.vocabulary import Vocabulary

MODEL_FILE = "sentencepiece.bpe.model"
"""Its name in a folder of Hugging Face. It holds a unigram model, in spite of it."""

_THEIR_FIRST = (
    ("<unk>", PieceType.UNKNOWN),
    ("<s>", PieceType.CONTROL),
    ("</s>", PieceType.CONTROL),
)
_OUR_FIRST = (
    (CLS, PieceType.CONTROL),
    (PAD, PieceType.CONTROL),
    (SEP, PieceType.CONTROL),
    (UNKNOWN, PieceType.UNKNOWN),
)


@dataclasses.dataclass(frozen=True)
class ConvertedVocabulary:
    """XLM-R's vocabulary, made kzoo's.

    Attributes:
        vocabulary: gives XLM-R's ids.
        change: what happens to tables: XLM-R's `</s>` has become [SEP], and kzoo's own `</s>`,
            which nothing gives, gets a copy of its row, after all others.
    """

    vocabulary: Vocabulary
    change: VocabularyChange


def convert_vocabulary(model: bytes, source: str, num_rows: int) -> ConvertedVocabulary:
    """Makes a SentencePiece model whose ids are XLM-R's.

    Args:
        model: the serialized `sentencepiece.bpe.model`.
        source: its path, for messages.
        num_rows: rows of the model's tables (`vocab_size`).

    Raises:
        KzooError: it is no SentencePiece model, or not one such as XLM-R's, or it has more pieces
            than there are rows.
    """
    theirs = parse_model(model, source)
    first = tuple((piece.piece, piece.type) for piece in theirs.pieces[: len(_THEIR_FIRST)])
    if first != _THEIR_FIRST:
        raise KzooError(
            f"{source} is no vocabulary of XLM-R: it must begin with <unk>, <s> and </s>. "
            f"Received: {', '.join(piece for piece, _ in first)}"
        )
    ours = ModelProto()
    ours.CopyFrom(theirs)
    del ours.pieces[:]
    for text, kind in _OUR_FIRST:
        ours.pieces.add(piece=text, type=kind)
    ours.pieces.extend(theirs.pieces[len(_THEIR_FIRST) :])
    ours.pieces.add(piece=MASK, type=PieceType.CONTROL)
    if len(ours.pieces) > num_rows:
        raise KzooError(
            f"{source} has {len(theirs.pieces):,} pieces, so that <mask> is number "
            f"{len(ours.pieces) - 1:,}, but the tables have only {num_rows:,} rows: the files "
            "are of two different models"
        )
    end_id = len(ours.pieces)
    ours.pieces.add(piece=END, type=PieceType.CONTROL)
    row_ids = np.zeros(max(num_rows, end_id + 1), np.int64)
    row_ids[:num_rows] = np.arange(num_rows)
    sep_id = [text for text, _ in _OUR_FIRST].index(SEP)
    return ConvertedVocabulary(
        vocabulary=Vocabulary(serialize(ours), source),
        change=VocabularyChange(row_ids, {end_id: np.array([sep_id])}),
    )
