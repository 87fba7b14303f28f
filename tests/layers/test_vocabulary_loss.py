"""The chunked loss against the plain one, against finite differences, and in half precision."""

import numpy as np
import pytest
import tensorflow as tf

from kzoo.layers.vocabulary_loss import default_chunk_size, vocabulary_loss, vocabulary_scores

VOCABULARY_SIZE, DIM = 97, 12


@pytest.fixture
def problem():
    rng = np.random.default_rng(0)

    def make(targets, dtype=tf.float32):
        weights = rng.uniform(0.1, 1.0, targets).astype(np.float32)
        weights[::5] = 0.0
        return {
            "hidden": tf.cast(rng.normal(size=(targets, DIM)), dtype),
            "table": tf.constant(rng.normal(size=(VOCABULARY_SIZE, DIM)), tf.float32),
            "bias": tf.constant(rng.normal(size=VOCABULARY_SIZE), tf.float32),
            "target_ids": tf.constant(rng.integers(0, VOCABULARY_SIZE, targets), tf.int32),
            "weights": tf.constant(weights),
        }

    return make


def gradients_of(loss, hidden, table, bias, **rest):
    with tf.GradientTape() as tape:
        tape.watch([hidden, table, bias])
        total = loss(hidden, table, bias, **rest)
    return total, tape.gradient(total, [hidden, table, bias])


def plain_loss(hidden, table, bias, target_ids, weights):
    logits = tf.matmul(tf.cast(hidden, tf.float32), table, transpose_b=True) + bias
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(target_ids, logits)
    return tf.reduce_sum(losses * weights)


def chunked(chunk_size, **options):
    return lambda *args, **rest: vocabulary_loss(*args, **rest, chunk_size=chunk_size, **options)[0]


@pytest.mark.parametrize("targets", [1, 7, 8, 9, 23])
@pytest.mark.parametrize("chunk_size", [1, 4, 8, 100, None])
def test_loss_and_gradients_equal_those_of_the_plain_loss(problem, targets, chunk_size):
    values = problem(targets)
    expected, expected_gradients = gradients_of(plain_loss, **values)
    total, gradients = gradients_of(chunked(chunk_size), **values)
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    for gradient, reference in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient, reference, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk_size", [4, 100])
def test_a_table_that_is_not_trained_has_no_gradient_and_costs_none(problem, chunk_size):
    values = problem(9)
    expected, expected_gradients = gradients_of(chunked(chunk_size), **values)
    total, gradients = gradients_of(chunked(chunk_size, table_is_trained=False), **values)
    assert float(total) == float(expected)
    assert gradients[1] is None
    np.testing.assert_array_equal(gradients[0], expected_gradients[0])
    np.testing.assert_array_equal(gradients[2], expected_gradients[2])

    def has_product_of_its_shape(**options):
        graph = tf.function(lambda v: gradients_of(chunked(100, **options), **v)[1][0])
        operations = graph.get_concrete_function(values).graph.get_operations()
        return [VOCABULARY_SIZE, DIM] in [
            operation.outputs[0].shape.as_list()
            for operation in operations
            if operation.type == "MatMul"
        ]

    assert has_product_of_its_shape()
    assert not has_product_of_its_shape(table_is_trained=False)


@pytest.mark.parametrize("chunk_size", [4, 100])
def test_it_is_the_same_in_a_graph_whose_number_of_targets_is_unknown(problem, chunk_size):
    spec = {
        "hidden": tf.TensorSpec([None, DIM]),
        "table": tf.TensorSpec([VOCABULARY_SIZE, DIM]),
        "bias": tf.TensorSpec([VOCABULARY_SIZE]),
        "target_ids": tf.TensorSpec([None], tf.int32),
        "weights": tf.TensorSpec([None]),
    }
    traces = []

    @tf.function(input_signature=[spec])
    def in_graph(values):
        traces.append(1)
        return gradients_of(chunked(chunk_size), **values)

    for targets in (23, 3, 0):
        values = problem(targets)
        expected, expected_gradients = gradients_of(plain_loss, **values)
        total, gradients = in_graph(values)
        np.testing.assert_allclose(total, expected, rtol=1e-5)
        for gradient, reference in zip(gradients, expected_gradients, strict=True):
            np.testing.assert_allclose(gradient, reference, atol=1e-5, rtol=1e-5)
    assert len(traces) == 1


def test_it_compiles_under_xla(problem):
    values = problem(23)
    expected, expected_gradients = gradients_of(plain_loss, **values)
    compiled = tf.function(lambda v: gradients_of(chunked(5), **v), jit_compile=True)
    total, gradients = compiled(values)
    np.testing.assert_allclose(total, expected, rtol=1e-5)
    np.testing.assert_allclose(gradients[1], expected_gradients[1], atol=1e-5)


