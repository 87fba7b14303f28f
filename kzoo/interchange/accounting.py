"""Weights into a model, with every tensor and every variable accounted for."""

import dataclasses
import fnmatch
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

import keras
import numpy as np
import tensorflow as tf

from kzoo.errors import KzooError
from kzoo.layers.initializers import STANDARD_DEVIATION, TruncatedNormal

_BLOCK_VALUES = 2**22


class Weights(Protocol):
    """What weights are read from: `SourceWeights`, `DerivedWeights`."""

    def names(self) -> list[str]: ...

    def shape(self, name: str) -> tuple[int, ...]: ...

    def read(self, name: str) -> np.ndarray: ...

    def source(self, name: str) -> str: ...


class HasVariables(Protocol):
    """What gets values: a model, or an optimizer."""

    @property
    def variables(self) -> Sequence[keras.Variable]: ...


@dataclasses.dataclass(frozen=True)
class Accounts:
    """What has become of every tensor.

    Attributes:
        used: name of a tensor → path of the variable that has it.
        ignored: name of a tensor → why it was left out.
        made_anew: path of a variable that had no tensor → seed of its new values.
    """

    used: Mapping[str, str]
    ignored: Mapping[str, str]
    made_anew: Mapping[str, int]


def check_all(
    model: HasVariables,
    weights: Weights,
    name_of: Callable[[str], str] = str,
    *,
    transpose: bool = False,
    ignored: Mapping[str, str] | None = None,
    allow_missing: Iterable[str] = (),
) -> Accounts:
    """Says what `assign_all` would do, from names and shapes alone.

    Arguments and errors are those of `assign_all`. The model's variables need no values.
    """
    plan = _Plan(model, weights, name_of, transpose, ignored or {}, tuple(allow_missing))
    _raise_all(plan.problems)
    return plan.accounts


def assign_all(
    model: HasVariables,
    weights: Weights,
    name_of: Callable[[str], str] = str,
    *,
    transpose: bool = False,
    ignored: Mapping[str, str] | None = None,
    allow_missing: Iterable[str] = (),
    seed: int = 0,
) -> Accounts:
    """Gives every variable of a model its values.

    Names and shapes are compared before the first tensor is read. The largest tensors are read
    first: the variables of a model that was made `left_empty` take no memory yet then.

    Args:
        model: whose variables are assigned.
        weights: where the values come from.
        name_of: from the path of a variable to the name of its tensor.
        transpose: whether the source's kernels are [outputs, inputs].
        ignored: pattern of names, as the shell has them → why such a tensor is left out. What has
            a variable is used all the same.
        allow_missing: variables that may be without a tensor and are made anew: the path of one,
            or the beginning of some paths up to a `/`, or the name of a tensor.
        seed: of what is made anew; each variable has one of its own, made of this and its path.

    Raises:
        KzooError: a tensor is missing, has no use, has the wrong shape, or holds a value that is
            not finite; or nothing has a name of `allow_missing`. All of them are listed.
    """
    plan = _Plan(model, weights, name_of, transpose, ignored or {}, tuple(allow_missing), seed)
    _raise_all(plan.problems)
    not_finite = []
    for variable in sorted(model.variables, key=lambda variable: -math.prod(variable.shape)):
        path = variable.path
        if path in plan.made_anew:
            variable.assign(new_values(path, variable.shape, plan.made_anew[path]))
            continue
        value = weights.read(plan.names[path])
        if not all_finite(value):
            name = plan.names[path]
            not_finite.append(f"{weights.source(name)}: {name} holds values that are not finite")
        _assign(variable, value.T if _is_transposed(path, transpose) else value)
    _raise_all(not_finite)
    return plan.accounts


