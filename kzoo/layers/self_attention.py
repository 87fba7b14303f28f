"""Multi-head self-attention over the tokens of each sequence."""

import keras
import tensorflow as tf
from keras import ops

from kzoo.layers.dropout import Dropout
from kzoo.layers.initializers import truncated_normal

# Finite, so that a sequence without any token to attend to gives equal probabilities, not NaN.
MASKED_SCORE = -1e9


@keras.saving.register_keras_serializable(package="kzoo")
class SelfAttention(keras.layers.Layer):
    """Scaled dot-product attention with four Dense layers: query, key, value, output.

    Their kernels are matrices, as in BERT's checkpoints, so that weights come in by transposing
    alone; heads are contiguous blocks of the `hidden_dim` columns.

    Args:
        num_heads: number of heads; divides `hidden_dim`.
        hidden_dim: width of input and output (the paper's H).
        dropout: rate on the attention probabilities.
        dropout_stream: number of the dropout's stream.
    """

    def __init__(
        self,
        num_heads: int,
        hidden_dim: int,
        dropout: float = 0.0,
        dropout_stream: int = 0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.hidden_dim = hidden_dim
        self.head_dim = hidden_dim // num_heads
        self.query = self._dense("query")
        self.key = self._dense("key")
        self.value = self._dense("value")
        self.output_dense = self._dense("output")
        self.dropout = Dropout(dropout, dropout_stream, dtype=self.dtype_policy, name="dropout")

    def _dense(self, name: str) -> keras.layers.Dense:
        return keras.layers.Dense(
            self.hidden_dim,
            kernel_initializer=truncated_normal(),
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, tokens_shape, padding_mask_shape):
        for dense in (self.query, self.key, self.value, self.output_dense):
            dense.build(tokens_shape)

    def call(self, tokens, padding_mask, training: bool = False):
        """Lets every token gather from the tokens of its sequence.

        Args:
            tokens: [batch · length, hidden_dim], the sequences one after the other: products of
                two matrices are what TensorFlow fuses with their bias.
            padding_mask: integers or booleans [batch, length]; 0 where nothing is to be gathered.
            training: whether probabilities are dropped.

        Returns:
            [batch · length, hidden_dim].
        """
        batch, length = ops.shape(padding_mask)
        split_shape = (batch, length, self.num_heads, self.head_dim)
        # Scaling the query and not the scores keeps half-precision products small.
        query = ops.reshape(self.query(tokens), split_shape) * self.head_dim**-0.5
        query = ops.transpose(query, (0, 2, 1, 3))
        key = ops.transpose(ops.reshape(self.key(tokens), split_shape), (0, 2, 3, 1))
        value = ops.transpose(ops.reshape(self.value(tokens), split_shape), (0, 2, 1, 3))

        scores = ops.cast(ops.matmul(query, key), "float32")
        masked = ops.cast(ops.logical_not(ops.cast(padding_mask, "bool")), "float32")
        scores = scores + ops.reshape(masked * MASKED_SCORE, (batch, 1, 1, length))
        probabilities = ops.cast(tf.nn.softmax(scores), self.compute_dtype)
        probabilities = self.dropout(probabilities, training=training)

        gathered = ops.transpose(ops.matmul(probabilities, value), (0, 2, 1, 3))
        return self.output_dense(ops.reshape(gathered, (-1, self.hidden_dim)))

    def compute_output_shape(self, tokens_shape, padding_mask_shape):
        return tokens_shape
