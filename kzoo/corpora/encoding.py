"""From the text of one shard to its records: a pure function, for whatever runs it."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from kzoo.corpora.examples import token_dtype
from kzoo.corpora.reading import BadText, BadTextPolicy, Document, parse
from kzoo.corpora.segments import Segment
from kzoo.corpora.windows import window_lengths
from kzoo.text.vocabulary import Vocabulary

# Encoded in one call. More take more memory and no less time.
_LINES_AT_A_TIME = 4000


@dataclasses.dataclass(frozen=True)
class EncodedShard:
    """The windows of a shard and what was counted on the way.

    Attributes:
        records: one window each, as example files store them.
        documents, sentences: of text; a sentence is a line that is not blank.
        piece_counts: how often each piece occurs; int64 [vocabulary_size].
        unknown_tokens: how many of them are unknown.
        bad_text: what could not be read as it was.
    """

    records: list[bytes]
    documents: int
    sentences: int
    piece_counts: np.ndarray
    unknown_tokens: int
    bad_text: BadText


def encode_shard(
    segments: Sequence[Segment],
    vocabulary: Vocabulary,
    *,
    sequence_length: int,
    text_field: str = "text",
    on_bad_text: BadTextPolicy = "error",
) -> EncodedShard:
    """Encodes documents and cuts them into windows of up to `sequence_length - 2` pieces.

    Args:
        segments: the text of the shard.
        vocabulary: what encodes it.
        sequence_length: of the longest window with its `[CLS]` and `[SEP]`.
        text_field: key of the text in JSON lines and Parquet.
        on_bad_text: what to do with text that cannot be read.

    Raises:
        KzooError: text cannot be read, and the policy is to stop there.
    """
    bad_text = BadText(on_bad_text)
    records: list[bytes] = []
    piece_counts = np.zeros(vocabulary.size, np.int64)
    num_documents = num_sentences = 0
    documents = itertools.chain.from_iterable(
        parse(segment, text_field, bad_text) for segment in segments
    )
    for batch in _batches(documents):
        token_ids, document_lengths = vocabulary.encode_documents(batch)
        lengths = [
            length
            for document_length in document_lengths
            for length in window_lengths(document_length, sequence_length - 2)
        ]
        records += _records(token_ids.astype(token_dtype(vocabulary.size)), lengths)
        piece_counts += np.bincount(token_ids, minlength=vocabulary.size)
        num_documents += len(batch)
        num_sentences += sum(map(len, batch))
    return EncodedShard(
        records=records,
        documents=num_documents - sum(segment.continues for segment in segments),
        sentences=num_sentences,
        piece_counts=piece_counts,
        unknown_tokens=int(piece_counts[vocabulary.unk_id]),
        bad_text=bad_text,
    )


def _batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Groups documents into batches of `_LINES_AT_A_TIME` lines, or the first to be more."""
    batch: list[Document] = []
    num_lines = 0
    for document in documents:
        batch.append(document)
        num_lines += len(document)
        if num_lines >= _LINES_AT_A_TIME:
            yield batch
            batch, num_lines = [], 0
    if batch:
        yield batch


def _records(token_ids: np.ndarray, lengths: list[int]) -> list[bytes]:
    data = token_ids.tobytes()
    ends = list(itertools.accumulate(length * token_ids.itemsize for length in lengths))
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
