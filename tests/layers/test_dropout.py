"""Dropout masks are a function of seed and stream, wherever and however often they are drawn."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest
import tensorflow as tf

from kzoo.layers.dropout import Dropout, dropout_seed
from tests.models import shapes

SEED = tf.constant([3, -7])
ONES = tf.ones([64, 64])


def test_the_same_seed_and_stream_give_the_same_mask():
    with dropout_seed(SEED):
        first = Dropout(0.3, stream=5)(ONES, training=True)
        again = Dropout(0.3, stream=5)(ONES, training=True)
    in_graph = tf.function(lambda x: Dropout(0.3, stream=5)(x, training=True))
    with dropout_seed(SEED):
        np.testing.assert_array_equal(in_graph(ONES), first)
    np.testing.assert_array_equal(again, first)


def test_another_seed_or_stream_gives_another_mask():
    masks = set()
    for seed in ([0, 0], [0, 1], [1, 0]):
        for stream in range(4):
            with dropout_seed(tf.constant(seed)):
                masks.add(Dropout(0.3, stream)(ONES, training=True).numpy().tobytes())
    assert len(masks) == 12


def test_what_is_kept_grows_and_the_share_dropped_is_the_rate():
    with dropout_seed(SEED):
        dropped = Dropout(0.25, 0)(tf.ones([1000, 400]), training=True).numpy()
    assert set(np.unique(dropped)) == {np.float32(0), np.float32(1 / 0.75)}
    assert (dropped == 0).mean() == pytest.approx(0.25, abs=0.005)


@pytest.mark.parametrize(("rate", "training"), [(0.5, False), (0.0, True)])
def test_nothing_is_dropped_outside_of_training_or_at_rate_0(rate, training):
    assert Dropout(rate, 0)(ONES, training=training) is ONES


def test_without_a_seed_every_call_draws_a_fresh_mask():
    layer = Dropout(0.5, 0)
    draw = tf.function(lambda: layer(ONES, training=True))
    masks = {draw().numpy().tobytes() for _ in range(3)}
    masks |= {layer(ONES, training=True).numpy().tobytes() for _ in range(3)}
    assert len(masks) == 6
    assert layer.variables == []


def test_the_seed_ends_with_its_context():
    with dropout_seed(SEED):
        with dropout_seed(tf.constant([1, 1])):
            inner = Dropout(0.5, 0)(ONES, training=True).numpy()
        outer = Dropout(0.5, 0)(ONES, training=True).numpy()
    after = Dropout(0.5, 0)(ONES, training=True).numpy()
    assert len({mask.tobytes() for mask in (inner, outer, after)}) == 3


def test_a_recomputed_gradient_sees_the_mask_of_the_forward_pass():
    layer = Dropout(0.5, 0)

    def gradient(function, inputs):
        with dropout_seed(SEED), tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(function(inputs) ** 2)
            return tape.gradient(loss, inputs)

    def drop(inputs):
        return layer(inputs, training=True)

    plain = gradient(drop, ONES)
    for recomputed in (gradient, tf.function(gradient)):
        np.testing.assert_array_equal(recomputed(tf.recompute_grad(drop), ONES), plain)


def test_every_dropout_of_a_model_has_a_stream_of_its_own():
    backbone = shapes.backbone(dropout=0.1, attention_dropout=0.2)
    layers = [layer for layer in backbone._flatten_layers() if isinstance(layer, Dropout)]
    assert sorted(layer.stream for layer in layers) == list(range(1 + 3 * 3))
    assert sorted(layer.rate for layer in layers) == [0.1] * 7 + [0.2] * 3


def test_each_replica_draws_by_the_seed_that_it_was_given():
    code = """
        import numpy as np
        import tensorflow as tf

        cpu = tf.config.list_physical_devices("CPU")[0]
        halves = [tf.config.LogicalDeviceConfiguration()] * 2
        tf.config.set_logical_device_configuration(cpu, halves)
        from kzoo.layers.dropout import Dropout, dropout_seed

        strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
        layer = Dropout(0.5, 0)

        @tf.function
        def run(apart):
            def draw():
                replica = tf.distribute.get_replica_context().replica_id_in_sync_group
                with dropout_seed(tf.stack([7, apart * replica])):
                    return layer(tf.ones([32, 32]), training=True)

            return strategy.run(draw).values

        same, other = run(tf.constant(0)), run(tf.constant(1))
        assert np.array_equal(same[0], same[1])
        assert np.array_equal(same[0], other[0])
        assert not np.array_equal(other[0], other[1])
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)
