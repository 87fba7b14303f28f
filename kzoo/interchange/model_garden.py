"""Encoders of TensorFlow Model Garden (`tf-models-official`), from and to ours.

A checkpoint of `BertEncoderV2` is what Model Garden's tasks take as `init_checkpoint`. Neither
reading nor writing one needs Model Garden.
"""

import glob
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from kzoo.errors import KzooError
from kzoo.folders import written_aside
from kzoo.interchange.model_garden_config import (
    ENCODER_FILE,
    encoder_yaml,
    read_encoder_yaml,
    with_encoder_yaml,
)
from kzoo.interchange.model_garden_graph import ObjectGraph
from kzoo.interchange.model_garden_names import (
    ENCODER,
    ENCODER_PARTS,
    HEAD_PARTS,
    is_of_head,
    model_garden_attributes,
)
from kzoo.interchange.source_model import BuiltModel, SourceModel
from kzoo.interchange.source_weights import SourceWeights, StoredTensor
from kzoo.interchange.tensor_mapping import read_mapping
from kzoo.interchange.tf_checkpoint import TensorFlowCheckpoint
from kzoo.models.backbone import RemBertBackbone
from kzoo.models.by_shape import build_by_shape
from kzoo.models.masked_lm import TIED, RemBertMaskedLM
from kzoo.models.preset_metadata import read_made_anew, write_metadata
from kzoo.text.vocabulary import Vocabulary

_VALUE_SUFFIX = "/.ATTRIBUTES/VARIABLE_VALUE"
_CHECKPOINT_NAME = "ckpt"

_TASK_HEAD = "the head of a task"
_OPTIMIZER = "the state of an optimizer"
_IGNORED = {
    "save_counter": "how often the checkpoint was saved",
    "*global_step": "a number of the training that made the weights",
    "*/.OPTIMIZER_SLOT/*": _OPTIMIZER,
    "optimizer/*": _OPTIMIZER,
    "*/.ATTRIBUTES/OBJECT_CONFIG_JSON": "Keras's description of a layer",
    "next_sentence*": _TASK_HEAD,
    "sentence_prediction*": _TASK_HEAD,
}
# Attributes of models of Model Garden.
_TASK_HEADS = ("classifier", "classification", "classification_heads", "span_labeling")

_HEAD_LEFT_OUT = (
    "the masked-LM head is left out: Model Garden's tasks fine-tune an encoder, and its own "
    "masked-LM head shares the input table"
)
_NO_ACTIVATION = (
    'activation: gelu_approximate, which Model Garden calls "gelu"; no tensor says so, nor is '
    f"there an {ENCODER_FILE}; --activation chooses"
)


def open_model_garden(
    path: str,
    vocabulary: Vocabulary | None = None,
    *,
    config: str | None = None,
    mapping: str | None = None,
    activation: str | None = None,
) -> SourceModel:
    """Finds a BERT encoder of Model Garden, with its masked-LM head if there is one.

    Args:
        path: prefix, `.index` file or folder of a checkpoint.
        vocabulary: used in the place of the `sentencepiece.model` beside the checkpoint.
        config: a YAML file with the encoder's configuration; default the `encoder.yaml` beside the
            checkpoint, if it is there.
        mapping: a file that says what tensors are; see `read_mapping`.
        activation: "gelu" or "gelu_approximate"; default what `config` says, or else the latter.

    Raises:
        KzooError: a file is missing or is not what it should be.
    """
    checkpoint = TensorFlowCheckpoint(path)
    folder = os.path.dirname(checkpoint.prefix)
    found = _FoundModel(checkpoint)
    mapped = read_mapping(mapping)
    mapped.check_names(found.names)
    if config is None and os.path.isfile(os.path.join(folder, ENCODER_FILE)):
        config = os.path.join(folder, ENCODER_FILE)
    fields = {} if config is None else read_encoder_yaml(config)
    arguments = with_encoder_yaml(found.sizes(), fields, config or "")
    arguments["activation"] = activation or arguments["activation"]
    width = found.output_embedding_dim()
    model = build_by_shape({**arguments, "pooler": "dense"}, width or 1)
    shapes = {variable.path: tuple(variable.shape) for variable in model.variables}
    mapped.check_paths(shapes)
    names = {variable: found.name(variable) for variable in shapes} | dict(mapped.names)
    return SourceModel(
        arguments=arguments,
        output_embedding_dim=width,
        weights=found.weights({names[variable]: shape for variable, shape in shapes.items()}),
        where=config or checkpoint.prefix,
        name_of=lambda variable: names.get(variable) or found.name(variable),
        ignored=found.ignored(mapped.ignored),
        vocabulary=vocabulary or checkpoint.vocabulary(),
        made_anew=read_made_anew(folder),
        notes=[] if config or activation else [_NO_ACTIVATION],
    )


