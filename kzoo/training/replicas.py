"""Runs a function on every replica of a strategy, traced once on every worker."""

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from kzoo.corpora.batching import Batch


class OnReplicas:
    """A `tf.function` over one batch for each local replica.

    It is traced once, for every shape that its batches may have. Workers number their collective
    operations as they trace them: a function that was traced anew for a shape that only one worker
    meets would make the others wait for ever.

    Args:
        strategy: whose replicas run the function.
        function: takes a replica's batch and the arguments of the call; returns a tuple of tensors
            that are the same on each replica.
        static_shapes: whether all batches have the shapes of the first, as XLA and TPUs need it;
            otherwise only their numbers of rows are fixed.
        jit_compile: whether XLA compiles the replica's part; the strategy's own machinery stays
            outside.
    """

    def __init__(
        self,
        strategy: tf.distribute.Strategy,
        function: Callable[..., tuple[tf.Tensor, ...]],
        *,
        static_shapes: bool = False,
        jit_compile: bool = False,
    ):
        self._strategy = strategy
        self._function = tf.function(function, jit_compile=True) if jit_compile else function
        self._static_shapes = static_shapes
        self._traced: tf.types.experimental.PolymorphicFunction | None = None

    def __call__(self, shares: Sequence[Batch], *arguments: tf.Tensor) -> tuple[tf.Tensor, ...]:
        """Runs the function.

        Args:
            shares: a batch for each local replica, in order.
            arguments: the same for each replica.

        Returns:
            What it returns on the first local replica, perhaps still being computed.
        """
        if self._traced is None:
            self._traced = tf.function(
                self._run,
                input_signature=[
                    [
                        {name: self._spec(value) for name, value in share.items()}
                        for share in shares
                    ],
                    *(tf.TensorSpec.from_tensor(argument) for argument in arguments),
                ],
            )
        return self._traced(list(shares), *arguments)

    def _spec(self, value: Any) -> tf.TensorSpec:
        rows, *others = value.shape
        shape = value.shape if self._static_shapes else (rows, *(None for _ in others))
        return tf.TensorSpec(shape, tf.as_dtype(value.dtype))

    def _run(self, shares, *arguments):
        distributed = self._strategy.experimental_distribute_values_from_function(
            lambda context: shares[context.replica_id_in_sync_group % len(shares)]
        )
        outputs = self._strategy.run(self._function, (distributed, *arguments))
        return tuple(self._strategy.experimental_local_results(value)[0] for value in outputs)
