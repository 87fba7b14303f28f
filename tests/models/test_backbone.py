"""The encoder as a Keras and a KerasHub model."""

import json

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from kzoo import KzooError
from kzoo.models.backbone import RemBertBackbone
from tests import reference
from tests.models import shapes


@pytest.fixture(scope="module")
def backbone():
    backbone = shapes.backbone()
    reference.random_weights_into(backbone)
    return backbone


@pytest.fixture(scope="module")
def inputs():
    return reference.random_inputs(517, [9, 2, 5], 9)


def test_outputs_have_the_documented_shapes(backbone, inputs):
    outputs = backbone(inputs)
    assert {key: tuple(value.shape) for key, value in outputs.items()} == {
        "sequence_output": (3, 9, 48),
        "pooled_output": (3, 48),
    }
    assert set(shapes.backbone(pooler=None).output) == {"sequence_output"}


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (0, 16), (2, 40)])
def test_any_batch_and_any_length_up_to_the_position_table(backbone, batch, length):
    inputs = reference.random_inputs(517, [length] * batch, length)
    traced = tf.function(
        backbone, input_signature=[{key: tf.TensorSpec([None, None], "int32") for key in inputs}]
    )
    for outputs in (backbone(inputs), traced(inputs)):
        assert outputs["sequence_output"].shape == (batch, length, 48)


def test_a_longer_sequence_is_refused_whether_its_length_is_known_or_not(backbone):
    inputs = reference.random_inputs(517, [41], 41)
    with pytest.raises(ValueError, match=r"40 positions\. Received: token_ids of length 41"):
        backbone(inputs)
    traced = tf.function(
        backbone, input_signature=[{key: tf.TensorSpec([None, None], "int32") for key in inputs}]
    )
    with pytest.raises(tf.errors.InvalidArgumentError):
        traced(inputs)


def test_padding_changes_nothing_at_tokens(backbone, inputs):
    outputs = backbone(inputs)["sequence_output"].numpy()
    other_ids = np.where(inputs["padding_mask"] == 1, inputs["token_ids"], 3)
    other = backbone({**inputs, "token_ids": other_ids})["sequence_output"].numpy()
    alone = backbone({key: value[1:2, :2] for key, value in inputs.items()})["sequence_output"]
    valid = inputs["padding_mask"] == 1
    np.testing.assert_array_equal(outputs[valid], other[valid])
    np.testing.assert_allclose(outputs[1:2, :2], alone, rtol=0, atol=1e-5)


def test_variable_paths_do_not_depend_on_what_was_built_before(backbone):
    again = shapes.backbone()
    paths = [variable.path for variable in backbone.variables]
    assert [variable.path for variable in again.variables] == paths
    assert len(set(paths)) == len(paths)
    assert again.name == backbone.name == "rembert_backbone"


def test_no_variable_belongs_to_dropout(inputs):
    backbone = shapes.backbone(dropout=0.5, attention_dropout=0.5)
    backbone(inputs, training=True)
    assert len(backbone.variables) == len(backbone.trainable_variables) == 5 + 2 + 3 * 16 + 2


def test_auto_projects_only_between_different_widths():
    def has_projection(**changes):
        paths = [variable.path for variable in shapes.backbone(**changes).variables]
        return "embeddings/projection/kernel" in paths

    assert has_projection(embedding_dim=16)
    assert not has_projection(embedding_dim=48)
    assert has_projection(embedding_dim=48, project_embeddings=True)


