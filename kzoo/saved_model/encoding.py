"""What exported modules share: how they run an encoder, keep its variables, and are written."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf

from kzoo.errors import KzooError
from kzoo.layers.pooler import Pooler
from kzoo.models.backbone import RemBertBackbone
from kzoo.saved_model.signature_names import INPUT_NAMES
from kzoo.saved_model.text_graph import TextGraph

TEXT = tf.TensorSpec([None], tf.string, name="text")
"""A batch of texts, of any size."""


def ids_spec(name: str, dtype: tf.DType = tf.int32) -> tf.TensorSpec:
    """A batch of rows of ids, of any size."""
    return tf.TensorSpec([None, None], dtype, name=name)


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
            positions, and for an id that its table has no row for. (A lookup by itself takes a
            negative id from the table's end, and on a GPU gives zeros for one beyond it.)
    """
    token_ids, padding_mask, segment_ids = (inputs[name] for name in INPUT_NAMES)
    checks = [
        _check_length(token_ids, backbone.max_sequence_length),
        _check_ids(token_ids, backbone.vocabulary_size, "input_word_ids"),
        _check_ids(segment_ids, backbone.num_segments, "input_type_ids"),
    ]
    with tf.control_dependencies(checks):
        # Without a shape that is known beforehand: where the caller's length is known, TensorFlow
        # would find the position table too short, and say so in words of its own, before the check.
        token_ids = tf.compat.v1.placeholder_with_default(token_ids, [None, None])
        segment_ids = tf.identity(segment_ids)
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


def _check_ids(ids: tf.Tensor, num_rows: int, name: str) -> tf.Operation:
    message = f"{name} must be from 0 to {num_rows - 1}. Received: from, to"
    lowest, highest = tf.reduce_min(ids), tf.reduce_max(ids)
    # Of no ids at all, the lowest is above the highest.
    is_within = (lowest >= 0) & (highest < num_rows)
    return tf.debugging.Assert(is_within, [message, lowest, highest])


def named_variables(model: keras.Model) -> dict[str, tf.Variable]:
    """TensorFlow's variables of a model, under their paths.

    A module that has this as an attribute stores them, and nothing else of the model: neither its
    layers nor their configuration.
    """
    return {variable.path: variable.value for variable in model.variables}


def check_fits(backbone: RemBertBackbone, text_graph: TextGraph, sequence_length: int) -> None:
    """Raises a KzooError unless every id and position that text gives is one of the backbone's."""
    if sequence_length > backbone.max_sequence_length:
        raise KzooError(
            f"the model has {backbone.max_sequence_length} positions: text cannot have more "
            f"tokens. Received: sequence_length={sequence_length}"
        )
    if text_graph.vocabulary_size > backbone.vocabulary_size:
        raise KzooError(
            f"the vocabulary has {text_graph.vocabulary_size} pieces, but the model's input table "
            f"has {backbone.vocabulary_size} rows: is it the vocabulary of this model?"
        )


def save_with_signatures(
    module: tf.Module, folder: str | os.PathLike[str], signatures: Iterable[str]
) -> None:
    """Writes a SavedModel to a folder that is not there yet.

    Args:
        module: what is written.
        folder: where to; parents are made.
        signatures: the names of the module's functions that are its signatures.

    Raises:
        KzooError: if `folder` is there.
    """
    if os.path.exists(folder):
        raise KzooError(
            f"{os.fspath(folder)} is there already, and nothing is written over it: name another "
            "folder, or remove this one"
        )
    functions = {name: getattr(module, name) for name in signatures}
    tf.saved_model.save(module, os.fspath(folder), functions)
