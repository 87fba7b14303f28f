"""The keys of a `config.json` of Hugging Face, each accounted for."""

import numbers
from collections.abc import Collection, Mapping
from typing import Any

from kzoo.errors import KzooError

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_approximate",
    "gelu_pytorch_tanh": "gelu_approximate",
}
"""Their names of activations → ours."""

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
    "_attn_implementation",
    "_name_or_path",
    "architectures",
    "attn_implementation",
    "bos_token_id",
    "chunk_size_feed_forward",
    "classifier_dropout",
    "classifier_dropout_prob",
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


def check_keys(
    config: Mapping[str, Any],
    path: str,
    *,
    required: Collection[str],
    others: Collection[str] = (),
    only_values: Mapping[str, Any] | None = None,
) -> None:
    """Refuses a configuration whose meaning is not wholly known.

    Args:
        config: the content of `config.json`.
        path: of the file, for messages.
        required: keys that must be there.
        others: keys that are used where they are there.
        only_values: keys that may have one value alone, beside those that have it in every family.

    Raises:
        KzooError: a key is missing, unknown, or of a value that makes another model.
    """
    missing = [key for key in required if key not in config]
    if missing:
        raise KzooError(f"{path} lacks {', '.join(missing)}")
    only_values = {**_ONLY_VALUES, **(only_values or {})}
    known = {*required, *others, *only_values, *_WITHOUT_EFFECT}
    problems = [f"unknown key {key!r}" for key in config if key not in known]
    problems += [
        f"{key} must be {value!r}. Received: {config[key]!r}"
        for key, value in only_values.items()
        if config.get(key, value) not in (value, None)
    ]
    if problems:
        raise KzooError(f"{path}: " + "; ".join(problems))


def check_model_type(config: Mapping[str, Any], path: str, expected: str, route: str) -> None:
    """Refuses the configuration of another kind of model.

    Args:
        config: the content of `config.json`.
        path: of the file, for messages.
        expected: the `model_type`; it may also be missing.
        route: what the user has asked for with `--from`.

    Raises:
        KzooError: it is another kind.
    """
    if config.get("model_type", expected) != expected:
        raise KzooError(
            f"{path}: --from {route} reads models of type {expected!r}. "
            f"Received: model_type={config['model_type']!r}"
        )


def activation_of(
    config: Mapping[str, Any], path: str, known: Mapping[str, str] = ACTIVATIONS
) -> str:
    """Our name of the activation; the exact GELU where none is named.

    Args:
        config: the content of `config.json`.
        path: of the file, for messages.
        known: names that the family may have there → ours.

    Raises:
        KzooError: it is another one.
    """
    activation = config.get("hidden_act", "gelu")
    # A list or an object as activation could not even be looked up.
    if not isinstance(activation, str) or activation not in known:
        raise KzooError(
            f"{path}: hidden_act must be {' or '.join(known)}. Received: {activation!r}"
        )
    return known[activation]


def check_numbers(arguments: Mapping[str, Any], keys: Mapping[str, str], path: str) -> None:
    """Refuses a shape that is not made of numbers, or whose heads do not divide its width.

    Args:
        arguments: of `RemBertBackbone`, as the file has them.
        keys: argument → its key in the file.
        path: of the file, for messages.

    Raises:
        KzooError: it is such a shape.
    """
    for argument, key in keys.items():
        value = arguments[argument]
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise KzooError(f"{path}: {key} must be a number. Received: {value!r}")
    heads, width = arguments["num_heads"], arguments["hidden_dim"]
    if heads and width % heads:
        raise KzooError(
            f"{path}: num_attention_heads must divide hidden_size. "
            f"Received: num_attention_heads={heads}, hidden_size={width}"
        )
