"""A worker that makes the same updates on its part of some batches, however they are shared out.

    python -m tests.training.sharing_out DEVICES OUTPUT

With `TF_CONFIG` in the environment it is one of several workers; the chief writes to OUTPUT, for
each number of micro-batches, the update of every variable, and the norms of the gradients.
"""

import sys

import numpy as np
import tensorflow as tf

from kzoo.training.cluster import Cluster
from kzoo.training.strategies import configure_runtime, make_strategy
from tests.training import small_steps

MICRO_BATCHES = (1, 4)
UPDATES = 3

# Targets of sixteen rows: for two replicas nine and one, for four of them five, four, none and one.
TARGETS = (3, 0, 0, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0)


def batches() -> list[small_steps.Batch]:
    """The global batches of all updates."""
    return [small_steps.batch(TARGETS, seed=number) for number in range(UPDATES)]


def shares(full: small_steps.Batch, cluster: Cluster) -> list[small_steps.Batch]:
    """This worker's part of a global batch: consecutive rows for each of its replicas."""
    parts = cluster.num_workers * cluster.replicas_per_worker
    first = cluster.index * cluster.replicas_per_worker
    cut = {name: np.split(values, parts) for name, values in full.items()}
    return [
        {name: pieces[first + replica] for name, pieces in cut.items()}
        for replica in range(cluster.replicas_per_worker)
    ]


def updates(
    strategy: tf.distribute.Strategy, cluster: Cluster, micro_batches: int
) -> dict[str, np.ndarray]:
    """What the updates add to each variable, by path; and the norm of each gradient."""
    with strategy.scope():
        model = small_steps.model()
    before = {variable.path: variable.numpy() for variable in model.variables}
    step = small_steps.training_step(model, strategy, accumulation_steps=micro_batches)
    norms = []
    for number, full in enumerate(batches()):
        metrics = step(shares(full, cluster), number, small_steps.RATE)
        assert float(metrics.targets) == sum(TARGETS)
        norms.append(float(metrics.gradient_norm))
    changes = {
        variable.path: variable.numpy() - before[variable.path] for variable in model.variables
    }
    return {**changes, "norms": np.array(norms)}


def main(num_devices: int, output: str, *, several_workers: bool) -> None:
    configure_runtime(num_logical_cpus=num_devices, threads=1)
    name = "multi_worker_mirrored" if several_workers else "mirrored"
    devices = [f"CPU:{index}" for index in range(num_devices)]
    strategy = make_strategy(name if several_workers or num_devices > 1 else "one_device", devices)
    cluster = Cluster(strategy)
    results = {
        f"{count}/{path}": value
        for count in MICRO_BATCHES
        for path, value in updates(strategy, cluster, count).items()
    }
    if cluster.is_chief:
        np.savez(output, **results)


if __name__ == "__main__":
    import os

    main(int(sys.argv[1]), sys.argv[2], several_workers="TF_CONFIG" in os.environ)
