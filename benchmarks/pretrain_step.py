"""Measures one step of masked-LM pre-training, against the same step of other libraries.

    python benchmarks/pretrain_step.py --output step.json
    python benchmarks/pretrain_step.py --vocabulary_sizes 30000 --systems kzoo --systems keras

The model: L 4, H 256, 4 heads, FFN 1024, E_in 128, E_out 768; the batch: 8 rows of 128 tokens, 20
targets in each; AdamW, gradients clipped at a global norm of 1. Every measurement is a process of
its own. The systems take turns, so that none has the quiet hour to itself; medians are over the
steps of all rounds.

The columns: `tokens/s`; `kzoo faster` and, where there is one, the ratio that is wanted; the
process's peak memory in GB (10^9 bytes); kzoo's share of that and, where there is one, what is
wanted; `bound`, the share of the bound that the step reaches: the time of its matrix products
(three for each of the head's) at the speed of large ones, the best that was measured between
the rounds, divided by its time.
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

SYSTEMS = {
    function.__name__: function
    for function in (
        step_systems.kzoo,
        step_systems.kzoo_nondeterministic,
        step_systems.keras,
        step_systems.keras_xla,
        step_systems.hugging_face,
        step_systems.model_garden,
    )
}
# What kzoo does not install: the module, and the extra that does.
NEEDS = {"hugging_face": ("transformers", "peers"), "model_garden": ("official", "models")}
FLOAT32_ONLY = ("model_garden",)

# In float32: how many times its tokens/s, and which share of its peak memory.
WANTED_SPEEDS = {
    ("hugging_face", 250_300): 7.5,
    ("hugging_face", 30_000): 3.5,
    ("model_garden", 250_300): 1.3,
    ("model_garden", 30_000): 1.3,
}
WANTED_MEMORY = {("hugging_face", 250_300): 0.8}

FLAGS = flags.FlagValues()
flags.DEFINE_multi_integer(
    "vocabulary_sizes",
    [30_000, 250_300],
    "Rows of the input and output tables; may be repeated.",
    2,
    flag_values=FLAGS,
)
flags.DEFINE_multi_enum(
    "systems",
    [],
    list(SYSTEMS),
    f"What to measure: {', '.join(SYSTEMS)}; may be repeated. Default: all that are installed.",
    flag_values=FLAGS,
)
flags.DEFINE_enum(
    "precision",
    "float32",
    ["float32", "mixed_bfloat16"],
    "float32 or mixed_bfloat16.",
    flag_values=FLAGS,
)
flags.DEFINE_integer("threads", 2, "Threads that share an operation.", 1, flag_values=FLAGS)
flags.DEFINE_integer("rounds", 3, "Processes for each system.", 1, flag_values=FLAGS)
flags.DEFINE_integer(
    "warm_up_steps", 2, "Steps of each process before the timed ones.", 1, flag_values=FLAGS
)
flags.DEFINE_integer("steps", 5, "Timed steps of each process.", 1, flag_values=FLAGS)
flags.DEFINE_string("output", None, "Write the results to this file.", flag_values=FLAGS)


def main() -> None:
    systems = measuring.choose_systems(FLAGS.systems, SYSTEMS, NEEDS)
    if FLAGS.precision != "float32":
        systems = [system for system in systems if system not in FLOAT32_ONLY]
    results = {
        **measuring.machine(),
        "precision": FLAGS.precision,
        "threads": FLAGS.threads,
        "workloads": [measure(Workload(size), systems) for size in FLAGS.vocabulary_sizes],
    }
    for workload in results["workloads"]:
        print_table(workload)
    measuring.write_results(results, FLAGS.output)


def measure(workload: Workload, systems: list[str]) -> dict[str, Any]:
    """All systems once, then all again, and the machine's peak with them."""
    peaks, runs = [], {system: [] for system in systems}
    for number in range(FLAGS.rounds):
        peaks.append(
            measuring.in_own_process(measuring.matrix_product_peak, FLAGS.threads, FLAGS.precision)
        )
        for system in systems:
            measuring.say(f"V {workload.vocabulary_size:,}, round {number + 1}: {system}")
            counts = (FLAGS.warm_up_steps, FLAGS.steps)
            runs[system].append(
                measuring.in_own_process(
                    run, system, workload, FLAGS.precision, FLAGS.threads, *counts
                )
            )
    peak = max(peaks)
    return {
        "vocabulary_size": workload.vocabulary_size,
        "rows": workload.batch_size,
        "sequence_length": workload.sequence_length,
        "targets": workload.num_targets,
        "peak_flops_per_second": peak,
        "systems": {
            system: summary(workload, rounds, workload.matrix_product_flops() / peak)
            for system, rounds in runs.items()
        },
    }


def run(
    system: str, workload: Workload, precision: str, threads: int, warm_up_steps: int, steps: int
) -> dict[str, Any]:
    """One process of one system."""
    step = SYSTEMS[system](workload, precision, threads)
    losses = [step() for _ in range(warm_up_steps)]
    return {
        "losses": losses,
        "seconds": measuring.durations(step, steps),
        "peak_memory_bytes": measuring.peak_memory(),
    }


def summary(workload: Workload, runs: list[dict[str, Any]], bound_seconds: float) -> dict[str, Any]:
    """The medians over the rounds of one system, with the rounds themselves."""
    seconds = statistics.median(duration for one in runs for duration in one["seconds"])
    return {
        "seconds": seconds,
        "tokens_per_second": workload.num_tokens / seconds,
        "peak_memory_bytes": statistics.median(one["peak_memory_bytes"] for one in runs),
        "share_of_bound": bound_seconds / seconds,
        "rounds": runs,
    }


def print_table(result: dict[str, Any]) -> None:
    print(
        f"\nV {result['vocabulary_size']:,}, {result['rows']} x {result['sequence_length']} "
        f"tokens, {result['targets']} targets, {FLAGS.precision}, {FLAGS.threads} threads, "
        f"peak {result['peak_flops_per_second'] / 1e9:,.0f} GFLOP/s"
    )
    rows = [
        (
            "system",
            "tokens/s",
            "kzoo faster",
            "wanted",
            "peak GB",
            "kzoo's share",
            "wanted",
            "bound",
        )
    ]
    for system, measured in result["systems"].items():
        rows.append(
            (
                system,
                f"{measured['tokens_per_second']:,.0f}",
                *_comparison(result, system),
                f"{measured['share_of_bound']:.0%}",
            )
        )
    print(format_table(rows, names=1))


def _comparison(result: dict[str, Any], system: str) -> tuple[str, str, str, str, str]:
    """The cells about a system that depend on kzoo's own numbers or on what is wanted."""
    measured, ours = result["systems"][system], result["systems"].get("kzoo")
    memory = f"{measured['peak_memory_bytes'] / GIGABYTE:.2f}"
    if ours is None or system == "kzoo":
        return "", "", memory, "", ""
    key = (system, result["vocabulary_size"])
    in_float32 = FLAGS.precision == "float32"
    speed = WANTED_SPEEDS.get(key) if in_float32 else None
    share = WANTED_MEMORY.get(key) if in_float32 else None
    return (
        f"{ours['tokens_per_second'] / measured['tokens_per_second']:.2f}x",
        f"{speed}x" if speed else "",
        memory,
        f"{ours['peak_memory_bytes'] / measured['peak_memory_bytes']:.2f}x",
        f"{share}x" if share else "",
    )


if __name__ == "__main__":
    sys.exit(command.run(main, FLAGS, __doc__))
