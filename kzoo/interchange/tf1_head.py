"""Which tensors of a checkpoint are the masked-LM head.

The names that RemBERT's head has in its checkpoint are not public. They hold `output_embedding` or
`cls`; the rest is found by shape, and among vectors of one shape by the last part of the name.
"""

import collections
import dataclasses
from collections.abc import Callable, Iterable, Mapping

from kzoo.errors import KzooError
from kzoo.interchange.tensor_mapping import TensorMapping
from kzoo.interchange.tf1_names import HEAD_PATHS

_PARTS_OF_NAMES = ("output_embedding", "cls")

_TABLE, _BIAS, _KERNEL, _DENSE_BIAS, _GAMMA, _BETA = HEAD_PATHS
_TIED = "tied"

Shapes = Mapping[str, tuple[int, ...]]


@dataclasses.dataclass(frozen=True)
class Head:
    """The tensors of a head.

    Attributes:
        names: path of a variable → name of its tensor.
        output_embedding_dim: of `RemBertMaskedLM`; None where there are none of them.
        turned_table: the table's name if it is [E_out, V] and not [V, E_out].
    """

    names: Mapping[str, str]
    output_embedding_dim: int | str | None
    turned_table: str | None


def find_head(
    left: Shapes,
    mapping: TensorMapping,
    all_shapes: Shapes,
    *,
    vocabulary_size: int,
    hidden_dim: int,
    embedding_dim: int,
    where: str,
) -> Head:
    """Finds the tensors of the masked-LM head among those that are nothing else.

    Args:
        left: name → shape of the tensors that are neither the encoder's nor left out.
        mapping: what the user has said.
        all_shapes: name → shape of every tensor.
        vocabulary_size, hidden_dim, embedding_dim: V, H and E_in, of the encoder.
        where: the checkpoint, for messages.

    Raises:
        KzooError: a tensor could be more than one thing, or nothing, or two could be the same; all
            of them are listed with what they could be.
    """
    names = {path: name for path, name in mapping.names.items() if path in HEAD_PATHS}
    width = _output_width(left, names, all_shapes, vocabulary_size, hidden_dim, embedding_dim)
    candidates = collections.defaultdict(list)
    strangers = []
    for name, shape in left.items():
        path = _path_of(name, shape, vocabulary_size, hidden_dim, width)
        if path is None or path in names:
            strangers.append(name)
        else:
            candidates[path].append(name)
    doubtful = {path: found for path, found in candidates.items() if len(found) > 1}
    names |= {path: found[0] for path, found in candidates.items() if len(found) == 1}
    if doubtful or strangers:
        raise KzooError(_advice(doubtful, strangers, names, all_shapes, where))
    if not names:
        return Head({}, None, None)
    tied = _TABLE not in names and width == embedding_dim
    table = names.get(_TABLE)
    turned = table is not None and all_shapes[table] == (width, vocabulary_size)
    return Head(
        names, _TIED if tied else width, table if turned and width != vocabulary_size else None
    )


def _output_width(
    left: Shapes,
    names: Mapping[str, str],
    all_shapes: Shapes,
    vocabulary_size: int,
    hidden_dim: int,
    embedding_dim: int,
) -> int | None:
    """E_out: from the table, or else from the layer before it; None where neither is clear."""

    def widths(path: str, other: int) -> set[int]:
        shapes = [all_shapes[names[path]]] if path in names else _of_head(left)
        return {
            shape[1] if shape[0] == other else shape[0]
            for shape in shapes
            if len(shape) == 2 and other in (shape if path == _TABLE else shape[:1])
        }

    tables, kernels = widths(_TABLE, vocabulary_size), widths(_KERNEL, hidden_dim)
    # BERT's head, which has no table of its own, multiplies with the input table.
    found = tables or (kernels & {embedding_dim}) or kernels
    return found.pop() if len(found) == 1 else None


def _of_head(shapes: Shapes) -> list[tuple[int, ...]]:
    return [shape for name, shape in shapes.items() if _may_be_of_head(name)]


def _may_be_of_head(name: str) -> bool:
    return any(part in name for part in _PARTS_OF_NAMES)


def _path_of(
    name: str, shape: tuple[int, ...], vocabulary_size: int, hidden_dim: int, width: int | None
) -> str | None:
    """The variable that a tensor must be, by its shape and the end of its name; None if unclear."""
    if not _may_be_of_head(name):
        return None
    by_shape: list[tuple[str, Callable[[], bool]]] = [
        (_TABLE, lambda: len(shape) == 2 and vocabulary_size in shape),
        (_BIAS, lambda: shape == (vocabulary_size,)),
        (_KERNEL, lambda: width is not None and shape == (hidden_dim, width)),
    ]
    for path, fits in by_shape:
        if fits():
            return path
    return _vector(name) if width is not None and shape == (width,) else None


def _vector(name: str) -> str | None:
    """Bias, gamma or beta, by the name of a vector as wide as the table."""
    last = name.rpartition("/")[2].lower()
    normalises = "norm" in name.lower()
    if last in ("gamma", "scale") or (normalises and last == "weight"):
        return _GAMMA
    if last in ("beta", "offset") or (normalises and last == "bias"):
        return _BETA
    return _DENSE_BIAS if last.endswith("bias") else None


def _advice(
    doubtful: Mapping[str, Iterable[str]],
    strangers: Iterable[str],
    found: Mapping[str, str],
    shapes: Shapes,
    where: str,
) -> str:
    def described(name: str) -> str:
        return f"{name} [{', '.join(map(str, shapes[name]))}]"

    lines = [f"{where}: it is not clear what every tensor is"]
    for path, names in doubtful.items():
        lines.append(f"could be {path}: {' or '.join(map(described, names))}")
    lines += [f"unknown: {described(name)}" for name in strangers]
    open_paths = [path for path in HEAD_PATHS if path not in found and path not in doubtful]
    if open_paths:
        lines.append(f"still without a tensor: {', '.join(open_paths)}")
    lines.append(
        "say in a file for --mapping what they are, a line each: `NAME: PATH`, such as "
        f"`{next(iter(strangers), 'NAME')}: {_TABLE}`, or `NAME: {{ignore: REASON}}`"
    )
    return "\n".join(lines)
