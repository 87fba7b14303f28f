"""Dynamic loss scaling, so that small float16 gradients do not vanish."""

import keras
import tensorflow as tf

INITIAL_SCALE = 2.0**15
LOWEST_SCALE = 1.0
GROWTH_INTERVAL = 2000


class DynamicLossScale:
    """Doubles after `GROWTH_INTERVAL` good updates, halves after one that is not finite.

    It begins at `INITIAL_SCALE` and does not fall below `LOWEST_SCALE`, which scales nothing.

    Its two variables belong to the checkpoint: a resumed run goes on with the same scale.
    """

    def __init__(self):
        with keras.name_scope("loss_scale"):
            self._scale = _scalar("scale", INITIAL_SCALE, "float32")
            self._good_steps = _scalar("good_steps", 0, "int32")

    @property
    def variables(self) -> list[keras.Variable]:
        return [self._scale, self._good_steps]

    @property
    def value(self) -> tf.Tensor:
        """[] float32."""
        return tf.convert_to_tensor(self._scale.value)

    def update(self, finite: tf.Tensor) -> None:
        """Takes note of an update. To be called in a replica context, alike on each replica.

        Args:
            finite: [] bool, whether its gradients were all finite.
        """
        good_steps = tf.convert_to_tensor(self._good_steps.value) + 1
        grown = good_steps >= GROWTH_INTERVAL
        scale = self.value
        higher = tf.where(grown, 2.0 * scale, scale)
        lower = tf.maximum(LOWEST_SCALE, 0.5 * scale)
        _assign(self._scale, tf.where(finite, higher, lower))
        _assign(self._good_steps, tf.where(finite & ~grown, good_steps, 0))


def _scalar(name: str, value: float, dtype: str) -> keras.Variable:
    return keras.Variable(value, dtype=dtype, trainable=False, name=name)


def _assign(variable: keras.Variable, value: tf.Tensor) -> None:
    # Through the handle: this replica's own copy.
    tf.raw_ops.AssignVariableOp(resource=variable.value.handle, value=value)
