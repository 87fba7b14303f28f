"""How well a model predicts masked pieces of a text: to compare it before and after a change."""

import itertools
import os
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from kzoo.corpora.batching import Example, pad_batch, padding_sizes
from kzoo.corpora.masking import MaskedWindow, MaskingVocabulary, mask_window
from kzoo.corpora.random_bits import RandomBits
from kzoo.corpora.reading import read_documents
from kzoo.corpora.windows import window_lengths
from kzoo.errors import KzooError
from kzoo.interchange.source_model import BuiltModel
from kzoo.layers.vocabulary_loss import vocabulary_scores
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.text.vocabulary import Vocabulary

# Enough to see whether a model knows anything, and little for a large model on a CPU.
_MAX_WINDOWS = 64
_MAX_LENGTH = 128
# A piece between [CLS] and [SEP].
_MIN_LENGTH = 3
_BATCH_SIZE = 8
_SEED = 0


class MaskedLoss(NamedTuple):
    """The loss of a masked language model on a text.

    Attributes:
        nats: mean over the targets.
        targets: number of pieces that were predicted.
        windows: number of windows that they stand in.
    """

    nats: float
    targets: int
    windows: int


def masked_loss(
    built: BuiltModel, path: str | os.PathLike[str], text_field: str = "text"
) -> MaskedLoss:
    """Measures a model on the beginning of a text: up to 64 windows of up to 128 pieces.

    The masks depend on the text and the vocabulary alone.

    Args:
        built: a model with its head and its vocabulary.
        path: a text as `kzoo.corpora.reading.read_documents` takes it.
        text_field: key of the text in JSON lines and Parquet.

    Raises:
        KzooError: the text cannot be read, or has no piece to predict; or the model has no head or
            no vocabulary.
    """
    model, vocabulary = built.model, built.vocabulary
    if not isinstance(model, RemBertMaskedLM):
        raise KzooError("an encoder without its masked-LM head has no loss: leave --text out")
    if vocabulary is None:
        raise KzooError(
            f"without a vocabulary the loss on {os.fspath(path)} cannot be measured; --vocabulary "
            "names one, or leave --text out"
        )
    length = min(_MAX_LENGTH, model.backbone.max_sequence_length)
    if length < _MIN_LENGTH:
        raise KzooError(f"{length} positions have no room for a piece: leave --text out")
    windows = list(
        itertools.islice(_masked_windows(vocabulary, path, text_field, length), _MAX_WINDOWS)
    )
    nats = targets = 0
    for start in range(0, len(windows), _BATCH_SIZE):
        examples = [Example(window, 0) for window in windows[start : start + _BATCH_SIZE]]
        batch = pad_batch(
            examples,
            sizes=padding_sizes(length),
            num_predictions=None,
            pad_id=vocabulary.pad_id,
        )
        inputs = {
            "token_ids": batch["token_ids"],
            "padding_mask": batch["padding_mask"],
            "segment_ids": np.zeros_like(batch["token_ids"]),
        }
        hidden = model.backbone(inputs)["sequence_output"]
        rows, columns = np.nonzero(batch["mask_weights"])
        hidden = tf.gather_nd(hidden, np.stack([rows, batch["mask_positions"][rows, columns]], 1))
        losses, _ = vocabulary_scores(
            model.head.transform(hidden),
            tf.convert_to_tensor(model.head.table),
            tf.convert_to_tensor(model.head.bias),
            tf.constant(batch["mask_ids"][rows, columns]),
        )
        nats += float(tf.reduce_sum(losses))
        targets += len(rows)
    if not targets:
        raise KzooError(f"there is no piece to predict in {os.fspath(path)}")
    return MaskedLoss(nats / targets, targets, len(windows))


def _masked_windows(
    vocabulary: Vocabulary, path: str | os.PathLike[str], text_field: str, length: int
) -> Iterator[MaskedWindow]:
    pieces = MaskingVocabulary(vocabulary)
    index = 0
    for document in read_documents(os.fspath(path), text_field=text_field):
        ids = np.concatenate([vocabulary.encode(line) for line in document])
        ends = np.cumsum(window_lengths(len(ids), length - 2), dtype=int)
        for window in np.split(ids, ends[:-1]):
            yield mask_window(window, RandomBits(_SEED, "masked_loss", index), pieces)
            index += 1