def test_weights_start_as_berts():
    for variable in shapes.backbone(vocabulary_size=5000).variables:
        values = variable.numpy()
        kind = variable.path.rsplit("/", 1)[-1]
        if kind in ("bias", "beta"):
            assert not values.any(), variable.path
        elif kind == "gamma":
            assert (values == 1).all(), variable.path
        else:
            assert np.abs(values).max() <= 0.04 + 1e-6, variable.path
            if values.size > 1000:
                assert values.std() == pytest.approx(0.0176, rel=0.1), variable.path
    blocks = shapes.backbone().encoder_blocks
    kernels = {
        layer.kernel.numpy().tobytes()
        for block in blocks
        for layer in (block.attention.query, block.attention.key, block.attention.value)
    }
    assert len(kernels) == 9


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_heads": 5}, r"`num_heads` must divide.* Received: num_heads=5, hidden_dim=48$"),
        ({"num_layers": 0}, r"`num_layers` must be a positive integer. Received: num_layers=0$"),
        ({"embedding_dim": -1}, r"Received: embedding_dim=-1$"),
        ({"vocabulary_size": 8.5}, r"Received: vocabulary_size=8.5$"),
        ({"num_segments": True}, r"Received: num_segments=True$"),
        ({"dropout": 1.0}, r"`dropout` must be in \[0, 1\). Received: dropout=1.0$"),
        ({"attention_dropout": -0.1}, r"Received: attention_dropout=-0.1$"),
        ({"layer_norm_epsilon": 0.0}, r"Received: layer_norm_epsilon=0.0$"),
        ({"activation": "relu"}, r'one of "gelu", "gelu_approximate". Received: activation=\'relu'),
        ({"pooler": "max"}, r'one of "dense", "first_token", "mean", or None. Received: pooler='),
        ({"project_embeddings": False}, r"Received: project_embeddings=False$"),
    ],
)
def test_arguments_that_make_no_model_are_named(changes, message):
    with pytest.raises(KzooError, match=message):
        shapes.backbone(**changes)


def test_config_round_trip(inputs):
    changes = {"dropout": 0.1, "pooler": "mean", "activation": "gelu_approximate"}
    backbone = shapes.backbone(**changes, name="teacher")
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(backbone)))
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is RemBertBackbone
    assert again.get_config() == backbone.get_config()
    assert config["config"]["dropout"] == 0.1
    assert again.name == "teacher"


def test_from_preset_through_the_base_class(backbone, inputs, tmp_path):
    backbone.save_to_preset(str(tmp_path))
    again = keras_hub.models.Backbone.from_preset(str(tmp_path))
    assert type(again) is RemBertBackbone
    np.testing.assert_array_equal(
        again(inputs)["sequence_output"], backbone(inputs)["sequence_output"]
    )
    with_dropout = RemBertBackbone.from_preset(str(tmp_path), dropout=0.3, load_weights=False)
    assert with_dropout.dropout == with_dropout.embeddings.dropout.rate == 0.3


def test_a_keras_file_keeps_the_model(backbone, inputs, tmp_path):
    path = str(tmp_path / "backbone.keras")
    backbone.save(path)
    again = keras.saving.load_model(path)
    np.testing.assert_array_equal(again(inputs)["pooled_output"], backbone(inputs)["pooled_output"])


def test_a_functional_model_can_be_built_on_hidden_states(backbone, inputs):
    states = backbone.hidden_states(backbone.input)
    second = keras.Model(backbone.input, states[2])
    np.testing.assert_array_equal(second(inputs), backbone.hidden_states(inputs)[2])


def test_lora_trains_queries_and_values_only(inputs):
    backbone = shapes.backbone()
    before = backbone(inputs)["sequence_output"]
    backbone.enable_lora(rank=4)
    np.testing.assert_array_equal(backbone(inputs)["sequence_output"], before)
    trained = {variable.path for variable in backbone.trainable_variables}
    assert {path.split("/")[2] for path in trained} == {"query", "value"}
    assert sum("lora_kernel" in path for path in trained) == 3 * 2 * 2
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(backbone(inputs, training=True)["sequence_output"] ** 3)
    variables = [variable.value for variable in backbone.trainable_variables]
    assert None not in tape.gradient(loss, variables)


@pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize` method")
def test_int8_stays_close_and_comes_back_from_a_preset(inputs, tmp_path):
    model = shapes.masked_lm()
    before = model.backbone(inputs)["sequence_output"].numpy()
    model.backbone.quantize("int8")
    after = model.backbone(inputs)["sequence_output"].numpy()
    assert model.backbone.token_embedding.embeddings.dtype == "int8"
    assert model.backbone.encoder_blocks[0].intermediate.kernel.dtype == "int8"
    assert 0 < np.abs(after - before).max() < 0.1 * np.abs(before).max()
    model.save_to_preset(str(tmp_path))
    again = type(model).from_preset(str(tmp_path))
    np.testing.assert_array_equal(again.backbone(inputs)["sequence_output"], after)
