"""One update: against a plain computation, on several devices, in other formats, in accidents."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from kzoo.config.schema import Trainer
from kzoo.training.loop import max_skipped_steps
from kzoo.training.loss_scale import INITIAL_SCALE, DynamicLossScale
from kzoo.training.optimizer import decayed_variables
from kzoo.training.step import masked_vectors, trainable_weights
from tests.training import small_steps
from tests.training.numpy_adamw import NumpyAdamW
from tests.training.subprocesses import run_python

# Rows with many targets, with one, and with none.
UNEVEN = (5, 1, 0, 3)


def _logits(model, batch):
    inputs = {key: batch[key] for key in ("token_ids", "padding_mask", "mask_positions")}
    return model({**inputs, "segment_ids": np.zeros_like(batch["token_ids"])})


def _plain_gradients(model, batch):
    """The mean cross-entropy over all targets of the whole batch, from all of its logits."""
    weights = batch["mask_weights"]
    with tf.GradientTape() as tape:
        losses = keras.losses.sparse_categorical_crossentropy(
            batch["mask_ids"], _logits(model, batch), from_logits=True
        )
        loss = tf.reduce_sum(losses * weights) / weights.sum()
    trained = [variable.value for variable in trainable_weights(model)]
    gradients = [tf.convert_to_tensor(gradient) for gradient in tape.gradient(loss, trained)]
    return float(loss), [gradient.numpy() for gradient in gradients]


def _plain_updates(model, batches) -> tuple[list[float], list[float]]:
    """Trains the model by NumPy; returns the losses and the gradients' norms."""
    trained = trainable_weights(model)
    chosen = {id(variable) for variable in decayed_variables(model)}
    optimizer = NumpyAdamW(
        small_steps.values(trained),
        [id(variable) in chosen for variable in trained],
        weight_decay=small_steps.WEIGHT_DECAY,
        clip_norm=small_steps.CLIP_NORM,
    )
    losses, norms = [], []
    for step, batch in enumerate(batches):
        loss, gradients = _plain_gradients(model, batch)
        losses.append(loss)
        norms.append(optimizer.update(gradients, step, small_steps.RATE))
        for variable, weight in zip(trained, optimizer.weights, strict=True):
            variable.assign(weight.astype(np.float32))
    return losses, norms


def _assert_equal_weights(model, expected, atol=1e-5):
    for variable, value in zip(model.variables, expected, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, atol=atol, err_msg=variable.path)


@pytest.mark.parametrize(
    ("output_embedding_dim", "scaled"),
    [(40, False), (40, True), ("tied", False)],
    ids=["separate", "loss_scale", "tied"],
)
def test_updates_equal_a_plain_computation(output_embedding_dim, scaled):
    batches = [small_steps.batch(UNEVEN, seed=seed) for seed in range(3)]
    expected = small_steps.model(output_embedding_dim)
    losses, norms = _plain_updates(expected, batches)
    assert min(norms) > 2 * small_steps.CLIP_NORM

    model = small_steps.model(output_embedding_dim)
    loss_scale = DynamicLossScale() if scaled else None
    step = small_steps.training_step(model, loss_scale=loss_scale)
    for number, batch in enumerate(batches):
        metrics = step([batch], number, small_steps.RATE)
        assert float(metrics.loss) / sum(UNEVEN) == pytest.approx(losses[number], rel=1e-5)
        assert float(metrics.gradient_norm) == pytest.approx(norms[number], rel=1e-4)
        assert int(metrics.nonfinite_steps) == 0
    _assert_equal_weights(model, small_steps.values(expected.variables))


def test_the_sums_of_a_step_are_those_of_its_batch():
    batch = small_steps.batch(UNEVEN)
    model = small_steps.model()
    guesses = np.argmax(_logits(model, batch), axis=-1)
    # Two targets are made right.
    batch["mask_ids"][0, :2] = guesses[0, :2]
    hits = (guesses == batch["mask_ids"]) * batch["mask_weights"]
    metrics = small_steps.training_step(model)([batch], 0, small_steps.RATE)
    assert float(metrics.correct) == hits.sum() >= 2
    assert float(metrics.targets) == sum(UNEVEN)
    assert float(metrics.tokens) == batch["padding_mask"].sum() < batch["padding_mask"].size
    assert float(metrics.positions) == batch["token_ids"].size


def test_a_batch_without_any_target_is_no_accident():
    model = small_steps.model()
    batch = small_steps.without_targets(small_steps.batch(UNEVEN))
    metrics = small_steps.training_step(model)([batch], 0, small_steps.RATE)
    assert float(metrics.loss) == float(metrics.gradient_norm) == 0
    assert int(metrics.nonfinite_steps) == 0
    assert all(np.isfinite(variable.numpy()).all() for variable in model.variables)


