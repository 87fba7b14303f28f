"""Measures what `runtime.recompute` saves of memory and costs of time, at the widths of RemBERT.

    python benchmarks/recomputation.py --output recomputation.json
    python benchmarks/recomputation.py --systems kzoo_xla --systems kzoo_xla_recomputing

The model: H 1152, 18 heads, FFN 4608, few layers (`--num_layers`), and a small vocabulary, so that
the head does not hide the layers. Every measurement is a process of its own, of two steps; the
second one is timed.

`MB a row` is what one more window in the batch adds to the process's peak memory: the difference
between a batch and one of twice its rows, divided by their number. Weights, gradients, averages
and libraries are in both and so in neither; what is left is activations. `peak GB` is all of the
process at the smaller batch.
"""

import statistics
import sys
from typing import Any

import measuring
import step_systems
from absl import flags
from measuring import GIGABYTE, Workload

from kzoo import command
from kzoo.corpora.table import format_table

MEGABYTE = 1e6
# Rows, tokens of each, and targets of each.
BATCHES = {"8x128": (8, 128, 20), "4x512": (4, 512, 77)}
SYSTEMS = {
    function.__name__: function
    for function in (
        step_systems.kzoo,
        step_systems.kzoo_recomputing,
        step_systems.kzoo_xla,
        step_systems.kzoo_xla_recomputing,
    )
}

FLAGS = flags.FlagValues()
flags.DEFINE_multi_enum(
    "systems",
    ["kzoo", "kzoo_recomputing"],
    list(SYSTEMS),
    f"What to measure: {', '.join(SYSTEMS)}; may be repeated.",
    flag_values=FLAGS,
)
flags.DEFINE_multi_enum(
    "batches",
    list(BATCHES),
    list(BATCHES),
    f"Windows and their length: {', '.join(BATCHES)}; may be repeated.",
    flag_values=FLAGS,
)
flags.DEFINE_integer("num_layers", 8, "Transformer layers.", 1, flag_values=FLAGS)
flags.DEFINE_integer("hidden_dim", 1152, "Their width; 18 heads divide it.", 18, flag_values=FLAGS)
flags.DEFINE_enum(
    "precision",
    "float32",
    ["float32", "mixed_bfloat16"],
    "float32 or mixed_bfloat16.",
    flag_values=FLAGS,
)
flags.DEFINE_integer("threads", 2, "Threads that share an operation.", 1, flag_values=FLAGS)
flags.DEFINE_integer("rounds", 1, "Processes for each system and batch.", 1, flag_values=FLAGS)
flags.DEFINE_string("output", None, "Write the results to this file.", flag_values=FLAGS)


def main() -> None:
    results = {
        **measuring.machine(),
        "precision": FLAGS.precision,
        "threads": FLAGS.threads,
        "num_layers": FLAGS.num_layers,
        "hidden_dim": FLAGS.hidden_dim,
        "workloads": [measure(*BATCHES[batch]) for batch in FLAGS.batches],
    }
    for workload in results["workloads"]:
        print_table(workload)
    measuring.write_results(results, FLAGS.output)


def measure(rows: int, sequence_length: int, predictions: int) -> dict[str, Any]:
    """All systems once, each at both numbers of rows, then all again."""
    runs = {system: [] for system in FLAGS.systems}
    for number in range(FLAGS.rounds):
        for system in FLAGS.systems:
            measuring.say(f"{rows} x {sequence_length}, round {number + 1}: {system}")
            runs[system].append(
                [
                    measuring.in_own_process(
                        run,
                        system,
                        workload(batch_size, sequence_length, predictions),
                        FLAGS.precision,
                        FLAGS.threads,
                    )
                    for batch_size in (rows, 2 * rows)
                ]
            )
    return {
        "rows": rows,
        "sequence_length": sequence_length,
        "systems": {system: summary(rows, rounds) for system, rounds in runs.items()},
    }


def workload(batch_size: int, sequence_length: int, predictions: int) -> Workload:
    """RemBERT's widths."""
    return Workload(
        vocabulary_size=1000,
        batch_size=batch_size,
        sequence_length=sequence_length,
        predictions=predictions,
        num_layers=FLAGS.num_layers,
        num_heads=18,
        hidden_dim=FLAGS.hidden_dim,
        intermediate_dim=4 * FLAGS.hidden_dim,
        embedding_dim=256,
        output_embedding_dim=256,
    )


def run(system: str, workload: Workload, precision: str, threads: int) -> dict[str, Any]:
    """One process of one system."""
    step = SYSTEMS[system](workload, precision, threads)
    losses = [step()]
    return {
        "losses": losses,
        "seconds": measuring.durations(step, 1)[0],
        "peak_memory_bytes": measuring.peak_memory(),
    }


def summary(rows: int, rounds: list[list[dict[str, Any]]]) -> dict[str, Any]:
    """The medians over the rounds of one system, with the rounds themselves."""
    peaks = [[one["peak_memory_bytes"] for one in pair] for pair in rounds]
    return {
        "bytes_per_row": statistics.median((twice - once) / rows for once, twice in peaks),
        "peak_memory_bytes": statistics.median(once for once, _ in peaks),
        "seconds": statistics.median(once["seconds"] for once, _ in rounds),
        "rounds": rounds,
    }


def print_table(result: dict[str, Any]) -> None:
    print(
        f"\n{result['rows']} x {result['sequence_length']} tokens, {FLAGS.num_layers} layers, "
        f"{FLAGS.precision}, {FLAGS.threads} threads"
    )
    rows = [("system", "MB a row", "share", "peak GB", "seconds", "share")]
    first = result["systems"][FLAGS.systems[0]]
    for system, measured in result["systems"].items():
        rows.append(
            (
                system,
                f"{measured['bytes_per_row'] / MEGABYTE:,.0f}",
                f"{measured['bytes_per_row'] / first['bytes_per_row']:.2f}x",
                f"{measured['peak_memory_bytes'] / GIGABYTE:.2f}",
                f"{measured['seconds']:.2f}",
                f"{measured['seconds'] / first['seconds']:.2f}x",
            )
        )
    print(format_table(rows, names=1))


if __name__ == "__main__":
    sys.exit(command.run(main, FLAGS, __doc__))
