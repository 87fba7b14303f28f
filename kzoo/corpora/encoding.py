"""From the text of one shard to its records: a pure function, for whatever runs it."""

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np

from kzoo.corpora.examples import token_dtype
from kzoo.corpora.reading import BadText, BadTextPolicy, parse
from kzoo.corpora.segments import Segment
from kzoo.corpora.windows import window_lengths
from kzoo.text.vocabulary import Vocabulary


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
    lines: list[str] = []
    document_sizes: list[int] = []
    for segment in segments:
        for document in parse(segment, text_field, bad_text):
            lines.extend(document)
            document_sizes.append(len(document))
    # One call for all lines: it costs a third less than one for each.
    token_ids, line_lengths = vocabulary.encode_lines(lines)
    rest = iter(line_lengths)
    lengths: list[int] = []
    for size in document_sizes:
        lengths += window_lengths(sum(itertools.islice(rest, size)), sequence_length - 2)
    piece_counts = np.bincount(token_ids, minlength=vocabulary.size)
    return EncodedShard(
        records=_records(token_ids.astype(token_dtype(vocabulary.size)), lengths),
        documents=len(document_sizes) - sum(segment.continues for segment in segments),
        sentences=len(lines),
        piece_counts=piece_counts,
        unknown_tokens=int(piece_counts[vocabulary.unk_id]),
        bad_text=bad_text,
    )


def _records(token_ids: np.ndarray, lengths: list[int]) -> list[bytes]:
    data = token_ids.tobytes()
    ends = list(itertools.accumulate(length * token_ids.itemsize for length in lengths))
    return [data[start:end] for start, end in zip([0, *ends], ends, strict=False)]
