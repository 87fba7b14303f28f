"""The module that TensorFlow Serving serves: text in, vectors out."""

import functools
import os

import numpy as np
import tensorflow as tf

from kzoo.models.backbone import RemBertBackbone
from kzoo.saved_model.encoding import (
    TEXT,
    check_fits,
    encode,
    ids_spec,
    named_variables,
    save_with_signatures,
)
from kzoo.saved_model.signature_names import INPUT_NAMES
from kzoo.saved_model.text_graph import TextGraph

# Two texts of different lengths and scripts, so that the graph has something to pad.
WARMUP_TEXTS = ("Text", "Mehr Text, длинный текст, 更长的文本")


class ServingModule(tf.Module):
    """An encoder with signatures for text and for ids.

    Signatures:

    - `serving_default`: `text` string [batch] → `pooled_output` float32 [batch, H].
    - `sequence_output`: `text` → `sequence_output` float32 [batch, length, H] and `input_mask`
      int32 [batch, length], 1 at the tokens: [CLS], the pieces, [SEP].
    - `from_ids`: `input_word_ids`, `input_mask`, `input_type_ids` int32 [batch, length] →
      `pooled_output`, `sequence_output`.

    Text is cut to `sequence_length` and padded inside the graph, to the longest row of its batch:
    short texts cost little. Outputs are float32. The first dimension of every input and output is
    the batch, of any size (0 too), so that a server may put requests together.

    Attributes:
        model_name: the name under which it is served.
        sequence_length: the most tokens that a text may have, [CLS] and [SEP] among them.
        named_variables: the backbone's variables, under their paths.
    """

    model_name = "encoder"

    def __init__(self, backbone: RemBertBackbone, text_graph: TextGraph, sequence_length: int):
        """Makes the module of a backbone's own variables, whatever their precision.

        Raises:
            KzooError: if the backbone has too few positions, or no row for a piece.
        """
        super().__init__(name="serving")
        check_fits(backbone, text_graph, sequence_length)
        self.sequence_length = sequence_length
        self.named_variables = named_variables(backbone)
        self._text_graph = text_graph
        # A function, and not the backbone, which would be stored with its layers.
        self._encode = functools.partial(encode, backbone)

    @tf.function(input_signature=[TEXT], autograph=False)
    def serving_default(self, text):
        """Text → `pooled_output`."""
        return {"pooled_output": self._encode(self._packed(text))["pooled_output"]}

    @tf.function(input_signature=[TEXT], autograph=False)
    def sequence_output(self, text):
        """Text → `sequence_output` and `input_mask`."""
        packed = self._packed(text)
        outputs = self._encode(packed)
        return {
            "sequence_output": outputs["sequence_output"],
            "input_mask": packed["input_mask"],
        }

    @tf.function(input_signature=[ids_spec(name) for name in INPUT_NAMES], autograph=False)
    def from_ids(self, input_word_ids, input_mask, input_type_ids):
        """Ids → `pooled_output` and `sequence_output`."""
        values = (input_word_ids, input_mask, input_type_ids)
        outputs = self._encode(dict(zip(INPUT_NAMES, values, strict=True)))
        return {name: outputs[name] for name in ("pooled_output", "sequence_output")}

    def _packed(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        pieces = self._text_graph.tokenize(text)
        return self._text_graph.pack([pieces], self.sequence_length, pad_to_length=False)

    def save(self, folder: str | os.PathLike) -> None:
        """Writes a SavedModel.

        Raises:
            KzooError: if `folder` is there already: no version is ever written twice.
        """
        save_with_signatures(self, folder, ("serving_default", "sequence_output", "from_ids"))

    def warmup_inputs(self) -> dict[str, dict[str, np.ndarray]]:
        """A small request for each signature: signature → input → value."""
        text = warmup_texts()
        ids = [self._text_graph.cls_id, self._text_graph.unk_id, self._text_graph.sep_id]
        ids = np.array([ids, ids], np.int32)
        return {
            "serving_default": {"text": text},
            "sequence_output": {"text": text},
            "from_ids": dict(
                zip(INPUT_NAMES, (ids, np.ones_like(ids), np.zeros_like(ids)), strict=True)
            ),
        }


def warmup_texts() -> np.ndarray:
    """`WARMUP_TEXTS` as a signature takes them: UTF-8 in an array of objects [2]."""
    return np.array([text.encode() for text in WARMUP_TEXTS], dtype=object)
