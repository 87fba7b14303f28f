"""The module with the output table: scores of pieces, and text whose `[MASK]`s are filled."""

import functools
import os

import numpy as np
import sentencepiece
import tensorflow as tf

from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.saved_model.encoding import (
    TEXT,
    check_fits,
    encode,
    ids_spec,
    named_variables,
    save_with_signatures,
)
from kzoo.saved_model.fill_mask_text import FillMaskText
from kzoo.saved_model.serving import warmup_texts
from kzoo.saved_model.signature_names import INPUT_NAMES, POSITIONS
from kzoo.saved_model.text_graph import TextGraph
from kzoo.text.special_pieces import MASK

_INPUT_NAMES = (*INPUT_NAMES, POSITIONS)
TOP_K = 5
"""How many pieces `fill_mask` gives for a mask."""


class MaskedLMModule(tf.Module):
    """A masked language model, to be called as TF Hub's `.mlm` and to be served.

    Called with a dict of `input_word_ids`, `input_mask`, `input_type_ids` [batch, length] and
    `masked_lm_positions` [batch, n], all int32 or all int64, it returns `mlm_logits` float32
    [batch, n, V] beside the outputs of the encoder: `sequence_output`, `pooled_output`, `default`
    and `encoder_outputs`. `training=True` switches dropout on. Only the vectors at these positions
    go through the head.

    Signatures:

    - `serving_default`: the same in int32, without `default` and `encoder_outputs`.
    - `fill_mask`: `text` string [batch], in which `[MASK]` stands for a piece, → the 5 likeliest
      pieces for each. Texts may have any number of masks:
        - `num_masks` int32 [batch]: how many a text has; at most `sequence_length` - 2;
        - `num_masks_cut_off` int32 [batch]: how many more are beyond the end of a text that is too
          long;
        - `mask_positions` int32 [batch, masks]: where they are among the text's tokens, [CLS]
          being 0;
        - `pieces` string [batch, masks, k] and `probabilities` float32 [batch, masks, k], the
          likeliest first, as shares of all V pieces. `masks` is the most masks of a text of the
          batch; beyond a text's own, pieces are empty, and probabilities and positions 0.
    - `fill_mask_top_k`: the same with `top_k` int32 [batch], how many pieces a text asks for; `k`
      is the largest of them. It is a signature of its own, since a server takes requests with all
      inputs of a signature only, and has a value for each text, since a server puts requests of
      different clients together.

    Attributes:
        model_name: the name under which it is served.
        sequence_length: the most tokens that a text may have, [CLS] and [SEP] among them.
        named_variables: the variables of encoder and head, under their paths.
        variables, trainable_variables: the same in lists.
        regularization_losses: none; TF Hub looks for it.
    """

    model_name = "masked_lm"
    # Not the properties of `tf.Module`, which a SavedModel leaves out: TF Hub reads lists.
    variables = trainable_variables = None

    def __init__(self, masked_lm: RemBertMaskedLM, text_graph: TextGraph, sequence_length: int):
        """Makes the module of a model's own variables.

        Raises:
            KzooError: if the model has too few positions, or no row for a piece.
        """
        super().__init__(name="masked_lm")
        check_fits(masked_lm.backbone, text_graph, sequence_length)
        self.sequence_length = sequence_length
        # Before `variables` by name, so that it gives the checkpoint its keys.
        self.named_variables = named_variables(masked_lm)
        self.variables = [variable.value for variable in masked_lm.variables]
        self.trainable_variables = [variable.value for variable in masked_lm.trainable_variables]
        self.regularization_losses = []
        self._text_graph = text_graph
        self._fill_mask_text = FillMaskText(text_graph)
        # Made outside of the functions, so that the file holds the strings once.
        self._pieces = tf.constant(_pieces(text_graph.sentencepiece_model))
        # Functions, and not the model, which would be stored with its layers.
        self._encode = functools.partial(encode, masked_lm.backbone)
        self._gather, self._head = masked_lm.gather.__call__, masked_lm.head.__call__
        for dtype in (tf.int32, tf.int64):
            inputs = {name: ids_spec(name, dtype) for name in _INPUT_NAMES}
            for training in (True, False):
                self.__call__.get_concrete_function(inputs, training=training)

    @tf.function(autograph=False)
    def __call__(self, inputs, training=False):
        """The encoder's outputs, and `mlm_logits` for the positions that are asked for."""
        outputs = self._encode(inputs, training)
        gathered = self._gather(outputs["sequence_output"], inputs[POSITIONS])
        return {"mlm_logits": self._head(gathered), **outputs}

    @tf.function(input_signature=[ids_spec(name) for name in _INPUT_NAMES], autograph=False)
    def serving_default(self, input_word_ids, input_mask, input_type_ids, masked_lm_positions):
        """Ids and positions → `mlm_logits`, `sequence_output`, `pooled_output`."""
        values = (input_word_ids, input_mask, input_type_ids, masked_lm_positions)
        outputs = self(dict(zip(_INPUT_NAMES, values, strict=True)))
        return {name: outputs[name] for name in ("mlm_logits", "sequence_output", "pooled_output")}

    @tf.function(input_signature=[TEXT], autograph=False)
    def fill_mask(self, text):
        """Text → the likeliest pieces for its masks."""
        return self._fill(text, tf.fill(tf.shape(text), TOP_K))

    @tf.function(
        input_signature=[TEXT, tf.TensorSpec([None], tf.int32, name="top_k")], autograph=False
    )
    def fill_mask_top_k(self, text, top_k):
        """The same, with the number of pieces that each text asks for."""
        return self._fill(text, top_k)

    def _fill(self, text: tf.Tensor, top_k: tf.Tensor) -> dict[str, tf.Tensor]:
        packed = self._fill_mask_text.pack(text, self.sequence_length)
        positions, num_masks = packed["mask_positions"], packed["num_masks"]
        hidden = self._gather(self._encode(packed)["sequence_output"], positions)
        # Masks of all texts in one list: no text has to have as many as another one.
        hidden = tf.boolean_mask(hidden, tf.sequence_mask(num_masks, tf.shape(positions)[1]))
        probabilities = tf.nn.softmax(self._head(hidden))

        # A batch without rows asks for nothing.
        most = tf.reduce_max(tf.concat([top_k, [0]], axis=0))
        most = tf.minimum(most, tf.shape(probabilities)[1])
        probabilities, ids = tf.math.top_k(probabilities, most)
        is_wanted = tf.range(most) < tf.repeat(top_k, num_masks)[:, tf.newaxis]

        def by_row(values, filler):
            values = tf.where(is_wanted, values, filler)
            rows = tf.RaggedTensor.from_row_lengths(values, num_masks, validate=False)
            return rows.to_tensor(filler)

        return {
            "pieces": by_row(tf.gather(self._pieces, ids), ""),
            "probabilities": by_row(probabilities, 0.0),
            "mask_positions": positions,
            "num_masks": num_masks,
            "num_masks_cut_off": packed["num_masks_cut_off"],
        }

    def save(self, folder: str | os.PathLike) -> None:
        """Writes a SavedModel.

        Raises:
            KzooError: if `folder` is there already.
        """
        save_with_signatures(self, folder, ("serving_default", "fill_mask", "fill_mask_top_k"))

    def warmup_inputs(self) -> dict[str, dict[str, np.ndarray]]:
        """A small request for each signature: signature → input → value."""
        text = np.array([text + f" {MASK}".encode() for text in warmup_texts()], dtype=object)
        graph = self._text_graph
        ids = np.array([[graph.cls_id, graph.mask_id, graph.sep_id]] * 2, np.int32)
        positions = np.ones((2, 1), np.int32)
        values = (ids, np.ones_like(ids), np.zeros_like(ids), positions)
        return {
            "serving_default": dict(zip(_INPUT_NAMES, values, strict=True)),
            "fill_mask": {"text": text},
            "fill_mask_top_k": {"text": text, "top_k": np.array([TOP_K, 1], np.int32)},
        }


def _pieces(sentencepiece_model: bytes) -> list[str]:
    """Every piece, in the order of their ids."""
    processor = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model)
    return processor.id_to_piece(list(range(processor.get_piece_size())))
