"""Where Model Garden's BERT encoder keeps our variables."""

ENCODER = "encoder"
"""The object of a checkpoint that Model Garden's tasks restore."""

# From left to right, in this order. Left: parts of `variable.path`. Right: attributes of
# `BertEncoderV2`, and of theirs.
_NAMES = (
    ("embeddings/token_embedding/", "_embedding_layer/"),
    ("embeddings/position_embedding/", "_position_embedding_layer/"),
    ("embeddings/segment_embedding/", "_type_embedding_layer/"),
    ("embeddings/layer_norm/", "_embedding_norm_layer/"),
    ("embeddings/projection/", "_embedding_projection/"),
    ("encoder_block_", "_transformer_layers/"),
    ("/attention/", "/_attention_layer/"),
    ("/query/", "/_query_dense/"),
    ("/key/", "/_key_dense/"),
    ("/value/", "/_value_dense/"),
    ("/output/", "/_output_dense/"),
    ("/attention_layer_norm/", "/_attention_layer_norm/"),
    ("/intermediate/", "/_intermediate_dense/"),
    ("/output_layer_norm/", "/_output_layer_norm/"),
    ("pooler/dense/", "_pooler_layer/"),
)

# The attributes of `MaskedLM`; it calls the bias twice, by two names.
_HEAD_NAMES = {
    "masked_lm_head/table": "embedding_table",
    "masked_lm_head/bias": "bias",
    "masked_lm_head/dense/kernel": "dense/kernel",
    "masked_lm_head/dense/bias": "dense/bias",
    "masked_lm_head/layer_norm/gamma": "layer_norm/gamma",
    "masked_lm_head/layer_norm/beta": "layer_norm/beta",
}

ENCODER_PARTS = frozenset(theirs.rstrip("/") for _, theirs in _NAMES[:4]) | {"_transformer_layers"}
"""Attributes that every BERT encoder of Model Garden has."""

HEAD_PARTS = frozenset(name.partition("/")[0] for name in _HEAD_NAMES.values())
"""Attributes that every masked-LM head of Model Garden has."""


def is_of_head(path: str) -> bool:
    """Whether the variable at `path` is the masked-LM head's."""
    return path in _HEAD_NAMES


def model_garden_attributes(path: str) -> str:
    """The attributes that lead to the variable at `path`, with a `/` between them.

    They begin at the encoder, for a variable of the head at the head.

    Args:
        path: `variable.path` of a variable of `RemBertMaskedLM` or its backbone.
    """
    if path in _HEAD_NAMES:
        return _HEAD_NAMES[path]
    for ours, theirs in _NAMES:
        path = path.replace(ours, theirs)
    return path
