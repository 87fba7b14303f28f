"""What the `config.json` of a BERT or an XLM-R says, key by key."""

from collections.abc import Mapping
from typing import Any

from kzoo.errors import KzooError

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
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_approximate",
    "gelu_pytorch_tanh": "gelu_approximate",
}
# Anything else would be another model.
_ONLY_VALUES = {
    "position_embedding_type": "absolute",
    "is_decoder": False,
    "is_encoder_decoder": False,
    "add_cross_attention": False,
    "pruned_heads": {},
    "quantization_config": None,
}
# Neither the weights nor what is computed from them depends on these.
_WITHOUT_EFFECT = {
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "bos_token_id",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "cross_attention_hidden_size",
    "directionality",
    "dtype",
    "eos_token_id",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "initializer_range",
    "label2id",
    "num_labels",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "pad_token_id",
    "pooler_fc_size",
    "pooler_num_attention_heads",
    "pooler_num_fc_layers",
    "pooler_size_per_head",
    "pooler_type",
    "problem_type",
    "return_dict",
    "sep_token_id",
    "tokenizer_class",
    "torch_dtype",
    "transformers_version",
    "use_cache",
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
    expected = _MODEL_TYPES[family]
    if config.get("model_type", expected) != expected:
        raise KzooError(
            f"{path}: --from {family} reads models of type {expected!r}. "
            f"Received: model_type={config['model_type']!r}"
        )
    _check_keys(config, path)
    activation = config.get("hidden_act", "gelu")
    if activation not in _ACTIVATIONS or (family == XLM_ROBERTA and activation != "gelu"):
        # The head of XLM-R has the exact GELU, whatever the layers have.
        known = ["gelu"] if family == XLM_ROBERTA else list(_ACTIVATIONS)
        raise KzooError(
            f"{path}: hidden_act must be {' or '.join(known)}. Received: {activation!r}"
        )
    arguments = {argument: config[key] for argument, key in _ARGUMENTS.items()}
    for argument, (key, default) in _OPTIONAL_ARGUMENTS.items():
        arguments[argument] = config.get(key, default)
    return {
        **arguments,
        "embedding_dim": arguments["hidden_dim"],
        "activation": _ACTIVATIONS[activation],
    }


def first_position(config: Mapping[str, Any]) -> int:
    """The position of a sequence's first token in XLM-R: the row after that of the padding's id."""
    return config.get("pad_token_id", 1) + 1


def _check_keys(config: Mapping[str, Any], path: str) -> None:
    missing = [key for key in _ARGUMENTS.values() if key not in config]
    if missing:
        raise KzooError(f"{path} lacks {', '.join(missing)}")
    optional = {key for key, _ in _OPTIONAL_ARGUMENTS.values()}
    known = {*_ARGUMENTS.values(), *optional, *_USED_ELSEWHERE, *_ONLY_VALUES, *_WITHOUT_EFFECT}
    problems = [f"unknown key {key!r}" for key in config if key not in known]
    problems += [
        f"{key} must be {value!r}. Received: {config[key]!r}"
        for key, value in _ONLY_VALUES.items()
        if config.get(key, value) not in (value, None)
    ]
    if problems:
        raise KzooError(f"{path}: " + "; ".join(problems))
