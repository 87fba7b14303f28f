"""A plan of a run as text."""

import dataclasses

from kzoo.corpora.table import format_table
from kzoo.models.parameter_counts import ParameterCounts
from kzoo.training import budget
from kzoo.training.budget import Memory, Workload
from kzoo.training.trial_step import Measured

GIGABYTE = 1e9
# What TensorFlow's graphs, threads and kernels take of a process besides, as measured.
_GRAPH_BYTES = 0.13e9
UNKNOWN = "unknown: the examples are not there yet"


@dataclasses.dataclass(frozen=True)
class Devices:
    """What a run computes on.

    Attributes:
        strategy: `runtime.strategy`.
        num_replicas: of all workers together.
        num_workers: processes.
        num_processors: devices that compute at the same time: parts of one CPU are one.
        has_gpu: whether this machine has one.
        memory_bytes: of one device; None if nobody said.
    """

    strategy: str
    num_replicas: int
    num_workers: int
    num_processors: int
    has_gpu: bool
    memory_bytes: float | None


@dataclasses.dataclass(frozen=True)
class Speed:
    """How fast one device computes.

    Attributes:
        peak_flops: operations a second at best.
        utilization: the share of them that a run reaches.
        is_measured: whether the peak is this machine's own.
    """

    peak_flops: float
    utilization: float
    is_measured: bool


@dataclasses.dataclass(frozen=True)
class Data:
    """The training examples, by language: share of the batches, windows, and pieces in them."""

    probabilities: dict[str, float]
    num_windows: dict[str, int]
    num_tokens: dict[str, int]


@dataclasses.dataclass(frozen=True)
class Plan:
    """All that is said of a run.

    Attributes:
        workload, counts, memory: of one step.
        devices, speed: of the machines.
        data: of the examples; None where they are not there yet.
        train_steps: of the whole run.
        checkpoints_kept: how many are on disk, beside one that is being written.
        free_disk_bytes: where they go; None if nobody can say.
    """

    workload: Workload
    counts: ParameterCounts
    memory: Memory
    devices: Devices
    speed: Speed
    data: Data | None
    train_steps: int
    checkpoints_kept: int
    free_disk_bytes: int | None


def report(plan: Plan) -> str:
    """The whole plan."""
    sections = (_step, _parameters, _memory, _disk, _time, _data)
    return "\n\n".join(section(plan) for section in sections)


def report_of_steps(plan: Plan, measured: Measured) -> str:
    """What real steps took, beside what was estimated."""
    estimated = plan.memory.peak
    if not measured.is_gpu:
        estimated = estimated * measured.replicas + _GRAPH_BYTES
    seconds = _seconds_per_step(plan)
    rows = [
        ("steps on full windows", "estimated", "measured", "ratio"),
        (
            "peak memory, GB" + ("" if measured.is_gpu else ", of the process without libraries"),
            _gigabytes(estimated),
            _gigabytes(measured.peak_bytes),
            f"{estimated / measured.peak_bytes:.2f}" if measured.peak_bytes else "–",
        ),
        (
            "seconds a step",
            f"{seconds:,.2f}",
            f"{measured.seconds:,.2f}",
            f"{seconds / measured.seconds:.2f}",
        ),
        ("seconds of the first step", "", f"{measured.first_seconds:,.2f}", ""),
    ]
    text = "\n" + format_table(rows, names=1)
    if plan.speed.is_measured:
        share = seconds * plan.speed.utilization / measured.seconds
        text += f"\nThe step reached {share:.0%} of the peak (--utilization={share:.2f})."
    return text


def _step(plan: Plan) -> str:
    work, devices = plan.workload, plan.devices
    rows = [
        ("strategy", devices.strategy),
        ("replicas", f"{devices.num_replicas:,}"),
        ("workers", f"{devices.num_workers:,}"),
        ("windows of a step", f"{work.global_batch_size:,}"),
        ("  of a replica", f"{work.replica_batch_size:,}"),
        ("  of a micro-batch", f"{work.micro_batch_size:,}"),
        ("tokens of a step, at most", f"{work.tokens_per_step:,}"),
        ("targets of a step, at most", f"{work.targets_per_step:,}"),
        ("steps", f"{plan.train_steps:,}"),
        ("tokens of the run, at most", f"{plan.train_steps * work.tokens_per_step:,}"),
    ]
    return format_table(rows, names=1)


def _parameters(plan: Plan) -> str:
    counts = plan.counts
    rows = [
        ("parameters", ""),
        ("  embeddings", f"{counts.embeddings:,}"),
        ("  projection", f"{counts.projection:,}"),
        ("  layers", f"{counts.layers:,}"),
        ("  encoder, which exports keep", f"{counts.encoder:,}"),
        ("  head's transform", f"{counts.head_transform:,}"),
        ("  output table", f"{counts.output_table:,}"),
        ("  output bias", f"{counts.output_bias:,}"),
        ("  all", f"{counts.total:,}"),
    ]
    if plan.workload.trained_parameters != counts.total:
        rows.append(("  trained", f"{plan.workload.trained_parameters:,}"))
    return format_table(rows, names=1)


