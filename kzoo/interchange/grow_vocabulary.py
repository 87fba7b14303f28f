"""New pieces for a vocabulary, and rows for them.

The rows of old pieces stay as they are, to the bit, and so do their ids and logits. A new row is
the mean of the rows of the pieces that have spelled the new piece until now.

A new piece is an ordinary one, as likely as the rarest of the old ones, or a little more likely
than its best spelling where that is more. So it takes the spelling's place, competes with pieces
that overlap it as any other does, and leaves text alone that it does not occur in. A user-defined
piece would be cut out of longer words, whatever pieces these have.
"""

import collections
import dataclasses
import os
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from kzoo.errors import KzooError
from kzoo.interchange.piece_spelling import spellings
from kzoo.interchange.sentencepiece_proto import (
    WORD_START,
    ModelProto,
    PieceType,
    normal_scores,
    parse_model,
    raw_processor,
    serialize,
)
from kzoo.interchange.vocabulary_change import VocabularyChange
from kzoo.text.vocabulary import Vocabulary

# In nats. Much more than the rounding of SentencePiece's float32 sums over a long line, much less
# than what lies between two ways of spelling a word.
_MARGIN = 0.1

_SHOWN_PROBLEMS = 5


class NewPiece(NamedTuple):
    """A line of a file of new pieces.

    Attributes:
        text: the piece, `▁` at its front where it starts a word.
        where: the file and the line, for messages.
    """

    text: str
    where: str


@dataclasses.dataclass(frozen=True)
class GrownVocabulary:
    """What came of new pieces.

    Attributes:
        vocabulary: the vocabulary with them; ids of old pieces are the old ones.
        change: what happens to tables; the first rows are the old ones.
        added: the new pieces in the order of their ids, which follow the old ones.
        spellings: the pieces of the old vocabulary whose rows' mean each of them begins with.
        already_there: of the pieces that were asked for, those that there were already.
        only_inside: of `added`, those that their own text, standing alone, is not encoded to: they
            come up in the middle of longer words, if at all.
    """

    vocabulary: Vocabulary
    change: VocabularyChange
    added: list[str]
    spellings: list[list[str]]
    already_there: list[str]
    only_inside: list[str]


