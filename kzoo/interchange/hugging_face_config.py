"""The `config.json` of a RemBERT of Hugging Face, from and to the arguments of ours."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from kzoo.interchange.config_keys import (
    activation_of,
    check_keys,
    check_model_type,
    check_numbers,
)

MODEL_TYPE = "rembert"

# Argument of `RemBertBackbone` → key.
_SIZES = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "embedding_dim": "input_embedding_size",
}
# The defaults are those of Hugging Face's RemBertConfig.
_OPTIONAL = {
    "max_sequence_length": ("max_position_embeddings", 512),
    "num_segments": ("type_vocab_size", 2),
    "dropout": ("hidden_dropout_prob", 0.0),
    "attention_dropout": ("attention_probs_dropout_prob", 0.0),
    "layer_norm_epsilon": ("layer_norm_eps", 1e-12),
}
_OUTPUT_WIDTH, _ACTIVATION = "output_embedding_size", "hidden_act"
# As Hugging Face's RemBERT has no table of segments that is not looked up in, nor a tied output.
_ONLY_VALUES = {"tie_word_embeddings": False}

_THEIR_ACTIVATIONS = {"gelu": "gelu", "gelu_approximate": "gelu_pytorch_tanh"}


class RemBertShape(NamedTuple):
    """What a configuration says.

    Attributes:
        arguments: of `RemBertBackbone`, without `pooler`.
        output_embedding_dim: of `RemBertMaskedLM`; None where the file does not say it.
    """

    arguments: dict[str, Any]
    output_embedding_dim: int | None


def read_shape(config: Mapping[str, Any], path: str) -> RemBertShape:
    """What a RemBERT's configuration says.

    Args:
        config: the content of `config.json`.
        path: of the file, for messages.

    Raises:
        KzooError: it is another kind of model, or a key is missing, unknown, or of a value that
            makes another model.
    """
    check_model_type(config, path, MODEL_TYPE, "hugging_face")
    optional = {key for key, _ in _OPTIONAL.values()}
    check_keys(
        config,
        path,
        required=_SIZES.values(),
        others={*optional, _OUTPUT_WIDTH, _ACTIVATION, "model_type"},
        only_values=_ONLY_VALUES,
    )
    arguments = {argument: config[key] for argument, key in _SIZES.items()}
    arguments |= {argument: config.get(key, value) for argument, (key, value) in _OPTIONAL.items()}
    keys = {**_SIZES, **{argument: key for argument, (key, _) in _OPTIONAL.items()}}
    check_numbers(arguments, keys, path)
    arguments["activation"] = activation_of(config, path)
    arguments["project_embeddings"] = True
    return RemBertShape(arguments, config.get(_OUTPUT_WIDTH))


def config_of(
    arguments: Mapping[str, Any],
    output_embedding_dim: int | None,
    special_ids: Mapping[str, int] | None,
) -> dict[str, Any]:
    """The `config.json` of a model of ours.

    Args:
        arguments: of its `RemBertBackbone`.
        output_embedding_dim: width of its output table; None for an encoder alone.
        special_ids: `pad_token_id`, `bos_token_id` and `eos_token_id`, if its vocabulary is known.
    """
    config = {
        "architectures": ["RemBertModel" if output_embedding_dim is None else "RemBertForMaskedLM"],
        "model_type": MODEL_TYPE,
        **{key: arguments[argument] for argument, key in _SIZES.items()},
        **{key: arguments[argument] for argument, (key, _) in _OPTIONAL.items()},
        _ACTIVATION: _THEIR_ACTIVATIONS[arguments["activation"]],
        **_ONLY_VALUES,
        **(special_ids or {}),
        "classifier_dropout_prob": 0.1,
        "initializer_range": 0.02,
        "torch_dtype": "float32",
        "use_cache": True,
    }
    if output_embedding_dim is not None:
        config[_OUTPUT_WIDTH] = output_embedding_dim
    return config
