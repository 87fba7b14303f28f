"""The windows of one split, read and masked."""

import numpy as np

from kzoo.corpora.examples import ExampleFiles
from kzoo.corpora.masking import MaskedWindow, MaskingVocabulary, mask_window, num_targets
from kzoo.corpora.random_bits import RandomBits
from kzoo.errors import KzooError


class MaskedWindows:
    """Reads a window and masks it; a function of (seed, split, language, index, epoch).

    Attributes:
        vocabulary: the control and ordinary pieces of the examples.
        sequence_length: of the longest masked window, [CLS] and [SEP] included.
        max_predictions: the most targets that a window can have.
    """

    def __init__(
        self,
        examples: ExampleFiles,
        split: str,
        *,
        sequence_length: int,
        mask_rate: float,
        max_predictions: int | None,
        whole_word_masking: bool,
        seed: int,
    ):
        """Opens nothing yet.

        Args:
            examples: prepared windows.
            split: "train" or "held_out".
            sequence_length: at least the one that the examples were prepared with.
            mask_rate: share of the ordinary pieces of a window to predict, in (0, 1].
            max_predictions: at most so many a window; None for what the rate gives.
            whole_word_masking: hide all pieces of a word together, see `words.WordBoundaries`.
            seed: of the masks.
        """
        self.vocabulary = MaskingVocabulary(examples.vocabulary(), whole_words=whole_word_masking)
        self.sequence_length = sequence_length
        self.max_predictions = num_targets(sequence_length - 2, mask_rate, max_predictions)
        self._examples = examples
        self._split = split
        self._mask_rate = mask_rate
        self._seed = seed

    def read(self, language: str, index: int, epoch: int) -> MaskedWindow:
        """The window `index` of a language, masked anew in every epoch.

        Raises:
            KzooError: the window is longer than `sequence_length` allows.
        """
        token_ids = self._examples.read(self._split, language, index)
        if len(token_ids) + 2 > self.sequence_length:
            raise KzooError(
                f"window {index} of {language!r} ({self._split}) has {len(token_ids)} pieces, "
                f"too many beside [CLS] and [SEP] for a sequence_length of {self.sequence_length}; "
                "prepare the examples again with that length, or raise it"
            )
        return mask_window(
            token_ids,
            RandomBits(self._seed, "masking", self._split, language, epoch, index),
            self.vocabulary,
            mask_rate=self._mask_rate,
            max_predictions=self.max_predictions,
        )

    def empty(self) -> MaskedWindow:
        """[CLS] [SEP] without targets: fills up a batch, and counts for nothing."""
        nothing = np.empty(0, np.int32)
        framed = np.array([self.vocabulary.cls_id, self.vocabulary.sep_id], np.int32)
        return MaskedWindow(framed, nothing, nothing)
