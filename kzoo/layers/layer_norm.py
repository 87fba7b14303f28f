"""Layer normalisation in float32."""

import keras
from keras import ops


@keras.saving.register_keras_serializable(package="kzoo")
class LayerNorm(keras.layers.LayerNormalization):
    """Layer normalisation over the last axis, computed in float32 under any dtype policy.

    An epsilon of 1e-12, which BERT's family uses, is 0 in half precision. The same function as
    Keras's layer, in the form that TensorFlow runs on a CPU in half the time.

    Args:
        epsilon: added to the variance.
    """

    def __init__(self, epsilon: float = 1e-12, **kwargs):
        super().__init__(epsilon=epsilon, **kwargs)

    def call(self, inputs):
        """Normalises each vector: [..., dim] of any float dtype to the policy's compute dtype."""
        inputs = ops.cast(inputs, "float32")
        centred = inputs - ops.mean(inputs, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(centred), axis=-1, keepdims=True)
        normalised = centred * ops.rsqrt(variance + self.epsilon)
        gamma, beta = (ops.cast(variable, "float32") for variable in (self.gamma, self.beta))
        return ops.cast(normalised * gamma + beta, self.compute_dtype)
