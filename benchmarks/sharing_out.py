"""Measures what it costs to share a step out: by devices, processes and micro-batches.

    python benchmarks/sharing_out.py --output sharing_out.json

The step is that of the preset `mini` (4 layers of width 256, 8,000 pieces) on the same global batch
in every way: on one device; on two parts of the CPU (`mirrored`); by two processes on this machine
(`multi_worker_mirrored`); and on one device in four micro-batches. The ways take turns.

The columns: CPU seconds of a step, all processes together, in the median over rounds, and how many
times those of one device; seconds of a step on the clock. On one machine, sharing out cannot be
faster: what is of interest is the work that it adds. The last line is the part of it that the
all-reduce's own bytes take: the gradients of two replicas, added up and copied back.
"""

import contextlib
import json
import os
import socket
import statistics
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import measuring
import numpy as np
import step_systems
from absl import flags

from kzoo import command
from kzoo.corpora.table import format_table

# How many times the CPU time of one device is allowed, beyond the all-reduce's own bytes.
WANTED = 1.15


class Way(NamedTuple):
    """How a step is shared out."""

    workers: int = 1
    devices: int = 1
    micro_batches: int = 1


WAYS = {
    "one device": Way(),
    "two devices": Way(devices=2),
    "two workers": Way(workers=2),
    "four micro-batches": Way(micro_batches=4),
}

FLAGS = flags.FlagValues()
flags.DEFINE_multi_enum(
    "ways",
    list(WAYS),
    list(WAYS),
    "How to share out; may be repeated. Default: in all ways.",
    flag_values=FLAGS,
)
flags.DEFINE_integer("batch_size", 32, "Rows of the global batch.", 4, flag_values=FLAGS)
flags.DEFINE_integer("vocabulary_size", 8000, "Rows of the tables.", 1000, flag_values=FLAGS)
flags.DEFINE_integer("threads", 2, "Threads that share an operation.", 1, flag_values=FLAGS)
flags.DEFINE_integer("rounds", 3, "Processes for each way.", 1, flag_values=FLAGS)
flags.DEFINE_integer("steps", 5, "Timed steps of each process.", 1, flag_values=FLAGS)
flags.DEFINE_string("output", None, "Write the results to this file.", flag_values=FLAGS)


def main() -> None:
    workload = measuring.Workload(
        FLAGS.vocabulary_size, FLAGS.batch_size, predictions=19, embedding_dim=64
    )
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in FLAGS.ways}
    for number in range(FLAGS.rounds):
        for name in FLAGS.ways:
            measuring.say(f"round {number + 1}: {name}")
            runs[name].append(run(workload, WAYS[name], FLAGS.threads, FLAGS.steps))
    all_reduce = measuring.in_own_process(all_reduce_seconds, workload, FLAGS.threads)
    results = {
        **measuring.machine(),
        "ways": {
            name: {
                key: statistics.median(one[key] for one in rounds)
                for key in ("cpu_seconds", "seconds")
            }
            for name, rounds in runs.items()
        },
        "all_reduce_cpu_seconds": all_reduce,
        "rounds": runs,
    }
    print_results(results)
    measuring.write_results(results, FLAGS.output)


def run(workload: measuring.Workload, way: Way, threads: int, steps: int) -> dict[str, float]:
    """One round: CPU seconds of a step, added over processes, and seconds, of the slowest."""
    addresses = [f"localhost:{port}" for port in free_ports(way.workers)]
    with ThreadPoolExecutor(way.workers) as pool:
        measured = list(
            pool.map(
                lambda index: measuring.in_own_process(
                    run_worker, workload, way, addresses, index, threads, steps
                ),
                range(way.workers),
            )
        )
    return {
        "cpu_seconds": sum(one["cpu_seconds"] for one in measured),
        "seconds": max(one["seconds"] for one in measured),
    }


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(socket.socket()) for _ in range(count)]
        for listener in listeners:
            listener.bind(("localhost", 0))
        return [listener.getsockname()[1] for listener in listeners]


def run_worker(
    workload: measuring.Workload,
    way: Way,
    addresses: list[str],
    index: int,
    threads: int,
    steps: int,
) -> dict[str, float]:
    """What one of the processes does."""
    name = "mirrored" if way.devices > 1 else "one_device"
    if way.workers > 1:
        name = "multi_worker_mirrored"
        task = {"type": "worker", "index": index}
        os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": addresses}, "task": task})
    from kzoo.training.strategies import configure_runtime, make_strategy

    # Each process has its share of the machine.
    configure_runtime(threads=max(1, threads // way.workers), num_logical_cpus=way.devices)
    devices = [f"CPU:{device}" for device in range(way.devices)]
    strategy = make_strategy(name, devices)
    step, _ = step_systems.kzoo_training_step(
        workload, strategy, accumulation_steps=way.micro_batches
    )
    replicas = way.workers * way.devices
    cut = {key: np.split(values, replicas) for key, values in workload.batch().items()}
    shares = [
        {key: values[index * way.devices + device] for key, values in cut.items()}
        for device in range(way.devices)
    ]

    def make_steps(first: int, count: int) -> None:
        for number in range(first, first + count):
            metrics = step(shares, number, workload.learning_rate)
        float(metrics.loss)

    make_steps(0, 3)
    cpu, clock = time.process_time(), time.perf_counter()
    make_steps(3, steps)
    return {
        "cpu_seconds": (time.process_time() - cpu) / steps,
        "seconds": (time.perf_counter() - clock) / steps,
    }


def all_reduce_seconds(workload: measuring.Workload, threads: int) -> float:
    """CPU seconds of adding two sets of gradients up and copying the sum, in plain NumPy."""
    del threads  # NumPy adds with one.
    gradients = [
        [np.ones(shape, np.float32) for shape in workload.weight_shapes()] for _ in range(2)
    ]
    started = time.process_time()
    repeats = 10
    for _ in range(repeats):
        sums = [first + second for first, second in zip(*gradients, strict=True)]
        for total in sums:
            total.copy()
    return (time.process_time() - started) / repeats


def print_results(results: dict[str, Any]) -> None:
    ways = results["ways"]
    base = ways["one device"]["cpu_seconds"] if "one device" in ways else float("nan")
    rows = [("way", "CPU s a step", "x one device", "wanted", "s a step")]
    for name, measured in ways.items():
        shared = name in ("two devices", "two workers")
        rows.append(
            (
                name,
                f"{measured['cpu_seconds']:.2f}",
                f"{measured['cpu_seconds'] / base:.2f}",
                f"{WANTED + results['all_reduce_cpu_seconds'] / base:.2f}" if shared else "",
                f"{measured['seconds']:.2f}",
            )
        )
    print("\n" + format_table(rows, names=1))
    print(f"The all-reduce's own bytes take {results['all_reduce_cpu_seconds']:.3f} CPU s.")


if __name__ == "__main__":
    sys.exit(command.run(main, FLAGS, __doc__))
