"""The vectors at chosen positions of each sequence."""

import keras
import tensorflow as tf


@keras.saving.register_keras_serializable(package="kzoo")
class GatherPositions(keras.layers.Layer):
    """Picks vectors by position, so that only these go through the masked-LM head."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.built = True

    def call(self, hidden, positions):
        """Gathers.

        Args:
            hidden: [batch, length, hidden_dim].
            positions: integers [batch, num_positions], each in [0, length).

        Returns:
            [batch, num_positions, hidden_dim].
        """
        return tf.gather(hidden, positions, batch_dims=1)

    def compute_output_shape(self, hidden_shape, positions_shape):
        return (*positions_shape, hidden_shape[-1])
