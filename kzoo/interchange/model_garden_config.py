"""The configuration of Model Garden's BERT encoder, from and to the arguments of ours."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kzoo.config import yaml_core
from kzoo.errors import KzooError

ENCODER_FILE = "encoder.yaml"

EXACT_GELU = "gelu_exact"
"""A name that Model Garden does not know, so that it cannot compute the other GELU unnoticed."""

_TYPES = ("bert", "bert_v2")
_EPSILON = 1e-12

# Argument of `RemBertBackbone` → field of `BertEncoderConfig`. All but the last are in tensors too.
_SIZES = {
    "vocabulary_size": "vocab_size",
    "hidden_dim": "hidden_size",
    "num_layers": "num_layers",
    "num_heads": "num_attention_heads",
    "intermediate_dim": "intermediate_size",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
    "embedding_dim": "embedding_size",
}
_DROPOUTS = {"dropout": "dropout_rate", "attention_dropout": "attention_dropout_rate"}
_ACTIVATION = "hidden_activation"
_ACTIVATIONS = {"gelu": "gelu_approximate", EXACT_GELU: "gelu"}
_ONLY_VALUES = {"norm_first": False, "output_range": None}
_WITHOUT_EFFECT = (
    "initializer_range",
    "return_all_encoder_outputs",
    "return_attention_scores",
    "return_word_embeddings",
)

_HEADER = """\
# The encoder of the checkpoint beside this file, as Model Garden's EncoderConfig has it: what
# stands under task.model.encoder in the configuration of an experiment.
"""
_EXACT_HEADER = f"""\
# The GELU of this model is the exact one. Model Garden's configuration knows the tanh form alone,
# as "gelu", so it refuses "{EXACT_GELU}". In a program of yours,
#     kzoo.interchange.model_garden_config.encoder_config(FOLDER)
# is an EncoderConfig with the exact form. Or write "gelu" below: outputs move by about 1e-3.
"""


def encoder_yaml(arguments: Mapping[str, Any]) -> str:
    """The text of an `encoder.yaml`.

    Args:
        arguments: of a `RemBertBackbone`.

    Raises:
        KzooError: Model Garden has no such encoder.
    """
    _check(arguments)
    activation = next(
        theirs for theirs, ours in _ACTIVATIONS.items() if ours == arguments["activation"]
    )
    fields = {
        **{field: arguments[argument] for argument, field in _SIZES.items()},
        **{field: arguments[argument] for argument, field in _DROPOUTS.items()},
        _ACTIVATION: activation,
    }
    header = _HEADER + (_EXACT_HEADER if activation == EXACT_GELU else "")
    return header + yaml_core.to_yaml({"type": "bert_v2", "bert_v2": fields})


def read_encoder_yaml(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The fields of an encoder in a YAML file of Model Garden's.

    Args:
        path: of a file with an `EncoderConfig`, or of an experiment's with one under
            `task.model.encoder`.

    Raises:
        KzooError: it cannot be read, is of another kind of encoder, or has a field or a value that
            makes another model.
    """
    try:
        content = yaml_core.parse(Path(path).read_text("utf-8"), str(path)).value
    except (OSError, UnicodeDecodeError) as error:
        raise KzooError(f"{path} cannot be read: {error}") from None
    for key in ("task", "model", "encoder"):
        if isinstance(content, dict) and key in content:
            content = content[key]
    kind = content.get("type", "bert") if isinstance(content, dict) else None
    fields = content.get(kind) if kind in _TYPES else None
    if not isinstance(fields, dict):
        raise KzooError(
            f"{path}: there is no encoder of type {' or '.join(_TYPES)} in it. "
            f"Received: type={kind!r}"
        )
    _check_fields(fields, str(path))
    return fields


