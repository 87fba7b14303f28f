"""The head's two ways to the same logits, and what it owns."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kzoo import KzooError
from kzoo.layers.gather_positions import GatherPositions
from kzoo.layers.masked_lm_head import MaskedLMHead

HIDDEN = np.random.default_rng(0).normal(size=(2, 5, 12)).astype("float32")


@pytest.fixture
def head():
    head = MaskedLMHead(50, 20)
    head.build(HIDDEN.shape)
    head.bias.assign(np.random.default_rng(1).normal(size=50))
    return head


@pytest.mark.parametrize("shape", [(10, 12), (2, 5, 12), (1, 2, 5, 12), (0, 12)])
def test_transform_table_and_bias_give_the_logits_for_any_leading_shape(head, shape):
    hidden = np.resize(HIDDEN, shape)
    logits = head(hidden)
    assert logits.shape == (*shape[:-1], 50)
    transformed = head.transform(hidden)
    assert transformed.shape == (*shape[:-1], 20)
    expected = np.asarray(transformed) @ head.table.numpy().T + head.bias.numpy()
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)


def test_a_tied_head_uses_the_embeddings_table_and_does_not_own_it():
    embedding = keras.layers.Embedding(50, 20)
    embedding.build()
    head = MaskedLMHead(50, 20, tied_embedding=embedding)
    logits = head(HIDDEN)
    assert head.table is embedding.embeddings
    embedding.embeddings.assign(2 * embedding.embeddings.value)
    np.testing.assert_allclose(head(HIDDEN), 2 * logits, rtol=1e-5)


def test_a_tied_table_that_was_quantized_is_refused():
    embedding = keras.layers.Embedding(50, 20)
    embedding.build()
    head = MaskedLMHead(50, 20, tied_embedding=embedding)
    head.build(HIDDEN.shape)
    embedding.quantize("int8")
    with pytest.raises(KzooError, match="quantized to int8"):
        _ = head.table


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize("tied", [False, True])
def test_logits_are_float32_products_under_mixed_precision(dtype, tied):
    embedding = keras.layers.Embedding(50, 20, dtype=dtype)
    embedding.build()
    head = MaskedLMHead(50, 20, tied_embedding=embedding if tied else None, dtype=dtype)
    logits = head(HIDDEN)
    transformed = head.transform(HIDDEN)
    assert logits.dtype == transformed.dtype == "float32"
    expected = np.asarray(transformed) @ head.table.numpy().T
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-6)


def test_gathered_vectors_are_those_at_the_positions():
    positions = np.array([[4, 0, 0], [1, 2, 4]], "int32")
    gathered = GatherPositions()(HIDDEN, positions)
    expected = np.take_along_axis(HIDDEN, positions[..., None], axis=1)
    np.testing.assert_array_equal(gathered, expected)


def test_gradients_reach_every_variable(head):
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(head(HIDDEN) ** 2)
    gradients = tape.gradient(loss, [variable.value for variable in head.variables])
    assert all(np.abs(gradient.numpy()).max() > 0 for gradient in gradients)
