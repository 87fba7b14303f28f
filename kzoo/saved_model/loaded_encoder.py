"""An exported encoder in memory, and what must be known of it where its files are not."""

import contextlib
import dataclasses
import hashlib
import os
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from kzoo.errors import KzooError
from kzoo.saved_model.graph_safety import check_graph
from kzoo.saved_model.loading import load_saved_model
from kzoo.saved_model.signature_names import INPUT_NAMES, OUTPUT_NAMES

GRAPH_FILE = "saved_model.pb"
_ADVICE = "give the folder `encoder` of what `python -m kzoo.export` has written"


@dataclasses.dataclass(frozen=True)
class VariableSpec:
    """A variable of an encoder.

    Attributes:
        name: its path in the encoder, such as `encoder_block_0/attention/query/kernel`.
        shape: its sizes.
        dtype: the name of its dtype.
        trainable: whether the encoder lists it among its trainable variables.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    trainable: bool


@dataclasses.dataclass(frozen=True)
class EncoderSpec:
    """What stands in for an encoder until its graph is loaded.

    Attributes:
        graph_sha256: of its `saved_model.pb`, which has no weights in it.
        hidden_dim: width of its outputs.
        num_layers: length of its `encoder_outputs`.
        variables: in the order of the encoder's own list.
    """

    graph_sha256: str
    hidden_dim: int
    num_layers: int
    variables: tuple[VariableSpec, ...]

    def to_config(self) -> dict[str, Any]:
        """The same as JSON takes it."""
        return dataclasses.asdict(self)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "EncoderSpec":
        """The inverse of `to_config`."""
        variables = tuple(
            VariableSpec(**{**variable, "shape": tuple(variable["shape"])})
            for variable in config["variables"]
        )
        return cls(**{**config, "variables": variables})


@dataclasses.dataclass(frozen=True)
class LoadedEncoder:
    """An encoder that can be called.

    A plain object, so that Keras and `tf.train.Checkpoint` do not find the variables here, where
    they would count twice.

    Attributes:
        module: what `tf.saved_model.load` returned.
        graph: the content of its `saved_model.pb`.
        spec: what there is to know of it.
    """

    module: Any
    graph: bytes
    spec: EncoderSpec


def load_encoder(
    folder: str | os.PathLike[str], variables: Mapping[str, tf.Variable] | None = None
) -> LoadedEncoder:
    """Loads a folder such as `export/encoder`, in the scope of a strategy as its variables.

    Args:
        folder: a SavedModel as `python -m kzoo.export` writes it.
        variables: what the encoder shall compute with, by name, instead of variables of its own
            with the values in the folder, which then needs no more than its `saved_model.pb`.

    Raises:
        KzooError: if there is no such SavedModel, it is damaged, or it is no encoder.
    """
    folder = os.fspath(folder)
    graph = _read_graph(folder)
    options = tf.saved_model.LoadOptions(experimental_skip_checkpoint=variables is not None)
    with _using(variables or {}):
        module = load_saved_model(folder, options)
    outputs = _outputs(module, folder)
    spec = EncoderSpec(
        graph_sha256=hashlib.sha256(graph).hexdigest(),
        hidden_dim=outputs["pooled_output"].shape[-1],
        num_layers=len(outputs["encoder_outputs"]),
        variables=_variable_specs(module, folder),
    )
    return LoadedEncoder(module, graph, spec)


def load_same_encoder(
    folder: str | os.PathLike[str],
    spec: EncoderSpec,
    variables: Mapping[str, tf.Variable] | None = None,
) -> LoadedEncoder | None:
    """Loads the encoder that a file describes, if it is in a folder that the file names.

    Args:
        folder: where it may be.
        spec: what the file says of it.
        variables: as `load_encoder` takes them.

    Returns:
        The encoder; None if another one is there, or none.

    Raises:
        KzooError: if its graph does more than an encoder does, or it is damaged.
    """
    try:
        graph = _read_graph(folder)
    except KzooError:
        return None
    if hashlib.sha256(graph).hexdigest() != spec.graph_sha256:
        return None
    check_graph(graph, os.fspath(folder))
    return load_encoder(folder, variables)


def _using(variables: Mapping[str, tf.Variable]) -> contextlib.AbstractContextManager:
    """Lets TensorFlow take these variables, by name, where it would make new ones."""

    def creator(next_creator, **kwargs):
        variable = variables.get(kwargs.get("name"))
        return next_creator(**kwargs) if variable is None else variable

    return tf.variable_creator_scope(creator)


def _variable_specs(module: Any, folder: str) -> tuple[VariableSpec, ...]:
    trainable = {id(variable) for variable in module.trainable_variables}
    specs = tuple(
        VariableSpec(
            variable.name.partition(":")[0],
            tuple(variable.shape),
            variable.dtype.name,
            id(variable) in trainable,
        )
        for variable in module.variables
    )
    if len({spec.name for spec in specs}) < len(specs):
        raise KzooError(f"{folder} is no encoder of kzoo: two of its variables have one name")
    return specs


def _read_graph(folder: str | os.PathLike[str]) -> bytes:
    """The content of a SavedModel's `saved_model.pb`.

    Raises:
        KzooError: if there is none.
    """
    folder = os.fspath(folder)
    path = os.path.join(folder, GRAPH_FILE)
    try:
        with tf.io.gfile.GFile(path, "rb") as file:
            return file.read()
    except (OSError, tf.errors.OpError) as error:
        if not tf.io.gfile.exists(folder):
            raise KzooError(
                f"there is no folder {folder}; `python -m kzoo.export` makes one"
            ) from error
        below = os.path.join(folder, "encoder")
        advice = (
            f"the encoder is in {below}"
            if tf.io.gfile.exists(os.path.join(below, GRAPH_FILE))
            else _ADVICE
        )
        raise KzooError(f"{folder} is no SavedModel: it has no {GRAPH_FILE}; {advice}") from error


def _outputs(module: Any, folder: str) -> dict[str, Any]:
    """The specs of what an encoder returns."""
    inputs = {name: tf.TensorSpec((None, None), tf.int32, name) for name in INPUT_NAMES}
    try:
        outputs = module.__call__.get_concrete_function(inputs, training=True).structured_outputs
        missing = set(OUTPUT_NAMES) - set(outputs)
    except (AttributeError, TypeError, ValueError) as error:
        raise KzooError(
            f"{folder} is no encoder: it cannot be called with {', '.join(INPUT_NAMES)} and "
            f"`training`; {_ADVICE}"
        ) from error
    if missing or not hasattr(module, "trainable_variables"):
        lacks = ", ".join(sorted(missing)) or "trainable variables"
        raise KzooError(f"{folder} is no encoder: it has no {lacks}; {_ADVICE}")
    return outputs
