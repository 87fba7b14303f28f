"""The shape of a model from the tensors of a TensorFlow 1 checkpoint and its `bert_config.json`."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kzoo.errors import KzooError
from kzoo.interchange.config_keys import check_keys
from kzoo.interchange.tf1_names import TABLES, tf1_name

_HEAD_DIM = 64

# Argument of `RemBertBackbone` → key of bert_config.json. All but the last can be seen in tensors.
_SIZES = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
    "num_heads": "num_attention_heads",
}
# Two names that RemBERT's and ALBERT's configurations have for one thing.
_EMBEDDING_KEYS = ("input_embedding_size", "embedding_size")
_OUTPUT_KEY, _ACTIVATION_KEY = "output_embedding_size", "hidden_act"
_DROPOUTS = {
    "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
_EPSILON = 1e-12
_ONLY_VALUES = {"embedding_dropout_prob": 0, "layer_norm_eps": _EPSILON}
_WITHOUT_EFFECT = ("model_type", "tie_word_embeddings")

_GELUS = ("gelu", "gelu_new", "gelu_pytorch_tanh")


def read_bert_config(path: str) -> dict[str, Any]:
    """Reads a `bert_config.json`.

    Raises:
        KzooError: it cannot be read, or has a key or a value that makes another model.
    """
    try:
        config = json.loads(Path(path).read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise KzooError(f"--config {path} cannot be read as JSON: {error}") from None
    if not isinstance(config, dict):
        raise KzooError(f"{path} must hold an object. Received: {config!r}")
    keys = (*_SIZES.values(), *_EMBEDDING_KEYS, _OUTPUT_KEY, _ACTIVATION_KEY, *_DROPOUTS.values())
    check_keys(
        config, path, required=(), others=(*keys, *_WITHOUT_EFFECT), only_values=_ONLY_VALUES
    )
    activation = config.get(_ACTIVATION_KEY, "gelu")
    if activation not in _GELUS:
        raise KzooError(
            f"{path}: {_ACTIVATION_KEY} must be {' or '.join(_GELUS)}. Received: {activation!r}"
        )
    return config


def scope_of(shapes: Mapping[str, tuple[int, ...]], where: str) -> str:
    """What the names of the encoder begin with, such as `bert/`.

    Raises:
        KzooError: there is no table of embeddings, or those of more than one model.
    """
    scopes = {
        name.removesuffix(table)
        for name in shapes
        for table in TABLES
        if f"/{name}".endswith(f"/{table}")
    }
    if len(scopes) != 1:
        raise KzooError(
            f"{where}: a checkpoint of BERT's kind has one tensor {TABLES[0]}, after the scope of "
            f"the model. Received: {', '.join(f'{scope}{TABLES[0]}' for scope in scopes) or 'none'}"
        )
    return scopes.pop()


def shape_from_tensors(
    shapes: Mapping[str, tuple[int, ...]], scope: str, where: str
) -> dict[str, Any]:
    """What the tensors say: the sizes of `RemBertBackbone` but for the number of heads.

    Raises:
        KzooError: a tensor is missing, or is no matrix.
    """

    def matrix(path: str) -> tuple[int, int]:
        name = tf1_name(path, scope)
        shape = shapes.get(name)
        if shape is None or len(shape) != 2:
            raise KzooError(f"{where}: {name} must be a matrix. Received: {shape or 'no tensor'}")
        return shape

    vocabulary_size, embedding_dim = matrix("embeddings/token_embedding/embeddings")
    hidden_dim, intermediate_dim = matrix("encoder_block_0/intermediate/kernel")
    numbers = re.compile(f"{re.escape(tf1_name('encoder_block_', scope))}([0-9]+)/")
    layers = {int(match[1]) for match in map(numbers.match, shapes) if match}
    absent = sorted(set(range(len(layers))) - layers)
    if absent:
        raise KzooError(
            f"{where}: there are {len(layers)} layers, the last of them number {max(layers)}, but "
            f"none with the number {', '.join(map(str, absent))}"
        )
    projected = tf1_name("embeddings/projection/kernel", scope) in shapes
    return {
        "vocabulary_size": vocabulary_size,
        "num_layers": len(layers),
        "hidden_dim": hidden_dim,
        "intermediate_dim": intermediate_dim,
        "embedding_dim": embedding_dim,
        "max_sequence_length": matrix("embeddings/position_embedding/embeddings")[0],
        "num_segments": matrix("embeddings/segment_embedding/embeddings")[0],
        "project_embeddings": True if projected and embedding_dim == hidden_dim else "auto",
    }


def with_config(
    arguments: Mapping[str, Any],
    config: Mapping[str, Any],
    path: str | None,
    num_heads: int | None,
) -> tuple[dict[str, Any], list[str]]:
    """Adds what tensors do not say.

    Args:
        arguments: from `shape_from_tensors`.
        config: what `read_bert_config` has read; empty without a file.
        path: of the file.
        num_heads: what the user has said.

    Returns:
        All arguments but `pooler`, and notes of what was taken for granted.

    Raises:
        KzooError: file, tensors and user disagree, or the number of heads cannot be guessed.
    """
    notes = []
    hidden_dim = arguments["hidden_dim"]
    said = config.get(_SIZES["num_heads"])
    if num_heads is not None and said not in (None, num_heads):
        raise KzooError(
            f"--num_heads is {num_heads}, but {path} says {said}: leave one of them out"
        )
    heads = said if num_heads is None else num_heads
    if heads is None:
        if hidden_dim % _HEAD_DIM:
            raise KzooError(
                f"nothing says how many attention heads there are, and {hidden_dim} is no multiple "
                f"of {_HEAD_DIM}: give --num_heads or --config"
            )
        heads = hidden_dim // _HEAD_DIM
        notes.append(
            f"{heads} attention heads, {_HEAD_DIM} wide each, as in every RemBERT: no tensor says "
            "so; --num_heads or --config does"
        )
    complete = {**arguments, "num_heads": heads, "layer_norm_epsilon": _EPSILON}
    keys = {argument: (key,) for argument, key in _SIZES.items()}
    keys["embedding_dim"] = _EMBEDDING_KEYS
    for argument, names in keys.items():
        for key in names:
            if config.get(key, complete[argument]) != complete[argument]:
                raise KzooError(
                    f"{path}: {key} is {config[key]}, but the tensors say {complete[argument]}"
                )
    dropouts = {argument: config.get(key, 0.0) for argument, key in _DROPOUTS.items()}
    return {**complete, **dropouts}, notes


def output_width(config: Mapping[str, Any]) -> int | None:
    """E_out as the configuration has it, if it does."""
    return config.get(_OUTPUT_KEY)