def test_every_weight_is_trained_but_a_poolers():
    model = small_steps.model(pooler="dense")
    pooler = [variable.path for variable in model.backbone.pooler_layer.variables]
    before = small_steps.values(model.variables)
    small_steps.training_step(model)([small_steps.batch((5, 5, 5, 5))], 0, small_steps.RATE)
    unmoved = [
        variable.path
        for variable, value in zip(model.variables, before, strict=True)
        if np.array_equal(variable.numpy(), value)
    ]
    assert len(pooler) == 2
    assert unmoved == pooler


def test_shapes_are_static_where_asked_and_slots_without_a_target_then_stay():
    model = small_steps.model()
    batch = {key: tf.constant(value) for key, value in small_steps.batch(UNEVEN).items()}
    kept, _, kept_weights, _ = masked_vectors(model, batch, training=False, static_shapes=True)
    gathered, ids, weights, rows = masked_vectors(model, batch, training=False, static_shapes=False)
    slots = tf.size(batch["mask_weights"])
    assert kept.shape == (slots, 40)
    assert kept_weights.shape == (slots,)
    assert gathered.shape == (sum(UNEVEN), 40)
    np.testing.assert_allclose(kept[kept_weights > 0], gathered, atol=1e-6)
    np.testing.assert_array_equal(weights, np.ones(sum(UNEVEN)))
    np.testing.assert_array_equal(ids, batch["mask_ids"][batch["mask_weights"] > 0])
    np.testing.assert_array_equal(rows, [0] * 5 + [1] + [3] * 3)


def test_a_compiled_step_makes_the_same_updates():
    def train(**settings):
        model = small_steps.model()
        step = small_steps.training_step(model, **settings)
        losses = [
            float(step([small_steps.batch(UNEVEN, seed=number)], number, small_steps.RATE).loss)
            for number in range(2)
        ]
        return losses, model

    losses, expected = train()
    compiled_losses, model = train(jit_compile=True)
    assert compiled_losses == pytest.approx(losses, rel=1e-5)
    _assert_equal_weights(model, small_steps.values(expected.variables))


def _loss(step, batch, number):
    """The loss of a step that moves nothing."""
    return float(step([batch], number, 0.0).loss)


def test_dropout_is_a_function_of_seed_and_step():
    batch = small_steps.batch(UNEVEN)
    step = small_steps.training_step(small_steps.model(dropout=0.5), seed=3)
    first = _loss(step, batch, 4)
    assert _loss(step, batch, 5) != first
    assert _loss(step, batch, 4) == first
    other_seed = small_steps.training_step(small_steps.model(dropout=0.5), seed=4)
    assert _loss(other_seed, batch, 4) != first


@pytest.fixture
def poison():
    """A model that is infinite where `UNUSED_ID` is read, and a batch in which it is."""
    model = small_steps.model()
    table = model.backbone.token_embedding.embeddings
    value = table.numpy()
    value[small_steps.UNUSED_ID] = np.inf
    table.assign(value)
    bad = small_steps.batch(UNEVEN)
    bad["token_ids"][0, 1] = small_steps.UNUSED_ID
    return model, bad


def _assert_unmoved(model, before):
    for variable, value in zip(model.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value, err_msg=variable.path)


def test_nothing_moves_any_more_after_a_loss_that_is_not_finite(poison):
    model, bad = poison
    step = small_steps.training_step(model)
    good = small_steps.batch(UNEVEN)
    assert bool(step([good], 0, small_steps.RATE).finite)
    before = small_steps.values(model.variables)
    metrics = step([bad], 1, small_steps.RATE)
    assert not np.isfinite(float(metrics.loss))
    assert int(metrics.nonfinite_steps) == 1
    later = step([good], 2, small_steps.RATE)
    assert np.isfinite(float(later.loss))
    assert int(later.nonfinite_steps) == 1
    _assert_unmoved(model, before)


def test_so_many_steps_may_be_skipped_and_then_nothing_moves(poison):
    model, bad = poison
    good = small_steps.batch(UNEVEN)
    step = small_steps.training_step(model, max_skipped_steps=2, nonfinite_steps=1)
    before = small_steps.values(model.variables)
    metrics = step([bad], 0, small_steps.RATE)
    assert not bool(metrics.finite)
    assert int(metrics.nonfinite_steps) == 2
    _assert_unmoved(model, before)
    metrics = step([good], 1, small_steps.RATE)
    assert bool(metrics.finite)
    assert int(metrics.nonfinite_steps) == 2
    assert not np.array_equal(model.head.bias.numpy(), before[-1])
    before = small_steps.values(model.variables)
    assert int(step([bad], 2, small_steps.RATE).nonfinite_steps) == 3
    assert int(step([good], 3, small_steps.RATE).nonfinite_steps) == 3
    _assert_unmoved(model, before)


