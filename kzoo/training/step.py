"""One update of a masked language model, the same on one device and on many."""

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from kzoo.corpora.batching import Batch
from kzoo.layers.dropout import dropout_seed
from kzoo.layers.recomputation import recomputation
from kzoo.layers.vocabulary_loss import vocabulary_loss
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.training.loss_scale import LOWEST_SCALE, DynamicLossScale
from kzoo.training.optimizer import AdamW, global_norm
from kzoo.training.replicas import OnReplicas

# What the step takes of a batch; the rest (the languages) is for evaluation.
FEATURES = ("token_ids", "padding_mask", "mask_positions", "mask_ids", "mask_weights")


class StepMetrics(NamedTuple):
    """Sums over the global batch of one step, each a [] float32 tensor unless it says otherwise."""

    loss: tf.Tensor  # nats, summed over targets
    correct: tf.Tensor  # targets guessed
    targets: tf.Tensor
    tokens: tf.Tensor  # positions that are no padding
    positions: tf.Tensor  # positions in all
    stops: tf.Tensor  # replicas whose worker was asked to stop
    gradient_norm: tf.Tensor  # before clipping
    finite: tf.Tensor  # [] bool: loss and gradients are numbers, so that the update was made
    nonfinite_steps: tf.Tensor  # [] int32: in the run so far, those of a loss scale left out


