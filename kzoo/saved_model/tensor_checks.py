"""What a loaded module computes, beside what it should: for `self_check`."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

_RATE = 1e-3


def sha256_of_table(folder: Path, name: str) -> str:
    """The sha256 of a variable's bytes in an encoder's checkpoint."""
    reader = tf.train.load_checkpoint(str(folder / "variables" / "variables"))
    escaped = name.replace("/", ".S")
    value = reader.get_tensor(f"named_variables/{escaped}/.ATTRIBUTES/VARIABLE_VALUE")
    return hashlib.sha256(np.ascontiguousarray(value)).hexdigest()


class Comparison(NamedTuple):
    """An output beside what it must be.

    Attributes:
        difference: the largest, in absolute terms; infinite for another shape.
        largest_value: of what it must be, in absolute terms.
        cosine: of the two, each taken as one vector; NaN where values are not finite.
        is_exact: whether it is integers.
    """

    difference: float
    largest_value: float
    cosine: float
    is_exact: bool


def compare(module: Any, name: str, expected: Mapping[str, np.ndarray]) -> dict[str, Comparison]:
    """Runs a module on inputs for which it is known what must come out.

    Args:
        module: a loaded SavedModel.
        name: its folder in the export.
        expected: as `kzoo.saved_model.expected` has it; what is missing is not compared.

    Returns:
        Output → comparison.
    """
    inputs, outputs = (_part(expected, f"{name}/{way}/") for way in ("in", "out"))
    if not outputs:
        return {}
    inputs = {name: tf.constant(value) for name, value in inputs.items()}
    kind = name.split("/")[0]
    if kind in ("encoder", "masked_lm"):
        found = module(inputs)
    elif kind == "preprocessor":
        found = module(inputs["text"])
    else:
        found = {}
        for signature in ("serving_default", "sequence_output"):
            found |= module.signatures[signature](**inputs)
    return {output: _compared(found[output].numpy(), value) for output, value in outputs.items()}


def check_encoder(module: Any) -> list[str]:
    """The problems of an encoder that is called and takes a step of training; it is changed."""
    variables = list(module.trainable_variables)
    problems = []
    if len(module.variables) != len(variables):
        problems.append("has variables that are not trainable")
    if list(module.regularization_losses):
        problems.append("has regularization losses")
    ids = tf.constant([[1, 2, 3], [2, 1, 0]])
    inputs = {
        "input_word_ids": ids,
        "input_mask": tf.cast(ids != 0, tf.int32),
        "input_type_ids": tf.zeros_like(ids),
    }
    with tf.GradientTape() as tape:
        outputs = module(inputs, training=True)
        # Not of one degree: the gradient of squares of normalised vectors would be zero.
        loss = sum(
            tf.reduce_mean((outputs[name] - 1) ** 4) for name in ("sequence_output", "default")
        )
    without = []
    for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
        # A function that was loaded gives zeros for what its result does not depend on.
        if gradient is None or not _reaches(variable.name, gradient):
            without.append(variable.name)
            continue
        if isinstance(gradient, tf.IndexedSlices):
            variable.scatter_sub(tf.IndexedSlices(_RATE * gradient.values, gradient.indices))
        else:
            variable.assign_sub(_RATE * gradient)
    if without:
        problems.append(f"a training step does not reach {', '.join(without[:3])}")
    after = module(inputs)["sequence_output"]
    if not np.isfinite(after).all():
        problems.append("has outputs that are not finite after a training step")
    empty = module({name: tf.zeros((0, 2), tf.int64) for name in inputs})
    if empty["default"].shape[0] != 0:
        problems.append("a batch without rows has some")
    return problems


def _reaches(name: str, gradient: tf.Tensor | tf.IndexedSlices) -> bool:
    """Whether anything in a gradient is not zero; of a key's bias all is, in theory."""
    values = gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
    return "key/bias" in name or bool(tf.reduce_any(values != 0))


def _part(expected: Mapping[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name[len(prefix) :]: expected[name] for name in expected if name.startswith(prefix)}


def _compared(found: np.ndarray, expected: np.ndarray) -> Comparison:
    is_exact = np.issubdtype(expected.dtype, np.integer)
    largest = float(np.abs(expected).max(initial=0))
    if found.shape != expected.shape:
        return Comparison(float("inf"), largest, float("nan"), is_exact)
    found, expected = (array.astype(np.float64).ravel() for array in (found, expected))
    norms = np.linalg.norm(found) * np.linalg.norm(expected)
    cosine = float(found @ expected / norms) if norms else float(not np.any(found - expected))
    return Comparison(float(np.abs(found - expected).max(initial=0)), largest, cosine, is_exact)
