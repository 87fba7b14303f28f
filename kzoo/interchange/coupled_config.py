"""What the `config.json` of a BERT or an XLM-R of Hugging Face says."""

from collections.abc import Mapping
from typing import Any

from kzoo.errors import KzooError
from kzoo.interchange.config_keys import (
    ACTIVATIONS,
    activation_of,
    check_keys,
    check_model_type,
    check_numbers,
)

BERT, XLM_ROBERTA = "bert", "xlm_roberta"

_MODEL_TYPES = {BERT: "bert", XLM_ROBERTA: "xlm-roberta"}

# Argument of `RemBertBackbone` → key.
_SIZES = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
}
# The defaults are those of Hugging Face's classes.
_OPTIONAL = {
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "layer_norm_epsilon": ("layer_norm_eps", 1e-12),
}
_ACTIVATION, _TIED, _PAD_ID = "hidden_act", "tie_word_embeddings", "pad_token_id"


def arguments_of(config: Mapping[str, Any], family: str, path: str) -> dict[str, Any]:
    """The arguments of a `RemBertBackbone` with tables as wide as its layers, but for `pooler`.

    Args:
        config: the content of `config.json`.
        family: "bert" or "xlm_roberta".
        path: of the file, for messages.

    Raises:
        KzooError: it is another kind of model, or a key is missing, unknown, or of a value that
            makes another model.
    """
    check_model_type(config, path, _MODEL_TYPES[family], family)
    optional = {key for key, _ in _OPTIONAL.values()}
    check_keys(
        config,
        path,
        required=_SIZES.values(),
        others={*optional, _ACTIVATION, _TIED, _PAD_ID, "model_type"},
    )
    arguments = {argument: config[key] for argument, key in _SIZES.items()}
    arguments |= {argument: config.get(key, value) for argument, (key, value) in _OPTIONAL.items()}
    keys = {**_SIZES, **{argument: key for argument, (key, _) in _OPTIONAL.items()}}
    check_numbers(arguments, keys, path)
    # The head of XLM-R has the exact GELU, whatever the layers have.
    known = {"gelu": "gelu"} if family == XLM_ROBERTA else ACTIVATIONS
    arguments["activation"] = activation_of(config, path, known)
    arguments["embedding_dim"] = arguments["hidden_dim"]
    return arguments


def is_tied(config: Mapping[str, Any]) -> bool:
    """Whether the input table is the output table too, as it is unless the file says otherwise."""
    return config.get(_TIED, True)


def first_position(config: Mapping[str, Any], path: str) -> int:
    """The position of a sequence's first token in XLM-R: the row after that of the padding's id.

    Raises:
        KzooError: the file has no number there.
    """
    pad_id = config.get(_PAD_ID, 1)
    if isinstance(pad_id, bool) or not isinstance(pad_id, int) or pad_id < 0:
        raise KzooError(f"{path}: {_PAD_ID} must be a number from 0 on. Received: {pad_id!r}")
    return pad_id + 1
