"""A process beside a run: it measures every checkpoint on held-out text and keeps the best one."""

import contextlib
import logging
import math
import os
import signal
import sys
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from kzoo.config.schema import Config
from kzoo.corpora.dataset_info import INFO_FILE
from kzoo.corpora.examples import ExampleFiles
from kzoo.errors import KzooError
from kzoo.layers.initializers import left_empty
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.storage import files
from kzoo.storage.paths import clean, is_remote
from kzoo.storage.remote import reason
from kzoo.training import checkpoint_files, folder_lock
from kzoo.training.best_run import BestRun, CheckpointGoneError
from kzoo.training.build import (
    build_evaluation,
    build_model,
    build_training_examples,
    device_names,
    num_logical_cpus,
)
from kzoo.training.checkpoint_files import STATE_FILE, BrokenCheckpointError
from kzoo.training.checkpoints import Checkpoints
from kzoo.training.cluster import Cluster
from kzoo.training.evaluation import Evaluation
from kzoo.training.interval import held_out_line
from kzoo.training.ready_examples import ready_examples
from kzoo.training.run_folder import BEST_FOLDER, CHECKPOINT_FOLDER, EVAL_FOLDER
from kzoo.training.strategies import configure_runtime, make_strategy
from kzoo.training.writers import METRICS_FILE, MetricWriter, read_metrics

# What a device that can train can measure at a time.
_ROWS_OF_A_REPLICA = 16

# How often a folder is looked at, which costs next to nothing.
_POLL_SECONDS = 2.0

_LOG = logging.getLogger(__name__)


def evaluate_run(config: Config, model_dir: str, *, timeout_seconds: float) -> None:
    """Measures the checkpoints of a run as they appear, until the last step's has been measured.

    Only the model's weights are read. The run's own files are left alone, its lock too; what this
    writes is in `MODEL_DIR/eval/`: `metrics.jsonl`, `tensorboard/` and `best/` (see `BestRun`).
    Called again, it goes on: a step that has its line of metrics is not measured again.

    Ends without an error when the checkpoint of `trainer.train_steps` has been measured, on
    SIGTERM or Ctrl-C, or when `timeout_seconds` have passed since the last new checkpoint.

    Args:
        config: that of the run.
        model_dir: its folder, which need not be there yet.
        timeout_seconds: how long to wait for a checkpoint.

    Raises:
        KzooError: there is no held-out text; no checkpoint appeared at all; those that did are of
            another model or vocabulary; another such process is at work; or something cannot be
            written.
    """
    if is_remote(model_dir):
        raise KzooError(
            f"--mode=eval_loop follows a run in a local folder; received --model_dir={model_dir}"
        )
    with _asked_to_stop() as stop:
        try:
            with stop.heeded():
                follower = _set_up(config, model_dir, timeout_seconds)
            follower.run(stop)
        except _StopError:
            print(
                f"stopped by {stop.signal}; the same command goes on with the next checkpoint",
                file=sys.stderr,
            )
        except tf.errors.ResourceExhaustedError as error:
            raise KzooError(
                f"memory ran out: {reason(error)}. This process measures {_ROWS_OF_A_REPLICA} "
                "windows at a time, or as many as a global batch has: run it where more is free"
            ) from error