def _memory(plan: Plan) -> str:
    memory, work = plan.memory, plan.workload
    parts = [
        ("weights", memory.weights),
        ("Adam's two averages", memory.averages),
        ("gradients", memory.gradients),
        ("sums of the micro-batches' gradients", memory.accumulated),
        ("sum of the replicas' gradients", memory.reduced),
        ("weights in half precision", memory.casts),
        ("activations", budget.activation_bytes(work, recompute=False)),
        ("  with runtime.recompute", budget.activation_bytes(work, recompute=True)),
        ("temporaries of a layer's backward pass", memory.temporaries),
        ("logits of a chunk of targets, and what the loss adds up", memory.scoring),
    ]
    rows = [("memory of a device, GB", "")]
    rows += [(f"  {name}", _gigabytes(size)) for name, size in parts if size]
    rows.append(("  estimated peak, beside libraries", _gigabytes(memory.peak)))
    available = plan.devices.memory_bytes
    rows.append(("  available", "unknown" if available is None else _gigabytes(available)))
    lines = [format_table(rows, names=1)]
    if plan.workload.compute_bytes == budget.FLOAT and plan.devices.has_gpu:
        lines.append("runtime.precision: mixed_bfloat16 halves most of the activations")
    if available is not None and memory.peak > available:
        lines.append(_advice(plan, available))
    return "\n".join(lines)


def _advice(plan: Plan, available: float) -> str:
    """What would make a step fit."""
    ways = []
    for recompute in (False, True):
        tried = dataclasses.replace(plan.workload, recompute=recompute)
        steps = budget.smallest_accumulation(tried, plan.counts, available)
        if steps is not None:
            with_it = " and runtime.recompute: true" if recompute else ""
            ways.append(f"trainer.accumulation_steps: {steps}{with_it}")
    if not ways:
        return "That does not fit, not even with one window at a time: the model is too large."
    return f"That does not fit. It would with {'; or with '.join(dict.fromkeys(ways))}."


def _disk(plan: Plan) -> str:
    size = budget.checkpoint_bytes(plan.workload, plan.counts)
    most = plan.checkpoints_kept + 1
    rows = [
        ("disk, GB", ""),
        ("  one checkpoint", _gigabytes(size)),
        (f"  {most} of them, one being written", _gigabytes(most * size)),
        ("  preset", _gigabytes(budget.FLOAT * plan.counts.total)),
    ]
    if plan.free_disk_bytes is not None:
        rows.append(("  free", _gigabytes(plan.free_disk_bytes)))
    return format_table(rows, names=1)


def _time(plan: Plan) -> str:
    needed, computed = budget.step_flops(plan.workload)
    speed, devices = plan.speed, plan.devices
    seconds = _seconds_per_step(plan)
    origin = "measured here" if speed.is_measured else "as given"
    rows = [
        ("arithmetic, at most", ""),
        ("  operations of a step", f"{needed:.3e}"),
        ("  operations of the run", f"{needed * plan.train_steps:.3e}"),
        (f"  peak of a device, {origin}, TFLOP/s", f"{speed.peak_flops / 1e12:,.2f}"),
        ("  devices", f"{devices.num_processors:,}"),
        ("  share of the peak, assumed", f"{speed.utilization:.0%}"),
        ("  seconds a step", f"{seconds:,.2f}"),
        ("  the run", _duration(seconds * plan.train_steps)),
    ]
    if computed > needed:
        rows.insert(2, ("  computed, since layers run again", f"{computed:.3e}"))
    return format_table(rows, names=1)


def _data(plan: Plan) -> str:
    if plan.data is None:
        return f"epochs of each language  {UNKNOWN}"
    data = plan.data
    num_examples = plan.train_steps * plan.workload.global_batch_size
    epochs = budget.epochs(num_examples, data.probabilities, data.num_windows)
    rows = [("language", "windows", "pieces", "share of the batches", "epochs")]
    for language, share in data.probabilities.items():
        rows.append(
            (
                language,
                f"{data.num_windows[language]:,}",
                f"{data.num_tokens[language]:,}",
                f"{share:.2%}",
                f"{epochs[language]:,.1f}",
            )
        )
    full = sum(data.num_windows.values()) * (plan.workload.sequence_length - 2)
    pieces = sum(data.num_tokens.values())
    note = (
        f"The windows are {pieces / full:.0%} full on average: the run takes about as much less of "
        "tokens, operations and time."
    )
    return f"{format_table(rows, names=1)}\n{note}"


def _seconds_per_step(plan: Plan) -> float:
    _, computed = budget.step_flops(plan.workload)
    rate = plan.speed.peak_flops * plan.speed.utilization * plan.devices.num_processors
    return computed / rate


def _gigabytes(size: float) -> str:
    return f"{size / GIGABYTE:,.2f}"


def _duration(seconds: float) -> str:
    """A time in the unit that suits it."""
    for unit, length in (("years", 365.25 * 86400), ("days", 86400), ("hours", 3600)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds / 60:,.1f} minutes"