class _FoundModel:
    """The encoder of a checkpoint, and its head.

    Attributes:
        names: name of each tensor, without the end that all have → the name in the file.
    """

    def __init__(self, checkpoint: TensorFlowCheckpoint):
        self._checkpoint = checkpoint
        self._graph = ObjectGraph(checkpoint.object_graph(), checkpoint.prefix)
        self._encoder = self._graph.only_object_with(ENCODER_PARTS, "BERT encoders")
        if self._encoder is None:
            raise KzooError(
                f"{checkpoint.prefix}: none of its objects is a BERT encoder of Model Garden, with "
                f"the attributes {', '.join(sorted(ENCODER_PARTS))}"
            )
        self._head = self._graph.only_object_with(HEAD_PARTS, "masked-LM heads")
        self.names = {name.removesuffix(_VALUE_SUFFIX): name for name in checkpoint.shapes}

    def name(self, path: str) -> str:
        """The name of the tensor of one of our variables, or one that no tensor has."""
        attributes = model_garden_attributes(path)
        root = self._head if is_of_head(path) else self._encoder
        key = self._graph.key(self._graph.reached(root, attributes))
        if key is None:
            return f"{'masked_lm' if is_of_head(path) else ENCODER}/{attributes}"
        return key.removesuffix(_VALUE_SUFFIX)

    def sizes(self) -> dict[str, Any]:
        """What the tensors say of `RemBertBackbone`."""
        vocabulary_size, embedding_dim = self._shape("embeddings/token_embedding/embeddings", 2)
        hidden_dim, intermediate_dim = self._shape("encoder_block_0/intermediate/kernel", 2)
        layers = self._graph.reached(self._encoder, "_transformer_layers")
        return {
            "vocabulary_size": vocabulary_size,
            "num_layers": sum(name.isdigit() for name in self._graph.names_of(layers)),
            "num_heads": self._shape("encoder_block_0/attention/query/kernel", 3)[1],
            "hidden_dim": hidden_dim,
            "intermediate_dim": intermediate_dim,
            "embedding_dim": embedding_dim,
            "max_sequence_length": self._shape("embeddings/position_embedding/embeddings", 2)[0],
            "num_segments": self._shape("embeddings/segment_embedding/embeddings", 2)[0],
        }

    def output_embedding_dim(self) -> int | str | None:
        """Width of the head's table, or that it is the encoder's; None without a head."""
        if self._head is None:
            return None
        table = self.name("masked_lm_head/table")
        if table == self.name("embeddings/token_embedding/embeddings"):
            return TIED
        return self._shape("masked_lm_head/table", 2)[1]

    def weights(self, shapes: Mapping[str, tuple[int, ...]]) -> SourceWeights:
        """Every tensor; those of attention as the matrices and vectors that they are with us.

        Args:
            shapes: name → the shape that a tensor should have.
        """

        def stored(name: str, full_name: str) -> StoredTensor:
            found, wanted = self._checkpoint.shapes[full_name], shapes.get(name)
            if wanted is None or len(found) == len(wanted) or not _is_split(found, wanted):
                return self._checkpoint.stored(full_name)
            return self._checkpoint.stored(full_name, wanted, lambda value: value.reshape(wanted))

        return SourceWeights((name, stored(name, full)) for name, full in self.names.items())

    def ignored(self, mapped: Mapping[str, str]) -> dict[str, str]:
        """Pattern of names → why such tensors are left out, beginning with what a user says."""
        heads = (key.removesuffix(_VALUE_SUFFIX) for key in self._graph.keys_below(_TASK_HEADS))
        by_name = {**dict.fromkeys(heads, _TASK_HEAD), **mapped}
        return {glob.escape(name): why for name, why in by_name.items()} | _IGNORED

    def _shape(self, path: str, rank: int) -> tuple[int, ...]:
        name = self.name(path)
        shape = self._checkpoint.shapes.get(self.names.get(name, name))
        if shape is None or len(shape) != rank:
            raise KzooError(
                f"{self._checkpoint.prefix}: {name} must have {rank} dimensions. "
                f"Received: {shape or 'no tensor'}"
            )
        return shape


