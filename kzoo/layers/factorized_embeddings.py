"""Token, position and segment embeddings of one width, projected to another."""

import keras
from keras import ops

from kzoo.layers.dropout import Dropout
from kzoo.layers.initializers import truncated_normal
from kzoo.layers.layer_norm import LayerNorm
from kzoo.layers.saved_values import SavedValues


class _Table(keras.layers.Embedding):
    """Keras's layer, but a table is saved without copies of it on the way."""

    def quantize(self, mode=None, type_check=True, **options) -> None:
        # Keras quantizes its own class alone, unless it is told not to look.
        super().quantize(mode, type_check=False, **options)

    def save_own_variables(self, store) -> None:
        if self.built and self.quantization_mode is None and not self.lora_enabled:
            store["0"] = SavedValues(self.embeddings)
        else:
            super().save_own_variables(store)


@keras.saving.register_keras_serializable(package="kzoo")
class FactorizedEmbeddings(keras.layers.Layer):
    """The sum of three embeddings, normalised in their own width, then made `hidden_dim` wide.

    token + segment + position (E_in) → LayerNorm → dropout → Dense (H), as in section 2 of the
    RemBERT paper (arXiv 2010.12821): a narrow input table leaves parameters to the layers above.

    Args:
        vocabulary_size: rows of the token table (the paper's V).
        embedding_dim: width of the tables (E_in).
        hidden_dim: width of the output (H).
        max_sequence_length: rows of the position table.
        num_segments: rows of the segment table.
        dropout: rate after the normalisation.
        layer_norm_epsilon: added to the variance.
        project: whether there is a Dense layer at the end; without it `embedding_dim` must equal
            `hidden_dim`.
        dropout_stream: number of the dropout's stream.
    """

    def __init__(
        self,
        vocabulary_size: int,
        embedding_dim: int,
        hidden_dim: int,
        max_sequence_length: int = 512,
        num_segments: int = 2,
        dropout: float = 0.0,
        layer_norm_epsilon: float = 1e-12,
        project: bool = True,
        dropout_stream: int = 0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.max_sequence_length = max_sequence_length
        self.embedding_dim = embedding_dim
        self.hidden_dim = hidden_dim
        self.token_embedding = self._table("token_embedding", vocabulary_size)
        self.position_embedding = self._table("position_embedding", max_sequence_length)
        self.segment_embedding = self._table("segment_embedding", num_segments)
        self.layer_norm = LayerNorm(layer_norm_epsilon, dtype=self.dtype_policy, name="layer_norm")
        self.dropout = Dropout(dropout, dropout_stream, dtype=self.dtype_policy, name="dropout")
        self.projection = None
        if project:
            self.projection = keras.layers.Dense(
                hidden_dim,
                kernel_initializer=truncated_normal(),
                dtype=self.dtype_policy,
                name="projection",
            )

    def _table(self, name: str, rows: int) -> keras.layers.Embedding:
        return _Table(
            rows,
            self.embedding_dim,
            embeddings_initializer=truncated_normal(),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, token_ids_shape, segment_ids_shape):
        summed_shape = (*token_ids_shape, self.embedding_dim)
        self.token_embedding.build(token_ids_shape)
        self.position_embedding.build((self.max_sequence_length,))
        self.segment_embedding.build(segment_ids_shape)
        self.layer_norm.build(summed_shape)
        if self.projection is not None:
            self.projection.build(summed_shape)

    def call(self, token_ids, segment_ids, training: bool = False):
        """Embeds a batch.

        Args:
            token_ids: integers [batch, length].
            segment_ids: integers [batch, length].
            training: whether values are dropped.

        Returns:
            [batch, length, hidden_dim], the layers' first input.

        Raises:
            ValueError: if `length` is known and larger than `max_sequence_length`. Where it is
                unknown until the graph runs, the addition below fails.
        """
        length = ops.shape(token_ids)[1]
        if isinstance(length, int) and length > self.max_sequence_length:
            raise ValueError(
                f"The model has {self.max_sequence_length} positions. "
                f"Received: token_ids of length {length}"
            )
        # The whole table is read and then cut: to look up a position that is not there would be
        # an error on a CPU and a row of zeros on a GPU.
        positions = self.position_embedding(ops.arange(self.max_sequence_length))[:length]
        summed = self.token_embedding(token_ids) + self.segment_embedding(segment_ids) + positions
        embedded = self.dropout(self.layer_norm(summed), training=training)
        return embedded if self.projection is None else self.projection(embedded)

    def compute_output_shape(self, token_ids_shape, segment_ids_shape):
        return (*token_ids_shape, self.hidden_dim)
