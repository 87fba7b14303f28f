"""An exported encoder as a layer of Keras 3."""

import hashlib
import json
import shutil
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf

from kzoo import KzooError
from kzoo.saved_model import EncoderLayer
from kzoo.saved_model.encoder import EncoderModule
from tests.models import shapes
from tests.reference import random_weights_into
from tests.saved_model.fine_tuning import assert_all_moved, for_backbone, inputs_and_labels
from tests.training.subprocesses import run_python

INPUTS, LABELS = inputs_and_labels()


@pytest.fixture(scope="module")
def backbone():
    """A source with random weights; it has no dropout."""
    backbone = shapes.backbone(num_layers=2)
    random_weights_into(backbone)
    return backbone


@pytest.fixture(scope="module")
def encoder_folder(backbone, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("export") / "encoder"
    EncoderModule(backbone).save(folder)
    return folder


@pytest.fixture
def own_folder(encoder_folder, tmp_path) -> Path:
    """A copy that a test may move and delete."""
    return Path(shutil.copytree(encoder_folder, tmp_path / "encoder"))


@pytest.fixture(scope="module")
def dropping_folder(tmp_path_factory) -> Path:
    """An encoder with dropout, in attention too."""
    backbone = shapes.backbone(num_layers=2, dropout=0.3, attention_dropout=0.3)
    random_weights_into(backbone)
    folder = tmp_path_factory.mktemp("dropping") / "encoder"
    EncoderModule(backbone).save(folder)
    return folder


def symbolic_inputs() -> dict[str, keras.KerasTensor]:
    return {name: keras.Input((None,), dtype="int32", name=name) for name in INPUTS}


def classifier(folder, optimizer="sgd", learning_rate=0.1, **arguments) -> keras.Model:
    """A functional model over the pooled output, compiled."""
    inputs = symbolic_inputs()
    pooled = EncoderLayer(folder, output="pooled_output", name="encoder", **arguments)(inputs)
    logits = keras.layers.Dense(3, dtype="float32", name="logits")(pooled)
    model = keras.Model(inputs, logits)
    compile_model(model, optimizer, learning_rate)
    return model


def compile_model(model, optimizer="sgd", learning_rate=0.1) -> None:
    optimizer = keras.optimizers.get(optimizer)
    optimizer.learning_rate = learning_rate
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss)


def fit(model, epochs: int = 1) -> None:
    model.fit(INPUTS, LABELS, batch_size=len(LABELS), epochs=epochs, verbose=0, shuffle=False)


def values(weights) -> list[np.ndarray]:
    return [weight if isinstance(weight, np.ndarray) else weight.numpy() for weight in weights]


def assert_equal(first, second) -> None:
    for one, other in zip(values(first), values(second), strict=True):
        np.testing.assert_array_equal(one, other)


def test_outputs_are_those_of_the_source(backbone, encoder_folder):
    outputs = EncoderLayer(encoder_folder)(INPUTS)
    source = backbone(for_backbone(INPUTS))
    states = backbone.hidden_states(for_backbone(INPUTS))[1:]
    assert set(outputs) == {"sequence_output", "pooled_output", "default", "encoder_outputs"}
    for name, expected in source.items():
        np.testing.assert_allclose(outputs[name], expected, atol=1e-6)
    np.testing.assert_array_equal(outputs["default"], outputs["pooled_output"])
    for output, expected in zip(outputs["encoder_outputs"], states, strict=True):
        np.testing.assert_allclose(output, expected, atol=1e-6)


def test_one_output_can_be_chosen(encoder_folder):
    outputs = EncoderLayer(encoder_folder)(INPUTS)
    chosen = EncoderLayer(encoder_folder, output="sequence_output")(INPUTS)
    np.testing.assert_array_equal(chosen, outputs["sequence_output"])


@pytest.mark.parametrize("dtype", ["int64", "uint8", "bool"])
def test_inputs_may_be_any_integers(encoder_folder, dtype):
    ids = {name: value % 2 for name, value in INPUTS.items()}
    layer = EncoderLayer(encoder_folder, output="pooled_output")
    other = {name: value.astype(dtype) for name, value in ids.items()}
    np.testing.assert_array_equal(layer(other), layer(ids))