@pytest.mark.parametrize(("on_nonfinite", "limit"), [("stop", None), ("skip", 1)])
def test_steps_that_were_skipped_under_another_limit_do_not_stop_a_run(on_nonfinite, limit):
    settings = Trainer(on_nonfinite=on_nonfinite, max_skipped_steps=limit)
    allowed = max_skipped_steps(settings, 3)
    model = small_steps.model()
    before = small_steps.values(model.variables)
    step = small_steps.training_step(model, max_skipped_steps=allowed, nonfinite_steps=3)
    metrics = step([small_steps.batch(UNEVEN)], 0, small_steps.RATE)
    assert int(metrics.nonfinite_steps) == 3
    assert not np.array_equal(model.head.bias.numpy(), before[-1])


def test_micro_batches_make_the_update_of_the_whole_batch_when_compiled_too():
    batches = [small_steps.batch((5, 1, 0, 3), seed=seed) for seed in range(2)]

    def train(**settings):
        model = small_steps.model()
        step = small_steps.training_step(model, **settings)
        for number, batch in enumerate(batches):
            metrics = step([batch], number, small_steps.RATE)
            assert float(metrics.targets) == 9
            assert float(metrics.positions) == batch["token_ids"].size
        return model

    expected = small_steps.values(train().variables)
    _assert_equal_weights(train(accumulation_steps=4), expected)
    _assert_equal_weights(train(accumulation_steps=2, jit_compile=True), expected)


def test_micro_batches_whose_layers_run_again_make_the_same_update():
    batch = small_steps.batch((5, 1, 0, 3))
    weights = []
    for recompute in (False, True):
        model = small_steps.model(dropout=0.1, attention_dropout=0.1)
        step = small_steps.training_step(model, accumulation_steps=2, recompute=recompute)
        step([batch], 0, small_steps.RATE)
        weights.append(model)
    _assert_equal_weights(weights[1], small_steps.values(weights[0].variables))


def test_micro_batches_draw_masks_of_their_own():
    row = {name: values[:1] for name, values in small_steps.batch((5,)).items()}
    twice = {name: np.concatenate([values, values]) for name, values in row.items()}
    without = small_steps.without_targets(row)
    halves = [
        {name: np.concatenate(pair) for name, pair in _pairs(row, without)},
        {name: np.concatenate(pair) for name, pair in _pairs(without, row)},
    ]
    step = small_steps.training_step(small_steps.model(dropout=0.5), seed=3, accumulation_steps=2)
    first, second = (_loss(step, half, 4) for half in halves)
    assert abs(first - second) > 1e-3
    assert _loss(step, twice, 4) == pytest.approx(first + second, rel=1e-5)
    assert _loss(step, halves[1], 4) == second


def _pairs(first, second):
    return [(name, [first[name], second[name]]) for name in first]


def test_under_a_loss_scale_such_a_step_is_skipped_until_the_scale_cannot_shrink(poison):
    model, bad = poison
    loss_scale = DynamicLossScale()
    step = small_steps.training_step(model, loss_scale=loss_scale)
    good = small_steps.batch(UNEVEN)
    before = small_steps.values(model.variables)
    assert int(step([bad], 0, small_steps.RATE).nonfinite_steps) == 0
    assert float(loss_scale.value) == INITIAL_SCALE / 2
    _assert_unmoved(model, before)
    assert bool(step([good], 1, small_steps.RATE).finite)
    assert not np.array_equal(model.head.bias.numpy(), before[-1])
    counts = [int(step([bad], number, small_steps.RATE).nonfinite_steps) for number in range(2, 18)]
    # 2¹⁴ is halved fourteen times; the next time, there is nothing left to blame.
    assert counts == [0] * 14 + [1, 2]
    assert float(loss_scale.value) == 1.0


@pytest.fixture
def policy():
    before = keras.config.dtype_policy()
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy(before)


def test_half_precision_learns_as_float32_does_and_keeps_its_variables_in_float32(policy):
    def train(precision):
        policy(precision)
        model = small_steps.model(dropout=0.1)
        loss_scale = DynamicLossScale() if precision == "mixed_float16" else None
        step = small_steps.training_step(model, loss_scale=loss_scale)
        assert model.backbone.encoder_blocks[0].compute_dtype == precision.removeprefix("mixed_")
        losses = []
        for number in range(200):
            metrics = step([small_steps.batch((5, 4, 3, 6), seed=number % 4)], number, 3e-3)
            losses.append(float(metrics.loss) / 18)
            assert int(metrics.nonfinite_steps) == 0
        assert {variable.dtype for variable in model.variables} == {"float32"}
        return np.array(losses)

    expected = train("float32")
    fall = expected[0] - expected[-4:].mean()
    assert fall > 2
    for precision in ("mixed_bfloat16", "mixed_float16"):
        losses = train(precision)
        assert losses[0] == pytest.approx(expected[0], abs=0.05)
        assert losses[-4:].mean() == pytest.approx(expected[-4:].mean(), abs=0.15 * fall)


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_constant_vectors_give_finite_updates_in_half_precision(policy, precision):
    policy(precision)
    model = small_steps.model()
    for name in ("token_embedding", "position_embedding", "segment_embedding"):
        table = getattr(model.backbone.embeddings, name).embeddings
        table.assign(np.zeros(table.shape))
    loss_scale = DynamicLossScale() if precision == "mixed_float16" else None
    step = small_steps.training_step(model, loss_scale=loss_scale)
    metrics = step([small_steps.batch(UNEVEN)], 0, small_steps.RATE)
    assert np.isfinite(float(metrics.loss))
    # The variance is 0 there, so the gradient overflows float16 under the first scale.
    assert all(np.isfinite(variable.numpy()).all() for variable in model.variables)


