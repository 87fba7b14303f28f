"""How much arithmetic a training step needs, and how fast this machine could do it at best."""

import functools
import time

import tensorflow as tf


def training_flops(
    *,
    num_tokens: int,
    num_targets: int,
    sequence_length: int,
    num_layers: int,
    hidden_dim: int,
    intermediate_dim: int,
    embedding_dim: int,
    output_embedding_dim: int,
    vocabulary_size: int,
) -> float:
    """The floating-point operations of the matrix products of one training step.

    A product of n rows with a kernel of k weights takes 2·n·k, and training three of them:
    the output, the gradient of the input, the gradient of the kernel.

        encoder  6 · tokens · N,  N = E_in·H (unless E_in = H) + L·(4·H² + 2·H·FFN)
        scores   12 · tokens · S · H · L    (2·S·H each for QKᵀ and for its product with V)
        head     6 · targets · (H·E_out + E_out·V)

    Look-ups, normalisation, softmax and the update are left out: they are bound by memory.

    Args:
        num_tokens: positions that the encoder computes, padding included.
        num_targets: positions that the head computes.
        sequence_length: S, padding included.
        num_layers, hidden_dim, intermediate_dim, embedding_dim, output_embedding_dim,
        vocabulary_size: L, H, FFN, E_in, E_out and V.
    """
    projection = embedding_dim * hidden_dim if embedding_dim != hidden_dim else 0
    layer = 4 * hidden_dim**2 + 2 * hidden_dim * intermediate_dim
    encoder = 6.0 * num_tokens * (projection + num_layers * layer)
    scores = 12.0 * num_tokens * sequence_length * hidden_dim * num_layers
    head = 6.0 * num_targets * output_embedding_dim * (hidden_dim + vocabulary_size)
    return encoder + scores + head


@functools.cache
def peak_flops_per_second(dtype: str = "float32") -> float:
    """The speed of this machine's large square matrix products, measured once a process.

    On the device where TensorFlow places operations, with the threads that it may use; takes
    about a second. The size grows until a product takes long enough to be timed.

    Args:
        dtype: "float32", "bfloat16" or "float16".
    """
    size = 512
    while size < 16384 and _product_seconds(size, dtype, repeats=1) < 0.03:
        size *= 2
    return 2.0 * size**3 / _product_seconds(size, dtype, repeats=5)


def _product_seconds(size: int, dtype: str, repeats: int) -> float:
    """The shortest time of a product of two [size, size] matrices, after one to warm up."""
    matrix = tf.cast(tf.fill([size, size], 0.5), dtype)

    def product() -> None:
        # Reading one number waits for the device.
        tf.matmul(matrix, matrix)[0, 0].numpy()

    product()
    durations = []
    for _ in range(repeats):
        started = time.perf_counter()
        product()
        durations.append(time.perf_counter() - started)
    return min(durations)