def _assign(variable: keras.Variable, value: np.ndarray) -> None:
    """Assigns an array; a large one by blocks of rows, since TensorFlow copies it twice."""
    if value.size <= _BLOCK_VALUES:
        variable.assign(value)
        return
    rows = max(1, _BLOCK_VALUES // math.prod(value.shape[1:]))
    with tf.device("CPU:0"):
        table = tf.raw_ops.Empty(shape=value.shape, dtype=variable.dtype)
        for start in range(0, len(value), rows):
            block = tf.constant(value[start : start + rows], variable.dtype)
            where = tf.range(start, start + len(block))
            # The result is `table` itself.
            tf.raw_ops.InplaceUpdate(x=table, i=where, v=block)
    variable.assign(table)


def new_values(path: str, shape: Sequence[int], seed: int):
    """The values that a variable of this kind begins with, always the same for a seed.

    Args:
        path: of the variable.
        shape: its shape.
        seed: of the truncated normal distribution, where there is one.
    """
    kind = path.rpartition("/")[2]
    if kind == "gamma":
        return np.ones(shape, np.float32)
    if kind in ("beta", "bias"):
        return np.zeros(shape, np.float32)
    return TruncatedNormal(stddev=STANDARD_DEVIATION, seed=seed)(tuple(shape), "float32")


def is_meant(allowed: str, path: str, name: str) -> bool:
    """Whether a name of `allow_missing` stands for a variable.

    Args:
        allowed: the name.
        path: of the variable.
        name: of its tensor.
    """
    return allowed in (path, name) or path.startswith(f"{allowed}/")


def all_finite(value: np.ndarray) -> bool:
    """Whether an array has neither infinities nor NaN, without a mask of its size."""
    flat = value.reshape(-1)
    starts = range(0, flat.size, _BLOCK_VALUES)
    return all(bool(np.isfinite(flat[start : start + _BLOCK_VALUES]).all()) for start in starts)


class _Plan:
    """Which tensor goes where, from names and shapes alone.

    Attributes:
        names: path of a variable → name of its tensor.
        ignored, made_anew: as in `Accounts`.
        problems: what is wrong, in words.
    """

    def __init__(self, model, weights, name_of, transpose, ignored, allow_missing, seed=0):
        self._weights = weights
        self.names = {variable.path: name_of(variable.path) for variable in model.variables}
        self.problems = [
            f"no variable has the name {name!r} that may be missing"
            for name in allow_missing
            if not any(is_meant(name, path, self.names[path]) for path in self.names)
        ]
        there = set(weights.names())
        self.made_anew = {}
        for variable in model.variables:
            path, name = variable.path, self.names[variable.path]
            if name in there:
                self._compare_shapes(variable, name, transpose)
            elif any(is_meant(allowed, path, name) for allowed in allow_missing):
                self.made_anew[path] = zlib.crc32(path.encode(), seed)
            else:
                self.problems.append(
                    f"missing: {name} {_text(variable.shape)}; --allow_missing {path} makes it anew"
                )
        self.ignored = {}
        for name in weights.names():
            if name in self.names.values():
                continue
            reasons = (
                why for pattern, why in ignored.items() if fnmatch.fnmatchcase(name, pattern)
            )
            reason = next(reasons, None)
            if reason is None:
                where, shape = weights.source(name), _text(weights.shape(name))
                self.problems.append(f"unknown: {name} {shape}, in {where}")
            else:
                self.ignored[name] = reason

    @property
    def accounts(self) -> Accounts:
        used = {name: path for path, name in self.names.items() if path not in self.made_anew}
        return Accounts(used, self.ignored, self.made_anew)

    def _compare_shapes(self, variable: keras.Variable, name: str, transpose: bool) -> None:
        expected = tuple(variable.shape)
        if _is_transposed(variable.path, transpose):
            expected = expected[::-1]
        found = tuple(self._weights.shape(name))
        if found != expected:
            self.problems.append(
                f"wrong shape: {name} in {self._weights.source(name)} is {_text(found)}, "
                f"and should be {_text(expected)}"
            )


def _is_transposed(path: str, transpose: bool) -> bool:
    return transpose and path.endswith("/kernel")


def _text(shape: Sequence[int]) -> str:
    return f"[{', '.join(map(str, shape))}]"


def _raise_all(problems: Sequence[str]) -> None:
    if len(problems) == 1:
        raise KzooError(problems[0])
    if problems:
        raise KzooError(
            f"{len(problems)} things are wrong with the weights:\n" + "\n".join(problems)
        )
