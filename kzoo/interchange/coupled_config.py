"""What the `config.json` of a BERT or an XLM-R says, key by key."""

from collections.abc import Mapping
from typing import Any

from kzoo.errors import KzooError
from kzoo.interchange.config_keys import ACTIVATIONS, check_keys, check_model_type

BERT, XLM_ROBERTA = "bert", "xlm_roberta"
FAMILIES = (BERT, XLM_ROBERTA)

_MODEL_TYPES = {BERT: "bert", XLM_ROBERTA: "xlm-roberta"}

# Argument of `RemBertBackbone` → key.
_ARGUMENTS = {
    "vocabulary_size": "vocab_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size",
    "max_sequence_length": "max_position_embeddings",
    "num_segments": "type_vocab_size",
}
_OPTIONAL_ARGUMENTS = {
    "dropout": ("hidden_dropout_prob", 0.1),
    "attention_dropout": ("attention_probs_dropout_prob", 0.1),
    "layer_norm_epsilon": ("layer_norm_eps", 1e-12),
}
_USED_ELSEWHERE = {"model_type", "hidden_act", "tie_word_embeddings"}


def arguments_of(config: Mapping[str, Any], family: str, path: str) -> dict[str, Any]:
    """The arguments of a `RemBertBackbone` with tables as wide as its layers.

    Args:
        config: the content of `config.json`.
        family: "bert" or "xlm_roberta".
        path: of the file, for messages.

    Raises:
        KzooError: it is another kind of model, or a key is missing, unknown, or of a value that
            makes another model.
    """
    check_model_type(config, path, _MODEL_TYPES[family], family)
    check_keys(
        config,
        path,
        required=_ARGUMENTS.values(),
        others={*_USED_ELSEWHERE, *(key for key, _ in _OPTIONAL_ARGUMENTS.values())},
    )
    activation = config.get("hidden_act", "gelu")
    if activation not in ACTIVATIONS or (family == XLM_ROBERTA and activation != "gelu"):
        # The head of XLM-R has the exact GELU, whatever the layers have.
        known = ["gelu"] if family == XLM_ROBERTA else list(ACTIVATIONS)
        raise KzooError(
            f"{path}: hidden_act must be {' or '.join(known)}. Received: {activation!r}"
        )
    arguments = {argument: config[key] for argument, key in _ARGUMENTS.items()}
    for argument, (key, default) in _OPTIONAL_ARGUMENTS.items():
        arguments[argument] = config.get(key, default)
    return {
        **arguments,
        "embedding_dim": arguments["hidden_dim"],
        "activation": ACTIVATIONS[activation],
    }


def first_position(config: Mapping[str, Any]) -> int:
    """The position of a sequence's first token in XLM-R: the row after that of the padding's id."""
    return config.get("pad_token_id", 1) + 1