def with_encoder_yaml(
    arguments: Mapping[str, Any], fields: Mapping[str, Any], path: str
) -> dict[str, Any]:
    """Adds what tensors do not say: dropouts, and the activation where there is one.

    Args:
        arguments: what the tensors say.
        fields: what `read_encoder_yaml` has read; empty without a file.
        path: of the file.

    Raises:
        KzooError: file and tensors disagree.
    """
    for argument, field in _SIZES.items():
        said = fields.get(field)
        if said is not None and said != arguments[argument]:
            raise KzooError(f"{path}: {field} is {said}, but the tensors say {arguments[argument]}")
    dropouts = {argument: fields.get(field, 0.0) for argument, field in _DROPOUTS.items()}
    activation = _ACTIVATIONS[fields.get(_ACTIVATION, "gelu")]
    return {**arguments, **dropouts, "activation": activation, "layer_norm_epsilon": _EPSILON}


def encoder_config(folder: str | os.PathLike[str]):
    """The encoder of a converted model, for a task of Model Garden's.

    Unlike `encoder.yaml` in a file of yours, this gives the exact GELU to a model that has it.

    Args:
        folder: that `python -m kzoo.convert --to model_garden` has written.

    Returns:
        An `official.nlp.configs.encoders.EncoderConfig`.

    Raises:
        KzooError: tf-models-official is not installed, or `folder` has no such `encoder.yaml`.
    """
    fields = read_encoder_yaml(Path(folder) / ENCODER_FILE)
    try:
        from official.nlp.configs import encoders
    except ImportError as error:
        raise KzooError(f"tf-models-official, of the extra `models`, is needed: {error}") from None

    if fields[_ACTIVATION] != EXACT_GELU:
        return encoders.EncoderConfig(type="bert_v2", bert_v2=encoders.BertEncoderConfig(**fields))
    return encoders.EncoderConfig(type="any", any=_exact_gelu_config()(**fields))


def _exact_gelu_config() -> type:
    """A kind of `BertEncoderConfig` that builds its encoder with the exact GELU."""
    import tf_keras
    from official.modeling.hyperparams import base_config
    from official.nlp.configs import encoders
    from official.nlp.modeling import networks

    class ExactGeluConfig(encoders.BertEncoderConfig):
        pass

    @base_config.bind(ExactGeluConfig)
    def build(config: ExactGeluConfig) -> networks.BertEncoderV2:
        return networks.BertEncoderV2(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_layers=config.num_layers,
            num_attention_heads=config.num_attention_heads,
            max_sequence_length=config.max_position_embeddings,
            type_vocab_size=config.type_vocab_size,
            inner_dim=config.intermediate_size,
            inner_activation=tf_keras.activations.gelu,
            output_dropout=config.dropout_rate,
            attention_dropout=config.attention_dropout_rate,
            initializer=tf_keras.initializers.TruncatedNormal(stddev=config.initializer_range),
            embedding_width=config.embedding_size,
        )

    return ExactGeluConfig


def _check(arguments: Mapping[str, Any]) -> None:
    """Refuses a model that `BertEncoderV2` cannot be."""
    if arguments["layer_norm_epsilon"] != _EPSILON:
        raise KzooError(
            f"Model Garden's encoder has a layer_norm_epsilon of {_EPSILON}. "
            f"Received: {arguments['layer_norm_epsilon']}"
        )
    if (
        arguments["project_embeddings"] is True
        and arguments["embedding_dim"] == arguments["hidden_dim"]
    ):
        raise KzooError(
            "Model Garden's encoder has no projection between embeddings and layers of one width "
            f"({arguments['hidden_dim']}), and this model has one"
        )


def _check_fields(fields: Mapping[str, Any], path: str) -> None:
    known = {
        *_SIZES.values(),
        *_DROPOUTS.values(),
        _ACTIVATION,
        *_ONLY_VALUES,
        *_WITHOUT_EFFECT,
    }
    problems = [f"unknown field {field!r}" for field in fields if field not in known]
    problems += [
        f"{field} must be {value!r}. Received: {fields[field]!r}"
        for field, value in _ONLY_VALUES.items()
        if fields.get(field, value) != value
    ]
    activation = fields.get(_ACTIVATION, "gelu")
    if activation not in _ACTIVATIONS:
        known_names = " or ".join(_ACTIVATIONS)
        problems.append(f"{_ACTIVATION} must be {known_names}. Received: {activation!r}")
    if problems:
        raise KzooError(f"{path}: " + "; ".join(problems))