@pytest.mark.parametrize("settings", [{}, {"jit_compile": True}], ids=["graph", "compiled"])
def test_layers_that_run_again_for_their_gradient_make_the_same_updates(settings):
    def train(**more):
        model = small_steps.model(num_layers=2, dropout=0.1, attention_dropout=0.1)
        step = small_steps.training_step(model, **settings, **more)
        norms = [
            float(step([small_steps.batch(UNEVEN, seed=i)], i, small_steps.RATE).gradient_norm)
            for i in range(3)
        ]
        return norms, model

    norms, expected = train()
    recomputed_norms, model = train(recompute=True)
    assert recomputed_norms == pytest.approx(norms, rel=1e-5)
    _assert_equal_weights(model, small_steps.values(expected.variables))


TWO_DEVICES = """
import sys
import numpy as np
from kzoo.training.strategies import configure_runtime, make_strategy
from tests.training import small_steps

configure_runtime(num_logical_cpus=2)
strategy = make_strategy("mirrored")
assert strategy.num_replicas_in_sync == 2
results = {}

# Shares of different lengths, with nine targets and one, then with ten and none.
with strategy.scope():
    model = small_steps.model()
step = small_steps.training_step(model, strategy)
for number, (first, second) in enumerate((((5, 4), (1, 0)), ((4, 6), (0, 0)))):
    shares = [
        small_steps.batch(first, seed=10 + number, length=20),
        small_steps.batch(second, seed=20 + number, length=12),
    ]
    metrics = step(shares, number, small_steps.RATE)
    results[f"loss_{number}"], results[f"norm_{number}"] = metrics.loss, metrics.gradient_norm
    assert float(metrics.targets) == 10 and metrics.finite
for variable in model.variables:
    replicas = [part.numpy() for part in strategy.experimental_local_results(variable.value)]
    assert len(replicas) == 2 and np.array_equal(*replicas), variable.path
    results[variable.path] = replicas[0]

# The loss of one replica at a time, on the same rows.
with strategy.scope():
    model = small_steps.model(dropout=0.5)
step = small_steps.training_step(model, strategy, seed=3)
full = small_steps.batch((5, 1, 0, 3))
none = small_steps.without_targets(full)
for name, shares in (("first", [full, none]), ("second", [none, full]), ("again", [none, full])):
    results[name] = step(shares, 4, 0.0).loss
np.savez(sys.argv[1], **results)
"""


def test_two_devices_make_the_update_of_one_and_draw_masks_of_their_own(tmp_path):
    run_python(TWO_DEVICES, tmp_path / "results.npz")
    with np.load(tmp_path / "results.npz") as file:
        results = dict(file)

    batches = []
    for number, (first, second) in enumerate((((5, 4), (1, 0)), ((4, 6), (0, 0)))):
        shares = [
            small_steps.batch(first, seed=10 + number, length=20),
            small_steps.batch(second, seed=20 + number, length=12),
        ]
        shares[1] = {
            key: np.pad(value, [(0, 0), (0, 8)]) if value.shape[-1] == 12 else value
            for key, value in shares[1].items()
        }
        batches.append({key: np.concatenate([share[key] for share in shares]) for key in shares[0]})
    model = small_steps.model()
    losses, norms = _plain_updates(model, batches)
    assert min(norms) > 2 * small_steps.CLIP_NORM
    for number in range(2):
        assert results[f"loss_{number}"] / 10 == pytest.approx(losses[number], rel=1e-5)
        assert results[f"norm_{number}"] == pytest.approx(norms[number], rel=1e-4)
    _assert_equal_weights(model, [results[variable.path] for variable in model.variables])

    one_device = small_steps.training_step(small_steps.model(dropout=0.5), seed=3)
    expected = _loss(one_device, small_steps.batch(UNEVEN), 4)
    assert results["first"] == pytest.approx(expected, rel=1e-5)
    assert abs(results["second"] - results["first"]) > 1e-3
    assert results["again"] == results["second"]
