"""AdamW against NumPy and Keras, and the choice of what decays."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kzoo import KzooError
from kzoo.training.optimizer import AdamW, decayed_variables, global_norm
from kzoo.training.step import trainable_weights
from tests.models import shapes
from tests.training.numpy_adamw import NumpyAdamW

SHAPES = {"kernel": (5, 7), "bias": (7,), "table": (11, 3)}


def _variables() -> list[keras.Variable]:
    random = np.random.default_rng(0)
    return [
        keras.Variable(random.normal(size=shape), dtype="float32", name=name)
        for name, shape in SHAPES.items()
    ]


def _values(variables) -> list[np.ndarray]:
    return [variable.numpy() for variable in variables]


def _gradients(step: int) -> list[np.ndarray]:
    random = np.random.default_rng(step + 1)
    return [random.normal(size=shape).astype("float32") for shape in SHAPES.values()]


def _update(optimizer: AdamW, gradients, step: int, learning_rate: float) -> None:
    gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
    optimizer.apply(
        gradients,
        step=tf.cast(step, tf.int64),
        learning_rate=tf.cast(learning_rate, tf.float32),
        factor=optimizer.clip_factor(global_norm(gradients)),
    )


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("clip_norm", [0.1, 8.0, None])
@pytest.mark.parametrize("rate_factors", [None, [1.0, 0.5, 0.25]], ids=["one_rate", "rates"])
def test_several_updates_equal_a_plain_computation(rate_factors, clip_norm, graph):
    # The gradients' norms are about 8: a bound of 0.1 bites at each, 8.0 at some.
    variables = _variables()
    settings = {"beta_1": 0.8, "beta_2": 0.98, "epsilon": 1e-3, "weight_decay": 0.3}
    settings["rate_factors"] = rate_factors
    decays = [True, False, True]
    expected = NumpyAdamW(_values(variables), decays, **settings, clip_norm=clip_norm)
    optimizer = AdamW(variables, [variables[0], variables[2]], **settings, clip_norm=clip_norm)
    update = tf.function(_update) if graph else _update
    for step, rate in enumerate((0.1, 0.2, 0.05, 0.15)):
        update(optimizer, _gradients(step), step, rate)
        expected.update(_gradients(step), step, rate)
        for variable, weight in zip(variables, expected.weights, strict=True):
            np.testing.assert_allclose(variable, weight, rtol=1e-5, atol=1e-6)


def test_moments_of_an_earlier_run_go_on_where_they_were():
    """Five updates in one go; and three, then two of another optimizer that has the slots."""
    whole, parted = _variables(), _variables()
    settings = {"weight_decay": 0.3, "clip_norm": 1.0}
    optimizer = AdamW(whole, [whole[0], whole[2]], **settings)
    for step in range(5):
        _update(optimizer, _gradients(step), step, 0.1)

    first = AdamW(parted, [parted[0], parted[2]], **settings)
    for step in range(3):
        _update(first, _gradients(step), step, 0.1)
    second = AdamW(parted, [parted[0], parted[2]], **settings)
    second.updates_before = 3
    for mine, other in zip(second.variables, first.variables, strict=True):
        mine.assign(other)
    for step in range(2):
        _update(second, _gradients(3 + step), step, 0.1)
    for variable, other in zip(parted, whole, strict=True):
        np.testing.assert_array_equal(variable, other)


def test_without_factors_a_step_is_the_graph_that_it_was():
    def operations(**settings):
        variables = _variables()
        optimizer = AdamW(variables, [variables[0], variables[2]], **settings)
        graph = tf.function(_update).get_concrete_function(
            optimizer, [tf.zeros(shape) for shape in SHAPES.values()], 0, 0.1
        )
        return [operation.type for operation in graph.graph.get_operations()]

    assert operations(rate_factors=[1.0, 1.0, 1.0]) == operations()
    assert len(operations(rate_factors=[0.5, 1.0, 1.0])) > len(operations())


def test_it_agrees_with_keras_where_the_formulas_do():
    """Both put ε outside of the bias correction; Keras clips before, so nothing is clipped."""
    ours, theirs = _variables(), _variables()
    optimizer = AdamW(ours, [ours[0], ours[2]], weight_decay=0.1, clip_norm=None)
    keras_optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.1, epsilon=1e-6)
    keras_optimizer.exclude_from_weight_decay([theirs[1]])
    keras_optimizer.build(theirs)
    for step in range(5):
        _update(optimizer, _gradients(step), step, 0.01)
        keras_optimizer.apply([tf.constant(gradient) for gradient in _gradients(step)])
    for variable, other in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(variable, other, rtol=1e-5, atol=1e-6)


def test_the_norm_is_over_all_tensors_and_shows_what_is_not_finite():
    gradients = [tf.constant([3.0, 0.0]), tf.constant([[4.0]]), tf.constant([12.0])]
    assert float(global_norm(gradients)) == pytest.approx(13.0)
    assert not np.isfinite(global_norm([tf.constant([1.0, np.nan]), tf.constant([2.0])]))
    assert not np.isfinite(global_norm([tf.constant([1.0, -np.inf])]))


def test_with_zero_gradients_kernels_decay_and_nothing_else_moves():
    model = shapes.masked_lm()
    optimizer = AdamW(trainable_weights(model), decayed_variables(model), weight_decay=0.1)
    # Fresh biases are all zero, and would hide a decay.
    for variable in optimizer.trained:
        variable.assign(np.random.default_rng(len(variable.path)).normal(size=variable.shape))
    before = _values(optimizer.trained)
    _update(optimizer, [tf.zeros(value.shape) for value in before], 0, 0.1)
    still = 0
    for variable, value in zip(optimizer.trained, before, strict=True):
        if variable.path.endswith(("/bias", "/beta", "/gamma")):
            still += 1
            np.testing.assert_array_equal(variable, value, err_msg=variable.path)
        else:
            expected = np.float32(0.99) * value
            np.testing.assert_allclose(variable, expected, rtol=3e-7, err_msg=variable.path)
    assert 0 < still < len(before)


@pytest.mark.parametrize("output_embedding_dim", [40, "tied"])
@pytest.mark.parametrize("pooler", ["dense", "mean"])
def test_every_matrix_of_a_model_decays_and_no_vector_does(output_embedding_dim, pooler):
    model = shapes.masked_lm(output_embedding_dim, pooler=pooler)
    decayed = [variable.path for variable in decayed_variables(model)]
    matrices = [v.path for v in model.trainable_variables if len(v.shape) > 1]
    assert decayed == matrices
    assert len(set(decayed)) == len(decayed)
    # Three tables and their projection; query, key, value, output and two feed-forward kernels in
    # each of three layers; the head's kernel and, where it has one, table.
    head = 1 if output_embedding_dim == "tied" else 2
    assert len(decayed) == 4 + 6 * 3 + head + (pooler == "dense")


class _OddLayer(keras.layers.Layer):
    def build(self, _):
        self.scale = self.add_weight(shape=(4,), name="scale")
        self.bias = self.add_weight(shape=(4, 4), name="bias")


def test_a_vector_that_would_decay_and_a_matrix_that_would_not_are_refused_by_name():
    odd = _OddLayer(name="odd")
    odd.build(None)
    model = keras.Sequential([keras.layers.Dense(4, name="fine"), odd], name="net")
    model.build((None, 4))
    with pytest.raises(KzooError, match=r"odd/scale, .*odd/bias$") as raised:
        decayed_variables(model)
    assert "fine" not in str(raised.value)


def test_slots_are_named_after_their_variables():
    model = shapes.masked_lm()
    optimizer = AdamW(trainable_weights(model), decayed_variables(model))
    paths = [variable.path for variable in optimizer.variables]
    trained = [variable.path for variable in trainable_weights(model)]
    assert paths == [
        f"optimizer/{slot}/{path}" for slot in ("momentum", "velocity") for path in trained
    ]
    assert not {*paths} & {variable.path for variable in model.variables}
    for variable, slot in zip(optimizer.trained * 2, optimizer.variables, strict=True):
        assert slot.shape == variable.shape
        assert slot.dtype == "float32"
        assert not slot.trainable