def test_symbolic_outputs_have_the_shapes_and_dtypes_of_real_ones(encoder_folder):
    layer = EncoderLayer(encoder_folder, dtype="mixed_bfloat16")
    real = layer(INPUTS)
    symbolic = layer(
        {name: keras.KerasTensor(value.shape, "int32") for name, value in INPUTS.items()}
    )
    keras.tree.assert_same_structure(real, symbolic)
    for one, other in zip(keras.tree.flatten(real), keras.tree.flatten(symbolic), strict=True):
        assert tuple(one.shape) == tuple(other.shape)
        assert keras.backend.standardize_dtype(one.dtype) == other.dtype == "bfloat16"
    unknown = layer(symbolic_inputs())
    assert unknown["sequence_output"].shape == (None, None, 48)
    assert unknown["pooled_output"].shape == (None, 48)


def test_weights_are_the_encoders_own_under_the_names_of_pretraining(backbone, encoder_folder):
    layer = EncoderLayer(encoder_folder, name="encoder")
    named = {weight.path.removeprefix("encoder/"): weight for weight in layer.weights}
    assert len(named) == len(layer.trainable_weights) == len(backbone.weights)
    for weight in backbone.weights:
        np.testing.assert_array_equal(named[weight.path], weight)


def test_what_is_written_into_a_weight_is_what_the_encoder_computes_with(encoder_folder):
    layer = EncoderLayer(encoder_folder, output="pooled_output")
    before = np.array(layer(INPUTS))
    [bias] = [weight for weight in layer.weights if weight.path.endswith("pooler/dense/bias")]
    bias.assign(bias + 100)
    assert not np.allclose(before, 1)
    np.testing.assert_allclose(layer(INPUTS), np.ones_like(before))


@pytest.mark.parametrize("jit_compile", [False, True])
def test_fit_moves_every_weight_that_has_a_gradient(encoder_folder, jit_compile):
    model = classifier(encoder_folder)
    model.jit_compile = jit_compile
    encoder = model.get_layer("encoder")
    before, outputs = values(encoder.weights), model.predict(INPUTS, verbose=0)
    fit(model)
    names = [weight.path for weight in encoder.weights]
    assert_all_moved(names, before, values(encoder.weights), INPUTS)
    assert np.abs(model.predict(INPUTS, verbose=0) - outputs).max() > 1e-3


def test_a_sequential_model_learns_its_labels(encoder_folder):
    model = keras.Sequential(
        [EncoderLayer(encoder_folder, output="pooled_output"), keras.layers.Dense(3)]
    )
    compile_model(model, "adam", 1e-3)
    fit(model, epochs=30)
    assert (model.predict(INPUTS, verbose=0).argmax(-1) == LABELS).all()


def test_dropout_is_active_in_training_alone(dropping_folder, encoder_folder):
    layer = EncoderLayer(dropping_folder, output="pooled_output")
    np.testing.assert_array_equal(layer(INPUTS), layer(INPUTS, training=False))
    plain = EncoderLayer(encoder_folder, output="pooled_output")
    np.testing.assert_allclose(layer(INPUTS), plain(INPUTS), atol=1e-6)
    assert np.abs(layer(INPUTS, training=True) - layer(INPUTS, training=True)).max() > 1e-3
    model = keras.Sequential([layer])
    assert np.abs(model(INPUTS, training=True) - model(INPUTS, training=True)).max() > 1e-3
    np.testing.assert_array_equal(model.predict(INPUTS, verbose=0), layer(INPUTS))


def test_a_frozen_encoder_stays_as_it_is_until_it_is_thawed(dropping_folder):
    model = classifier(dropping_folder, trainable=False)
    encoder = model.get_layer("encoder")
    before = values(encoder.weights)
    assert [weight.path for weight in model.trainable_weights] == ["logits/kernel", "logits/bias"]
    np.testing.assert_array_equal(encoder(INPUTS, training=True), encoder(INPUTS))
    fit(model)
    assert_equal(encoder.weights, before)
    encoder.trainable = True
    compile_model(model)
    assert len(model.trainable_weights) == len(encoder.weights) + 2
    fit(model)
    names = [weight.path for weight in encoder.weights]
    assert_all_moved(names, before, values(encoder.weights), INPUTS)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_the_encoder_computes_in_float32_under_a_mixed_policy(encoder_folder, policy):
    expected = EncoderLayer(encoder_folder)(INPUTS)
    layer = EncoderLayer(encoder_folder, dtype=policy)
    compute_dtype = policy.removeprefix("mixed_")
    for output, exact in zip(
        keras.tree.flatten(layer(INPUTS)), keras.tree.flatten(expected), strict=True
    ):
        np.testing.assert_array_equal(output, tf.cast(exact, compute_dtype))
    assert {weight.dtype for weight in layer.weights} == {"float32"}


