"""A preset of ours, as a source: its weights are read one at a time too."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

from kzoo.errors import KzooError
from kzoo.interchange.hugging_face_files import read_json
from kzoo.interchange.source_model import SourceModel
from kzoo.interchange.source_weights import SourceWeights, StoredTensor
from kzoo.models.backbone import RemBertBackbone
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.models.preset_metadata import read_made_anew
from kzoo.models.weights_file import encoder_layers, names_in_file
from kzoo.text.vocabulary import Vocabulary

_CONFIG, _TASK_CONFIG = "config.json", "task.json"
_WEIGHTS, _TASK_WEIGHTS = "model.weights.h5", "task.weights.h5"
_VOCABULARY = os.path.join("assets", "tokenizer", "vocabulary.spm")
# What Keras writes beside the arguments.
_OTHER_KEYS = ("name", "trainable", "dtype")


def open_preset(folder: str, vocabulary: Vocabulary | None = None) -> SourceModel:
    """Finds a model in a preset, with or without a head, with or without a tokenizer.

    Args:
        folder: of the preset.
        vocabulary: used in the place of the preset's own.

    Raises:
        KzooError: it is no preset of ours, or a file is damaged.
    """
    path = os.path.join(folder, _CONFIG)
    config = _config(path, "RemBertBackbone")
    arguments = {key: value for key, value in config.items() if key not in _OTHER_KEYS}
    output_embedding_dim = None
    task_path = os.path.join(folder, _TASK_CONFIG)
    if os.path.exists(task_path):
        output_embedding_dim = _config(task_path, "RemBertMaskedLM").get("output_embedding_dim")
    vocabulary_path = os.path.join(folder, _VOCABULARY)
    if vocabulary is None and os.path.exists(vocabulary_path):
        vocabulary = Vocabulary.load(vocabulary_path)
    return SourceModel(
        arguments=arguments,
        output_embedding_dim=output_embedding_dim,
        weights=SourceWeights(_tensors(folder, arguments, output_embedding_dim)),
        where=path,
        vocabulary=vocabulary,
        made_anew=read_made_anew(folder),
    )


def _config(path: str, class_name: str) -> Mapping[str, Any]:
    """The arguments of a class in a file of KerasHub's."""
    content = read_json(path)
    registered_name = content.get("registered_name") if isinstance(content, dict) else None
    config = content.get("config") if isinstance(content, dict) else None
    if registered_name != f"kzoo>{class_name}" or not isinstance(config, dict):
        raise KzooError(f"{path}: not of a kzoo {class_name}. Received: {registered_name}")
    return config


def _tensors(
    folder: str, arguments: Mapping[str, Any], output_embedding_dim: int | str | None
) -> Iterator[tuple[str, StoredTensor]]:
    """Every tensor of both files, by the path of its variable; or by its name, if it has none."""
    try:
        with tf.Graph().as_default():
            backbone = RemBertBackbone(**arguments)
            head = None
            if output_embedding_dim is not None:
                head = RemBertMaskedLM(backbone, output_embedding_dim).head
    except TypeError as error:
        raise KzooError(f"{os.path.join(folder, _CONFIG)} has other keys: {error}") from error
    yield from _tensors_in(os.path.join(folder, _WEIGHTS), encoder_layers(backbone))
    if head is not None:
        yield from _tensors_in(os.path.join(folder, _TASK_WEIGHTS), {"masked_lm_head": head})


def _tensors_in(path: str, layers: Mapping[str, keras.Layer]) -> Iterator[tuple[str, StoredTensor]]:
    variable_paths = {name: variable for variable, name in names_in_file(layers).items()}
    shapes: dict[str, tuple[int, ...]] = {}

    def note_shape(name: str, item: h5py.HLObject) -> None:
        if isinstance(item, h5py.Dataset):
            shapes[name] = item.shape

    try:
        with h5py.File(path, "r") as file:
            file.visititems(note_shape)
    except OSError as error:
        raise KzooError(f"cannot read {path} as a file of weights: {error}") from error
    for name, shape in shapes.items():
        yield variable_paths.get(name, name), StoredTensor(shape, path, _loader(path, name))


def _loader(path: str, name: str):
    def load() -> np.ndarray:
        try:
            with h5py.File(path, "r") as file:
                return file[name].astype(np.float32)[()]
        except OSError as error:
            raise KzooError(f"cannot read {name} in {path}: {error}") from error

    return load
