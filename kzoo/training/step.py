"""One update of a masked language model, the same on one device and on many."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from kzoo.layers.dropout import dropout_seed
from kzoo.layers.vocabulary_loss import vocabulary_loss
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.training.loss_scale import LOWEST_SCALE, DynamicLossScale
from kzoo.training.optimizer import AdamW, global_norm

# What the step takes of a batch; the rest (the languages) is for evaluation.
FEATURES = ("token_ids", "padding_mask", "mask_positions", "mask_ids", "mask_weights")


class StepMetrics(NamedTuple):
    """Sums over the global batch of one step, each a [] float32 tensor but for `healthy`."""

    loss: tf.Tensor  # nats, summed over targets
    correct: tf.Tensor  # targets guessed
    targets: tf.Tensor
    tokens: tf.Tensor  # positions that are no padding
    positions: tf.Tensor  # positions in all
    gradient_norm: tf.Tensor  # before clipping
    healthy: tf.Tensor  # [] bool: nothing non-finite so far; once False, no update is made


class TrainingStep:
    """Loss, gradients, all-reduce, clipping and update in one `tf.function`.

    The loss is the sum over the targets of the global batch divided by their number, which is
    counted before the first gradient is taken. So gradients do not depend on how the batch is
    shared out, however unevenly its targets fall.

    Once a loss or a gradient is not finite, this and all later updates leave the weights alone
    (`healthy` is handed from step to step on the device); the caller may look as late as it
    likes. Under a loss scale such an update is only skipped, as long as the scale can shrink.

    Args:
        model: what is trained.
        optimizer: over `trainable_weights(model)`.
        strategy: under whose scope both were made.
        seed: of the dropout masks, which are a function of (seed, step, replica, layer).
        loss_scale: for float16; None otherwise.
        jit_compile: compile the step with XLA. Every batch must then have the same shapes.
        chunk_size: see `vocabulary_loss`.
    """

    def __init__(
        self,
        model: RemBertMaskedLM,
        optimizer: AdamW,
        strategy: tf.distribute.Strategy,
        *,
        seed: int = 0,
        loss_scale: DynamicLossScale | None = None,
        jit_compile: bool = False,
        chunk_size: int | None = None,
    ):
        self._model = model
        self._optimizer = optimizer
        self._strategy = strategy
        self._seed = seed
        self._loss_scale = loss_scale
        self._jit_compile = jit_compile
        self._chunk_size = chunk_size
        self._healthy = tf.constant(True)
        # XLA compiles the replica's part; the strategy's own machinery stays outside.
        replica_step = tf.function(self._replica_step, jit_compile=True) if jit_compile else None
        self._run = tf.function(
            lambda *arguments: strategy.run(replica_step or self._replica_step, arguments),
            reduce_retracing=True,
        )

    def __call__(
        self, shares: Sequence[dict[str, np.ndarray]], step: int, learning_rate: float
    ) -> StepMetrics:
        """Makes one update.

        Args:
            shares: one batch for each local replica; see `corpora.batching.pad_batch`.
            step: updates made before this one.
            learning_rate: of this update.

        Returns:
            Tensors that are perhaps still being computed.
        """
        metrics = self._run(
            distribute(self._strategy, [{key: share[key] for key in FEATURES} for share in shares]),
            tf.constant(step, tf.int64),
            tf.constant(learning_rate, tf.float32),
            self._healthy,
        )
        self._healthy = metrics.healthy
        return StepMetrics(*(self._strategy.experimental_local_results(m)[0] for m in metrics))

    def _replica_step(self, share, step, learning_rate, healthy) -> StepMetrics:
        replica = tf.distribute.get_replica_context()
        targets = replica.all_reduce(
            tf.distribute.ReduceOp.SUM, tf.reduce_sum(share["mask_weights"])
        )
        scale = 1.0 if self._loss_scale is None else self._loss_scale.value
        with dropout_seed(self._dropout_seed(step, replica.replica_id_in_sync_group)):
            gradients, sums = self._gradients(share, scale / tf.maximum(targets, 1.0))
        gradients, sums = replica.all_reduce(tf.distribute.ReduceOp.SUM, [gradients, sums])
        norm = global_norm(gradients) / scale
        finite = tf.math.is_finite(norm) & tf.math.is_finite(sums[0])
        # A scale that has shrunk to the lowest is not what made the numbers overflow.
        excused = False if self._loss_scale is None else scale > LOWEST_SCALE
        healthy = healthy & (finite | excused)

        def update():
            self._optimizer.apply(
                gradients,
                step=step,
                learning_rate=learning_rate,
                factor=self._optimizer.clip_factor(norm) / scale,
            )
            return tf.constant(True)

        tf.cond(healthy & finite, update, lambda: tf.constant(False))
        if self._loss_scale is not None:
            self._loss_scale.update(finite)
        return StepMetrics(*tf.unstack(sums), norm, healthy)

    def _gradients(self, share, weight) -> tuple[list[tf.Tensor], tf.Tensor]:
        """This replica's part of the gradients and of the sums of `StepMetrics`."""
        with tf.GradientTape() as tape:
            hidden, target_ids, weights, _ = masked_vectors(
                self._model, share, training=True, static_shapes=self._jit_compile
            )
            total, losses, correct = vocabulary_loss(
                hidden,
                tf.convert_to_tensor(self._model.head.table),
                tf.convert_to_tensor(self._model.head.bias),
                target_ids,
                weights * weight,
                self._chunk_size,
                tf.bfloat16 if self._model.compute_dtype == "bfloat16" else tf.float32,
            )
        gradients = tape.gradient(total, [variable.value for variable in self._optimizer.trained])
        # Adam moves every row of the input table, also those without a token in the batch.
        gradients = [tf.convert_to_tensor(gradient) for gradient in gradients]
        mask = share["padding_mask"]
        sums = [
            tf.reduce_sum(losses * weights),
            tf.reduce_sum(tf.cast(correct, tf.float32) * weights),
            tf.reduce_sum(weights),
            tf.cast(tf.reduce_sum(mask), tf.float32),
            tf.cast(tf.size(mask), tf.float32),
        ]
        return gradients, tf.stack(sums)

    def _dropout_seed(self, step, replica_id):
        seed = tf.stack([tf.cast(self._seed, tf.int64), step])
        # Philox everywhere, as in the layers: on a TPU the default is another algorithm.
        return tf.random.experimental.stateless_fold_in(
            seed, tf.cast(replica_id, tf.int64), alg="philox"
        )