def test_fit_under_a_global_mixed_policy_moves_the_weights(encoder_folder):
    previous = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_float16")  # whose losses are scaled
    try:
        model = classifier(encoder_folder)
        encoder = model.get_layer("encoder")
        before = values(encoder.weights)
        assert encoder.compute_dtype == "float16"
        fit(model)
    finally:
        keras.config.set_dtype_policy(previous)
    names = [weight.path for weight in encoder.weights]
    assert_all_moved(names, before, values(encoder.weights), INPUTS)


def test_a_keras_file_goes_on_where_the_model_was_after_the_folder_has_moved(own_folder, tmp_path):
    model = classifier(own_folder, "adam", 1e-3)
    fit(model)
    model.save(tmp_path / "model.keras")
    own_folder.rename(tmp_path / "moved")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert_equal(loaded.weights, model.weights)
    assert_equal(loaded.optimizer.variables, model.optimizer.variables)
    np.testing.assert_array_equal(
        loaded.predict(INPUTS, verbose=0), model.predict(INPUTS, verbose=0)
    )
    fit(model)
    fit(loaded)
    for one, other in zip(values(loaded.weights), values(model.weights), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
    # What was loaded from a file can be saved into another.
    loaded.save(tmp_path / "again.keras")
    again = keras.models.load_model(tmp_path / "again.keras")
    assert_equal(again.weights, loaded.weights)
    np.testing.assert_array_equal(
        again.predict(INPUTS, verbose=0), loaded.predict(INPUTS, verbose=0)
    )


def test_a_keras_file_holds_the_weights_once(encoder_folder, backbone, tmp_path):
    path = tmp_path / "model.keras"
    classifier(encoder_folder, trainable=False).save(path)
    graph_bytes = (encoder_folder / "saved_model.pb").stat().st_size
    weight_bytes = 4 * backbone.count_params()
    assert path.stat().st_size < graph_bytes + 1.5 * weight_bytes + 100_000


@pytest.mark.parametrize("is_sequential", [False, True])
def test_a_keras_file_does_not_take_another_encoder_that_is_at_the_path(
    own_folder, tmp_path, is_sequential
):
    layer = EncoderLayer(own_folder, output="pooled_output")
    model = keras.Sequential([layer, keras.layers.Dense(3)])
    if not is_sequential:
        inputs = symbolic_inputs()
        model = keras.Model(inputs, keras.layers.Dense(3)(layer(inputs)))
    expected = model.predict(INPUTS, verbose=0)
    model.save(tmp_path / "model.keras")
    shutil.rmtree(own_folder)
    other = shapes.backbone(num_layers=1)
    EncoderModule(other).save(own_folder)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(INPUTS, verbose=0), expected)


def test_weights_files_and_checkpoints_have_the_encoders_weights(encoder_folder, tmp_path):
    model = classifier(encoder_folder)
    fit(model)
    model.save_weights(tmp_path / "model.weights.h5")
    tf.train.Checkpoint(model=model).write(str(tmp_path / "checkpoint"))
    expected = model.predict(INPUTS, verbose=0)

    from_weights = classifier(encoder_folder)
    from_weights.load_weights(tmp_path / "model.weights.h5")
    assert_equal(from_weights.weights, model.weights)
    np.testing.assert_array_equal(from_weights.predict(INPUTS, verbose=0), expected)

    from_checkpoint = classifier(encoder_folder)
    status = tf.train.Checkpoint(model=from_checkpoint).read(str(tmp_path / "checkpoint"))
    status.assert_existing_objects_matched()
    assert_equal(from_checkpoint.weights, model.weights)
    np.testing.assert_array_equal(from_checkpoint.predict(INPUTS, verbose=0), expected)


def test_a_checkpoint_has_each_weight_once(encoder_folder, tmp_path):
    layer = EncoderLayer(encoder_folder)
    tf.train.Checkpoint(layer=layer).write(str(tmp_path / "checkpoint"))
    stored = tf.train.list_variables(str(tmp_path / "checkpoint"))
    sizes = [np.prod(shape, dtype=int) for name, shape in stored if "VARIABLE_VALUE" in name]
    assert len(sizes) == len(layer.weights)
    assert sum(sizes) == layer.count_params()


