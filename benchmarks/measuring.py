"""What the benchmarks share: processes of their own, their memory, durations, the workload.

The memory of a process is read from Linux's `/proc`.
"""

import dataclasses
import importlib.util
import json
import math
import multiprocessing
import os
import pathlib
import platform
import re
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import numpy as np

from kzoo.errors import KzooError

GIGABYTE = 1e9


@dataclasses.dataclass(frozen=True)
class Workload:
    """The model and the batch that every system trains. Nothing is padding, nothing drops out."""

    vocabulary_size: int
    batch_size: int = 8
    sequence_length: int = 128
    predictions: int = 20  # targets of each row
    num_layers: int = 4
    num_heads: int = 4
    hidden_dim: int = 256
    intermediate_dim: int = 1024
    embedding_dim: int = 128
    output_embedding_dim: int = 768
    max_sequence_length: int = 512
    num_segments: int = 2
    learning_rate: float = 2e-4

    @property
    def num_tokens(self) -> int:
        return self.batch_size * self.sequence_length

    @property
    def num_targets(self) -> int:
        return self.batch_size * self.predictions

    def batch(self) -> dict[str, np.ndarray]:
        """A batch as `kzoo.corpora.batching.pad_batch` gives them; the same on every call."""
        generator = np.random.Generator(np.random.Philox(0))
        shape = (self.batch_size, self.sequence_length)
        slots = (self.batch_size, self.predictions)
        positions = generator.random(shape).argsort(axis=1)[:, : self.predictions]
        return {
            "token_ids": generator.integers(self.vocabulary_size, size=shape, dtype=np.int32),
            "padding_mask": np.ones(shape, np.int32),
            "mask_positions": np.sort(positions, axis=1).astype(np.int32),
            "mask_ids": generator.integers(self.vocabulary_size, size=slots, dtype=np.int32),
            "mask_weights": np.ones(slots, np.float32),
        }

    def matrix_product_flops(self) -> float:
        """What the matrix products of one step take: see `kzoo.training.flops`."""
        from kzoo.training.flops import training_flops

        return training_flops(
            num_tokens=self.num_tokens,
            num_targets=self.num_targets,
            sequence_length=self.sequence_length,
            num_layers=self.num_layers,
            hidden_dim=self.hidden_dim,
            intermediate_dim=self.intermediate_dim,
            embedding_dim=self.embedding_dim,
            output_embedding_dim=self.output_embedding_dim,
            vocabulary_size=self.vocabulary_size,
        )

    def weight_shapes(self) -> list[tuple[int, ...]]:
        """The shapes of all that the step trains: matrices decay, vectors do not."""

        def dense(inputs: int, outputs: int) -> list[tuple[int, ...]]:
            return [(inputs, outputs), (outputs,)]

        hidden, embedding, output = self.hidden_dim, self.embedding_dim, self.output_embedding_dim
        rows = (self.vocabulary_size, self.max_sequence_length, self.num_segments)
        layer = [
            *4 * dense(hidden, hidden),
            *dense(hidden, self.intermediate_dim),
            *dense(self.intermediate_dim, hidden),
            *4 * [(hidden,)],  # two layer normalisations
        ]
        return [
            *((count, embedding) for count in rows),
            *2 * [(embedding,)],
            *dense(embedding, hidden),
            *self.num_layers * layer,
            *dense(hidden, output),
            *2 * [(output,)],
            (self.vocabulary_size, output),
            (self.vocabulary_size,),
        ]

    def num_parameters(self) -> int:
        return sum(map(math.prod, self.weight_shapes()))


def in_own_process(function: Callable, *arguments: Any) -> Any:
    """Calls a module's function in a new process, so that its memory and settings are its own.

    Raises:
        KzooError: if the process dies.
    """
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=context) as pool:
        try:
            return pool.submit(function, *arguments).result()
        except BrokenProcessPool as error:
            raise KzooError(
                f"the process of {function.__name__}{arguments} was killed, most likely for lack "
                "of memory; leave this system out, or take a smaller vocabulary"
            ) from error


def durations(step: Callable[[], Any], count: int) -> list[float]:
    """The seconds of each of `count` calls."""
    seconds = []
    for _ in range(count):
        started = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - started)
    return seconds


def matrix_product_peak(threads: int, precision: str) -> float:
    """Floating-point operations per second of large matrix products; wants its own process."""
    from kzoo.training.flops import peak_flops_per_second
    from kzoo.training.strategies import configure_runtime

    configure_runtime(precision=precision, threads=threads)
    return peak_flops_per_second(precision.removeprefix("mixed_"))


def resident_memory() -> int:
    """The bytes of memory that this process holds."""
    return _status("VmRSS")


def peak_memory() -> int:
    """The most bytes that this process has held."""
    return _status("VmHWM")


def _status(key: str) -> int:
    status = pathlib.Path("/proc/self/status").read_text()
    return 1024 * int(re.search(rf"^{key}:\s+(\d+) kB$", status, re.MULTILINE)[1])


def choose_systems(
    asked: Sequence[str], systems: Iterable[str], needs: Mapping[str, tuple[str, str]]
) -> list[str]:
    """The systems to measure: those asked for, or without any, all that are installed.

    Args:
        asked: names of systems.
        systems: all names there are.
        needs: of a system that kzoo does not install, its module and the extra it comes with.

    Raises:
        KzooError: if one that is asked for is not installed.
    """
    missing = {
        name: extra
        for name, (module, extra) in needs.items()
        if not importlib.util.find_spec(module)
    }
    for name in asked:
        if name in missing:
            raise KzooError(f"{name} is not installed: pip install 'kzoo[{missing[name]}]'")
    if not asked and missing:
        say(f"not installed and left out: {', '.join(missing)}")
    return list(asked) or [name for name in systems if name not in missing]


def say(line: str) -> None:
    """Progress, beside the results."""
    print(line, file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    cpu_info = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"^model name\s*:\s*(.*)$", cpu_info, re.MULTILINE)
    return {
        "cores": os.cpu_count(),
        "processor": model[1] if model else platform.machine(),
        "python": platform.python_version(),
    }


def write_results(results: dict[str, Any], path: str | None) -> None:
    """Writes JSON, if a path was given."""
    if path:
        pathlib.Path(path).write_text(json.dumps(results, indent=1) + "\n")