def _is_split(found: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    """Whether a shape is the other with one dimension split into heads and their width."""
    return len(found) == len(wanted) + 1 and any(
        (*found[:axis], found[axis] * found[axis + 1], *found[axis + 2 :]) == wanted
        for axis in range(len(wanted))
    )


def write_model_garden(built: BuiltModel, folder: str) -> list[str]:
    """Writes a checkpoint that Model Garden's tasks take as `init_checkpoint`, and `encoder.yaml`.

    Args:
        built: the model.
        folder: where they go; parents are made, and what is there is replaced.

    Returns:
        What is not as it was, for people.

    Raises:
        KzooError: Model Garden has no such encoder.
    """
    backbone = built.backbone
    text = encoder_yaml(backbone.get_config())
    if backbone.pooler != "dense":
        raise KzooError(
            f"Model Garden's encoder has a dense pooler, and this model's is {backbone.pooler}: "
            "--allow_missing pooler makes a new one"
        )
    with written_aside(folder) as aside:
        checkpoint = tf.train.Checkpoint(**{ENCODER: _encoder_object(backbone)})
        try:
            checkpoint.save(os.path.join(aside, _CHECKPOINT_NAME))
        except tf.errors.OpError as error:
            raise KzooError(f"cannot write {folder}: {error.message}") from error
        Path(aside, ENCODER_FILE).write_text(text, "utf-8")
        paths = {variable.path for variable in backbone.variables}
        write_metadata(
            aside, {path: seed for path, seed in built.made_anew.items() if path in paths}
        )
        if built.vocabulary is not None:
            built.vocabulary.save(aside)
    notes = [_HEAD_LEFT_OUT] if isinstance(built.model, RemBertMaskedLM) else []
    if backbone.activation == "gelu":
        notes.append(
            f"the exact GELU has no name in Model Garden's configuration: {ENCODER_FILE} says what "
            "to do"
        )
    return notes


def _encoder_object(backbone: RemBertBackbone) -> tf.Module:
    """An object with the variables of a `BertEncoderV2` under the attributes that it has."""
    encoder = tf.Module()
    for variable in backbone.variables:
        *parents, name = model_garden_attributes(variable.path).split("/")
        owner = encoder
        for parent in parents:
            if not hasattr(owner, parent):
                setattr(owner, parent, tf.Module())
            owner = getattr(owner, parent)
        setattr(owner, name, _as_theirs(variable, backbone.num_heads))
    return encoder


def _as_theirs(variable: keras.Variable, num_heads: int) -> tf.Variable:
    """A variable in the shape that Model Garden's layers give it."""
    path = variable.path
    if "/attention/" not in path or path.endswith("/output/bias"):
        return variable.value
    value = tf.convert_to_tensor(variable)
    if path.endswith("/output/kernel"):
        shape = (num_heads, -1, value.shape[-1])
    else:
        shape = (*value.shape[:-1], num_heads, value.shape[-1] // num_heads)
    return tf.Variable(tf.reshape(value, shape))