def test_a_clone_starts_from_the_exported_weights(encoder_folder):
    model = classifier(encoder_folder)
    encoder = model.get_layer("encoder")
    exported = values(encoder.weights)
    fit(model)
    clone = keras.models.clone_model(model).get_layer("encoder")
    assert clone is not encoder
    assert clone.get_config() == encoder.get_config()
    assert_equal(clone.weights, exported)
    clone.weights[0].assign(0 * clone.weights[0])
    assert np.any(encoder.weights[0])


def test_a_config_is_json_and_makes_the_same_layer(encoder_folder):
    layer = EncoderLayer(encoder_folder, False, "default", name="mine", dtype="mixed_bfloat16")
    config = json.loads(json.dumps(layer.get_config()))
    copy = EncoderLayer.from_config(config)
    assert (copy.name, copy.trainable, copy.compute_dtype) == ("mine", False, "bfloat16")
    assert not copy.trainable_weights
    np.testing.assert_array_equal(copy(INPUTS), layer(INPUTS))


def test_a_clone_whose_folder_has_moved_names_it_when_it_is_used(own_folder, tmp_path):
    config = EncoderLayer(own_folder, name="mine").get_config()
    own_folder.rename(tmp_path / "moved")
    clone = EncoderLayer.from_config(config)
    with pytest.raises(KzooError, match=r"'mine' has no encoder: .*/encoder does not hold"):
        clone(INPUTS)
    with pytest.raises(KzooError, match=r"'mine' cannot be saved: .*/encoder"):
        keras.Sequential([clone]).save(tmp_path / "model.keras")


def test_a_model_is_exported_for_serving_with_it(own_folder, tmp_path):
    model = classifier(own_folder)
    fit(model)
    model.export(tmp_path / "served", verbose=False)
    shutil.rmtree(own_folder)
    served = tf.saved_model.load(str(tmp_path / "served"))
    np.testing.assert_allclose(served.serve(INPUTS), model.predict(INPUTS, verbose=0), atol=1e-6)


def test_wrong_folders_are_clear_errors(encoder_folder, tmp_path):
    with pytest.raises(KzooError, match=r"there is no folder .*/absent"):
        EncoderLayer(tmp_path / "absent")
    with pytest.raises(KzooError, match=rf"the encoder is in {encoder_folder}"):
        EncoderLayer(encoder_folder.parent)
    (tmp_path / "empty").mkdir()
    with pytest.raises(KzooError, match=r"is no SavedModel: it has no saved_model\.pb; give the"):
        EncoderLayer(tmp_path / "empty")
    module = tf.Module()
    module.__call__ = tf.function(lambda x: x, [tf.TensorSpec([None])])
    tf.saved_model.save(module, str(tmp_path / "other"))
    with pytest.raises(KzooError, match=r"/other is no encoder: it cannot be called with input_wo"):
        EncoderLayer(tmp_path / "other")


def test_damaged_folders_are_clear_errors(own_folder):
    for path in (own_folder / "variables").iterdir():
        path.unlink()
    with pytest.raises(KzooError, match=r"/encoder: cannot load this SavedModel"):
        EncoderLayer(own_folder)
    (own_folder / "saved_model.pb").write_bytes(b"no graph")
    with pytest.raises(KzooError, match=r"/encoder: cannot load this SavedModel"):
        EncoderLayer(own_folder)


def test_wrong_arguments_and_inputs_are_clear_errors(encoder_folder):
    with pytest.raises(KzooError, match=r"`output` must be one of .*Received: output='pooled'"):
        EncoderLayer(encoder_folder, output="pooled")
    layer = EncoderLayer(encoder_folder, name="mine")
    two = {name: INPUTS[name] for name in ("input_word_ids", "input_mask")}
    with pytest.raises(KzooError, match=r"'mine' takes a dict of .*\['input_mask', 'input_word_id"):
        layer(two)
    with pytest.raises(KzooError, match=r"Received: input_word_ids of dtype float32"):
        layer({name: keras.Input((None,)) for name in INPUTS})


def test_more_tokens_than_positions_are_an_error(encoder_folder):
    long = {name: np.ones((1, 41), np.int32) for name in INPUTS}
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError), match="40"):
        EncoderLayer(encoder_folder)(long)


