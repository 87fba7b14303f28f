"""The encoder against two that others wrote, with the same random weights."""

import keras_hub
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
from official.nlp.modeling.networks import BertEncoderV2

from tests import reference
from tests.models import shapes

LENGTHS = [9, 1, 5]


@pytest.fixture(scope="module")
def inputs():
    return reference.random_inputs(517, LENGTHS, 9)


def assert_same_outputs(ours, theirs, inputs):
    """Compares the outputs, where there are tokens: what padding gives means nothing."""
    tokens = inputs["padding_mask"].astype(bool)
    for output in ("sequence_output", "pooled_output"):
        mine, other = np.asarray(ours[output]), np.asarray(theirs[output])
        if output == "sequence_output":
            mine, other = mine[tokens], other[tokens]
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-5, err_msg=output)


def test_keras_hub_albert_with_a_group_for_every_layer_is_the_same_encoder(inputs):
    backbone = shapes.backbone(activation="gelu_approximate")
    reference.random_weights_into(backbone)
    albert = keras_hub.models.AlbertBackbone(
        **shapes.ARGUMENTS, num_groups=shapes.ARGUMENTS["num_layers"]
    )
    ours = {variable.path: variable for variable in backbone.variables}
    for variable in albert.variables:
        value = ours.pop(_name_of_albert(variable.path))
        variable.assign(np.reshape(value, variable.shape))
    assert not ours
    assert_same_outputs(backbone(inputs), albert(inputs), inputs)


def _name_of_albert(path: str) -> str:
    """The path in our backbone of one of ALBERT's variables."""
    for theirs, ours in (
        ("token_embedding/", "embeddings/token_embedding/"),
        ("position_embedding/", "embeddings/position_embedding/"),
        ("segment_embedding/", "embeddings/segment_embedding/"),
        ("embeddings_layer_norm/", "embeddings/layer_norm/"),
        ("embedding_projection/", "embeddings/projection/"),
        ("_inner_layer_0", ""),
        ("group_", "encoder_block_"),
        ("self_attention_layer/attention_output", "attention/output"),
        ("self_attention_layer/", "attention/"),
        ("self_attention_layer_norm", "attention_layer_norm"),
        ("feedforward_layer_norm", "output_layer_norm"),
        ("feedforward_intermediate_dense", "intermediate"),
        ("feedforward_output_dense", "output"),
        ("pooled_dense", "pooler/dense"),
    ):
        path = path.replace(theirs, ours)
    return path


@pytest.mark.parametrize(
    ("activation", "approximate"), [("gelu", False), ("gelu_approximate", True)]
)
def test_model_gardens_bert_encoder_is_the_same_encoder(activation, approximate, inputs):
    backbone = shapes.backbone(activation=activation)
    reference.random_weights_into(backbone)
    encoder = BertEncoderV2(
        vocab_size=backbone.vocabulary_size,
        hidden_size=backbone.hidden_dim,
        num_layers=backbone.num_layers,
        num_attention_heads=backbone.num_heads,
        max_sequence_length=backbone.max_sequence_length,
        type_vocab_size=backbone.num_segments,
        inner_dim=backbone.intermediate_dim,
        inner_activation=lambda x: tf_keras.activations.gelu(x, approximate=approximate),
        embedding_width=backbone.embedding_dim,
    )
    theirs = {
        "input_word_ids": tf.constant(inputs["token_ids"]),
        "input_mask": tf.constant(inputs["padding_mask"]),
        "input_type_ids": tf.constant(inputs["segment_ids"]),
    }
    encoder(theirs)
    # Both have their variables in the order of the forward pass.
    for variable, value in zip(encoder.variables, backbone.variables, strict=True):
        variable.assign(np.reshape(value, variable.shape))
    outputs = encoder(theirs)
    assert_same_outputs(backbone(inputs), outputs, inputs)
    states = backbone.hidden_states(inputs)[1:]
    tokens = inputs["padding_mask"].astype(bool)
    for mine, other in zip(states, outputs["encoder_outputs"], strict=True):
        np.testing.assert_allclose(mine.numpy()[tokens], other.numpy()[tokens], rtol=0, atol=1e-5)
