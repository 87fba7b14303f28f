"""The encoder as a SavedModel, in TensorFlow alone."""

import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from kzoo import KzooError
from kzoo.saved_model.encoder import EncoderModule
from kzoo.saved_model.signature_names import INPUT_NAMES
from tests.models import shapes
from tests.paths import SHARED, needs_shared
from tests.reference import hugging_face_model, random_weights_into
from tests.saved_model.fine_tuning import for_backbone, inputs_and_labels
from tests.training.subprocesses import run_python

INPUTS, _ = inputs_and_labels()
OUTPUTS = ("sequence_output", "pooled_output")


def saved(backbone, folder):
    EncoderModule(backbone).save(folder)
    return tf.saved_model.load(str(folder))


@pytest.fixture(scope="module")
def backbone():
    """With dropout in attention alone: if that is active, all of it is."""
    backbone = shapes.backbone(attention_dropout=0.5)
    random_weights_into(backbone)
    return backbone


@pytest.fixture(scope="module")
def folder(backbone, tmp_path_factory):
    """Moved, so that nothing is where it was made."""
    made = tmp_path_factory.mktemp("made_here") / "encoder"
    EncoderModule(backbone).save(made)
    return shutil.move(made, tmp_path_factory.mktemp("moved") / "encoder")


@pytest.fixture(scope="module")
def encoder(folder):
    return tf.saved_model.load(str(folder))


def assert_equal_but_for_rounding(found, expected):
    """In a graph, TensorFlow joins operations and rounds elsewhere: by 1e-6 of the largest value.

    The source itself, in float32, is as far from what it computes in float64.
    """
    largest = max(1, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * largest)


def of_shape(batch, length, dtype="int32"):
    ids = np.arange(batch * length).reshape(batch, length) % 500
    mask = np.arange(length) < 1 + np.arange(batch)[:, None] * 3
    arrays = dict(zip(INPUT_NAMES, (ids, mask, ids % 2), strict=True))
    return {name: value.astype(dtype) for name, value in arrays.items()}


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (2, 40), (0, 16)], ids=str)
def test_any_batch_and_length_gives_the_source_s_outputs(encoder, backbone, shape, dtype):
    inputs = of_shape(*shape, dtype)
    found, expected = encoder(inputs), backbone(for_backbone(inputs))
    for name in OUTPUTS:
        assert found[name].dtype == tf.float32
        assert_equal_but_for_rounding(found[name], expected[name])


def test_inputs_are_matched_by_name(encoder):
    shuffled = dict(reversed(INPUTS.items()))
    np.testing.assert_array_equal(encoder(shuffled)["default"], encoder(INPUTS)["default"])


def test_too_long_is_an_error_with_both_numbers(encoder):
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"40 positions.*41"):
        encoder(of_shape(1, 41))


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("input_word_ids", 517, r"input_word_ids must be from 0 to 516.*\[517\]"),
        ("input_word_ids", -1, r"input_word_ids must be from 0 to 516.*\[-1\]"),
        ("input_type_ids", 2, r"input_type_ids must be from 0 to 1.*\[2\]"),
        ("input_type_ids", -1, r"input_type_ids must be from 0 to 1.*\[-1\]"),
    ],
)
def test_an_id_that_the_table_lacks_is_an_error(encoder, dtype, name, wrong, message):
    inputs = of_shape(2, 3, dtype)
    inputs[name][1, 2] = wrong
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        encoder(inputs)


def test_dropout_is_active_in_training_alone(encoder, backbone):
    first, second = (encoder(INPUTS, training=True)["default"] for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
    np.testing.assert_array_equal(encoder(INPUTS)["default"], encoder(INPUTS)["default"])


def test_signature_has_the_same_names(encoder):
    signature = encoder.signatures["serving_default"]
    assert set(signature.structured_input_signature[1]) == set(INPUT_NAMES)
    outputs = signature(**{name: tf.constant(value) for name, value in INPUTS.items()})
    assert set(outputs) == {*OUTPUTS, "default"}
    np.testing.assert_allclose(outputs["default"], encoder(INPUTS)["default"], atol=1e-6)


def test_variables_are_the_backbone_s_under_their_paths(folder, backbone):
    keys = {name for name, _ in tf.train.list_variables(f"{folder}/variables/variables")}
    escaped = (variable.path.replace("/", ".S") for variable in backbone.variables)
    expected = {f"named_variables/{name}/.ATTRIBUTES/VARIABLE_VALUE" for name in escaped}
    assert keys - {"_CHECKPOINTABLE_OBJECT_GRAPH"} == expected


def test_an_encoder_that_was_loaded_can_be_saved_again(folder, encoder, tmp_path):
    first = shutil.copytree(folder, tmp_path / "first")
    tf.saved_model.save(tf.saved_model.load(str(first)), str(tmp_path / "second"))
    shutil.rmtree(first)
    again = tf.saved_model.load(str(tmp_path / "second"))
    np.testing.assert_array_equal(again(INPUTS)["default"], encoder(INPUTS)["default"])


def test_it_loads_where_neither_text_operations_nor_kzoo_are(folder):
    run_python(
        """
import sys
sys.modules["tensorflow_text"] = sys.modules["kzoo"] = None
import tensorflow as tf
encoder = tf.saved_model.load(sys.argv[1])
ids = tf.ones((2, 3), tf.int32)
inputs = {name: ids for name in ("input_word_ids", "input_mask", "input_type_ids")}
assert encoder(inputs)["default"].shape == (2, 48)
""",
        folder,
    )


def test_a_backbone_without_pooler_gives_the_mean(tmp_path):
    without, mean = shapes.backbone(pooler=None), shapes.backbone(pooler="mean")
    random_weights_into(without)
    random_weights_into(mean)
    found = saved(without, tmp_path / "encoder")(INPUTS)["pooled_output"]
    expected = mean(for_backbone(INPUTS))["pooled_output"]
    assert_equal_but_for_rounding(found, expected)


def test_half_precision_is_refused(tmp_path):
    backbone = shapes.backbone(dtype=keras.DTypePolicy("mixed_bfloat16"))
    with pytest.raises(KzooError, match="Received: bfloat16"):
        EncoderModule(backbone)


@needs_shared
def test_the_small_reference_model_has_41_variables(tmp_path):
    backbone = hugging_face_model(SHARED / "peers" / "hf_tiny_rembert").backbone
    encoder = saved(backbone, tmp_path / "encoder")
    assert len(encoder.variables) == len(encoder.trainable_variables) == 41
