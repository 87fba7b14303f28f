"""Loss and accuracy on held-out text, language by language."""

from collections.abc import Callable

import numpy as np
import tensorflow as tf

from kzoo.corpora.batching import Batch, padding_sizes
from kzoo.corpora.examples import ExampleFiles
from kzoo.corpora.held_out_examples import HeldOutExamples
from kzoo.corpora.pipeline import batches
from kzoo.corpora.unigram import unigram_log_probabilities, unigram_losses
from kzoo.layers.vocabulary_loss import vocabulary_scores
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.training.cluster import Cluster
from kzoo.training.metrics import (
    LanguageSums,
    add_sums,
    language_table,
    named_metrics,
    sum_by_language,
)
from kzoo.training.replicas import OnReplicas
from kzoo.training.step import masked_vectors


class Evaluation:
    """Measures a model on held-out windows, each once, with the same masks every time.

    Args:
        model: what is measured.
        examples: its held-out windows, and the piece counts for the unigram baseline.
        held_out: which of them.
        language_probabilities: the training mixture, which the unigram baseline knows.
        strategy: on which the model was made.
        cluster: its workers, each of which measures its part of every batch.
        batch_size: windows a batch, all replicas together.
        static_shapes: pad every batch alike, as XLA and TPUs want it.
    """

    def __init__(
        self,
        model: RemBertMaskedLM,
        examples: ExampleFiles,
        held_out: HeldOutExamples,
        language_probabilities: dict[str, float],
        strategy: tf.distribute.Strategy,
        cluster: Cluster,
        *,
        batch_size: int,
        static_shapes: bool = False,
    ):
        self._model = model
        self._examples = examples
        self._held_out = held_out
        self._language_probabilities = language_probabilities
        self._cluster = cluster
        self._batch_size = batch_size
        self._static_shapes = static_shapes
        self._run = OnReplicas(strategy, self._replica_sums, static_shapes=static_shapes)

    def measure(self, is_to_stop: Callable[[], bool] = lambda: False) -> dict[str, float] | None:
        """Metrics of the model as it is now: see `metrics.named_metrics`.

        Args:
            is_to_stop: asked before every batch; if it says so on one worker, all end.

        Returns:
            None if the measurement was ended.
        """
        sums = None
        for shares in self._batches(self._cluster.index, self._cluster.num_workers):
            *part, stops = self._run(shares, tf.constant(is_to_stop(), tf.float32))
            if float(stops) > 0:
                return None
            sums = add_sums(sums, LanguageSums(*part))
        return named_metrics(language_table(sums, self._held_out.languages))

    def unigram_baseline(self) -> dict[str, float]:
        """What a unigram model of the mixture achieves on the same targets.

        Returns:
            `unigram_loss`, the mean over languages in nats, and `unigram_loss/LANGUAGE`.
        """
        log_probabilities = unigram_log_probabilities(
            self._examples.piece_counts(),
            self._language_probabilities,
            self._examples.vocabulary().ordinary_ids,
        )
        losses = unigram_losses(log_probabilities, self._batches(), self._held_out.languages)
        mean = float(np.mean(list(losses.values())))
        return {
            "unigram_loss": mean,
            **{f"unigram_loss/{language}": loss for language, loss in losses.items()},
        }

    def _batches(self, worker: int = 0, num_workers: int = 1):
        sizes = padding_sizes(self._held_out.windows.sequence_length)
        return batches(
            self._held_out,
            global_batch_size=self._batch_size,
            worker=worker,
            num_workers=num_workers,
            num_shares=self._cluster.replicas_per_worker,
            pad_to=None if self._static_shapes else sizes,
        )

    def _replica_sums(self, share: Batch, stop: tf.Tensor) -> tuple[tf.Tensor, ...]:
        hidden, target_ids, weights, rows = masked_vectors(
            self._model, share, training=False, static_shapes=self._static_shapes
        )
        losses, correct = vocabulary_scores(
            hidden,
            tf.convert_to_tensor(self._model.head.table),
            tf.convert_to_tensor(self._model.head.bias),
            target_ids,
        )
        sums = sum_by_language(
            losses,
            correct,
            weights,
            tf.gather(share["language"], rows),
            len(self._held_out.languages),
        )
        replica = tf.distribute.get_replica_context()
        return tuple(replica.all_reduce(tf.distribute.ReduceOp.SUM, [*sums, tf.identity(stop)]))
