"""What Hugging Face calls our variables."""

# From left to right, in this order. Left: parts of `variable.path`. Right: parts of the names in
# the state dict of `RemBertForMaskedLM`.
_NAMES = (
    ("/gamma", ".weight"),
    ("/beta", ".bias"),
    ("/kernel", ".weight"),
    ("/bias", ".bias"),
    ("/embeddings", ".weight"),
    ("masked_lm_head/table", "cls.predictions.decoder.weight"),
    ("masked_lm_head.bias", "cls.predictions.decoder.bias"),
    ("masked_lm_head/layer_norm", "cls.predictions.LayerNorm"),
    ("masked_lm_head/", "cls.predictions."),
    ("embeddings/token_embedding", "rembert.embeddings.word_embeddings"),
    ("embeddings/position_embedding", "rembert.embeddings.position_embeddings"),
    ("embeddings/segment_embedding", "rembert.embeddings.token_type_embeddings"),
    ("embeddings/layer_norm", "rembert.embeddings.LayerNorm"),
    ("embeddings/projection", "rembert.encoder.embedding_hidden_mapping_in"),
    ("encoder_block_", "rembert.encoder.layer."),
    ("/attention/output", ".attention.output.dense"),
    ("/attention_layer_norm", ".attention.output.LayerNorm"),
    ("/attention/", ".attention.self."),
    ("/intermediate", ".intermediate.dense"),
    ("/output_layer_norm", ".output.LayerNorm"),
    ("/output", ".output.dense"),
    ("pooler/", "rembert.pooler."),
)


def hugging_face_name(path: str) -> str:
    """The name in the state dict of a `RemBertForMaskedLM` of the variable at `path`.

    A file of a bare `RemBertModel` has the same names without `rembert.`; a `kernel` is stored
    there as [outputs, inputs].

    Args:
        path: `variable.path` of a variable of `RemBertMaskedLM` or its backbone.
    """
    for ours, theirs in _NAMES:
        path = path.replace(ours, theirs)
    return path
