"""What every exported module computes with an encoder, and how it keeps the encoder's variables."""

from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from kzoo.layers.pooler import Pooler
from kzoo.models.backbone import RemBertBackbone
from kzoo.saved_model.signature_names import INPUT_NAMES


def encode(
    backbone: RemBertBackbone, inputs: Mapping[str, tf.Tensor], training: bool = False
) -> dict[str, Any]:
    """Runs an encoder inside a graph, under TF Hub's names for inputs and outputs.

    Args:
        backbone: the encoder, of whatever precision.
        inputs: `input_word_ids`, `input_mask` (0 at padding) and `input_type_ids`, each integers
            [batch, length]. Others are left alone.
        training: whether dropout is active.

    Returns:
        `sequence_output` float32 [batch, length, H]; `pooled_output` float32 [batch, H], the mean
        over the tokens where the backbone has no pooler; `default`, the same; `encoder_outputs`,
        the outputs of all layers, float32 [batch, length, H] each.

    Raises:
        tf.errors.InvalidArgumentError: in the graph, for more ids in a row than the model has
            positions.
    """
    token_ids, padding_mask, segment_ids = (inputs[name] for name in INPUT_NAMES)
    with tf.control_dependencies([_check_length(token_ids, backbone.max_sequence_length)]):
        # Without a shape that is known beforehand: where the caller's length is known, TensorFlow
        # would find the position table too short, and say so in words of its own, before the check.
        token_ids = tf.compat.v1.placeholder_with_default(token_ids, [None, None])
    states = backbone.hidden_states(
        {"token_ids": token_ids, "padding_mask": padding_mask, "segment_ids": segment_ids},
        training=training,
    )
    pooler = backbone.pooler_layer or Pooler("mean", dtype="float32")
    pooled = tf.cast(pooler(states[-1], padding_mask), tf.float32)
    layers = [tf.cast(state, tf.float32) for state in states[1:]]
    return {
        "sequence_output": layers[-1],
        "pooled_output": pooled,
        "default": pooled,
        "encoder_outputs": layers,
    }


def _check_length(token_ids: tf.Tensor, max_sequence_length: int) -> tf.Operation:
    length = tf.shape(token_ids)[1]
    message = f"the model has {max_sequence_length} positions. Received: ids of length"
    return tf.debugging.Assert(length <= max_sequence_length, [message, length])


def named_variables(model: keras.Model) -> dict[str, tf.Variable]:
    """TensorFlow's variables of a model, under their paths.

    A module that has this as an attribute stores them, and nothing else of the model: neither its
    layers nor their configuration.
    """
    return {variable.path: variable.value for variable in model.variables}
