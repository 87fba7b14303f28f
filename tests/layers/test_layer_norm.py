"""LayerNorm against its formula, where float32 and half precision make it hard."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kzoo.layers.layer_norm import LayerNorm

RANDOM = np.random.default_rng(0)


def test_it_is_keras_layer_normalization_with_its_gradients():
    inputs = tf.constant(RANDOM.normal(3, 2, (5, 7, 24)), tf.float32)
    ours, theirs = LayerNorm(1e-12), keras.layers.LayerNormalization(epsilon=1e-12)
    weights = [RANDOM.normal(size=24) for _ in range(2)]
    results = []
    for layer in (ours, theirs):
        layer.build(inputs.shape)
        layer.set_weights(weights)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = layer(inputs)
            loss = tf.reduce_sum(outputs**3)
        variables = [variable.value for variable in layer.variables]
        results.append([outputs, *tape.gradient(loss, [inputs, *variables])])
    for mine, other in zip(*results, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", ["float32", "mixed_float16", "mixed_bfloat16"])
def test_constant_vectors_stay_finite(dtype):
    layer = LayerNorm(1e-12, dtype=dtype)
    for constant in (0.0, 3.0):
        outputs = layer(tf.fill([2, 8], constant))
        assert outputs.dtype == layer.compute_dtype
        np.testing.assert_array_equal(tf.cast(outputs, "float32"), np.zeros((2, 8)))


def test_half_precision_is_normalised_in_float32():
    inputs = tf.constant(RANDOM.normal(0, 1e-5, (4, 32)), tf.float16)
    outputs = LayerNorm(1e-12, dtype="mixed_float16")(inputs)
    exact = LayerNorm(1e-12)(tf.cast(inputs, tf.float32))
    np.testing.assert_allclose(tf.cast(outputs, tf.float32), exact, atol=2e-3)
