"""From a source of examples to batches, through Grain's threads."""

import functools
import itertools
from collections.abc import Iterator, Sequence

import grain

from kzoo.corpora.batching import Batch, Example, pad_batch
from kzoo.corpora.held_out_examples import HeldOutExamples
from kzoo.corpora.training_examples import TrainingExamples
from kzoo.errors import KzooError


def batches(
    source: TrainingExamples | HeldOutExamples,
    *,
    global_batch_size: int,
    start: int = 0,
    worker: int = 0,
    num_workers: int = 1,
    num_shares: int = 1,
    pad_to: Sequence[int] | None = None,
    threads: int = 2,
    prefetch: int = 2,
) -> Iterator[list[Batch]]:
    """One worker's part of every global batch, in order.

    Global batch t holds the positions `[start + t * G, start + (t + 1) * G)` of the source. Worker
    w of W has its w-th contiguous slice of them, cut into `num_shares` contiguous shares: one for
    each replica and micro-batch. Nothing is remembered: whoever reads keeps the position, and
    starts there again.

    Where a source ends inside a batch, the batch is filled with empty examples without targets
    ([CLS] [SEP]): every replica has a share of the same size, and each example counts once.

    Args:
        source: of examples.
        global_batch_size: G, a multiple of `num_workers * num_shares`.
        start: the first position.
        worker: which of the workers this is, from 0.
        num_workers: how many share a global batch.
        num_shares: into how many arrays this worker's slice is cut.
        pad_to: lengths to pad a share to, beside the source's `sequence_length`: the shortest that
            fits is used, and as many prediction slots as the share needs. So the number of shapes
            is at most `(len(pad_to) + 1) * max_predictions`. None for one shape: always
            `sequence_length` and `max_predictions`, for what is compiled by shape (XLA, TPU).
        threads: that read and mask ahead; 0 to do it when asked.
        prefetch: batches that are kept ready.

    Returns:
        An iterator over lists of `num_shares` batches (arrays: see `batching.pad_batch`). It is
        endless for training examples. Closing it (or letting go of it) stops its threads.

    Raises:
        KzooError: the batch size cannot be divided so.
    """
    if global_batch_size < 1 or global_batch_size % (num_workers * num_shares):
        raise KzooError(
            f"global_batch_size {global_batch_size} cannot be shared out evenly: it must be a "
            f"multiple of {num_workers * num_shares} ({num_workers} workers with {num_shares} "
            "shares, one for each replica and micro-batch)"
        )
    windows = source.windows
    examples = _WorkerSlice(source, start, global_batch_size, worker, num_workers)
    shares = grain.MapDataset.source(examples).batch(
        global_batch_size // (num_workers * num_shares),
        drop_remainder=True,
        batch_fn=functools.partial(
            pad_batch,
            sizes=sorted({*(pad_to or ()), windows.sequence_length}),
            num_predictions=windows.max_predictions if pad_to is None else None,
            pad_id=windows.vocabulary.pad_id,
        ),
    )
    ahead = max(prefetch * num_shares, threads) if threads else 0
    options = grain.ReadOptions(num_threads=threads, prefetch_buffer_size=ahead)
    return _in_groups(shares.to_iter_dataset(options), num_shares)


def _in_groups(shares: grain.IterDataset, num_shares: int) -> Iterator[list[Batch]]:
    iterator = iter(shares)
    try:
        while group := list(itertools.islice(iterator, num_shares)):
            yield group
    finally:
        iterator.close()


class _WorkerSlice:
    """The positions of one worker, in the order of the global batches, as a Grain data source."""

    def __init__(
        self,
        source: TrainingExamples | HeldOutExamples,
        start: int,
        global_batch_size: int,
        worker: int,
        num_workers: int,
    ):
        self._source = source
        self._global_batch_size = global_batch_size
        self._size = global_batch_size // num_workers
        self._first = start + worker * self._size
        self._num_batches = -(-(len(source) - start) // global_batch_size)

    def __len__(self) -> int:
        return self._num_batches * self._size

    def __getitem__(self, index: int) -> Example:
        batch, offset = divmod(index, self._size)
        position = self._first + batch * self._global_batch_size + offset
        if position >= len(self._source):
            return Example(self._source.windows.empty(), language=0)
        return self._source[position]
