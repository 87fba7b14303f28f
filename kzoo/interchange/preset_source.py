"""A preset of ours, as a source: its weights are read one at a time too."""

import os
from collections.abc import Iterator, Mapping
from typing import Any

import h5py
import keras
import numpy as np
import tensorflow as tf

from kzoo.errors import KzooError
from kzoo.interchange.source_model import SourceModel
from kzoo.interchange.source_weights import SourceWeights, StoredTensor
from kzoo.models.backbone import RemBertBackbone
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.models.preset_files import (
    CONFIG_FILE,
    TASK_WEIGHTS_FILE,
    VOCABULARY_FILE,
    WEIGHTS_FILE,
    read_arguments,
)
from kzoo.models.preset_metadata import read_made_anew
from kzoo.models.weights_file import encoder_layers, names_in_file, stored_shapes
from kzoo.text.vocabulary import Vocabulary


def open_preset(folder: str, vocabulary: Vocabulary | None = None) -> SourceModel:
    """Finds a model in a preset, with or without a head, with or without a tokenizer.

    Args:
        folder: of the preset.
        vocabulary: used in the place of the preset's own.

    Raises:
        KzooError: it is no preset of ours, or a file is damaged.
    """
    arguments, output_embedding_dim = read_arguments(folder)
    vocabulary_path = os.path.join(folder, VOCABULARY_FILE)
    if vocabulary is None and os.path.exists(vocabulary_path):
        vocabulary = Vocabulary.load(vocabulary_path)
    return SourceModel(
        arguments=arguments,
        output_embedding_dim=output_embedding_dim,
        weights=SourceWeights(_tensors(folder, arguments, output_embedding_dim)),
        where=os.path.join(folder, CONFIG_FILE),
        vocabulary=vocabulary,
        made_anew=read_made_anew(folder),
    )


def _tensors(
    folder: str, arguments: Mapping[str, Any], output_embedding_dim: int | str | None
) -> Iterator[tuple[str, StoredTensor]]:
    """Every tensor of both files, by the path of its variable; or by its name, if it has none."""
    with tf.Graph().as_default():
        backbone = RemBertBackbone(**arguments)
        head = None
        if output_embedding_dim is not None:
            head = RemBertMaskedLM(backbone, output_embedding_dim).head
    yield from _tensors_in(os.path.join(folder, WEIGHTS_FILE), encoder_layers(backbone))
    if head is not None:
        yield from _tensors_in(os.path.join(folder, TASK_WEIGHTS_FILE), {"masked_lm_head": head})


def _tensors_in(path: str, layers: Mapping[str, keras.Layer]) -> Iterator[tuple[str, StoredTensor]]:
    variable_paths = {name: variable for variable, name in names_in_file(layers).items()}
    try:
        with h5py.File(path, "r") as file:
            shapes = stored_shapes(file, path)
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