def read_pieces(path: str | os.PathLike[str]) -> list[NewPiece]:
    """Reads a file of new pieces: one a line, as SentencePiece's own lists have them.

    `▁tokenizer` starts a word, `tokenizer` stands inside of one. Blank lines are left out.

    Raises:
        KzooError: the file cannot be read, is not UTF-8, or has no piece.
    """
    path = os.fspath(path)
    try:
        with open(path, encoding="utf-8-sig", newline="\n") as stream:
            lines = [line.rstrip("\r\n") for line in stream]
    except OSError as error:
        raise KzooError(f"cannot read the new pieces in {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise KzooError(f"{path} is not UTF-8 text ({error.reason})") from error
    pieces = [
        NewPiece(line, f"{path}, line {number}")
        for number, line in enumerate(lines, 1)
        if line and not line.isspace()
    ]
    if not pieces:
        raise KzooError(f"there is no piece in {path}; write one a line, such as {WORD_START}word")
    return pieces


def grow_vocabulary(
    vocabulary: Vocabulary, pieces: Iterable[NewPiece], num_rows: int
) -> GrownVocabulary:
    """Adds pieces to a vocabulary.

    Args:
        vocabulary: of a unigram model.
        pieces: what to add; what is there already, or comes twice, is left out.
        num_rows: rows of the model's tables, at least the number of pieces. What is more is spare,
            and taken by the first new pieces.

    Raises:
        KzooError: the vocabulary is not a unigram model, or text could never give a piece; all
            such pieces are named.
    """
    proto = parse_model(vocabulary.model, vocabulary.source)
    wanted, already_there = _new_and_old(vocabulary, proto, pieces)
    spelled = spellings(vocabulary, wanted)
    scores = _scores(proto, wanted)
    for text in wanted:
        proto.pieces.add(piece=text, score=scores[text], type=PieceType.NORMAL)
    grown = Vocabulary(serialize(proto), f"{vocabulary.source} with {len(wanted):,} new pieces")

    size = max(num_rows, grown.size)
    row_ids = np.zeros(size, np.int64)
    row_ids[:num_rows] = np.arange(num_rows)
    means = {vocabulary.size + index: ids for index, ids in enumerate(spelled)}
    return GrownVocabulary(
        vocabulary=grown,
        change=VocabularyChange(row_ids, means),
        added=wanted,
        spellings=[[proto.pieces[index].piece for index in ids.tolist()] for ids in means.values()],
        already_there=already_there,
        only_inside=_only_inside(grown, wanted, vocabulary.size),
    )


def _new_and_old(
    vocabulary: Vocabulary, proto: ModelProto, pieces: Iterable[NewPiece]
) -> tuple[list[str], list[str]]:
    """The pieces to add, and those that are there already.

    Raises:
        KzooError: text could never give one of them, or must not.
    """
    types = {piece.piece: piece.type for piece in proto.pieces}
    new: dict[str, None] = {}
    old, problems = [], []
    for text, where in pieces:
        normalized = _normalized(vocabulary, text)
        if types.get(text, PieceType.NORMAL) not in (PieceType.NORMAL, PieceType.USER_DEFINED):
            kind = PieceType(types[text]).name
            problems.append(f"{where}: {text!r} is a piece of type {kind}, which text never gives")
        elif text in types or text in new:
            old.append(text)
        elif text != normalized:
            problems.append(
                f"{where}: text never gives {text!r}, since this vocabulary's normalisation makes "
                + (f"{normalized!r} of it" if normalized.strip(WORD_START) else "nothing of it")
            )
        else:
            new[text] = None
    if problems:
        more = len(problems) - _SHOWN_PROBLEMS
        raise KzooError(
            "\n".join(problems[:_SHOWN_PROBLEMS]) + (f"\n… and {more:,} more" if more > 0 else "")
        )
    return list(new), old


def _normalized(vocabulary: Vocabulary, piece: str) -> str:
    """What is left of a piece's text; equal to the piece if text can give it."""
    normalized = vocabulary.processor.normalize(piece.replace(WORD_START, " "))
    start = WORD_START if piece.startswith(WORD_START) else ""
    return start + normalized.lstrip(WORD_START)


def _scores(proto: ModelProto, pieces: Sequence[str]) -> dict[str, float]:
    """The score of each new piece: a margin above the best spelling, other new pieces included.

    From the shortest to the longest, since a longer piece can be spelled by a shorter one. Scores
    stay between the lowest and the highest of the old ones, from which others are derived.
    """
    lowest, highest = normal_scores(proto)
    by_length: dict[int, list[str]] = collections.defaultdict(list)
    for text in pieces:
        by_length[len(text)].append(text)
    growing = ModelProto()
    growing.CopyFrom(proto)
    scores: dict[str, float] = {}
    for length in sorted(by_length):
        processor = raw_processor(growing)
        for text in by_length[length]:
            spelling = [growing.pieces[index] for index in processor.encode(text, out_type=int)]
            score = lowest
            if all(piece.type in (PieceType.NORMAL, PieceType.USER_DEFINED) for piece in spelling):
                score = sum(piece.score for piece in spelling) + _MARGIN
            scores[text] = min(max(score, lowest), highest)
        for text in by_length[length]:
            growing.pieces.add(piece=text, score=scores[text], type=PieceType.NORMAL)
    return scores


def _only_inside(grown: Vocabulary, pieces: Sequence[str], first_id: int) -> list[str]:
    texts = [piece.replace(WORD_START, " ") for piece in pieces]
    encoded = grown.processor.encode(texts, out_type=int)
    return [
        piece
        for index, (piece, ids) in enumerate(zip(pieces, encoded, strict=True))
        if first_id + index not in ids
    ]
