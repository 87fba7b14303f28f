"""A narrower input table for a model that has a wide one: a start for training, and no equivalent.

What the layers receive is LayerNorm(x)·γ + β, where x, the sum of a token's, a position's and a
segment's row, is E wide. The new rows are N wide, and a projection brings their sum back to E:

- The directions in which x varies most, after LayerNorm has taken its mean away, are the first
  eigenvectors of its second moments: truncated SVD, by way of a matrix of E × E, so that the table
  is only ever read in blocks.
- N - 1 of them are kept. The new LayerNorm takes a mean away too, and in a basis of N - 1 vectors
  that all add up to 0 there is none to lose.
- γ and β go into the projection. A factor of √(N / E) in the rows gives the new LayerNorm the old
  one's variance, epsilon included; the projection takes it out again.

If x never leaves the kept directions, nothing changes. What lies outside is lost, and LayerNorm
stretches the rest: hence further pre-training.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from kzoo.errors import KzooError
from kzoo.interchange.accounting import Weights, all_finite
from kzoo.interchange.derived_weights import Derived, DerivedWeights
from kzoo.models.masked_lm import TIED

_BLOCK_ROWS = 8192

# Paths of variables of a `RemBertMaskedLM`; with the tables, the argument that says their rows.
_TOKENS = "embeddings/token_embedding/embeddings"
_TABLES = {
    _TOKENS: "vocabulary_size",
    "embeddings/position_embedding/embeddings": "max_sequence_length",
    "embeddings/segment_embedding/embeddings": "num_segments",
}
_GAMMA, _BETA = "embeddings/layer_norm/gamma", "embeddings/layer_norm/beta"
_KERNEL, _BIAS = "embeddings/projection/kernel", "embeddings/projection/bias"
_OUTPUT_TABLE = "masked_lm_head/table"


@dataclasses.dataclass(frozen=True)
class FactorizedModel:
    """A model with a narrower input table.

    Attributes:
        arguments: of its `RemBertBackbone`.
        output_embedding_dim: of its `RemBertMaskedLM`; a tied table has become two. None for an
            encoder alone.
        weights: a source of its weights.
        energy_kept: see `FactorizedTables`.
    """

    arguments: dict[str, Any]
    output_embedding_dim: int | None
    weights: DerivedWeights
    energy_kept: float


def factorize_model(
    arguments: Mapping[str, Any],
    output_embedding_dim: int | str | None,
    weights: Weights,
    embedding_dim: int,
    name_of: Callable[[str], str],
    *,
    transpose: bool,
) -> FactorizedModel:
    """Makes the input table of a model narrower.

    Args:
        arguments: of its `RemBertBackbone`.
        output_embedding_dim: of its `RemBertMaskedLM`; None for an encoder alone.
        weights: a source of its weights.
        embedding_dim: the new width.
        name_of: from the path of a variable to the name of its tensor.
        transpose: whether the source's kernels are [outputs, inputs].

    Raises:
        KzooError: the width is none that a table can be made to; or a tensor of the embeddings is
            missing, of another shape, or not finite.
    """
    width, hidden_dim = arguments["embedding_dim"], arguments["hidden_dim"]
    projection = None
    if arguments.get("project_embeddings") is True or width != hidden_dim:
        shape = (hidden_dim, width) if transpose else (width, hidden_dim)
        kernel = _read(weights, name_of(_KERNEL), shape)
        bias = _read(weights, name_of(_BIAS), (hidden_dim,))
        projection = kernel.T if transpose else kernel, bias
    tables = [
        _read(weights, name_of(path), (arguments[rows], width)) for path, rows in _TABLES.items()
    ]
    gamma, beta = (_read(weights, name_of(path), (width,)) for path in (_GAMMA, _BETA))
    new = factorize(tables, gamma, beta, embedding_dim, projection)
    kernel = new.kernel.T if transpose else new.kernel
    made = {
        _GAMMA: np.ones(embedding_dim, np.float32),
        _BETA: np.zeros(embedding_dim, np.float32),
        _KERNEL: kernel,
        _BIAS: new.bias,
    }
    derived = {
        name_of(path): Derived(value.shape, (), lambda value=value: value)
        for path, value in made.items()
    }
    for path, table in zip(_TABLES, tables, strict=True):
        shape = (len(table), embedding_dim)
        derived[name_of(path)] = Derived(shape, (name_of(path),), new.narrow)
    if output_embedding_dim == TIED:
        output_embedding_dim = width
        derived[name_of(_OUTPUT_TABLE)] = Derived(
            tables[0].shape, (name_of(_TOKENS),), lambda table: table
        )
    return FactorizedModel(
        arguments={
            **arguments,
            "embedding_dim": embedding_dim,
            # Without it, a table that happens to be as wide as the layers would have none.
            "project_embeddings": True if embedding_dim == hidden_dim else "auto",
        },
        output_embedding_dim=output_embedding_dim,
        weights=DerivedWeights(weights, derived),
        energy_kept=new.energy_kept,
    )


@dataclasses.dataclass(frozen=True)
class FactorizedTables:
    """The input embeddings of a model with a narrower table.

    Attributes:
        rows_to_narrow: float64 [E, N]: a row of any of the old tables, times this, is the new one.
        kernel, bias: of the new projection, float32 [N, H] and [H].
        energy_kept: share of the second moments of x that is kept, in (0, 1].
    """

    rows_to_narrow: np.ndarray
    kernel: np.ndarray
    bias: np.ndarray
    energy_kept: float

    def narrow(self, table: np.ndarray) -> np.ndarray:
        """A new table: float32 [rows, E] to float32 [rows, N]."""
        new = np.empty((len(table), self.rows_to_narrow.shape[1]), np.float32)
        for start in range(0, len(table), _BLOCK_ROWS):
            block = slice(start, start + _BLOCK_ROWS)
            new[block] = table[block] @ self.rows_to_narrow
        return new


def _read(weights: Weights, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """A tensor that is needed before the model is built, and every tensor is checked."""
    if name not in weights.names():
        raise KzooError(f"a narrower table cannot be made without {name}, which is missing")
    where = f"{weights.source(name)}: {name}"
    if tuple(weights.shape(name)) != shape:
        raise KzooError(f"{where} is {weights.shape(name)}, and should be {shape}")
    value = weights.read(name)
    if not all_finite(value):
        raise KzooError(f"{where} holds values that are not finite")
    return value


def factorize(
    tables: Sequence[np.ndarray],
    gamma: np.ndarray,
    beta: np.ndarray,
    embedding_dim: int,
    projection: tuple[np.ndarray, np.ndarray] | None = None,
) -> FactorizedTables:
    """Finds the narrower tables and their projection.

    The new LayerNorm's γ is 1 and its β 0.

    Args:
        tables: token, position and segment table, each float32 [rows, E]. A row of each is added
            up; all are taken to be equally likely.
        gamma, beta: of the LayerNorm after them, [E] each.
        embedding_dim: N, the new width; from 2 to E - 1.
        projection: kernel [E, H] and bias [H] of the Dense layer that follows, if there is one;
            else H = E.

    Raises:
        KzooError: for another N.
    """
    width = len(gamma)
    if not 2 <= embedding_dim < width:
        raise KzooError(
            f"a table that is {width} wide can be made from 2 to {width - 1} wide. "
            f"Received: embedding_dim={embedding_dim}"
        )
    moments = _centred_moments(tables)
    # Ascending. Rounding makes those of directions that do not occur tiny numbers of either sign.
    energies, directions = np.linalg.eigh(moments)
    energies = np.maximum(energies, 0)
    kept = _without_mean(directions[:, ::-1][:, : embedding_dim - 1].T).T
    basis = _vectors_without_mean(embedding_dim)
    scale = np.sqrt(embedding_dim / width)
    kernel = (basis @ kept.T / scale) * np.asarray(gamma, np.float64)
    bias = np.asarray(beta, np.float64)
    if projection is not None:
        kernel, bias = kernel @ projection[0], bias @ projection[0] + projection[1]
    total = energies.sum()
    return FactorizedTables(
        rows_to_narrow=scale * kept @ basis.T,
        kernel=kernel.astype(np.float32),
        bias=bias.astype(np.float32),
        energy_kept=float(energies[::-1][: embedding_dim - 1].sum() / total) if total else 1.0,
    )


def _centred_moments(tables: Sequence[np.ndarray]) -> np.ndarray:
    """Second moments of a sum of rows, one of each table, less its mean over the width: [E, E].

    Rows are drawn independently: the covariances add up, and so do the means.
    """
    width = tables[0].shape[1]
    moments, mean = np.zeros((width, width)), np.zeros(width)
    for table in tables:
        table_moments, table_mean = np.zeros((width, width)), np.zeros(width)
        for start in range(0, len(table), _BLOCK_ROWS):
            rows = _without_mean(table[start : start + _BLOCK_ROWS].astype(np.float64))
            table_moments += rows.T @ rows / len(table)
            table_mean += rows.sum(axis=0) / len(table)
        moments += table_moments - np.outer(table_mean, table_mean)
        mean += table_mean
    return moments + np.outer(mean, mean)


def _without_mean(rows: np.ndarray) -> np.ndarray:
    return rows - rows.mean(axis=1, keepdims=True)


def _vectors_without_mean(size: int) -> np.ndarray:
    """An orthonormal basis of the vectors whose sum is 0: [size, size - 1] (Helmert's)."""
    basis = np.zeros((size, size - 1))
    for column in range(size - 1):
        basis[: column + 1, column] = 1
        basis[column + 1, column] = -(column + 1)
    return basis / np.linalg.norm(basis, axis=0)