def test_gradients_equal_finite_differences(problem):
    values = problem(6)

    def in_float64(hidden, table, bias):
        logits = hidden @ table.T + bias
        shift = logits.max(-1, keepdims=True)
        log_sum = np.log(np.exp(logits - shift).sum(-1)) + shift[:, 0]
        losses = log_sum - logits[np.arange(len(logits)), values["target_ids"].numpy()]
        return float((losses * values["weights"].numpy()).sum())

    point = [values[name].numpy().astype(np.float64) for name in ("hidden", "table", "bias")]
    _, gradients = gradients_of(chunked(4), **values)
    rng, step = np.random.default_rng(1), 1e-5
    for index, gradient in enumerate(gradients):
        direction = rng.normal(size=point[index].shape)
        ends = []
        for sign in (1, -1):
            moved = list(point)
            moved[index] = point[index] + sign * step * direction
            ends.append(in_float64(*moved))
        slope = (ends[0] - ends[1]) / (2 * step)
        np.testing.assert_allclose((gradient.numpy() * direction).sum(), slope, rtol=1e-4)


def test_it_needs_no_op_that_tensorflow_refuses_on_a_gpu_under_determinism(problem):
    values = problem(23)
    graph = tf.function(lambda: gradients_of(chunked(4), **values)).get_concrete_function().graph
    definition = graph.as_graph_def()
    nodes = [*definition.node, *(n for f in definition.library.function for n in f.node_def)]
    assert "MatMul" in {node.op for node in nodes}
    assert "SparseSoftmaxCrossEntropyWithLogits" not in {node.op for node in nodes}


def test_the_loss_over_a_large_vocabulary_is_that_of_float32_when_bfloat16_comes_in():
    rng = np.random.default_rng(0)
    size, dim, targets = 250_300, 8, 16
    values = {
        "hidden": tf.constant(rng.normal(size=(targets, dim)), tf.float32),
        "table": tf.constant(rng.normal(size=(size, dim)), tf.float32),
        "bias": tf.constant(rng.normal(size=size), tf.float32),
        "target_ids": tf.constant(rng.integers(0, size, targets), tf.int32),
        "weights": tf.fill([targets], 1 / targets),
    }
    expected, expected_gradients = gradients_of(chunked(None), **values)
    values["hidden"] = tf.cast(values["hidden"], tf.bfloat16)
    total, gradients = gradients_of(chunked(None, gradient_dtype=tf.bfloat16), **values)
    assert float(total) == pytest.approx(float(expected), rel=1e-2)
    for gradient, reference in zip(gradients, expected_gradients, strict=True):
        difference = tf.norm(tf.cast(gradient, tf.float32) - reference)
        assert float(difference / tf.norm(reference)) < 2e-2


def test_an_upstream_gradient_is_multiplied_in(problem):
    values = problem(5)
    _, once = gradients_of(chunked(2), **values)
    _, thrice = gradients_of(lambda *a, **k: 3.0 * chunked(2)(*a, **k), **values)
    for single, triple in zip(once, thrice, strict=True):
        np.testing.assert_allclose(triple, 3.0 * single.numpy(), rtol=1e-6)


def test_scores_are_those_of_the_loss(problem):
    values = problem(23)
    _, losses, correct = vocabulary_loss(**values, chunk_size=6)
    values.pop("weights")
    scores = vocabulary_scores(**values, chunk_size=4)
    np.testing.assert_allclose(scores[0], losses, rtol=1e-6)
    np.testing.assert_array_equal(scores[1], correct)
    logits = values["hidden"] @ tf.transpose(values["table"]) + values["bias"]
    np.testing.assert_array_equal(correct, tf.argmax(logits, -1, tf.int32) == values["target_ids"])


@pytest.mark.parametrize(
    ("dtype", "gradient_dtype"),
    [(tf.float32, tf.bfloat16), (tf.bfloat16, tf.bfloat16), (tf.float16, tf.float32)],
)
def test_half_precision_at_the_full_vocabulary_stays_close_to_float32(dtype, gradient_dtype):
    size, rng = 250_300, np.random.default_rng(0)
    hidden = tf.constant(rng.normal(size=(16, DIM)), tf.float32)
    values = {
        "table": tf.constant(rng.normal(scale=0.3, size=(size, DIM)), tf.float32),
        "bias": tf.zeros(size),
        "target_ids": tf.constant(rng.integers(0, size, 16), tf.int32),
        "weights": tf.fill([16], 1 / 16),
    }
    expected, reference = gradients_of(plain_loss, hidden, **values)
    total, gradients = gradients_of(
        chunked(None, gradient_dtype=gradient_dtype), tf.cast(hidden, dtype), **values
    )
    assert total.dtype == gradients[1].dtype == tf.float32
    assert gradients[0].dtype == dtype
    np.testing.assert_allclose(total, expected, atol=1e-2)
    for gradient, exact in zip(gradients, reference, strict=True):
        error = tf.norm(tf.cast(gradient, tf.float32) - exact) / tf.norm(exact)
        assert error < 2e-2
    # No row of the table is left without a gradient because its probability was too small.
    assert tf.reduce_all(tf.reduce_any(gradients[1] != 0, axis=1))


def test_large_logits_stay_finite(problem):
    values = problem(8)
    values["hidden"] = values["hidden"] * 1e4
    total, gradients = gradients_of(chunked(3), **values)
    assert np.isfinite(total)
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_the_default_chunk_bounds_the_memory_of_the_logits():
    for size in (1_000, 30_000, 250_300):
        assert default_chunk_size(size) * size * 4 <= 2**28
    assert default_chunk_size(10_000_000) == 64
