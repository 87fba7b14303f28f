"""Runs one function over a stream of tasks on several processes."""

import collections
import gc
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

from kzoo.errors import KzooError

Task = TypeVar("Task")
Result = TypeVar("Result")

# Enough that a slow task holds up nobody, and few enough to be held in memory.
_TASKS_PER_WORKER = 2

# Python looks for cycles of objects whenever there are 700 more than before. A worker makes and
# drops many thousands at a time, none in a cycle: the search took 5 to 9 % of its time.
_OBJECTS_BETWEEN_COLLECTIONS = 100_000


def available_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_in_order(
    function: Callable[[Task], Result], tasks: Iterable[Task], workers: int
) -> Iterator[Result]:
    """Applies `function` to every task, on `workers` new processes.

    Tasks are taken from the iterable no faster than they are done: at most two a worker are held.

    Args:
        function: can be pickled, as can its argument and its result.
        tasks: read in this process.
        workers: number of processes.

    Yields:
        The results, in the order of the tasks.

    Raises:
        KzooError: a worker process has died.
    """
    # Not forked: this process may hold locks of TensorFlow's threads.
    executor = futures.ProcessPoolExecutor(
        workers, multiprocessing.get_context("spawn"), initializer=_start_worker
    )
    pending: collections.deque[futures.Future] = collections.deque()
    try:
        for task in tasks:
            pending.append(executor.submit(function, task))
            del task
            if len(pending) >= workers * _TASKS_PER_WORKER:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool as error:
        raise KzooError(
            "a worker process died, most likely because memory ran out; run the same command again"
            f" with fewer than {workers} workers: what is finished is kept"
        ) from error
    finally:
        executor.shutdown(cancel_futures=True)


def _start_worker() -> None:
    """Leaves Ctrl-C to the parent, and ends this process when the parent is gone."""
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    # A killed parent tells nobody: its workers would wait for tasks for ever.
    multiprocessing.parent_process().join()
    os._exit(1)
