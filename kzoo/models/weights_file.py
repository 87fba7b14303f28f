"""Weights out of KerasHub's HDF5 files, one tensor at a time.

KerasHub's own reader holds a file's weights twice. Here the memory needed beyond the variables is
that of the largest tensor, and layers that nobody asks for are not read.
"""

import math
import os
from collections.abc import Collection, Iterator, Mapping

import h5py
import keras

from kzoo.errors import KzooError
from kzoo.models.backbone import RemBertBackbone


def read_weights(
    path: str | os.PathLike[str],
    layers: Mapping[str, keras.Layer],
    left_out: Collection[str] = (),
) -> None:
    """Assigns the weights in a file to the variables of layers.

    Args:
        path: `model.weights.h5` or `task.weights.h5` of a preset.
        layers: the layers under the names that they have in the file.
        left_out: the names of layers in the file that are not wanted.

    Raises:
        KzooError: if the file cannot be read, or does not have exactly these layers' weights.
    """
    try:
        with open(path, "rb"):
            pass  # HDF5 says in three lines what the system says in four words
    except OSError as error:
        raise KzooError(f"cannot read {path}: {error.strerror}") from error
    try:
        with h5py.File(path, "r") as file:
            wanted = dict(_named_variables(layers))
            _check(path, stored_shapes(file, path), wanted, left_out)
            # The largest first: the variables of a model that was made `left_empty` take no memory
            # yet then.
            for name in sorted(wanted, key=lambda name: -math.prod(wanted[name].shape)):
                wanted[name].assign(file[name][()])
    except OSError as error:
        raise KzooError(f"{path}: cannot be read as a file of weights ({error})") from error


def block_name(index: int) -> str:
    """The name of an encoder's layer number `index` in `model.weights.h5`."""
    return f"encoder_block_{index}" if index else "encoder_block"


def encoder_layers(backbone: RemBertBackbone) -> dict[str, keras.Layer]:
    """The parts of an encoder that have weights, under their names in `model.weights.h5`."""
    layers = {"factorized_embeddings": backbone.embeddings}
    for index, block in enumerate(backbone.encoder_blocks):
        layers[block_name(index)] = block
    if backbone.pooler_layer is not None:
        layers["pooler"] = backbone.pooler_layer
    return layers


def names_in_file(layers: Mapping[str, keras.Layer]) -> dict[str, str]:
    """Where a file holds the weights of layers: path of a variable → name of its tensor there.

    Args:
        layers: the layers under the names that they have in the file.
    """
    return {variable.path: name for name, variable in _named_variables(layers)}


def stored_shapes(file: h5py.File, path: str | os.PathLike[str]) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor in a file, by name.

    Args:
        file: the open file.
        path: of the file, for messages.

    Raises:
        KzooError: if something is not a tensor of real numbers, or is in another file, which HDF5
            would read without a word, whatever it is.
    """
    shapes = {}

    def visit(name: str, item: object) -> None:
        if not isinstance(item, h5py.Dataset):
            return
        if item.external or item.is_virtual:
            raise KzooError(f"{path}: {name} is not in this file but in another, which is not read")
        if item.dtype.kind not in "fiu" or item.shape is None:
            raise KzooError(f"{path}: {name} holds no numbers. Received: {item.dtype}")
        shapes[name] = tuple(item.shape)

    file.visititems(visit)
    return shapes


def _check(
    path: str | os.PathLike[str],
    stored: Mapping[str, tuple[int, ...]],
    wanted: Mapping[str, keras.Variable],
    left_out: Collection[str],
) -> None:
    """Raises a KzooError unless a file has what is wanted, in its shape, and nothing unknown."""
    for name, variable in wanted.items():
        if name not in stored:
            raise KzooError(f"{path}: {name}, which holds {variable.path}, is missing")
        if stored[name] != tuple(variable.shape):
            raise KzooError(
                f"{path}: {name} has the shape {stored[name]}, but {variable.path} of the model's "
                f"configuration has {tuple(variable.shape)}"
            )
    unknown = [
        name
        for name in sorted(stored.keys() - wanted.keys())
        if not any(name.startswith(f"layers/{layer}/") for layer in left_out)
    ]
    if unknown:
        raise KzooError(f"{path}: has weights that the model has no place for: {unknown[:3]}")


def _named_variables(
    layers: Mapping[str, keras.Layer],
) -> Iterator[tuple[str, keras.Variable]]:
    for layer_name, layer in layers.items():
        yield from _variables(layer, f"layers/{layer_name}")


def _variables(layer: keras.Layer, prefix: str) -> Iterator[tuple[str, keras.Variable]]:
    """Every variable of a layer with its place in the file, as Keras stores it."""
    # A tied table is its owner's, under whose name it is stored.
    children = {
        name: child
        for name, child in vars(layer).items()
        if isinstance(child, keras.Layer) and name != "tied_embedding"
    }
    of_children = {id(variable) for child in children.values() for variable in child.variables}
    tied = getattr(layer, "tied_embedding", None)
    if tied is not None:
        of_children |= {id(variable) for variable in tied.variables}
    own = [variable for variable in layer.variables if id(variable) not in of_children]
    for index, variable in enumerate(own):
        yield f"{prefix}/vars/{index}", variable
    for name, child in children.items():
        yield from _variables(child, f"{prefix}/{name}")
