"""Weights start as a truncated normal, however large the table is."""

import numpy as np
import pytest
import tensorflow as tf

from kzoo.layers import initializers
from kzoo.layers.initializers import TruncatedNormal

LARGE = (5003, 40)


@pytest.fixture(autouse=True)
def _tables_of_ten_blocks_and_a_short_one(monkeypatch):
    monkeypatch.setattr(initializers, "_BLOCK_VALUES", 500 * 40)


@pytest.mark.parametrize("shape", [(500, 40), LARGE])
def test_values_are_a_normal_cut_at_two_deviations(shape):
    values = TruncatedNormal(stddev=0.02, seed=1)(shape).numpy()
    assert values.shape == shape
    assert values.dtype == np.float32
    assert np.abs(values).max() <= 0.04 + 1e-6
    # What is left between -2 and 2 of a standard normal has a deviation of 0.8796.
    assert values.std() == pytest.approx(0.02 * 0.8796, rel=0.02)
    assert abs(values.mean()) < 5e-4


def test_blocks_of_a_large_table_differ_and_are_all_drawn():
    values = TruncatedNormal(seed=1)(LARGE).numpy()
    assert len(np.unique(values[:, 0].round(9))) > 0.99 * LARGE[0]
    assert np.abs(values).sum(axis=1).min() > 0


def test_the_seed_decides():
    draws = [TruncatedNormal(seed=seed)(LARGE, "float32").numpy() for seed in (7, 7, 8)]
    np.testing.assert_array_equal(draws[0], draws[1])
    assert not np.array_equal(draws[0], draws[2])


def test_a_graph_gets_a_tensor_of_the_same_shape():
    with tf.Graph().as_default():
        assert TruncatedNormal()(LARGE).shape == LARGE


def test_left_empty_a_table_is_not_drawn_and_afterwards_it_is(monkeypatch):
    monkeypatch.setattr(tf.random, "stateless_truncated_normal", None)
    with initializers.left_empty():
        assert TruncatedNormal()(LARGE, "float32").shape == LARGE
    with pytest.raises(TypeError):
        TruncatedNormal()(LARGE, "float32")
