"""RemBERT as it was released: a checkpoint of TensorFlow 1, with the output embeddings."""

import glob
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import numpy as np

from kzoo.errors import KzooError
from kzoo.interchange.source_model import SourceModel
from kzoo.interchange.source_weights import SourceWeights, StoredTensor
from kzoo.interchange.tensor_mapping import TensorMapping, read_mapping
from kzoo.interchange.tf1_config import (
    output_width,
    read_bert_config,
    scope_of,
    shape_from_tensors,
    with_config,
)
from kzoo.interchange.tf1_head import Head, find_head
from kzoo.interchange.tf1_names import HEAD_PATHS, IGNORED, tf1_name
from kzoo.interchange.tf_checkpoint import TensorFlowCheckpoint
from kzoo.models.by_shape import build_by_shape
from kzoo.text.vocabulary import Vocabulary

_ACTIVATION = "gelu_approximate"
_ACTIVATION_NOTE = (
    'activation: gelu_approximate, since Google\'s BERT code computes "gelu" by tanh; Hugging '
    "Face's RemBERT computes it by erf, and the outputs of the two differ by about 1e-3; "
    "--activation gelu chooses the latter"
)


def open_tf1_checkpoint(
    path: str,
    vocabulary: Vocabulary | None = None,
    *,
    config: str | None = None,
    mapping: str | None = None,
    num_heads: int | None = None,
    activation: str | None = None,
) -> SourceModel:
    """Finds a model in a checkpoint of TensorFlow 1, of RemBERT or of BERT.

    Args:
        path: prefix, `.index` file or folder of the checkpoint.
        vocabulary: used in the place of the `sentencepiece.model` beside the checkpoint.
        config: a `bert_config.json`.
        mapping: a file that says what tensors are; see `read_mapping`.
        num_heads: attention heads; default what `config` says, or else one for 64 columns.
        activation: "gelu" or "gelu_approximate"; the default is the latter, whatever `config`
            says: it has one name for both.

    Raises:
        KzooError: a file is missing or is not what it should be, or it is not clear what a tensor
            is.
    """
    checkpoint = TensorFlowCheckpoint(path)
    if checkpoint.is_of_objects:
        raise KzooError(
            f"{checkpoint.prefix} is no checkpoint of TensorFlow 1: it holds objects, as Model "
            "Garden saves them; --from model_garden reads it"
        )
    said = {} if config is None else read_bert_config(config)
    mapped = read_mapping(mapping)
    mapped.check_names(checkpoint.shapes)
    scope = scope_of(checkpoint.shapes, checkpoint.prefix)
    arguments = shape_from_tensors(
        _as_usual(checkpoint.shapes, mapped, scope), scope, checkpoint.prefix
    )
    arguments, notes = with_config(arguments, said, config, num_heads)
    arguments["activation"] = activation or _ACTIVATION
    names = _encoder_names(checkpoint, mapped, scope, arguments)
    ignored = {glob.escape(name): reason for name, reason in mapped.ignored.items()} | IGNORED
    head = find_head(
        _left(checkpoint, names, mapped, ignored),
        mapped,
        checkpoint.shapes,
        vocabulary_size=arguments["vocabulary_size"],
        hidden_dim=arguments["hidden_dim"],
        embedding_dim=arguments["embedding_dim"],
        where=checkpoint.prefix,
    )
    names |= head.names
    return SourceModel(
        arguments=arguments,
        output_embedding_dim=head.output_embedding_dim or output_width(said),
        weights=_weights(checkpoint, head),
        where=config or checkpoint.prefix,
        name_of=lambda path: names.get(path) or tf1_name(path, scope),
        ignored=ignored,
        vocabulary=vocabulary or checkpoint.vocabulary(),
        notes=[*notes, *_notes(head, activation)],
    )


def _as_usual(
    shapes: Mapping[str, tuple[int, ...]], mapping: TensorMapping, scope: str
) -> dict[str, tuple[int, ...]]:
    """The tensors under the names that they would have if none had to be mapped."""
    usual = {name: tf1_name(path, scope) for path, name in mapping.names.items()}
    return {usual.get(name, name): shape for name, shape in shapes.items()}


def _encoder_names(
    checkpoint: TensorFlowCheckpoint,
    mapping: TensorMapping,
    scope: str,
    arguments: Mapping[str, object],
) -> dict[str, str]:
    """Path of a variable of the encoder → name of its tensor, if it is there."""
    backbone = build_by_shape(arguments, 1).backbone
    paths = [variable.path for variable in backbone.variables]
    mapping.check_paths([*paths, *HEAD_PATHS])
    names = {path: mapping.names.get(path, tf1_name(path, scope)) for path in paths}
    return {path: name for path, name in names.items() if name in checkpoint.shapes}


def _left(
    checkpoint: TensorFlowCheckpoint,
    encoder_names: Mapping[str, str],
    mapping: TensorMapping,
    ignored: Iterable[str],
) -> dict[str, tuple[int, ...]]:
    """The tensors that are neither the encoder's, nor mapped, nor left out."""
    known = {*encoder_names.values(), *mapping.names.values()}
    return {
        name: shape
        for name, shape in checkpoint.shapes.items()
        if name not in known and not any(fnmatchcase(name, pattern) for pattern in ignored)
    }


def _weights(checkpoint: TensorFlowCheckpoint, head: Head) -> SourceWeights:
    def stored(name: str, shape: tuple[int, ...]) -> StoredTensor:
        if name == head.turned_table:
            return checkpoint.stored(name, shape[::-1], np.transpose)
        return checkpoint.stored(name)

    return SourceWeights((name, stored(name, shape)) for name, shape in checkpoint.shapes.items())


def _notes(head: Head, activation: str | None) -> list[str]:
    notes = [] if activation else [_ACTIVATION_NOTE]
    notes += [f"{name} is {path}" for path, name in head.names.items()]
    if head.turned_table:
        notes.append(f"{head.turned_table} is turned: it has a column for each piece")
    return notes
