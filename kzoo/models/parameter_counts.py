"""How many parameters a model has, by arithmetic alone."""

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class ParameterCounts:
    """The parameters of a masked language model, part by part.

    Attributes:
        embeddings: token, position and segment table, and their LayerNorm.
        projection: Dense layer from E_in to H, if there is one.
        layers: all Transformer layers.
        pooler: Dense layer over the first token, if there is one.
        head_transform: Dense layer from H to E_out, and its LayerNorm.
        output_table: V·E_out; 0 where the input table serves as output table.
        output_bias: V.
    """

    embeddings: int
    projection: int
    layers: int
    pooler: int
    head_transform: int
    output_table: int
    output_bias: int

    @property
    def encoder(self) -> int:
        """What is fine-tuned, without the pooler: what the RemBERT paper counts."""
        return self.embeddings + self.projection + self.layers

    @property
    def head(self) -> int:
        """What is thrown away after pre-training."""
        return self.head_transform + self.output_table + self.output_bias

    @property
    def total(self) -> int:
        """All there is in pre-training, the pooler included."""
        return self.encoder + self.pooler + self.head


def count_parameters(
    *,
    vocabulary_size: int,
    num_layers: int,
    hidden_dim: int,
    intermediate_dim: int,
    embedding_dim: int,
    output_embedding_dim: int | str,
    max_sequence_length: int = 512,
    num_segments: int = 2,
    pooler: str | None = "dense",
    project_embeddings: bool | str = "auto",
    **_: Any,
) -> ParameterCounts:
    """Counts the parameters of a `RemBertMaskedLM`.

    Args:
        vocabulary_size, num_layers, hidden_dim, intermediate_dim, embedding_dim: V, L, H, the
            feed-forward width, and E_in.
        output_embedding_dim: E_out, or "tied".
        max_sequence_length, num_segments: rows of the position and of the segment table.
        pooler, project_embeddings: as `RemBertBackbone` takes them.
        **_: the backbone's other arguments; no parameter depends on them.
    """
    tied = output_embedding_dim == "tied"
    output_dim = embedding_dim if tied else output_embedding_dim
    table_rows = vocabulary_size + max_sequence_length + num_segments
    projected = project_embeddings is True or embedding_dim != hidden_dim
    attention = 4 * _dense(hidden_dim, hidden_dim)
    feed_forward = _dense(hidden_dim, intermediate_dim) + _dense(intermediate_dim, hidden_dim)
    return ParameterCounts(
        embeddings=table_rows * embedding_dim + _layer_norm(embedding_dim),
        projection=_dense(embedding_dim, hidden_dim) if projected else 0,
        layers=num_layers * (attention + feed_forward + 2 * _layer_norm(hidden_dim)),
        pooler=_dense(hidden_dim, hidden_dim) if pooler == "dense" else 0,
        head_transform=_dense(hidden_dim, output_dim) + _layer_norm(output_dim),
        output_table=0 if tied else vocabulary_size * output_dim,
        output_bias=vocabulary_size,
    )


def _dense(input_dim: int, output_dim: int) -> int:
    return input_dim * output_dim + output_dim


def _layer_norm(dim: int) -> int:
    return 2 * dim
