"""From hidden vectors to a logit for each piece of the vocabulary."""

import keras
import tensorflow as tf
from keras import ops

from kzoo.errors import KzooError
from kzoo.layers import activations
from kzoo.layers.initializers import truncated_normal
from kzoo.layers.layer_norm import LayerNorm
from kzoo.layers.saved_values import SavedValues


@keras.saving.register_keras_serializable(package="kzoo")
class MaskedLMHead(keras.layers.Layer):
    """The part that is thrown away after pre-training.

    Dense (H → E_out) → activation → LayerNorm → product with an output table [V, E_out] + bias
    [V]. A table of its own, wider than the input's, is what the RemBERT paper (arXiv 2010.12821,
    section 4) found to make the layers below it more general.

    Args:
        vocabulary_size: rows of the output table (V).
        output_embedding_dim: its width (E_out).
        activation: "gelu" or "gelu_approximate".
        layer_norm_epsilon: added to the variance.
        tied_embedding: an embedding layer whose table serves as output table too, as in BERT;
            its width must be `output_embedding_dim`. It stays its owner's: this layer neither
            saves nor counts it.
    """

    def __init__(
        self,
        vocabulary_size: int,
        output_embedding_dim: int,
        activation: str = "gelu",
        layer_norm_epsilon: float = 1e-12,
        tied_embedding: keras.layers.Embedding | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.vocabulary_size = vocabulary_size
        self.output_embedding_dim = output_embedding_dim
        self.activation = activations.get(activation)
        self.tied_embedding = tied_embedding
        self.dense = keras.layers.Dense(
            output_embedding_dim,
            kernel_initializer=truncated_normal(),
            dtype=self.dtype_policy,
            name="dense",
        )
        # The rest stays in float32 under any policy: scores over a large vocabulary need it.
        self.dtype_policy = "float32"
        self.layer_norm = LayerNorm(layer_norm_epsilon, dtype="float32", name="layer_norm")

    def build(self, hidden_shape):
        self.dense.build((None, hidden_shape[-1]))
        self.layer_norm.build((None, self.output_embedding_dim))
        if self.tied_embedding is None:
            self._table = self.add_weight(
                name="table",
                shape=(self.vocabulary_size, self.output_embedding_dim),
                initializer=truncated_normal(),
            )
        self.bias = self.add_weight(name="bias", shape=(self.vocabulary_size,), initializer="zeros")

    @property
    def table(self):
        """The output table: a float32 variable [V, E_out]; the input table where it is tied.

        Raises:
            KzooError: if the tied input table has been quantized.
        """
        if self.tied_embedding is None:
            return self._table
        if self.tied_embedding.quantization_mode is not None:
            raise KzooError(
                "the output table is tied to an input table that has been quantized to "
                f"{self.tied_embedding.quantization_mode}: quantize the backbone alone"
            )
        return self.tied_embedding.embeddings

    def transform(self, hidden):
        """What is multiplied with the output table.

        Args:
            hidden: [..., hidden_dim], at least two-dimensional.

        Returns:
            float32 [..., E_out].
        """
        tokens = ops.reshape(hidden, (-1, hidden.shape[-1]))
        transformed = self.layer_norm(self.activation(self.dense(tokens)))
        return ops.reshape(transformed, (*ops.shape(hidden)[:-1], self.output_embedding_dim))

    def call(self, hidden):
        """Scores every piece of the vocabulary: [..., hidden_dim] to float32 [..., V]."""
        transformed = self.transform(hidden)
        tokens = ops.reshape(transformed, (-1, self.output_embedding_dim))
        logits = tf.matmul(tokens, tf.convert_to_tensor(self.table), transpose_b=True) + self.bias
        return ops.reshape(logits, (*ops.shape(hidden)[:-1], self.vocabulary_size))

    def save_own_variables(self, store) -> None:
        """Saves what Keras would save, without copies of the table on the way."""
        own = [self.bias] if self.tied_embedding is not None else [self._table, self.bias]
        for index, variable in enumerate(own):
            store[str(index)] = SavedValues(variable)

    def compute_output_shape(self, hidden_shape):
        return (*hidden_shape[:-1], self.vocabulary_size)
