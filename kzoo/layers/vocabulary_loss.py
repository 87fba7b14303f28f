"""The cross-entropy over a large vocabulary, without a [targets, vocabulary] tensor that lives on.

Softmax cross-entropy needs the logits twice: for the loss, and for its gradient. Left to automatic
differentiation they wait in memory between the two, with a few copies of themselves. Here each
chunk of targets gives its share of the loss AND of all three gradients before the next chunk's
logits are computed, so at most `chunk_size` rows of logits are alive and none is computed twice:
three matrix products in all, the least there can be.
"""

from typing import NamedTuple

import tensorflow as tf

# Rows of logits alive at a time fill about this much memory unless the caller says otherwise.
# Each further chunk costs one more pass over the gradient of the output table.
CHUNK_BYTES = 1 << 28
SMALLEST_CHUNK = 64


def default_chunk_size(vocabulary_size: int) -> int:
    """How many targets a chunk holds where the caller does not say: about 256 MB of logits."""
    return max(SMALLEST_CHUNK, CHUNK_BYTES // (4 * vocabulary_size))


def vocabulary_loss(
    hidden: tf.Tensor,
    table: tf.Tensor,
    bias: tf.Tensor,
    target_ids: tf.Tensor,
    weights: tf.Tensor,
    chunk_size: int | None = None,
    gradient_dtype: tf.DType = tf.float32,
    *,
    table_is_trained: bool = True,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Weighted sum of the targets' cross-entropies, exact, with its gradient formed on the way.

    Logits, softmax and loss are float32 whatever the dtype of `hidden`.

    Args:
        hidden: [targets, output_embedding_dim] in any floating dtype, what the head's transform
            gives at the masked positions.
        table: [vocabulary_size, output_embedding_dim] float32, the output embeddings.
        bias: [vocabulary_size] float32.
        target_ids: [targets] int32 in [0, vocabulary_size).
        weights: [targets] float32, each target's share of the sum: 1 / (targets of the global
            batch), times the loss scale if there is one, and 0 for padding.
        chunk_size: how many targets' logits are alive at a time; see `default_chunk_size`.
        gradient_dtype: of the factors in the two products of the gradient: float32, or bfloat16,
            which takes half the time where the device has such units. Not float16: it cannot hold
            the probabilities of a large vocabulary, most of which are below 6e-8.
        table_is_trained: whether there is a gradient with respect to `table`. Without it, one
            of the three products is spared.

    Returns:
        total: [] float32, sum of weights × losses; the only output that is differentiated, with
            respect to `hidden`, `table` and `bias`.
        losses: [targets] float32, each target's cross-entropy in nats, unweighted.
        correct: [targets] bool, whether no piece has a higher logit than the target.
    """

    @tf.custom_gradient
    def loss_and_gradients(hidden, table, bias):
        chunks = _Chunks.cut(hidden, target_ids, weights, chunk_size, table.shape[0])
        losses, correct, gradients = _over_chunks(
            chunks, table, bias, gradient_dtype, table_is_trained
        )
        hidden_gradient = tf.cast(gradients[0], hidden.dtype)
        total = tf.reduce_sum(losses * weights)

        def gradient(upstream, *_):
            # `upstream` is the constant 1 where `total` is what the caller differentiates, and
            # the graph optimizer then drops these products.
            return (
                tf.cast(upstream, hidden.dtype) * hidden_gradient,
                upstream * gradients[1] if table_is_trained else None,
                upstream * gradients[2],
            )

        return (total, losses, correct), gradient

    return loss_and_gradients(hidden, table, bias)


def vocabulary_scores(
    hidden: tf.Tensor,
    table: tf.Tensor,
    bias: tf.Tensor,
    target_ids: tf.Tensor,
    chunk_size: int | None = None,
) -> tuple[tf.Tensor, tf.Tensor]:
    """`losses` and `correct` of `vocabulary_loss`, with its arguments, where nothing is trained."""
    weights = tf.zeros_like(target_ids, tf.float32)
    chunks = _Chunks.cut(hidden, target_ids, weights, chunk_size, table.shape[0])
    rows = tf.range(chunks.count)
    losses, correct = tf.map_fn(
        lambda index: _scores(_logits(chunks.hidden[index], table, bias), chunks.target_ids[index])[
            :2
        ],
        rows,
        fn_output_signature=(tf.float32, tf.bool),
        parallel_iterations=1,
    )
    return chunks.join(losses), chunks.join(correct)


class _Chunks(NamedTuple):
    """The targets as `count` chunks of one size; the last is filled up with rows of weight 0."""

    hidden: tf.Tensor  # [count, size, output_embedding_dim]
    target_ids: tf.Tensor  # [count, size]
    weights: tf.Tensor  # [count, size]
    count: tf.Tensor | int
    targets: tf.Tensor | int

    @classmethod
    def cut(cls, hidden, target_ids, weights, chunk_size, vocabulary_size):
        targets = hidden.shape[0]
        largest = chunk_size or default_chunk_size(vocabulary_size)
        if targets is None:
            targets = tf.shape(hidden)[0]
            count = tf.maximum(1, -(-targets // largest))
            size = tf.maximum(1, -(-targets // count))
        else:
            count = max(1, -(-targets // largest))
            size = max(1, -(-targets // count))

        def chunked(values):
            fill = [[0, count * size - targets]] + [[0, 0]] * (values.shape.rank - 1)
            return tf.reshape(tf.pad(values, fill), [count, size, *values.shape[1:]])

        return cls(chunked(hidden), chunked(target_ids), chunked(weights), count, targets)

    def join(self, values: tf.Tensor) -> tf.Tensor:
        """[count, size, …] back to [targets, …]."""
        return tf.reshape(values, [-1, *values.shape[2:]])[: self.targets]


def _over_chunks(
    chunks: _Chunks,
    table: tf.Tensor,
    bias: tf.Tensor,
    gradient_dtype: tf.DType,
    table_is_trained: bool,
):
    """Losses, hits, and the gradients with respect to hidden, table and bias, all float32."""
    outputs = [
        tf.TensorArray(dtype, size=chunks.count, element_shape=shape)
        for dtype, shape in (
            (tf.float32, chunks.weights.shape[1:]),
            (tf.bool, chunks.weights.shape[1:]),
            (tf.float32, chunks.hidden.shape[1:]),
        )
    ]

    def one_chunk(index, outputs):
        chunk = [part[index] for part in (chunks.hidden, chunks.target_ids, chunks.weights)]
        *rows, table_gradient, bias_gradient = _one_chunk(
            *chunk, table, bias, gradient_dtype, table_is_trained
        )
        outputs = [array.write(index, row) for array, row in zip(outputs, rows, strict=True)]
        return outputs, table_gradient, bias_gradient

    def add_chunk(index, outputs, table_gradient, bias_gradient):
        outputs, table_part, bias_part = one_chunk(index, outputs)
        return index + 1, outputs, table_gradient + table_part, bias_gradient + bias_part

    # The first chunk stands outside the loop: there is no table of zeros to make and add to.
    _, outputs, table_gradient, bias_gradient = tf.while_loop(
        lambda index, *_: index < chunks.count,
        add_chunk,
        (tf.constant(1), *one_chunk(0, outputs)),
        parallel_iterations=1,
    )
    losses, correct, hidden_gradient = (chunks.join(array.stack()) for array in outputs)
    return losses, correct, (hidden_gradient, table_gradient, bias_gradient)


def _one_chunk(hidden, target_ids, weights, table, bias, dtype, table_is_trained):
    logits = _logits(hidden, table, bias)
    losses, correct, numerators, sums = _scores(logits, target_ids)
    # Softmax minus one-hot, times the sums: to divide, and to weight, the narrow factors spares
    # two passes over the wide one.
    targets = tf.stack([tf.range(tf.size(target_ids)), target_ids], axis=1)
    excess = tf.cast(tf.tensor_scatter_nd_sub(numerators, targets, sums), dtype)
    weights = weights / sums
    hidden_gradient = weights[:, None] * _product(excess, tf.cast(table, dtype))
    table_gradient = tf.constant(0.0)
    if table_is_trained:
        weighted_hidden = tf.cast(tf.cast(hidden, tf.float32) * weights[:, None], dtype)
        table_gradient = _product(excess, weighted_hidden, transpose_a=True)
    bias_gradient = _product(tf.cast(weights, dtype)[None, :], excess)[0]
    return losses, correct, hidden_gradient, table_gradient, bias_gradient


def _logits(hidden, table, bias):
    """[rows, vocabulary_size] float32."""
    return tf.nn.bias_add(tf.matmul(tf.cast(hidden, tf.float32), table, transpose_b=True), bias)


def _scores(logits, target_ids):
    """Losses [rows], hits [rows], numerators of the softmax [rows, vocabulary_size], sums [rows].

    Of plain operations: TensorFlow's fused one is slower on a CPU, and refused on a GPU under
    determinism.
    """
    target_logits = tf.gather(logits, target_ids, axis=1, batch_dims=1)
    highest = tf.reduce_max(logits, axis=-1)
    correct = target_logits >= highest
    # Last to read the logits, these write over them.
    with tf.control_dependencies([correct]):
        numerators = tf.exp(logits - highest[:, None])
    sums = tf.reduce_sum(numerators, axis=-1)
    losses = tf.math.log(sums) + highest - target_logits
    return losses, correct, numerators, sums


def _product(a, b, **transposes):
    return tf.cast(tf.matmul(a, b, **transposes), tf.float32)
