"""The processes that train together: who is who, and what they tell each other."""

import json
import os
import re
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

from kzoo.errors import KzooError
from kzoo.storage.remote import reason
from kzoo.training.local_cluster import check_addresses
from kzoo.training.watchdog import Watchdog

_TF_CONFIG = "TF_CONFIG"
_JOBS = ("chief", "worker")
# What some schedulers add; it is no part of the training.
_EVALUATOR = "evaluator"
_ABORTED = re.compile(r"Collective ops is aborted by: ([^\n]*(?:\n/job[^\n]*)?)")
_OF_CONNECTIONS = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)

Result = TypeVar("Result")


class Cluster:
    """This process's place among the workers of a strategy; a strategy of one process has one.

    Attributes:
        num_workers: how many processes train.
        index: which of them this is, from 0.
        replicas_per_worker: how many replicas each of them has.
    """

    def __init__(
        self, strategy: tf.distribute.Strategy, stall_warning_seconds: float | None = None
    ):
        """
        Args:
            strategy: whose workers they are.
            stall_warning_seconds: after how long a wait for another worker is reported.
        """
        self._strategy = strategy
        self._stall_warning_seconds = stall_warning_seconds
        self.num_workers, self.index = 1, 0
        if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
            resolver = strategy.cluster_resolver
            tasks = resolver.cluster_spec().as_dict()
            names = [(job, task) for job in _JOBS for task in range(len(tasks.get(job, ())))]
            self.num_workers = len(names)
            self.index = names.index((resolver.task_type, resolver.task_id))
        self.replicas_per_worker = strategy.num_replicas_in_sync // self.num_workers
        self._gather = tf.function(self._summed, reduce_retracing=True)

    @property
    def is_chief(self) -> bool:
        """Whether this is the process that writes, and speaks for all."""
        return self.index == 0

    def gather(self, value: int, awaited: str = "the other workers") -> list[int]:
        """Every worker's value, by their indices; each waits until all have called this.

        Args:
            value: of this worker, an int64.
            awaited: what is waited for, in words.
        """
        if self.num_workers == 1:
            return [value]
        own = [value if index == self.index else 0 for index in range(self.num_workers)]
        with Watchdog(self._stall_warning_seconds) as watchdog, watchdog.stage(awaited):
            return self._gather(tf.constant(own, tf.int64)).numpy().tolist()

    def chief_first(self, action: Callable[[], Result], what: str) -> Result | None:
        """Has the chief do something that the others need done, and wait for.

        Args:
            action: what the chief does.
            what: it, in words: "write the preset".

        Returns:
            What `action` returned, on the chief; None on the others.

        Raises:
            KzooError: `action` failed, on each worker.
        """
        result = error = None
        if self.is_chief:
            try:
                result = action()
            except KzooError as raised:
                error = raised
        failed = self.gather(int(error is not None), f"worker 0 to {what}")[0]
        if error is not None:
            raise error
        if failed:
            raise KzooError(f"worker 0 could not {what}; its own message says why")
        return result

    def check_agreement(self, value: int, what: str, advice: str) -> None:
        """Refuses to go on where workers differ.

        Args:
            value: what should be the same on all workers, an int64.
            what: it, in words, as "the configuration".
            advice: what to do if it is not.

        Raises:
            KzooError: it is not, on each worker.
        """
        values = self.gather(value)
        others = [index for index, other in enumerate(values) if other != values[0]]
        if others:
            raise KzooError(
                f"{what} of worker {', '.join(map(str, others))} differs from that of worker 0; "
                f"{advice}"
            )

    def _summed(self, values: tf.Tensor) -> tf.Tensor:
        """The sum over workers, to which the first replica of each contributes."""

        def add(values):
            context = tf.distribute.get_replica_context()
            is_first = context.replica_id_in_sync_group % self.replicas_per_worker == 0
            share = tf.where(is_first, values, tf.zeros_like(values))
            return context.all_reduce(tf.distribute.ReduceOp.SUM, share)

        summed = self._strategy.run(add, (values,))
        return self._strategy.experimental_local_results(summed)[0]


def why_collectives_ended(error: tf.errors.OpError) -> str:
    """What TensorFlow says of a worker that is gone, without the stack of the operation."""
    found = _ABORTED.search(error.message)
    return " ".join(found[1].split()) if found else reason(error).strip().partition("\n")[0]


def is_of_another_worker(error: tf.errors.OpError) -> bool:
    """Whether an error says that a connection is gone, and not that something is wrong here."""
    return isinstance(error, _OF_CONNECTIONS) or _ABORTED.search(error.message) is not None


def is_of_other_devices(error: tf.errors.OpError) -> bool:
    """Whether an error says that the workers do not all have as many devices."""
    return "joining a group with size" in error.message


def check_tf_config() -> None:
    """Checks what `TF_CONFIG` says before TensorFlow waits for workers that cannot come.

    Raises:
        KzooError: it is not set, or does not name this process among its workers.
    """
    text = os.environ.get(_TF_CONFIG)
    example = (
        '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", '
        '"index": 0}}'
    )
    if not text:
        raise KzooError(
            f"runtime.strategy: multi_worker_mirrored needs {_TF_CONFIG} in the environment of "
            f"each worker, such as {example}; on one machine, python -m kzoo.launch sets it"
        )
    problem = _problem(text)
    if problem:
        raise KzooError(f"{_TF_CONFIG}: {problem}; received {text!r}, expected such as {example}")


def own_address() -> str:
    """The `host:port` of this worker, of a `TF_CONFIG` that has been checked."""
    content = json.loads(os.environ[_TF_CONFIG])
    return content["cluster"][content["task"]["type"]][content["task"]["index"]]


def _problem(text: str) -> str | None:
    try:
        content = json.loads(text)
    except ValueError as error:
        return f"is no JSON ({error})"
    match content:
        case {"cluster": dict(cluster), "task": {"type": str(job), "index": int(index)}} if (
            not isinstance(index, bool)
        ):
            return _task_problem(cluster, job, index)
        case _:
            return "lacks cluster, or task with type and index"


def _task_problem(cluster: dict[str, Any], job: str, index: int) -> str | None:
    if not all(isinstance(listed, list) for listed in cluster.values()):
        return "every job in cluster must be a list of addresses"
    if unknown := sorted(cluster.keys() - {*_JOBS, _EVALUATOR}):
        return f"the job {unknown[0]!r} does not train; choose of {', '.join(_JOBS)}"
    addresses = [address for name in _JOBS for address in cluster.get(name, ())]
    try:
        check_addresses(addresses)
    except KzooError as error:
        return str(error)
    if len(cluster.get("chief", ())) > 1:
        return "there can be one chief"
    if job not in _JOBS:
        return f"task type {job!r} does not train; choose of {', '.join(_JOBS)}"
    if not 0 <= index < len(cluster.get(job, ())):
        return f"cluster has no {job} {index}"
    return None
