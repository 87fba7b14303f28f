"""One vector for a whole sequence."""

import keras
from keras import ops

from kzoo.errors import KzooError
from kzoo.layers.initializers import truncated_normal

POOLERS = ("dense", "first_token", "mean")


@keras.saving.register_keras_serializable(package="kzoo")
class Pooler(keras.layers.Layer):
    """Makes one vector out of a sequence's.

    Args:
        kind: "dense": tanh of a Dense layer over the first token's vector, as in BERT (masked
            language modelling alone never trains it); "first_token": that vector as it is;
            "mean": the mean over the tokens that are not padding.
    """

    def __init__(self, kind: str, **kwargs):
        super().__init__(**kwargs)
        check_pooler(kind)
        self.kind = kind
        self.dense = None

    def build(self, hidden_shape, padding_mask_shape):
        if self.kind == "dense":
            self.dense = keras.layers.Dense(
                hidden_shape[-1],
                activation="tanh",
                kernel_initializer=truncated_normal(),
                dtype=self.dtype_policy,
                name="dense",
            )
            self.dense.build((None, hidden_shape[-1]))

    def call(self, hidden, padding_mask):
        """Pools a batch.

        Args:
            hidden: [batch, length, hidden_dim].
            padding_mask: integers or booleans [batch, length].

        Returns:
            [batch, hidden_dim]; zeros for the mean of a sequence that is all padding.
        """
        if self.kind == "mean":
            weights = ops.cast(padding_mask, "float32")[:, None, :]
            total = ops.matmul(weights, ops.cast(hidden, "float32"))[:, 0]
            count = ops.maximum(ops.sum(weights, axis=-1), 1.0)
            return ops.cast(total / count, self.compute_dtype)
        first = hidden[:, 0]
        return first if self.dense is None else self.dense(first)

    def compute_output_shape(self, hidden_shape, padding_mask_shape):
        return (hidden_shape[0], hidden_shape[-1])


def check_pooler(kind: object) -> None:
    """Raises a KzooError for what is no kind of pooler."""
    if kind not in POOLERS:
        known = ", ".join(f'"{known}"' for known in POOLERS)
        raise KzooError(f"`pooler` must be one of {known}, or None. Received: pooler={kind!r}")
