"""An exported encoder with its consumers of Keras 2: TensorFlow Hub's layer, and Model Garden."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_hub as hub
import tf_keras

from kzoo.saved_model.encoder import EncoderModule
from tests.models import shapes
from tests.reference import random_weights_into
from tests.saved_model.fine_tuning import assert_all_moved, for_backbone, inputs_and_labels
from tests.training.subprocesses import run_python

INPUTS, LABELS = inputs_and_labels()


@pytest.fixture(scope="module")
def backbone():
    """A source with random weights; it has dropout, in attention too."""
    backbone = shapes.backbone(num_layers=2, dropout=0.3, attention_dropout=0.3)
    random_weights_into(backbone)
    return backbone


@pytest.fixture(scope="module")
def encoder_folder(backbone, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "encoder"
    EncoderModule(backbone).save(folder)
    return folder


@pytest.fixture(scope="module")
def expected(backbone) -> dict[str, np.ndarray]:
    return {name: output.numpy() for name, output in backbone(for_backbone(INPUTS)).items()}


def symbolic_inputs():
    return {name: tf_keras.Input((None,), dtype=tf.int32, name=name) for name in INPUTS}


def classifier(folder) -> tf_keras.Model:
    """A functional model of tf_keras over the pooled output, compiled."""
    inputs = symbolic_inputs()
    outputs = hub.KerasLayer(str(folder), trainable=True, name="encoder")(inputs)
    logits = tf_keras.layers.Dense(3, name="logits")(outputs["pooled_output"])
    model = tf_keras.Model(inputs, logits)
    loss = tf_keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(tf_keras.optimizers.SGD(0.1), loss)
    return model


def fit(model) -> None:
    model.fit(INPUTS, LABELS, batch_size=len(LABELS), verbose=0)


def names_and_values(weights) -> tuple[list[str], list[np.ndarray]]:
    names = [weight.name.partition(":")[0] for weight in weights]
    return names, [weight.numpy() for weight in weights]


def test_outputs_are_those_of_the_source(encoder_folder, backbone, expected):
    outputs = hub.KerasLayer(str(encoder_folder))(INPUTS)
    assert set(outputs) == {"sequence_output", "pooled_output", "default", "encoder_outputs"}
    for name, values in expected.items():
        np.testing.assert_allclose(outputs[name], values, atol=1e-6)
    assert len(outputs["encoder_outputs"]) == backbone.num_layers


def test_fit_moves_every_weight_that_has_a_gradient(encoder_folder, backbone):
    model = classifier(encoder_folder)
    encoder = model.get_layer("encoder")
    assert len(encoder.trainable_weights) == len(encoder.weights) == len(backbone.weights)
    names, before = names_and_values(encoder.weights)
    fit(model)
    assert_all_moved(names, before, names_and_values(encoder.weights)[1], INPUTS)


def test_dropout_is_active_in_training_alone(encoder_folder, expected):
    layer = hub.KerasLayer(str(encoder_folder), trainable=True, output_key="pooled_output")
    model = tf_keras.Model(inputs := symbolic_inputs(), layer(inputs))
    first, second = (model(INPUTS, training=True) for _ in range(2))
    assert np.abs(first - second).max() > 1e-3
    for _ in range(2):
        np.testing.assert_allclose(model(INPUTS), expected["pooled_output"], atol=1e-6)
        predicted = model.predict(INPUTS, verbose=0)
        np.testing.assert_allclose(predicted, expected["pooled_output"], atol=1e-6)


def test_a_saved_model_of_keras_2_goes_on_without_the_folder(encoder_folder, tmp_path):
    own = shutil.copytree(encoder_folder, tmp_path / "encoder")
    model = classifier(own)
    fit(model)
    outputs = model.predict(INPUTS, verbose=0)
    model.save(tmp_path / "model", save_format="tf")
    shutil.rmtree(own)
    loaded = tf_keras.models.load_model(tmp_path / "model")
    np.testing.assert_allclose(loaded.predict(INPUTS, verbose=0), outputs, atol=1e-6)
    names, before = names_and_values(loaded.get_layer("encoder").trainable_weights)
    fit(loaded)
    after = names_and_values(loaded.get_layer("encoder").trainable_weights)[1]
    assert_all_moved(names, before, after, INPUTS)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16", "float32"])
def test_the_global_policy_at_loading_changes_nothing(encoder_folder, expected, policy):
    tf_keras.mixed_precision.set_global_policy(policy)
    try:
        layer = hub.KerasLayer(str(encoder_folder), trainable=True)
        outputs = layer(INPUTS)
    finally:
        tf_keras.mixed_precision.set_global_policy("float32")
    for name, values in expected.items():
        assert outputs[name].dtype == tf.float32
        np.testing.assert_allclose(outputs[name], values, atol=1e-6)
    assert {weight.dtype for weight in layer.weights} == {tf.float32}


def test_the_order_of_inputs_does_not_matter(encoder_folder, expected):
    turned = dict(reversed(INPUTS.items()))
    outputs = hub.KerasLayer(str(encoder_folder))(turned)
    np.testing.assert_allclose(outputs["pooled_output"], expected["pooled_output"], atol=1e-6)


def test_replicas_train_the_encoder(encoder_folder):
    run_python(
        """
import sys
import tensorflow as tf
from kzoo.training.strategies import configure_runtime
configure_runtime(num_logical_cpus=2, deterministic=False)
from tests.saved_model.test_hub import INPUTS, assert_all_moved, classifier, fit, names_and_values

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    model = classifier(sys.argv[1])
weights = model.get_layer("encoder").weights
names, before = names_and_values(weights)
assert len(weights[0].values) == 2
fit(model)
assert_all_moved(names, before, names_and_values(weights)[1], INPUTS)
for weight in weights:
    first, second = weight.values
    assert (first.numpy() == second.numpy()).all(), weight.name
""",
        encoder_folder,
    )


@pytest.mark.peers
def test_model_garden_fine_tunes_it_for_sentence_prediction(encoder_folder, backbone):
    pytest.importorskip("official", reason="needs tf-models-official, of the extra `models`")
    from official.nlp.data import sentence_prediction_dataloader
    from official.nlp.tasks import sentence_prediction

    data = sentence_prediction_dataloader.SentencePredictionDataConfig(
        input_path="dummy", seq_length=12, global_batch_size=1
    )
    config = sentence_prediction.SentencePredictionConfig(
        hub_module_url=str(encoder_folder),
        model=sentence_prediction.ModelConfig(num_classes=3, use_encoder_pooler=True),
        train_data=data,
    )
    task = sentence_prediction.SentencePredictionTask(config)
    model = task.build_model()
    names, before = names_and_values(model.trainable_weights)
    metrics = task.build_metrics()
    optimizer = tf_keras.optimizers.SGD(0.1)
    # The task's own data is one row that is all padding.
    padding = next(iter(task.build_inputs(config.train_data)))
    rows = {**INPUTS, task.label_field: LABELS[:, None]}
    for features in (padding, {name: tf.constant(value) for name, value in rows.items()}):
        logs = task.train_step(features, model, optimizer, metrics)
        assert np.isfinite(logs["loss"])
    after = names_and_values(model.trainable_weights)[1]
    assert len(names) == len(before) == len(backbone.weights) + 2
    # Padding is id 0, which is in the rows of INPUTS too.
    assert_all_moved(names, before, after, INPUTS)
