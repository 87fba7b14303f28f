"""A model of ours, as a folder that Hugging Face's transformers reads."""

import json
import math
import os
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from kzoo.folders import written_aside
from kzoo.interchange.hugging_face_config import config_of
from kzoo.interchange.hugging_face_files import CONFIG_FILE, SAFETENSORS_FILE, SAFETENSORS_INDEX
from kzoo.interchange.hugging_face_import import special_ids
from kzoo.interchange.hugging_face_names import hugging_face_name
from kzoo.interchange.hugging_face_tokenizer import write_tokenizer
from kzoo.interchange.safetensors_files import write_safetensors
from kzoo.interchange.source_model import BuiltModel
from kzoo.models.backbone import RemBertBackbone
from kzoo.models.masked_lm import TIED, RemBertMaskedLM

MAX_SHARD_BYTES = 5_000_000_000

_PREFIX = "rembert."
_PROJECTION, _TABLE = "embeddings/projection", "masked_lm_head/table"


class _Tensor(NamedTuple):
    """What goes into the file: name, shape, and what gives the values."""

    name: str
    shape: tuple[int, ...]
    values: Callable[[], np.ndarray]


def write_hugging_face(
    built: BuiltModel,
    folder: str,
    overwrite: bool = False,
    *,
    keep_pooler: bool = False,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> list[str]:
    """Writes weights, `config.json` and the tokenizer's files, aside, and renames the folder.

    A model with a head becomes a `RemBertForMaskedLM`, an encoder alone a `RemBertModel`; each
    computes the same as ours.

    Args:
        built: the model.
        folder: where it goes; parents are made.
        overwrite: whether a folder that is there is replaced. Without it there must be none.
        keep_pooler: whether the pooler is written beside a head. transformers has no place for it
            in a `RemBertForMaskedLM`, and warns.
        max_shard_bytes: weights that are larger are spread over several files.

    Returns:
        What is not as it was, for people.
    """
    if os.path.exists(folder) and not overwrite:
        raise FileExistsError(folder)
    notes: list[str] = []
    with written_aside(folder) as aside:
        tensors = _tensors(built, keep_pooler, notes)
        _write_weights(tensors, aside, max_shard_bytes)
        _write_json(os.path.join(aside, CONFIG_FILE), _config(built))
        if built.vocabulary is None:
            notes.append("no tokenizer: the model has no vocabulary")
        else:
            positions = built.backbone.max_sequence_length
            notes += write_tokenizer(aside, built.vocabulary, positions)
    return notes


def _config(built: BuiltModel) -> dict[str, Any]:
    backbone, width = built.backbone, None
    if isinstance(built.model, RemBertMaskedLM):
        width = built.model.head.output_embedding_dim
    ids = None if built.vocabulary is None else special_ids(built.vocabulary)
    return config_of(backbone.get_config(), width, ids)


def _tensors(built: BuiltModel, keep_pooler: bool, notes: list[str]) -> list[_Tensor]:
    """Everything that goes into the file, under the names of the class that reads it."""
    backbone, model = built.backbone, built.model
    has_head = isinstance(model, RemBertMaskedLM)
    variables = model.variables
    if has_head and backbone.pooler == "dense" and not keep_pooler:
        variables = [v for v in variables if not v.path.startswith("pooler/")]
        notes.append(
            "the pooler is left out: RemBertForMaskedLM has none, and would warn. --keep_pooler "
            "keeps it"
        )
    if backbone.pooler != "dense" and not has_head:
        notes.append(
            f"pooler {backbone.pooler}: RemBertModel has a dense one, which it makes anew, at "
            "random, whenever it is loaded"
        )
    tensors = [_tensor(variable.path, variable) for variable in variables]
    tensors += _tensors_of_theirs_alone(model, backbone, notes)
    if has_head:
        return tensors
    return [tensor._replace(name=tensor.name.removeprefix(_PREFIX)) for tensor in tensors]


def _tensors_of_theirs_alone(
    model: keras.Model, backbone: RemBertBackbone, notes: list[str]
) -> list[_Tensor]:
    """What ours has none of, in values that change nothing."""
    tensors = []
    if backbone.embeddings.projection is None:
        width = backbone.hidden_dim
        kernel, bias = (hugging_face_name(f"{_PROJECTION}/{part}") for part in ("kernel", "bias"))
        tensors.append(_Tensor(kernel, (width, width), lambda: np.eye(width, dtype=np.float32)))
        tensors.append(_Tensor(bias, (width,), lambda: np.zeros(width, np.float32)))
        notes.append("no projection from E_in to H: RemBERT's has become the identity")
    if isinstance(model, RemBertMaskedLM) and model.output_embedding_dim == TIED:
        tensors.append(_tensor(_TABLE, model.head.table))
        notes.append("the tied output table has become a copy of the input table")
    return tensors


def _tensor(path: str, variable: Any) -> _Tensor:
    name, shape = hugging_face_name(path), tuple(variable.shape)
    if not path.endswith("/kernel"):
        return _Tensor(name, shape, lambda: np.asarray(tf.convert_to_tensor(variable)))
    return _Tensor(name, shape[::-1], lambda: np.asarray(tf.convert_to_tensor(variable)).T)


def _write_weights(tensors: Sequence[_Tensor], folder: str, max_shard_bytes: int) -> None:
    shards = _shards(tensors, max_shard_bytes)
    if len(shards) == 1:
        write_safetensors(os.path.join(folder, SAFETENSORS_FILE), shards[0])
        return
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        name = f"model-{number:05}-of-{len(shards):05}.safetensors"
        write_safetensors(os.path.join(folder, name), shard)
        weight_map |= {tensor.name: name for tensor in shard}
    size = sum(map(_size_bytes, tensors))
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    _write_json(os.path.join(folder, SAFETENSORS_INDEX), index)


def _shards(tensors: Sequence[_Tensor], max_shard_bytes: int) -> list[list[_Tensor]]:
    """Tensors in their order, as many in a shard as go in; a larger one has a shard to itself."""
    shards: list[list[_Tensor]] = [[]]
    room = max_shard_bytes
    for tensor in tensors:
        size = _size_bytes(tensor)
        if size > room and shards[-1]:
            shards.append([])
            room = max_shard_bytes
        shards[-1].append(tensor)
        room -= size
    return shards


def _size_bytes(tensor: _Tensor) -> int:
    return 4 * math.prod(tensor.shape)


def _write_json(path: str, content: dict[str, Any]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file, indent=2)
        file.write("\n")