def masked_vectors(
    model: RemBertMaskedLM, share: dict[str, tf.Tensor], *, training: bool, static_shapes: bool
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor, tf.Tensor]:
    """What the output table is multiplied with, gathered before the head does any work.

    Args:
        model: a masked language model.
        share: a batch; see `corpora.batching.pad_batch`.
        training: whether dropout is active.
        static_shapes: keep the slots without a target (weight 0), so that shapes are known.

    Returns:
        transformed float32 [targets, output_embedding_dim]; target ids int32 [targets]; weights
        float32 [targets]; and the row of the batch that each target stands in, int32 [targets].
    """
    token_ids, weights = share["token_ids"], share["mask_weights"]
    outputs = model.backbone(
        {
            "token_ids": token_ids,
            "padding_mask": share["padding_mask"],
            "segment_ids": tf.zeros_like(token_ids),
        },
        training=training,
    )
    batch, length = tf.unstack(tf.shape(token_ids))
    rows = tf.range(batch)[:, None] + tf.zeros_like(share["mask_positions"])
    positions = length * rows + share["mask_positions"]
    slots = (positions, share["mask_ids"], weights, rows)
    if static_shapes:
        positions, ids, weights, rows = (tf.reshape(slot, [-1]) for slot in slots)
    else:
        chosen = weights > 0
        positions, ids, weights, rows = (tf.boolean_mask(slot, chosen) for slot in slots)
    sequence = outputs["sequence_output"]
    flat = tf.reshape(sequence, [-1, sequence.shape[-1]])
    return model.head.transform(tf.gather(flat, positions)), ids, weights, rows


def trainable_weights(model: RemBertMaskedLM) -> list:
    """The variables that the masked-LM loss trains: all but a pooler's, which it does not reach."""
    pooler = model.backbone.pooler_layer
    untouched = {id(v) for v in pooler.variables} if pooler is not None else set()
    return [v for v in model.trainable_variables if id(v) not in untouched]


def distribute(strategy: tf.distribute.Strategy, shares: Sequence[dict[str, np.ndarray]]):
    """Puts each local replica's share on its device."""
    return strategy.experimental_distribute_values_from_function(
        lambda context: {
            key: tf.convert_to_tensor(value)
            for key, value in shares[context.replica_id_in_sync_group % len(shares)].items()
        }
    )
