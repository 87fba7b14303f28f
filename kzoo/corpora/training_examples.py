"""The endless sequence of masked training examples, each a function of (seed, position)."""

from kzoo.corpora.batching import Example
from kzoo.corpora.examples import ExampleFiles
from kzoo.corpora.masked_windows import MaskedWindows
from kzoo.corpora.mixture import Interleave, language_probabilities
from kzoo.corpora.order import EpochOrder
from kzoo.errors import KzooError

_SPLIT = "train"
_NO_END = 2**62


class TrainingExamples:
    """A Grain data source whose element i is the i-th example of the run.

    What is at a position depends on the examples, the arguments and the position alone: not on
    workers, threads, batch size, or where the run was started again.

    Attributes:
        languages: names; `Example.language` is an index into them.
        language_probabilities: the share of the positions that each language gets.
        windows: the masked windows that the positions point at.
    """

    def __init__(
        self,
        examples: ExampleFiles,
        *,
        sequence_length: int,
        sampling_exponent: float = 0.5,
        mask_rate: float = 0.15,
        max_predictions: int | None = None,
        whole_word_masking: bool = False,
        seed: int = 0,
    ):
        """Works out mixture and orders; reads no window yet.

        Args:
            examples: prepared windows.
            sequence_length: at least the one that the examples were prepared with.
            sampling_exponent: see `mixture.language_probabilities`; the sizes are sentences.
            mask_rate: share of the ordinary pieces of a window to predict, in (0, 1].
            max_predictions: at most so many a window; None for what the rate gives.
            whole_word_masking: hide all pieces of a word together.
            seed: of mixture, order and masks.

        Raises:
            KzooError: there is no language, or a language without examples.
        """
        self.languages = list(examples.languages(_SPLIT))
        num_windows = {name: examples.num_windows(_SPLIT, name) for name in self.languages}
        if empty := [name for name, windows in num_windows.items() if windows == 0]:
            raise KzooError(
                f"no training examples for language {', '.join(map(repr, empty))}; "
                "prepare the examples again with text for it, or without it"
            )
        sentences = {name: examples.sentences(_SPLIT, name) for name in self.languages}
        self.language_probabilities = language_probabilities(sentences, sampling_exponent)
        self.windows = MaskedWindows(
            examples,
            _SPLIT,
            sequence_length=sequence_length,
            mask_rate=mask_rate,
            max_predictions=max_predictions,
            whole_word_masking=whole_word_masking,
            seed=seed,
        )
        self._interleave = Interleave(list(self.language_probabilities.values()), seed)
        self._orders = [EpochOrder(num_windows[name], seed, name) for name in self.languages]

    def __len__(self) -> int:
        """More positions than any run can use."""
        return _NO_END

    def __getitem__(self, position: int) -> Example:
        language, epoch, index = self._locate(position)
        return Example(self.windows.read(self.languages[language], index, epoch), language)

    def describe(self, position: int) -> str:
        """Where an example comes from, for messages: `example 7: window 12 of 'de', epoch 0`."""
        language, epoch, index = self._locate(position)
        return f"example {position}: window {index} of {self.languages[language]!r}, epoch {epoch}"

    def _locate(self, position: int) -> tuple[int, int, int]:
        """Language (an index into `languages`), epoch and window of a position."""
        language, draw = self._interleave.locate(position)
        return language, *self._orders[language].locate(draw)
