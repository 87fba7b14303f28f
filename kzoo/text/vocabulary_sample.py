"""The sample of text that a vocabulary is trained on: smoothed over the languages."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import BinaryIO

from kzoo.corpora.random_bits import RandomBits
from kzoo.corpora.reading import Document
from kzoo.text.sentencepiece_trainer import MAX_LINE_BYTES

_DRAWS = 4096
# U+2585 is reserved by the trainer, which leaves out lines that have it; NUL it takes for a sign of
# text that is not UTF-8.
_REPLACED = str.maketrans({"\u2585": " ", "\0": " "})


def copies_per_sentence(
    sentences: Mapping[str, int], sampling_exponent: float, max_sentences: int
) -> dict[str, float]:
    """How often a sentence of each language is to be in the sample, on average.

    Languages get shares p ∝ n^α of the sample, n being their numbers of sentences. The sample is as
    large as it can be with no sentence of the largest language in it twice; so those of smaller
    languages may be in it several times.

    Args:
        sentences: number of sentences of each language, at least 1.
        sampling_exponent: α; 1 is proportional to size, 0 is the same for all.
        max_sentences: bound of the sample's size.
    """
    weights = {language: count**sampling_exponent for language, count in sentences.items()}
    total_weight = sum(weights.values())
    size = min(
        max_sentences,
        total_weight * max(count / weights[language] for language, count in sentences.items()),
    )
    return {
        language: size * weights[language] / total_weight / count
        for language, count in sentences.items()
    }


@dataclasses.dataclass
class SampleCounts:
    """What was written of one language.

    Attributes:
        sentences: repeated ones as often as they were written.
        lines: after long ones were split.
    """

    sentences: int = 0
    lines: int = 0


def write_sample(
    stream: BinaryIO,
    language: str,
    documents: Iterable[Document],
    copies: float,
    seed: int,
) -> SampleCounts:
    """Writes the sample of one language, a sentence a line.

    Args:
        stream: where to.
        language: its code: languages draw from streams of random numbers of their own.
        documents: the text.
        copies: how often a sentence is to be in the sample, on average. Each is there as often as
            the whole part says, and once more with the probability that is left.
        seed: of the draws.
    """
    counts = SampleCounts()
    draws = _draws(seed, language)
    for document in documents:
        for sentence in document:
            repeats = int(copies + next(draws))
            if not repeats:
                continue
            lines = [line + b"\n" for line in split_line(sentence.translate(_REPLACED).encode())]
            stream.writelines(lines * repeats)
            counts.sentences += repeats
            counts.lines += repeats * len(lines)
    return counts


def split_line(line: bytes, limit: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """Splits UTF-8 text into parts of up to `limit` bytes: at spaces, if they are near enough."""
    start = 0
    while len(line) - start > limit:
        end = line.rfind(b" ", start + limit // 2, start + limit) + 1
        if not end:
            end = start + limit
            # Not inside a character.
            while line[end] & 0xC0 == 0x80:
                end -= 1
        yield line[start:end]
        start = end
    yield line[start:]


def _draws(seed: int, language: str) -> Iterator[float]:
    bits = RandomBits(seed, "vocabulary", language)
    while True:
        yield from bits.uniform(_DRAWS).tolist()
