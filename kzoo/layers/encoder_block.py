"""One layer of the Transformer encoder."""

import keras
from keras import ops

from kzoo.layers import activations
from kzoo.layers.dropout import Dropout
from kzoo.layers.initializers import truncated_normal
from kzoo.layers.layer_norm import LayerNorm
from kzoo.layers.recomputation import recomputable
from kzoo.layers.self_attention import SelfAttention

DROPOUTS_PER_BLOCK = 3


@keras.saving.register_keras_serializable(package="kzoo")
class EncoderBlock(keras.layers.Layer):
    """A post-LayerNorm Transformer layer, as in BERT.

    x ← LayerNorm(x + dropout(attention(x))); x ← LayerNorm(x + dropout(feed_forward(x))).

    Args:
        num_heads: number of attention heads; divides `hidden_dim`.
        hidden_dim: width of input and output (the paper's H).
        intermediate_dim: width inside the feed-forward layer.
        dropout: rate on the outputs of attention and feed-forward layer.
        attention_dropout: rate on the attention probabilities.
        activation: of the feed-forward layer: "gelu" or "gelu_approximate".
        layer_norm_epsilon: added to the variances.
        dropout_stream: number of the first of the block's three dropout streams.
    """

    def __init__(
        self,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation: str = "gelu",
        layer_norm_epsilon: float = 1e-12,
        dropout_stream: int = 0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        dtype = self.dtype_policy
        self.hidden_dim = hidden_dim
        self.intermediate_dim = intermediate_dim
        self.activation = activations.get(activation)
        self.attention = SelfAttention(
            num_heads, hidden_dim, attention_dropout, dropout_stream, dtype=dtype, name="attention"
        )
        self.attention_dropout = Dropout(
            dropout, dropout_stream + 1, dtype=dtype, name="attention_dropout"
        )
        self.attention_layer_norm = LayerNorm(
            layer_norm_epsilon, dtype=dtype, name="attention_layer_norm"
        )
        self.intermediate = keras.layers.Dense(
            intermediate_dim,
            kernel_initializer=truncated_normal(),
            dtype=dtype,
            name="intermediate",
        )
        self.output_dense = keras.layers.Dense(
            hidden_dim, kernel_initializer=truncated_normal(), dtype=dtype, name="output"
        )
        self.output_dropout = Dropout(
            dropout, dropout_stream + 2, dtype=dtype, name="output_dropout"
        )
        self.output_layer_norm = LayerNorm(
            layer_norm_epsilon, dtype=dtype, name="output_layer_norm"
        )

    def build(self, hidden_shape, padding_mask_shape):
        tokens_shape = (None, self.hidden_dim)
        self.attention.build(tokens_shape, padding_mask_shape)
        self.attention_layer_norm.build(tokens_shape)
        self.intermediate.build(tokens_shape)
        self.output_dense.build((None, self.intermediate_dim))
        self.output_layer_norm.build(tokens_shape)

    def call(self, hidden, padding_mask, training: bool = False):
        """Applies the layer.

        Args:
            hidden: [batch, length, hidden_dim].
            padding_mask: integers or booleans [batch, length]; 1 at tokens, 0 at padding.
            training: whether values are dropped.

        Returns:
            [batch, length, hidden_dim]. A sequence that is all padding stays finite.
        """

        def transform(hidden):
            return self._transform(hidden, padding_mask, training)

        return recomputable(transform, hidden)

    def _transform(self, hidden, padding_mask, training):
        # TensorFlow fuses product, bias and activation of matrices, not of batches of them.
        tokens = ops.reshape(hidden, (-1, self.hidden_dim))
        attended = self.attention(tokens, padding_mask, training=training)
        attended = self.attention_dropout(attended, training=training)
        tokens = self.attention_layer_norm(tokens + attended)
        transformed = self.output_dense(self.activation(self.intermediate(tokens)))
        transformed = self.output_dropout(transformed, training=training)
        tokens = self.output_layer_norm(tokens + transformed)
        return ops.reshape(tokens, ops.shape(hidden))

    def compute_output_shape(self, hidden_shape, padding_mask_shape):
        return hidden_shape
