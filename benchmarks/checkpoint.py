"""Measures how long saving a checkpoint holds training up.

    python benchmarks/checkpoint.py --output checkpoint.json

The step is that of the preset `mini` (4 layers of width 256, 8,000 pieces, 32 windows of 128
pieces). Turns of some steps are timed: without a save, with one that is waited for, and with one
that is written while the steps go on, as `python -m kzoo.pretrain` does. What the save adds to its
turn is divided by the time of the steps between two checkpoints of `configs/mini.yaml`.
"""

import pathlib
import statistics
import sys
import tempfile
import time
from typing import Any

import measuring
import step_systems
from absl import flags

from kzoo import command
from kzoo.config import loader
from kzoo.corpora.table import format_table

CONFIG = pathlib.Path(__file__).parent.parent / "configs" / "mini.yaml"
WANTED = 0.05

FLAGS = flags.FlagValues()
flags.DEFINE_integer("vocabulary_size", 8000, "Rows of the tables.", 1000, flag_values=FLAGS)
flags.DEFINE_integer("threads", 2, "Threads that share an operation.", 1, flag_values=FLAGS)
flags.DEFINE_integer("rounds", 5, "Turns of each way.", 1, flag_values=FLAGS)
flags.DEFINE_integer("steps", 6, "Steps of a turn.", 1, flag_values=FLAGS)
flags.DEFINE_string("output", None, "Write the results to this file.", flag_values=FLAGS)


def main() -> None:
    workload = measuring.Workload(FLAGS.vocabulary_size, 32, predictions=19, embedding_dim=64)
    interval = loader.load([str(CONFIG)]).trainer.checkpoint_interval
    results = {
        **measuring.machine(),
        "checkpoint_interval": interval,
        **measuring.in_own_process(run, workload, FLAGS.threads, FLAGS.rounds, FLAGS.steps),
    }
    print_results(results)
    measuring.write_results(results, FLAGS.output)


def run(workload: measuring.Workload, threads: int, rounds: int, steps: int) -> dict[str, Any]:
    """Seconds of a step without a save, and what each way of saving adds to a turn."""
    from kzoo.training.checkpoint_files import by_path, size_bytes
    from kzoo.training.checkpoints import Checkpoints
    from kzoo.training.strategies import configure_runtime, make_strategy

    configure_runtime(threads=threads)
    step, variables = step_systems.kzoo_training_step(workload, make_strategy("one_device"))
    batch = workload.batch()
    count = 0

    def make_steps() -> None:
        nonlocal count
        for _ in range(steps):
            metrics = step([batch], count, workload.learning_rate)
            count += 1
        float(metrics.loss)

    make_steps()
    turns: dict[str, list[float]] = {"none": [], "waited for": [], "in the background": []}
    with tempfile.TemporaryDirectory() as folder:
        checkpoints = Checkpoints(folder, keep=2)
        for _ in range(rounds):
            for way, seconds in turns.items():
                started = time.perf_counter()
                if way == "waited for":
                    checkpoints.save(count, variables, {})
                if way == "in the background":
                    checkpoints.start_saving(count, variables, {})
                make_steps()
                seconds.append(time.perf_counter() - started)
                checkpoints.wait()
    without = statistics.median(turns["none"])
    return {
        "step_seconds": without / steps,
        "bytes": size_bytes(by_path(variables)),
        "added_seconds": {
            way: statistics.median(seconds) - without
            for way, seconds in turns.items()
            if way != "none"
        },
        "turns": turns,
    }


def print_results(results: dict[str, Any]) -> None:
    between = results["step_seconds"] * results["checkpoint_interval"]
    rows = [("saving", "adds s", "share of the time", "wanted below")]
    for way, seconds in results["added_seconds"].items():
        rows.append((way, f"{seconds:.2f}", f"{seconds / between:.2%}", f"{WANTED:.0%}"))
    print("\n" + format_table(rows, names=1))
    print(
        f"A checkpoint of {results['bytes'] / 1e6:,.0f} MB every "
        f"{results['checkpoint_interval']:,} steps of {results['step_seconds']:.2f} s."
    )


if __name__ == "__main__":
    sys.exit(command.run(main, FLAGS, __doc__))
