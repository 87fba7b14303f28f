"""Poolers at the edges that a whole model does not show."""

import numpy as np
import pytest

from kzoo.layers.pooler import Pooler

HIDDEN = np.random.default_rng(0).normal(size=(2, 4, 6)).astype("float32")


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
def test_the_mean_of_a_sequence_that_is_all_padding_is_zero(dtype):
    mask = np.array([[0, 0, 0, 0], [0, 1, 0, 1]], "int32")
    pooler = Pooler("mean", dtype=dtype)
    pooled = pooler(HIDDEN, mask)
    assert pooled.dtype == pooler.compute_dtype
    expected = np.stack([np.zeros(6), HIDDEN[1, [1, 3]].mean(axis=0)])
    tolerance = 1e-6 if dtype == "float32" else 1e-2
    np.testing.assert_allclose(np.asarray(pooled, "float32"), expected, atol=tolerance)


@pytest.mark.parametrize(("kind", "variables"), [("dense", 2), ("first_token", 0), ("mean", 0)])
def test_only_the_dense_pooler_has_variables(kind, variables):
    pooler = Pooler(kind)
    pooler(HIDDEN, np.ones((2, 4), "int32"))
    assert len(pooler.variables) == variables
