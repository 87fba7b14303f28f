"""AdamW on TensorFlow's fused kernel, with clipping where it belongs: after all sums.

Keras's own optimizers clip each replica's gradient before they add the replicas up, and update a
variable by a dozen operations with as many temporaries. Here the caller gives gradients that are
already summed over micro-batches and replicas, and a variable is touched by three operations.
"""

import contextlib
from collections.abc import Sequence

import keras
import tensorflow as tf

from kzoo.errors import KzooError


def decayed_variables(model: keras.Model) -> list[keras.Variable]:
    """The trainable variables that weight decay applies to: all but biases and LayerNorms.

    LayerNorms are found by their layers, not by patterns in names, and what is found is checked
    against the shapes: every matrix decays and no vector does.

    Raises:
        KzooError: if a vector would decay or a matrix would not, naming the variables.
    """
    normalizations = {
        id(variable)
        for layer in model._flatten_layers()
        if isinstance(layer, keras.layers.LayerNormalization)
        for variable in layer.variables
    }
    decayed = [
        variable
        for variable in model.trainable_variables
        if id(variable) not in normalizations and variable.name != "bias"
    ]
    chosen = {id(variable) for variable in decayed}
    odd = [
        variable.path
        for variable in model.trainable_variables
        if (len(variable.shape) > 1) != (id(variable) in chosen)
    ]
    if odd:
        raise KzooError(
            "weight decay should apply to every matrix and to no vector, but by their layers it "
            f"would not for: {', '.join(odd)}"
        )
    return decayed


class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101).

    For update t = 1, 2, … with gradient g (clipped) and rate r:

        w ← w · (1 - r · weight_decay)                          where the variable decays
        m ← β1 m + (1 - β1) g,   v ← β2 v + (1 - β2) g²
        w ← w - r · √(1 - β2ᵗ) / (1 - β1ᵗ) · m / (√v + ε)

    which is TensorFlow's Adam: its ε stands outside the bias correction of v. A variable with a
    rate factor f has the rate r · f in all of it, in the decay too.

    Moments that come from an earlier run are those of t = T, its number of updates, and not of
    t = 0. Taken for new ones, their bias correction √(1 - β2ᵗ) / (1 - β1ᵗ), which is there to make
    up for averages that begin at zero, would hold the updates down for some thousand steps: with
    the usual β to 0.15 of what they should be around the tenth, while one for m alone would blow
    them up. So T is added to t (`updates_before`). It is no variable: whoever saves the variables
    saves it beside them.

    Args:
        variables: what is trained, float32.
        decayed: those of them that decay; others may be among them.
        rate_factors: what the rate of each of `variables` is multiplied by; None for 1.
        beta_1: β1.
        beta_2: β2.
        epsilon: ε.
        weight_decay: decay per unit of learning rate.
        clip_norm: upper bound of the global norm of the gradient, or None.
    """

    def __init__(
        self,
        variables: Sequence[keras.Variable],
        decayed: Sequence[keras.Variable],
        *,
        rate_factors: Sequence[float] | None = None,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-6,
        weight_decay: float = 0.01,
        clip_norm: float | None = 1.0,
    ):
        self.trained = list(variables)
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.weight_decay, self.clip_norm = weight_decay, clip_norm
        # Read when the step is traced: to be set before.
        self.updates_before = 0
        chosen = {id(variable) for variable in decayed}
        self._decays = [id(variable) in chosen for variable in self.trained]
        self._rate_factors = list(rate_factors or [1.0] * len(self.trained))
        self._momenta = [_slot("momentum", variable) for variable in self.trained]
        self._velocities = [_slot("velocity", variable) for variable in self.trained]

    @property
    def variables(self) -> list[keras.Variable]:
        """The two slots of every trained variable: what a checkpoint must hold."""
        return [*self._momenta, *self._velocities]

    @property
    def num_decayed(self) -> int:
        """How many variables decay."""
        return sum(self._decays)

    def apply(
        self,
        gradients: Sequence[tf.Tensor],
        *,
        step: tf.Tensor,
        learning_rate: tf.Tensor,
        factor: tf.Tensor,
    ) -> None:
        """Makes one update. To be called in a replica context, with equal values on each replica.

        Args:
            gradients: one a variable, summed over the whole global batch.
            step: [] int64, updates made before this one, without `updates_before`.
            learning_rate: [] float32.
            factor: [] float32, what each gradient is multiplied by first: see `clip_factor`.
        """
        t = tf.cast(step + (1 + self.updates_before), tf.float32)
        powers = {"beta1_power": self.beta_1**t, "beta2_power": self.beta_2**t}
        rates = {
            factor: self._rates(learning_rate if factor == 1 else factor * learning_rate)
            for factor in self._rate_factors
        }
        last: list[tf.Operation] = []
        slots = zip(
            self.trained,
            gradients,
            self._decays,
            self._rate_factors,
            self._momenta,
            self._velocities,
            strict=True,
        )
        for variable, gradient, decays, rate_factor, momentum, velocity in slots:
            rate, decay, decayed_rate = rates[rate_factor]
            # One variable after the other, so that only one needs room for a temporary at a time.
            # The handle is this replica's own copy: every replica updates for itself.
            handle = variable.value.handle
            decays = decays and self.weight_decay > 0
            with tf.control_dependencies(last):
                last = _operations(
                    tf.raw_ops.ResourceApplyAdam(
                        var=handle,
                        m=momentum.value.handle,
                        v=velocity.value.handle,
                        lr=decayed_rate if decays else rate,
                        beta1=self.beta_1,
                        beta2=self.beta_2,
                        epsilon=self.epsilon,
                        grad=factor * gradient,
                        **powers,
                    )
                )
            if decays:
                # After the step, since the gradient has then made room for the product: with its
                # rate, the order makes no difference to the result. Subtracted in place: a new
                # value would move the variable, and what it leaves behind is a hole in memory.
                with tf.control_dependencies(last):
                    value = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)
                    last = _operations(
                        tf.raw_ops.AssignSubVariableOp(resource=handle, value=decay * value)
                    )

    def _rates(self, rate: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """A rate, the share that decays at it, and the rate before that decay."""
        decay = rate * self.weight_decay
        return rate, decay, rate / (1.0 - decay)

    def clip_factor(self, norm: tf.Tensor) -> tf.Tensor:
        """[] float32: what brings a gradient of this global norm within `clip_norm`."""
        if self.clip_norm is None:
            return tf.ones_like(norm)
        return self.clip_norm / tf.maximum(norm, self.clip_norm)


def global_norm(gradients: Sequence[tf.Tensor]) -> tf.Tensor:
    """[] float32: √ of the sum of squares over all tensors; not finite if any element is not."""
    return tf.sqrt(2.0 * tf.add_n([tf.nn.l2_loss(gradient) for gradient in gradients]))


def _operations(operation: tf.Operation | None) -> list[tf.Operation]:
    """What the next operation in a graph depends on; run eagerly, there is nothing to name."""
    return [] if operation is None else [operation]


def _slot(name: str, variable: keras.Variable) -> keras.Variable:
    """A variable of zeros at `optimizer/NAME/` + the path of the variable that it belongs to."""
    *scopes, last = variable.path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in ("optimizer", name, *scopes):
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(
            initializer="zeros",
            shape=variable.shape,
            dtype=variable.dtype,
            trainable=False,
            name=last,
        )
