"""Arithmetic on metrics: units, and sums that are kept apart for each language."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import tensorflow as tf


class LanguageSums(NamedTuple):
    """What adds up over examples, batches and replicas; each [num_languages], one kind of array.

    Attributes:
        loss: the sum of the targets' losses, in nats.
        correct: how many targets had the highest logit.
        count: how many targets there were.
    """

    loss: tf.Tensor | np.ndarray
    correct: tf.Tensor | np.ndarray
    count: tf.Tensor | np.ndarray


def bits_per_token(nats: float) -> float:
    """A loss in bits, from one in nats."""
    return nats / math.log(2)


def sum_by_language(
    loss: tf.Tensor,
    correct: tf.Tensor,
    weights: tf.Tensor,
    language: tf.Tensor,
    num_languages: int,
) -> LanguageSums:
    """Sums the targets of a batch by their languages.

    A product with one-hot rows and a sum: unlike a scatter, it has the same bits on every run,
    and it suits any device.

    Args:
        loss: [targets], nats.
        correct: [targets], bool or 0/1.
        weights: [targets], 1 for a target and 0 for padding.
        language: int [targets], each in [0, num_languages).
        num_languages: how many languages there are.

    Returns:
        float32 tensors.
    """
    weights = tf.cast(weights, tf.float32)
    # A loss in the padding may be anything, even NaN, which a weight of 0 would not remove.
    loss = tf.where(weights > 0, tf.cast(loss, tf.float32), 0.0)
    one_hot = tf.one_hot(language, num_languages, dtype=tf.float32)
    return LanguageSums(
        *(
            tf.reduce_sum(values[:, tf.newaxis] * one_hot, axis=0)
            for values in (loss * weights, tf.cast(correct, tf.float32) * weights, weights)
        )
    )


def add_sums(total: LanguageSums | None, part: LanguageSums) -> LanguageSums:
    """Adds a batch's sums to those before it, on the host, where float64 loses nothing.

    Args:
        total: the sums so far; None before the first batch.
        part: tensors or arrays.

    Returns:
        float64 arrays.
    """
    arrays = LanguageSums(*(np.asarray(values, dtype=np.float64) for values in part))
    return arrays if total is None else LanguageSums(*map(np.add, total, arrays))


def language_table(sums: LanguageSums, languages: Sequence[str]) -> dict[str, dict[str, float]]:
    """Turns sums into means.

    Args:
        sums: [num_languages] arrays.
        languages: their names, in the same order.

    Returns:
        For each language that had targets: `loss` (nats a target), `accuracy` and `targets`.
    """
    return {
        language: {"loss": loss / count, "accuracy": correct / count, "targets": int(count)}
        for language, loss, correct, count in zip(
            languages, *(np.asarray(values, np.float64).tolist() for values in sums), strict=True
        )
        if count > 0
    }


def named_metrics(table: dict[str, dict[str, float]]) -> dict[str, float]:
    """The metrics of a table as `MetricWriter` takes them.

    Args:
        table: at least one language's row of `language_table`.

    Returns:
        `loss`, `accuracy` and `bits_per_token` as means over the languages, each of which counts
        as much as any other; then `loss/LANGUAGE` and `accuracy/LANGUAGE`.
    """
    loss = float(np.mean([row["loss"] for row in table.values()]))
    metrics = {
        "loss": loss,
        "accuracy": float(np.mean([row["accuracy"] for row in table.values()])),
        "bits_per_token": bits_per_token(loss),
    }
    for name in ("loss", "accuracy"):
        metrics.update({f"{name}/{language}": row[name] for language, row in table.items()})
    return metrics