def test_a_file_whose_graph_does_more_than_compute_is_refused(own_folder, tmp_path):
    model = keras.Sequential([EncoderLayer(own_folder, output="pooled_output")])
    model(INPUTS)
    model.save(tmp_path / "good.keras")
    written = tmp_path / "written"
    harmful = _graph_that_writes(written, tmp_path / "harmful")
    _replace_graph(tmp_path / "good.keras", tmp_path / "bad.keras", harmful)
    shutil.rmtree(own_folder)
    with pytest.raises((KzooError, ValueError), match="WriteFile"):
        keras.models.load_model(tmp_path / "bad.keras")(INPUTS)
    assert not written.exists()


def test_a_file_with_a_damaged_graph_is_refused(own_folder, tmp_path):
    model = keras.Sequential([EncoderLayer(own_folder, output="pooled_output")])
    model(INPUTS)
    model.save(tmp_path / "good.keras")
    shutil.rmtree(own_folder)
    _rewrite(
        tmp_path / "good.keras",
        tmp_path / "bad.keras",
        lambda name, data: data[:-1] if name.endswith("saved_model.pb") else data,
    )
    with pytest.raises((KzooError, ValueError), match="graph in this file is damaged"):
        keras.models.load_model(tmp_path / "bad.keras")


def test_replicas_train_as_one_device_does(encoder_folder, tmp_path):
    run_python(
        """
import sys
import keras
import numpy as np
import tensorflow as tf
from pathlib import Path
from kzoo.training.strategies import configure_runtime
configure_runtime(num_logical_cpus=2, deterministic=False)
from tests.saved_model.test_encoder_layer import INPUTS, assert_equal, classifier, fit, values

folder, scratch = sys.argv[1], Path(sys.argv[2])
keras.utils.set_random_seed(0)
alone = classifier(folder)
alone.save_weights(scratch / "start.weights.h5")
fit(alone)

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
with strategy.scope():
    model = classifier(folder)
    model.load_weights(scratch / "start.weights.h5")
fit(model)
assert len(model.get_layer("encoder").weights[0].value.values) == 2
for one, other in zip(values(model.weights), values(alone.weights), strict=True):
    np.testing.assert_allclose(one, other, atol=1e-5)
np.testing.assert_allclose(
    model.predict(INPUTS, verbose=0), alone.predict(INPUTS, verbose=0), atol=1e-4
)

model.save(scratch / "model.keras")
Path(folder).rename(scratch / "moved")
try:
    with strategy.scope():
        loaded = keras.models.load_model(scratch / "model.keras")
    assert_equal(loaded.weights, model.weights)
    fit(model)
    fit(loaded)
    for one, other in zip(values(loaded.weights), values(model.weights), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)
finally:
    (scratch / "moved").rename(folder)
""",
        encoder_folder,
        tmp_path,
    )


def _graph_that_writes(written: Path, folder: Path) -> bytes:
    """A graph with an encoder's signature, which writes a file when it is called."""
    module = tf.Module()
    module.weight = tf.Variable(tf.zeros([1]))

    @tf.function
    def call(inputs, training=False):
        tf.io.write_file(str(written), "harm")
        pooled = tf.cast(inputs["input_word_ids"], tf.float32)[:, :1] * module.weight
        return {"pooled_output": pooled, "encoder_outputs": [pooled]}

    specs = {name: tf.TensorSpec([None, None], tf.int32, name) for name in INPUTS}
    for training in (False, True):
        call.get_concrete_function(specs, training=training)
    module.__call__ = call
    tf.saved_model.save(module, str(folder))
    return (folder / "saved_model.pb").read_bytes()


def _replace_graph(source: Path, target: Path, graph: bytes) -> None:
    """Copies a `.keras` file with another graph, and with that graph's digest in its config."""
    digest = hashlib.sha256(graph).hexdigest()

    def change(name: str, data: bytes) -> bytes:
        if name.endswith("saved_model.pb"):
            return graph
        if name == "config.json":
            config = json.loads(data)
            for layer in config["config"]["layers"]:
                if layer["class_name"] == "EncoderLayer":
                    layer["config"]["encoder"]["graph_sha256"] = digest
            return json.dumps(config).encode()
        return data

    _rewrite(source, target, change)


def _rewrite(source: Path, target: Path, change) -> None:
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for name in old.namelist():
            new.writestr(name, change(name, old.read(name)))