def _set_up(config: Config, model_dir: str, timeout_seconds: float) -> "_Follower":
    local = _on_this_machine(config)
    runtime = local.runtime
    configure_runtime(
        precision=runtime.precision,
        threads=runtime.threads,
        deterministic=runtime.deterministic,
        memory_growth=runtime.memory_growth,
        num_logical_cpus=num_logical_cpus(local),
    )
    examples = _examples_when_there(config, timeout_seconds)
    strategy = make_strategy(runtime.strategy, device_names(local))
    with strategy.scope(), left_empty():
        model = build_model(config)
    source = build_training_examples(config, examples)
    # Not the run's batch, which may be that of many devices.
    replicas = strategy.num_replicas_in_sync
    rows = min(_ROWS_OF_A_REPLICA, max(1, config.data.global_batch_size // replicas))
    evaluation = build_evaluation(
        local, examples, source, model, strategy, Cluster(strategy), batch_size=rows * replicas
    )
    if evaluation is None:
        raise KzooError(
            f"the examples in {examples.folder} have no held-out text, so there is nothing to "
            "measure on; set corpus.held_out_files and prepare them again in a new folder"
        )
    return _Follower(config, model_dir, timeout_seconds, examples, model, evaluation)


def _on_this_machine(config: Config) -> Config:
    """The configuration with a strategy that this process can have without the run's others."""
    if config.runtime.strategy in ("one_device", "mirrored"):
        return config
    changes = {"strategy": "one_device", "devices": None, "tpu": None}
    return config.model_copy(update={"runtime": config.runtime.model_copy(update=changes)})


def _examples_when_there(config: Config, timeout_seconds: float) -> ExampleFiles:
    """The run's examples, which it may still be preparing: making them is not our work."""
    deadline = time.monotonic() + timeout_seconds
    info = os.path.join(clean(config.data.examples), INFO_FILE)
    if not files.exists(info):
        print(f"waiting for the examples in {config.data.examples}", file=sys.stderr)
    while not files.exists(info):
        if time.monotonic() > deadline:
            raise KzooError(
                f"there were no examples in {config.data.examples} (data.examples) after "
                f"{timeout_seconds:,.0f} seconds; start the training, which makes them"
            )
        time.sleep(_POLL_SECONDS)
    return ready_examples(config)


class _Follower:
    """Looks for checkpoints and measures them, the earliest first."""

    def __init__(
        self,
        config: Config,
        model_dir: str,
        timeout_seconds: float,
        examples: ExampleFiles,
        model: RemBertMaskedLM,
        evaluation: Evaluation,
    ):
        self._train_steps = config.trainer.train_steps
        self._timeout_seconds = timeout_seconds
        self._examples = examples
        self._model = model
        self._evaluation = evaluation
        self._checkpoints = Checkpoints(os.path.join(model_dir, CHECKPOINT_FOLDER))
        self._model_dir = model_dir
        self._folder = os.path.join(model_dir, EVAL_FOLDER)
        self._best = BestRun(os.path.join(self._folder, BEST_FOLDER), config)
        self._measured: set[int] = set()
        # Checkpoints that could not be used, each with the time at which it was written.
        self._unusable: set[tuple[int, float]] = set()

    def run(self, stop: "_Stop") -> None:
        self._claim()
        self._measured = _measured_steps(self._folder)
        last = max(self._measured, default=None)
        with MetricWriter(self._folder, last, splits=["held_out"]) as writer:
            if last is None:
                writer.write(0, "held_out", self._evaluation.unigram_baseline())
            while self._train_steps not in self._measured:
                with stop.heeded():
                    step = self._wait()
                if step is None:
                    break
                self._measure(step, writer, stop)
        self._sum_up()

    def _claim(self) -> None:
        """Makes this the only process that writes into the folder."""
        try:
            os.makedirs(self._folder, exist_ok=True)
            folder_lock.claim(self._folder)
            self._best.recover()
        except OSError as error:
            raise KzooError(f"cannot write into {self._folder}: {reason(error)}") from error

    def _wait(self) -> int | None:
        """The first step that has a checkpoint to be measured; None if none appears in time."""
        deadline = time.monotonic() + self._timeout_seconds
        while True:
            for step in self._checkpoints.steps():
                if step not in self._measured and self._version(step) not in self._unusable:
                    return step
            if time.monotonic() > deadline:
                return None
            time.sleep(min(_POLL_SECONDS, self._timeout_seconds))

    def _version(self, step: int) -> tuple[int, float]:
        """A step, and when its checkpoint was written: a damaged one may be replaced."""
        try:
            return step, os.path.getmtime(os.path.join(self._checkpoints.path(step), STATE_FILE))
        except OSError:
            return step, 0.0

    def _measure(self, step: int, writer: MetricWriter, stop: "_Stop") -> None:
        """Measures one step; what it finds is on disk as a whole or not at all."""
        path, version = self._checkpoints.path(step), self._version(step)
        try:
            with stop.heeded():
                held = self._best.hold(path, step)
                state = checkpoint_files.restore(held, self._model.variables, allow_unused=True)
                self._check_vocabulary(state, path)
                measured = self._evaluation.measure()
        except CheckpointGoneError:
            print(
                f"step {step:,}: the run removed this checkpoint before it could be measured",
                file=sys.stderr,
            )
            return
        except BrokenCheckpointError as error:
            _LOG.warning("the checkpoint %s is passed over: %s", path, error)
            self._unusable.add(version)
            self._best.recover()
            return
        except BaseException:
            self._best.recover()
            raise
        # The best one before the metrics: a step with a line of metrics is not looked at again.
        if self._is_best(step, measured["loss"]):
            self._best.keep(step, measured["loss"])
        else:
            self._best.recover()
        writer.write(step, "held_out", measured)
        self._measured.add(step)
        print(held_out_line(step, measured), file=sys.stderr)

    def _is_best(self, step: int, loss: float) -> bool:
        best = self._best.best()
        # A kill may have come between this step's being kept and its metrics.
        to_beat = math.inf if best is None or best.step == step else best.loss
        return loss < to_beat

    def _check_vocabulary(self, state: dict[str, Any], path: str) -> None:
        if state["vocabulary_sha256"] != self._examples.info.vocabulary_sha256:
            raise KzooError(
                f"the examples in {self._examples.folder} were made with another vocabulary than "
                f"the checkpoint {path} was trained with: its ids would mean other pieces"
            )

    def _sum_up(self) -> None:
        if not self._measured:
            raise KzooError(
                f"no checkpoint appeared in {self._model_dir} within {self._timeout_seconds:,.0f} "
                "seconds; is this the model_dir of the training? --eval_timeout_seconds waits "
                "longer"
            )
        if self._train_steps not in self._measured:
            print(
                f"no new checkpoint in {self._timeout_seconds:,.0f} seconds, and none yet of step "
                f"{self._train_steps:,}, the last; the same command goes on",
                file=sys.stderr,
            )
        found = f"measured {len(self._measured):,} checkpoints"
        if best := self._best.best():
            found += (
                f"; the best is that of step {best.step:,}, with a held-out loss of "
                f"{best.loss:.3f}, in {self._best.folder}"
            )
        print(found)


def _measured_steps(folder: str) -> set[int]:
    """The steps whose checkpoints an earlier call has measured."""
    path = os.path.join(folder, METRICS_FILE)
    if not os.path.exists(path):
        return set()
    return {line["step"] for line in read_metrics(path) if "loss" in line}


class _StopError(BaseException):
    """Raised by a signal. No `Exception`: what catches those must not take it for one."""


class _Stop:
    """Remembers the first signal, and raises it where the work may be left as it is."""

    def __init__(self):
        self.signal: str | None = None
        self._may_raise = False

    def __call__(self, number: int, _frame: Any) -> None:
        self.signal = self.signal or signal.Signals(number).name
        if self._may_raise:
            raise _StopError

    @contextlib.contextmanager
    def heeded(self) -> Iterator[None]:
        """Inside, a signal ends the work at once; one that came before does so here."""
        self._may_raise = True
        try:
            if self.signal:
                raise _StopError
            yield
        finally:
            self._may_raise = False


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[_Stop]:
    """Takes SIGTERM and Ctrl-C as requests to stop."""
    stop = _Stop()
    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
