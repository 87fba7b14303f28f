"""The keys of a `config.json` of Hugging Face, each accounted for."""

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
