"""Encoders with smaller weights compute nearly the same."""

import numpy as np
import pytest

from kzoo import KzooError
from kzoo.saved_model.precision import with_precision
from tests.models import shapes
from tests.reference import random_inputs, random_weights_into


@pytest.fixture(scope="module")
def backbone():
    backbone = shapes.backbone(num_layers=2)
    random_weights_into(backbone)
    return backbone


def _cosines(a, b) -> np.ndarray:
    a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
    return (a * b).sum(-1) / np.linalg.norm(a, axis=-1) / np.linalg.norm(b, axis=-1)


def _bytes(backbone) -> int:
    return sum(np.prod(v.shape) * np.dtype(v.value.dtype.as_numpy_dtype).itemsize
               for v in backbone.variables)  # fmt: skip


@pytest.mark.parametrize(("precision", "smaller"), [("bfloat16", 1.99), ("int8", 2.8)])
def test_a_narrow_encoder_points_in_nearly_the_same_direction(backbone, precision, smaller):
    inputs = random_inputs(517, [12, 7, 1], 12)
    narrow = with_precision(backbone, precision)
    wide_outputs, narrow_outputs = backbone(inputs), narrow(inputs)
    for name in ("pooled_output", "sequence_output"):
        cosines = _cosines(wide_outputs[name], np.asarray(narrow_outputs[name], "float32"))
        assert cosines.min() > 0.995
    # The same values would mean that nothing was narrowed.
    assert np.abs(np.asarray(narrow_outputs["pooled_output"], "float32")
                  - wide_outputs["pooled_output"]).max() > 1e-5  # fmt: skip
    # A small model's vectors and scales weigh more than a large one's.
    assert _bytes(backbone) / _bytes(narrow) > smaller


def test_the_source_keeps_its_weights_and_float32_is_the_source(backbone):
    before = [variable.numpy() for variable in backbone.variables]
    with_precision(backbone, "bfloat16")
    with_precision(backbone, "int8")
    assert with_precision(backbone, "float32") is backbone
    for variable, value in zip(backbone.variables, before, strict=True):
        assert variable.dtype == "float32"
        np.testing.assert_array_equal(variable, value)


def test_an_unknown_precision_is_refused(backbone):
    with pytest.raises(KzooError, match="precision='float16'"):
        with_precision(backbone, "float16")