class TrainingStep:
    """Loss, gradients, all-reduce, clipping and update in one `tf.function`.

    The loss is the sum over the targets of the global batch divided by their number, which is
    counted before the first gradient is taken. So gradients do not depend on how the batch is
    shared out by replicas and micro-batches, however unevenly its targets fall. What comes after
    the gradients (all-reduce, clipping, update) is done once a step.

    A step whose loss or gradient is not finite leaves the weights alone. After `max_skipped_steps`
    such steps, the next one also ends all updates, until the caller, who may look as late as it
    likes, has noticed (the count is handed from step to step on the device). Under a loss scale
    such a step does not count as long as the scale can shrink.

    Args:
        model: what is trained.
        optimizer: over `trainable_weights(model)`, or some of them.
        strategy: under whose scope both were made.
        seed: of the dropout masks, which are a function of (seed, step, micro-batch, replica,
            layer).
        accumulation_steps: micro-batches that each replica cuts its share into, to save memory;
            they divide its rows.
        loss_scale: for float16; None otherwise.
        max_skipped_steps: how many steps that are not finite a run may have.
        nonfinite_steps: how many it has had.
        static_shapes: whether every batch has the same shapes.
        recompute: run the encoder blocks again for their gradient, instead of keeping what they
            computed.
        jit_compile: compile the step with XLA, which needs static shapes.
        chunk_size: see `vocabulary_loss`.
    """

    def __init__(
        self,
        model: RemBertMaskedLM,
        optimizer: AdamW,
        strategy: tf.distribute.Strategy,
        *,
        seed: int = 0,
        accumulation_steps: int = 1,
        loss_scale: DynamicLossScale | None = None,
        max_skipped_steps: int = 0,
        nonfinite_steps: int = 0,
        static_shapes: bool = False,
        recompute: bool = False,
        jit_compile: bool = False,
        chunk_size: int | None = None,
    ):
        self._model = model
        self._optimizer = optimizer
        self._seed = seed
        self._accumulation_steps = accumulation_steps
        self._loss_scale = loss_scale
        self._max_skipped_steps = max_skipped_steps
        self._static_shapes = static_shapes or jit_compile
        self._recompute = recompute
        self._chunk_size = chunk_size
        self._nonfinite_steps = tf.constant(nonfinite_steps, tf.int32)
        self._run = OnReplicas(
            strategy,
            self._replica_step,
            static_shapes=self._static_shapes,
            jit_compile=jit_compile,
        )

    def __call__(
        self, shares: Sequence[Batch], step: int, learning_rate: float, *, stop: bool = False
    ) -> StepMetrics:
        """Makes one update.

        Args:
            shares: one batch for each local replica, all its micro-batches together; see
                `corpora.batching.pad_batch`.
            step: updates made before this one.
            learning_rate: of this update.
            stop: whether this worker was asked to stop, which all are told.

        Returns:
            Tensors that are perhaps still being computed.
        """
        outputs = self._run(
            [{key: share[key] for key in FEATURES} for share in shares],
            tf.constant(step, tf.int64),
            tf.constant(learning_rate, tf.float32),
            self._nonfinite_steps,
            tf.constant(stop, tf.float32),
        )
        metrics = StepMetrics(*outputs)
        self._nonfinite_steps = metrics.nonfinite_steps
        return metrics

    def _replica_step(self, share, step, learning_rate, nonfinite_steps, stop) -> StepMetrics:
        replica = tf.distribute.get_replica_context()
        targets = replica.all_reduce(
            tf.distribute.ReduceOp.SUM, tf.reduce_sum(share["mask_weights"])
        )
        scale = 1.0 if self._loss_scale is None else self._loss_scale.value
        seed = self._dropout_seed(step, replica.replica_id_in_sync_group)
        gradients, sums = self._gradients(share, scale / tf.maximum(targets, 1.0), seed)
        sums = tf.concat([sums, [stop]], axis=0)
        gradients, sums = replica.all_reduce(tf.distribute.ReduceOp.SUM, [gradients, sums])
        norm = global_norm(gradients) / scale
        finite = tf.math.is_finite(norm) & tf.math.is_finite(sums[0])
        # A scale that has shrunk to the lowest is not what made the numbers overflow.
        excused = False if self._loss_scale is None else scale > LOWEST_SCALE
        nonfinite_steps += tf.cast(~(finite | excused), tf.int32)

        def update():
            self._optimizer.apply(
                gradients,
                step=step,
                learning_rate=learning_rate,
                factor=self._optimizer.clip_factor(norm) / scale,
            )
            return tf.constant(True)

        goes_on = nonfinite_steps <= self._max_skipped_steps
        tf.cond(finite & goes_on, update, lambda: tf.constant(False))
        if self._loss_scale is not None:
            self._loss_scale.update(finite)
        return StepMetrics(*tf.unstack(sums), norm, finite, nonfinite_steps)

    def _gradients(self, share, weight, seed) -> tuple[list[tf.Tensor], tf.Tensor]:
        """This replica's part of the gradients and of the sums of `StepMetrics`."""
        if self._accumulation_steps == 1:
            return self._gradients_of_micro_batch(share, weight, _fold_in(seed, 0))
        micro_batches = {name: self._cut(values) for name, values in share.items()}

        def add_micro_batch(number, gradients, sums):
            new_gradients, new_sums = self._gradients_of_micro_batch(
                {name: tf.gather(values, number) for name, values in micro_batches.items()},
                weight,
                _fold_in(seed, number),
            )
            added = [old + new for old, new in zip(gradients, new_gradients, strict=True)]
            return number + 1, added, sums + new_sums

        # Not from zeros: they would take the room of all gradients once more, to the end.
        first = {name: values[0] for name, values in micro_batches.items()}
        gradients, sums = self._gradients_of_micro_batch(first, weight, _fold_in(seed, 0))
        _, gradients, sums = tf.while_loop(
            lambda number, *_: number < self._accumulation_steps,
            add_micro_batch,
            [tf.constant(1), gradients, sums],
            parallel_iterations=1,
            maximum_iterations=self._accumulation_steps,
        )
        return gradients, sums

    def _gradients_of_micro_batch(self, share, weight, seed) -> tuple[list[tf.Tensor], tf.Tensor]:
        # The gradient is taken inside too, for layers that it computes again.
        with dropout_seed(seed):
            with recomputation(self._recompute), tf.GradientTape() as tape:
                hidden, target_ids, weights, _ = masked_vectors(
                    self._model, share, training=True, static_shapes=self._static_shapes
                )
                total, losses, correct = vocabulary_loss(
                    hidden,
                    tf.convert_to_tensor(self._model.head.table),
                    tf.convert_to_tensor(self._model.head.bias),
                    target_ids,
                    weights * weight,
                    self._chunk_size,
                    tf.bfloat16 if self._model.compute_dtype == "bfloat16" else tf.float32,
                    table_is_trained=any(
                        variable is self._model.head.table for variable in self._optimizer.trained
                    ),
                )
            gradients = tape.gradient(
                total, [variable.value for variable in self._optimizer.trained]
            )
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

    def _cut(self, values: tf.Tensor) -> tf.Tensor:
        """[rows, n] as [micro-batches, rows of one, n]."""
        rows = values.shape[0] // self._accumulation_steps
        return tf.reshape(values, [self._accumulation_steps, rows, -1])

    def _dropout_seed(self, step, replica_id):
        seed = tf.stack([tf.cast(self._seed, tf.int64), step])
        return _fold_in(seed, replica_id)


def _fold_in(seed: tf.Tensor, number: tf.Tensor | int) -> tf.Tensor:
    # Philox everywhere, as in the layers: on a TPU the default is another algorithm.
    return tf.random.experimental.stateless_fold_in(seed, tf.cast(number, tf.int64), alg="philox")


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
