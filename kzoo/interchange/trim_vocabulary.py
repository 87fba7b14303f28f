"""A vocabulary without the pieces that a corpus does not use.

On the text of that corpus nothing changes but the numbers of the pieces: a path through the
lattice of a unigram model that was the best among all stays the best among some. On other text,
words fall into smaller pieces, and characters may become unknown.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from kzoo.corpora import reading
from kzoo.corpora.pool import available_cores, run_in_order
from kzoo.corpora.progress import ReadingProgress
from kzoo.corpora.segments import Segment, read_shards
from kzoo.interchange.sentencepiece_proto import (
    WORD_START,
    ModelProto,
    PieceType,
    parse_model,
    serialize,
)
from kzoo.interchange.vocabulary_change import VocabularyChange
from kzoo.storage import files
from kzoo.text.vocabulary import Vocabulary

# What stands for text that has no pieces of its own, and what never stands for text.
_ALWAYS_KEPT = (PieceType.CONTROL, PieceType.UNKNOWN, PieceType.BYTE)

# As many as preparation encodes in one call.
_LINES_AT_A_TIME = 4000
_SHARD_BYTES = 8_000_000


class CorpusUse(NamedTuple):
    """Which pieces a corpus uses.

    Attributes:
        counts: int64 [vocabulary size]: how often each piece occurs.
        documents: that were read.
    """

    counts: np.ndarray
    documents: int


@dataclasses.dataclass(frozen=True)
class TrimmedVocabulary:
    """What is left of a vocabulary.

    Attributes:
        vocabulary: its pieces in their old order, under new ids.
        change: what happens to tables; `change.row_ids` are the old ids of the pieces that stay.
        removed: number of rows that tables lose, spare rows (of no piece) included.
    """

    vocabulary: Vocabulary
    change: VocabularyChange
    removed: int


def count_pieces(
    paths: Mapping[str, Sequence[str]],
    vocabulary: Vocabulary,
    *,
    text_field: str = "text",
    on_bad_text: reading.BadTextPolicy = "error",
    workers: int | None = None,
) -> CorpusUse:
    """Encodes a corpus, on all cores and in bounded memory, and counts its pieces.

    Args:
        paths: for every language its files, as `kzoo.corpora.files.find_files` gives them.
        vocabulary: what encodes them.
        text_field: key of the text in JSON lines and Parquet.
        on_bad_text: what to do with text that cannot be read: `error`, `replace` or `skip`.
        workers: number of processes; None for one a core.

    Raises:
        KzooError: text cannot be read, or a language has none.
    """
    total_bytes = sum(files.stat(path).size_bytes for group in paths.values() for path in group)
    counts = np.zeros(vocabulary.size, np.int64)
    documents = bad_lines = 0
    places: list[str] = []
    with ReadingProgress("count pieces", total_bytes) as progress:

        def shards() -> Iterator[list[Segment]]:
            for group in paths.values():
                yield from read_shards(
                    group, _SHARD_BYTES, text_field=text_field, on_read=progress.read
                )

        count = functools.partial(_count_shard, vocabulary.model, text_field, on_bad_text)
        for shard in run_in_order(count, shards(), workers or available_cores()):
            counts += shard.counts
            documents += shard.documents
            bad_lines += shard.bad_text.replaced + shard.bad_text.skipped
            places += shard.bad_text.places
            progress.done(shard.documents)
    reading.warn_of_bad_lines("the corpus", bad_lines, places)
    return CorpusUse(counts, documents)


def trim_vocabulary(vocabulary: Vocabulary, counts: np.ndarray, num_rows: int) -> TrimmedVocabulary:
    """Takes the pieces out that do not occur.

    Control, unknown and byte pieces stay, and the `▁` that is before a word that has no piece. So
    do one piece of the lowest score, from which SentencePiece derives that of unknown characters,
    and, with user-defined pieces, one of the highest.

    Args:
        vocabulary: of a unigram model.
        counts: integers [vocabulary size]: how often each piece occurs.
        num_rows: rows of the model's tables, at least the number of pieces.

    Raises:
        KzooError: the vocabulary is not a unigram model.
    """
    proto = parse_model(vocabulary.model, vocabulary.source)
    kept = counts > 0
    kept |= np.array(
        [piece.type in _ALWAYS_KEPT or piece.piece == WORD_START for piece in proto.pieces]
    )
    kept[_score_keepers(proto, kept)] = True
    row_ids = np.flatnonzero(kept)

    trimmed = ModelProto()
    trimmed.CopyFrom(proto)
    del trimmed.pieces[:]
    trimmed.pieces.extend(proto.pieces[index] for index in row_ids.tolist())
    return TrimmedVocabulary(
        vocabulary=Vocabulary(serialize(trimmed), f"{vocabulary.source}, trimmed"),
        change=VocabularyChange(row_ids),
        removed=num_rows - len(row_ids),
    )


def _score_keepers(proto: ModelProto, kept: np.ndarray) -> list[int]:
    """The pieces that stay only because the scores of others are derived from theirs."""
    normal = [index for index, piece in enumerate(proto.pieces) if piece.type == PieceType.NORMAL]
    if not normal:
        return []
    scores = np.array([proto.pieces[index].score for index in normal])
    among_kept = kept[normal]
    derived = [scores.min()]
    if any(piece.type == PieceType.USER_DEFINED for piece in proto.pieces):
        derived.append(scores.max())
    keepers = []
    for score in derived:
        candidates = np.flatnonzero(scores == score)
        if not among_kept[candidates].any():
            keepers.append(normal[candidates[0]])
    return keepers


class _ShardCounts(NamedTuple):
    counts: np.ndarray
    documents: int
    bad_text: reading.BadText


_load_once = functools.lru_cache(maxsize=1)(Vocabulary)


def _count_shard(
    model: bytes,
    text_field: str,
    on_bad_text: reading.BadTextPolicy,
    segments: Sequence[Segment],
) -> _ShardCounts:
    """Counts the pieces of one shard: what a worker does."""
    vocabulary = _load_once(model)
    bad_text = reading.BadText(on_bad_text)
    counts = np.zeros(vocabulary.size, np.int64)
    # A document that was too long for one segment is not counted again where it goes on.
    documents = -sum(segment.continues for segment in segments)
    lines: list[str] = []
    for segment in segments:
        for document in reading.parse(segment, text_field, bad_text):
            documents += 1
            lines += document
            if len(lines) >= _LINES_AT_A_TIME:
                counts += _count_lines(vocabulary, lines)
                lines = []
    counts += _count_lines(vocabulary, lines)
    return _ShardCounts(counts, documents, bad_text)


def _count_lines(vocabulary: Vocabulary, lines: list[str]) -> np.ndarray:
    ids = vocabulary.encode_documents([lines])[0]
    return np.bincount(ids, minlength=vocabulary.size)
