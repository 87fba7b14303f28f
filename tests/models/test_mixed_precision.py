"""What half precision must not touch: weights, LayerNorm, softmax, logits, loss."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from kzoo.layers.masked_lm_head import MaskedLMHead
from tests import reference
from tests.models import shapes

half_precision = pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])


@pytest.fixture(scope="module")
def inputs():
    return reference.random_inputs(517, [9, 0, 4], 9, predictions=3)


def encoder_inputs(inputs):
    return {key: value for key, value in inputs.items() if key != "mask_positions"}


def with_same_weights(dtype: str):
    """A float32 model and one of another policy."""
    exact, half = shapes.masked_lm(), shapes.masked_lm(dtype=dtype)
    reference.random_weights_into(exact)
    half.set_weights(exact.get_weights())
    return exact, half


@half_precision
def test_layers_compute_in_half_and_everything_else_stays_float32(dtype, inputs):
    model = shapes.masked_lm(dtype=dtype)
    assert {variable.dtype for variable in model.variables} == {"float32"}
    outputs = model.backbone(encoder_inputs(inputs))
    compute_dtype = dtype.removeprefix("mixed_")
    assert {tensor.dtype.name for tensor in outputs.values()} == {compute_dtype}
    assert model(inputs).dtype == model.output.dtype == "float32"


@half_precision
def test_outputs_are_those_of_float32_within_the_precision(dtype, inputs):
    exact, half = with_same_weights(dtype)
    tolerance = 0.02 if dtype == "mixed_float16" else 0.15
    for mine, expected in (
        (
            half.backbone(encoder_inputs(inputs))["sequence_output"],
            exact.backbone(encoder_inputs(inputs))["sequence_output"],
        ),
        (half(inputs), exact(inputs)),
    ):
        mine = tf.cast(mine, "float32").numpy()
        np.testing.assert_allclose(mine, expected, rtol=0, atol=tolerance)


@half_precision
def test_constant_vectors_and_masked_rows_stay_finite_with_their_gradients(dtype, inputs):
    model = shapes.masked_lm(dtype=dtype)
    for name in ("token_embedding", "position_embedding", "segment_embedding"):
        table = getattr(model.backbone.embeddings, name).embeddings
        table.assign(np.zeros(table.shape))
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(model(inputs) ** 2)
    assert np.isfinite(loss)
    variables = model.backbone.encoder_blocks[0].trainable_variables
    for gradient in tape.gradient(loss, [variable.value for variable in variables]):
        assert np.isfinite(gradient.numpy()).all()


@half_precision
def test_the_loss_over_a_large_vocabulary_is_that_of_float32(dtype):
    random = np.random.default_rng(0)
    hidden = random.normal(size=(8, 12)).astype("float32")
    labels = random.integers(0, 250_300, 8)
    losses = []
    heads = [MaskedLMHead(250_300, 8), MaskedLMHead(250_300, 8, dtype=dtype)]
    for head in heads:
        head.build(hidden.shape)
    for variable in heads[0].variables:
        variable.assign(random.normal(size=variable.shape))
    heads[1].set_weights(heads[0].get_weights())
    for head in heads:
        logits = head(tf.cast(hidden, head.dense.compute_dtype))
        losses.append(keras.losses.sparse_categorical_crossentropy(labels, logits, True).numpy())
    np.testing.assert_allclose(losses[1].mean(), losses[0].mean(), rtol=1e-2)


def test_training_falls_as_in_float32(inputs):
    labels = np.random.default_rng(0).integers(0, 517, (3, 3))
    curves = {}
    for dtype in ("float32", "mixed_bfloat16", "mixed_float16"):
        model = shapes.masked_lm(num_layers=1, dtype=dtype)
        start = np.random.default_rng(1)
        for variable in model.variables:
            if not variable.path.endswith(("/gamma", "/beta", "/bias")):
                variable.assign(start.normal(0, 0.02, variable.shape))
        curves[dtype] = _train(model, inputs, labels, steps=40)
    assert curves["float32"][-1] < 0.1 * curves["float32"][0]
    for dtype in ("mixed_bfloat16", "mixed_float16"):
        np.testing.assert_allclose(curves[dtype], curves["float32"], atol=0.5)


def _train(model, inputs, labels, steps):
    optimizer = keras.optimizers.Adam(4e-3)
    variables = [v for v in model.trainable_variables if not v.path.startswith("pooler/")]
    optimizer.build(variables)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            logits = model(inputs, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits, True)
            loss = tf.reduce_mean(losses)
            scaled = 1024 * loss
        gradients = tape.gradient(scaled, [variable.value for variable in variables])
        optimizer.apply([tf.convert_to_tensor(g) / 1024 for g in gradients], variables)
        return loss

    return [float(step()) for _ in range(steps)]


@half_precision
def test_the_policy_is_part_of_the_config(dtype, inputs):
    model = shapes.masked_lm(dtype=dtype)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(model)))
    again = keras.saving.deserialize_keras_object(config)
    assert again.backbone.dtype_policy.name == dtype
    again.set_weights(model.get_weights())
    np.testing.assert_array_equal(again(inputs), model(inputs))


@half_precision
def test_a_global_policy_does_the_same(dtype, inputs):
    _, half = with_same_weights(dtype)
    keras.config.set_dtype_policy(dtype)
    try:
        model = shapes.masked_lm()
    finally:
        keras.config.set_dtype_policy("float32")
    model.set_weights(half.get_weights())
    np.testing.assert_array_equal(model(inputs), half(inputs))
