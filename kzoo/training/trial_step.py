"""Real steps of a run on made-up windows: how long they take, and how much memory."""

import contextlib
import dataclasses
import re
import time
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from kzoo.config.schema import Config
from kzoo.corpora.batching import Batch
from kzoo.training.budget import Workload
from kzoo.training.build import (
    build_model,
    build_optimizer,
    build_schedule,
    device_names,
    has_static_shapes,
)
from kzoo.training.cluster import Cluster
from kzoo.training.loss_scale import DynamicLossScale
from kzoo.training.step import TrainingStep
from kzoo.training.strategies import make_strategy


@dataclasses.dataclass(frozen=True)
class Measured:
    """What some steps took.

    Attributes:
        seconds: of the fastest step but the first.
        first_seconds: of the first, which is traced and perhaps compiled.
        peak_bytes: the most memory that was in use on the fullest device: of a GPU what TensorFlow
            took there; without GPUs what this process held, beyond what it did before.
        replicas: of this process, which share that memory where there is no GPU.
        is_gpu: which of the two it is.
    """

    seconds: float
    first_seconds: float
    peak_bytes: int
    replicas: int
    is_gpu: bool


def measure_steps(config: Config, workload: Workload, num_steps: int) -> Measured:
    """Makes a model and takes some steps with it; nothing is read or written.

    Args:
        config: of the run; the runtime has been configured.
        workload: its shapes.
        num_steps: how many steps are timed, after one that is not.

    Raises:
        KzooError: the devices are not there.
        tf.errors.ResourceExhaustedError: memory ran out.
    """
    runtime = config.runtime
    strategy = make_strategy(runtime.strategy, device_names(config), runtime.tpu)
    cluster = Cluster(strategy)
    before = _resident_bytes()
    _forget_peak()
    keras.utils.set_random_seed(config.data.seed)
    with strategy.scope():
        model = build_model(config)
        optimizer = build_optimizer(config, model)
        loss_scale = DynamicLossScale() if runtime.precision == "mixed_float16" else None
    step = TrainingStep(
        model,
        optimizer,
        strategy,
        seed=config.data.seed,
        accumulation_steps=config.trainer.accumulation_steps,
        loss_scale=loss_scale,
        recompute=runtime.recompute,
        static_shapes=has_static_shapes(config),
        jit_compile=runtime.jit_compile,
    )
    schedule = build_schedule(config)
    share = full_windows(workload)
    durations = []
    for number in range(num_steps + 1):
        started = time.perf_counter()
        metrics = step([share] * cluster.replicas_per_worker, number, schedule(number))
        # Reading a number waits for the device.
        float(metrics.gradient_norm)
        durations.append(time.perf_counter() - started)
    gpus = tf.config.list_logical_devices("GPU")
    peak = max((_gpu_peak_bytes(gpu) for gpu in gpus), default=_peak_bytes() - before)
    return Measured(
        seconds=min(durations[1:]),
        first_seconds=durations[0],
        peak_bytes=peak,
        replicas=cluster.replicas_per_worker,
        is_gpu=bool(gpus),
    )


def full_windows(workload: Workload) -> Batch:
    """One replica's share of a batch of random ids: every window full, every slot a target."""
    rows, length = workload.replica_batch_size, workload.sequence_length
    slots = (rows, workload.max_predictions)
    generator = np.random.Generator(np.random.Philox(0))
    ids = {"size": (rows, length), "dtype": np.int32}
    positions = 1 + generator.random((rows, length - 2)).argsort(axis=1)[:, : slots[1]]
    return {
        "token_ids": generator.integers(workload.vocabulary_size, **ids),
        "padding_mask": np.ones((rows, length), np.int32),
        "mask_positions": np.sort(positions, axis=1).astype(np.int32),
        "mask_ids": generator.integers(workload.vocabulary_size, size=slots, dtype=np.int32),
        "mask_weights": np.ones(slots, np.float32),
    }


def _gpu_peak_bytes(gpu: tf.config.LogicalDevice) -> int:
    name = gpu.name.removeprefix("/device:")
    return tf.config.experimental.get_memory_info(name)["peak"]


def _resident_bytes() -> int:
    return _status("VmRSS")


def _peak_bytes() -> int:
    return _status("VmHWM")


def _forget_peak() -> None:
    """Lets the peak begin at what is held now, where Linux allows it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _status(key: str) -> int:
    """Bytes, from what Linux says of this process; 0 on other systems."""
    try:
        status = Path("/proc/self/status").read_text()
    except OSError:
        return 0
    return 1024 * int(re.search(rf"^{key}:\s+(\d+) kB$", status, re.MULTILINE)[1])
