"""The held-out windows, each once and always with the same masks."""

from collections.abc import Sequence

import numpy as np

from kzoo.corpora.batching import Example
from kzoo.corpora.examples import ExampleFiles
from kzoo.corpora.masked_windows import MaskedWindows
from kzoo.errors import KzooError

_SPLIT = "held_out"


class HeldOutExamples:
    """A Grain data source of the held-out windows, language by language.

    The masks of a window depend on (seed, language, window) alone, so two evaluations of a run, or
    of two runs with the same seed, predict the same targets.

    Attributes:
        languages: names; `Example.language` is an index into them.
        windows: the masked windows that the positions point at.
    """

    def __init__(
        self,
        examples: ExampleFiles,
        *,
        sequence_length: int,
        languages: Sequence[str] | None = None,
        limit: int | None = None,
        mask_rate: float = 0.15,
        max_predictions: int | None = None,
        whole_word_masking: bool = False,
        seed: int = 0,
    ):
        """Reads no window yet.

        Args:
            examples: prepared windows.
            sequence_length: at least the one that the examples were prepared with.
            languages: which, and in which order; None for all that have held-out text.
            limit: at most so many windows of each language, spread evenly over them; None for all.
            mask_rate: share of the ordinary pieces of a window to predict, in (0, 1].
            max_predictions: at most so many a window; None for what the rate gives.
            whole_word_masking: hide all pieces of a word together.
            seed: of the masks.

        Raises:
            KzooError: a language has no held-out text.
        """
        present = list(examples.languages(_SPLIT))
        self.languages = present if languages is None else list(languages)
        if missing := [name for name in self.languages if name not in present]:
            raise KzooError(
                f"no held-out text for language {', '.join(map(repr, missing))}; "
                f"there is some for {', '.join(present) or 'none'}"
            )
        self.windows = MaskedWindows(
            examples,
            _SPLIT,
            sequence_length=sequence_length,
            mask_rate=mask_rate,
            max_predictions=max_predictions,
            whole_word_masking=whole_word_masking,
            seed=seed,
        )
        self._num_windows = [examples.num_windows(_SPLIT, name) for name in self.languages]
        self._num_read = [
            windows if limit is None else min(windows, limit) for windows in self._num_windows
        ]
        self._ends = np.cumsum(self._num_read, dtype=np.int64)

    def __len__(self) -> int:
        return sum(self._num_read)

    def __getitem__(self, position: int) -> Example:
        language = int(np.searchsorted(self._ends, position, side="right"))
        num_read = self._num_read[language]
        rank = position - (int(self._ends[language]) - num_read)
        index = rank * self._num_windows[language] // num_read
        return Example(self.windows.read(self.languages[language], index, epoch=0), language)
