"""Prepared examples that live in memory: as many and as odd as a test wants them."""

from collections.abc import Sequence

import numpy as np

from kzoo.corpora.random_bits import RandomBits

PAD, EOS, UNK, CLS, SEP, MASK = range(6)


class MemoryVocabulary:
    """The ids of a vocabulary: controls 0 to 5, then ordinary pieces, every third of which has a
    space in front."""

    pad_id, unk_id, cls_id, sep_id, mask_id = PAD, UNK, CLS, SEP, MASK

    def __init__(self, size: int = 1000):
        self.size = size
        self.ordinary_ids = np.arange(MASK + 1, size, dtype=np.int32)
        self.pieces = ["▁a" if index > MASK and index % 3 == 0 else "a" for index in range(size)]


class MemoryExamples:
    """Has the interface of `ExampleFiles`; holds lists of windows by split and language."""

    def __init__(
        self,
        windows: dict[str, dict[str, Sequence[np.ndarray]]],
        sentences: dict[str, int] | None = None,
        vocabulary_size: int = 1000,
    ):
        self._windows = windows
        self._sentences = sentences or {}
        self._vocabulary = MemoryVocabulary(vocabulary_size)

    def languages(self, split: str) -> list[str]:
        return list(self._windows.get(split, {}))

    def num_windows(self, split: str, language: str) -> int:
        return len(self._windows[split][language])

    def sentences(self, split: str, language: str) -> int:
        return self._sentences.get(language, self.num_windows(split, language))

    def read(self, split: str, language: str, index: int) -> np.ndarray:
        return self._windows[split][language][index]

    def vocabulary(self) -> MemoryVocabulary:
        return self._vocabulary


def windows(count: int, longest: int, *key: int | str, vocabulary_size: int = 1000):
    """`count` windows of 1 to `longest` ordinary pieces; the same for the same key."""
    bits = RandomBits("windows", *key)
    lengths = bits.integers(longest, count) + 1
    return [
        (bits.integers(vocabulary_size - MASK - 1, int(length)) + MASK + 1).astype(np.int32)
        for length in lengths
    ]


def three_languages(longest: int = 30) -> MemoryExamples:
    """Three languages of 400, 60 and 7 training windows, and 23, 8 and 1 held-out ones."""
    sizes = {"train": (400, 60, 7), "held_out": (23, 8, 1)}
    return MemoryExamples(
        {
            split: {
                language: windows(count, longest, split, language)
                for language, count in zip(("de", "el", "eu"), counts, strict=True)
            }
            for split, counts in sizes.items()
        }
    )
