"""Small models for tests: uneven shapes, so that no two widths can be taken for one another."""

from kzoo.models.backbone import RemBertBackbone
from kzoo.models.masked_lm import RemBertMaskedLM

ARGUMENTS = {
    "vocabulary_size": 517,
    "num_layers": 3,
    "num_heads": 3,
    "hidden_dim": 48,
    "intermediate_dim": 80,
    "embedding_dim": 16,
    "max_sequence_length": 40,
}


def backbone(**changes) -> RemBertBackbone:
    return RemBertBackbone(**{**ARGUMENTS, **changes})


def masked_lm(output_embedding_dim: int | str = 40, **changes) -> RemBertMaskedLM:
    return RemBertMaskedLM(backbone(**changes), output_embedding_dim)
