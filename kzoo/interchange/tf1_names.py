"""What Google's BERT code for TensorFlow 1 calls our variables."""

# From left to right, in this order. Left: parts of `variable.path`. Right: parts of the names in a
# checkpoint, after the scope of the model, which is `bert`.
_NAMES = (
    ("embeddings/token_embedding/embeddings", "embeddings/word_embeddings"),
    ("embeddings/position_embedding/embeddings", "embeddings/position_embeddings"),
    ("embeddings/segment_embedding/embeddings", "embeddings/token_type_embeddings"),
    ("embeddings/layer_norm/", "embeddings/LayerNorm/"),
    ("embeddings/projection/", "encoder/embedding_hidden_mapping_in/"),
    ("encoder_block_", "encoder/layer_"),
    ("/attention/output/", "/attention/output/dense/"),
    ("/attention/query/", "/attention/self/query/"),
    ("/attention/key/", "/attention/self/key/"),
    ("/attention/value/", "/attention/self/value/"),
    ("/attention_layer_norm/", "/attention/output/LayerNorm/"),
    ("/intermediate/", "/intermediate/dense/"),
    ("/output_layer_norm/", "/output/LayerNorm/"),
)
# The output layer of a block; the same word stands in `/attention/output/`.
_BLOCK_OUTPUT = (("/output/kernel", "/output/dense/kernel"), ("/output/bias", "/output/dense/bias"))

# Those of BERT. The names in RemBERT's checkpoint are not public: see `tf1_head`.
_HEAD_NAMES = {
    "masked_lm_head/table": "cls/predictions/output_embedding",
    "masked_lm_head/bias": "cls/predictions/output_bias",
    "masked_lm_head/dense/kernel": "cls/predictions/transform/dense/kernel",
    "masked_lm_head/dense/bias": "cls/predictions/transform/dense/bias",
    "masked_lm_head/layer_norm/gamma": "cls/predictions/transform/LayerNorm/gamma",
    "masked_lm_head/layer_norm/beta": "cls/predictions/transform/LayerNorm/beta",
}

HEAD_PATHS = tuple(_HEAD_NAMES)
"""The paths of the variables of an untied masked-LM head."""

TABLES = tuple(theirs for _, theirs in _NAMES[:3])
"""The names of the three input tables, after the scope."""

IGNORED = {
    "*/adam_m": "a slot of the optimizer",
    "*/adam_v": "a slot of the optimizer",
    "global_step": "a number of the training that made the weights",
    "cls/seq_relationship/*": "BERT's next-sentence head, which RemBERT does not have",
}
"""Pattern of names → why such a tensor has no place in a model of ours."""


def tf1_name(path: str, scope: str) -> str:
    """The name in a checkpoint of the variable at `path`; of a head's, the name that BERT gives it.

    Args:
        path: `variable.path` of a variable of `RemBertMaskedLM` or its backbone.
        scope: what the encoder's names begin with, `bert/` in the releases.
    """
    if path in _HEAD_NAMES:
        return _HEAD_NAMES[path]
    for ours, theirs in _NAMES:
        path = path.replace(ours, theirs)
    if "/attention/" not in path:
        for ours, theirs in _BLOCK_OUTPUT:
            path = path.replace(ours, theirs)
    return scope + path
