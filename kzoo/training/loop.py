"""The host loop: batches in, updates, and what has to happen between two of them."""

import contextlib
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kzoo.config.schema import Trainer
from kzoo.corpora.batching import Batch
from kzoo.errors import KzooError
from kzoo.training.checkpoints import Checkpoints
from kzoo.training.evaluation import Evaluation
from kzoo.training.metrics import bits_per_token
from kzoo.training.progress import Progress
from kzoo.training.step import StepMetrics, TrainingStep
from kzoo.training.writers import MetricWriter

# So many examples of a batch that broke the run are named.
_NAMED_EXAMPLES = 3


@dataclass(frozen=True)
class DataStream:
    """The examples of a run, as the loop needs them.

    Attributes:
        batches_from: the endless batches from a position on; see `pipeline.batches`.
        describe: says in words which example a position holds.
        global_batch_size: examples a step.
    """

    batches_from: Callable[[int], Iterator[list[Batch]]]
    describe: Callable[[int], str]
    global_batch_size: int


class TrainingLoop:
    """Trains from a step to the last, and measures, reports and saves on the way.

    The learning rate, the batch and the dropout of a step depend on its number and on the
    position alone, so a loop that starts at a checkpoint goes on as if nothing had happened.

    Args:
        step: makes one update.
        learning_rate: rate of each update.
        data: where its batches come from.
        variables: everything that a checkpoint must hold.
        run_state: what else it says of the run, beside the position.
        checkpoints: where they are kept.
        writer: of metrics.
        evaluation: on held-out text, or None.
        settings: how many steps, and how often what is done.
        peak_share: from positions, targets and seconds to the share of the machine's peak.
    """

    def __init__(
        self,
        step: TrainingStep,
        learning_rate: Callable[[int], float],
        data: DataStream,
        *,
        variables: Sequence[Any],
        run_state: dict[str, Any],
        checkpoints: Checkpoints,
        writer: MetricWriter,
        evaluation: Evaluation | None,
        settings: Trainer,
        peak_share: Callable[[float, float, float], float],
    ):
        self._step = step
        self._learning_rate = learning_rate
        self._data = data
        self._variables = variables
        self._run_state = run_state
        self._checkpoints = checkpoints
        self._writer = writer
        self._evaluation = evaluation
        self._settings = settings
        self._peak_share = peak_share

    def run(self, first_step: int, position: int) -> int:
        """Trains until the last step, or until the process is asked to stop.

        Args:
            first_step: updates made so far, fewer than the last step.
            position: examples seen so far.

        Returns:
            The updates made in all. A checkpoint of that step has been saved.

        Raises:
            KzooError: a loss or a gradient is not finite, or something cannot be written.
        """
        steps, interval = self._settings.train_steps, _Interval()
        step, unread, pause, ends = first_step, [], _Pause(), False
        with (
            _asked_to_stop() as stop,
            contextlib.closing(self._data.batches_from(position)) as batches,
            Progress(
                steps, first_step=first_step, line_interval=self._settings.log_interval
            ) as progress,
        ):
            # A signal that comes after `ends` is set stops the next step, so that the last step
            # taken is always one that is read, reported and saved.
            while not ends:
                metrics = self._step(next(batches), step, self._learning_rate(step))
                step, position = step + 1, position + self._data.global_batch_size
                unread.append(metrics)
                ends = step == steps or bool(stop)
                if ends or self._reads(step):
                    self._read(unread, step, position, interval)
                    unread = []
                    interval.seconds = pause.running_seconds()
                    progress.update(step, **interval.shown())
                if ends or step % self._settings.log_interval == 0:
                    self._writer.write(step, "train", self._report(step, interval))
                    interval = _Interval()
                    pause = _Pause()
                with pause:
                    self._between_steps(step, position, ends, finished=step == steps)
            if step < steps:
                print(
                    f"stopped by {stop[0]} after step {step:,}, which is saved; the same command "
                    "goes on from there",
                    file=sys.stderr,
                )
        return step

    def _reads(self, step: int) -> bool:
        """Whether the metrics of the steps so far are read now, which waits for the device."""
        settings = self._settings
        intervals = (
            settings.steps_per_loop,
            settings.log_interval,
            settings.validation_interval,
            settings.checkpoint_interval,
        )
        return any(step % interval == 0 for interval in intervals)

    def _read(
        self, unread: list[StepMetrics], step: int, position: int, interval: "_Interval"
    ) -> None:
        """Adds steps to the interval, or ends the run if one of them was not finite."""
        for index, metrics in enumerate(unread):
            if not metrics.healthy:
                behind = len(unread) - 1 - index
                self._fail(step - behind, position - behind * self._data.global_batch_size)
            interval.add(metrics)

    def _fail(self, step: int, position: int) -> None:
        first = position - self._data.global_batch_size
        named = [
            self._data.describe(example)
            for example in range(first, min(position, first + _NAMED_EXAMPLES))
        ]
        raise KzooError(
            f"the loss or a gradient of step {step:,} is not a finite number. Its batch holds the "
            f"examples {first:,} to {position - 1:,} ({'; '.join(named)}; …). The step was not "
            f"taken and nothing was saved; the last good checkpoint is "
            f"{self._checkpoints.latest() or 'none yet'}. A lower optimizer.learning_rate, a "
            "longer warm-up or runtime.precision=float32 may help"
        )

    def _report(self, step: int, interval: "_Interval") -> dict[str, float]:
        report = interval.report()
        report["learning_rate"] = self._learning_rate(step - 1)
        if interval.seconds > 0:
            report["peak_share"] = self._peak_share(
                interval.positions, interval.targets, interval.seconds
            )
        return report

    def _between_steps(self, step: int, position: int, ends: bool, *, finished: bool) -> None:
        """Measures and saves where it is time to. Metrics first: a save makes them permanent."""
        measured = None
        due = finished or step % self._settings.validation_interval == 0
        if self._evaluation is not None and due:
            measured = self._evaluation.measure()
            self._writer.write(step, "held_out", measured)
            print(_held_out_line(step, measured), file=sys.stderr)
        is_best = self._settings.keep_best and self._is_best(step, measured)
        if ends or is_best or step % self._settings.checkpoint_interval == 0:
            state = {**self._run_state, "position": position}
            self._checkpoints.save(step, self._variables, state)
        if is_best:
            self._checkpoints.mark_best(step, measured["loss"])

    def _is_best(self, step: int, measured: dict[str, float] | None) -> bool:
        if measured is None:
            return False
        best = self._checkpoints.best()
        return best is None or best.step == step or measured["loss"] < best.loss


@dataclass
class _Interval:
    """Sums over the steps between two reports."""

    steps: int = 0
    loss: float = 0.0
    correct: float = 0.0
    targets: float = 0.0
    tokens: float = 0.0
    positions: float = 0.0
    gradient_norm: float = 0.0
    seconds: float = 0.0

    def add(self, metrics: StepMetrics) -> None:
        self.steps += 1
        for name in ("loss", "correct", "targets", "tokens", "positions", "gradient_norm"):
            setattr(self, name, getattr(self, name) + float(getattr(metrics, name)))

    def shown(self) -> dict[str, float]:
        """What the progress line shows."""
        targets = max(1.0, self.targets)
        return {
            "loss": self.loss / targets,
            "accuracy": self.correct / targets,
            "tokens_per_second": self.tokens / max(self.seconds, 1e-9),
        }

    def report(self) -> dict[str, float]:
        """What is written about the interval; tokens are those that are no padding."""
        report = self.shown()
        report["bits_per_token"] = bits_per_token(report["loss"])
        report["gradient_norm"] = self.gradient_norm / self.steps
        report["padding_share"] = 1 - self.tokens / self.positions
        return report


class _Pause:
    """Time since it was made, without what is spent inside of it (`with pause: …`)."""

    def __init__(self):
        self._started = time.perf_counter()
        self._entered = 0.0

    def running_seconds(self) -> float:
        return time.perf_counter() - self._started

    def __enter__(self) -> None:
        self._entered = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        self._started += time.perf_counter() - self._entered


def _held_out_line(step: int, measured: dict[str, float]) -> str:
    losses = {
        name.removeprefix("loss/"): value
        for name, value in measured.items()
        if name.startswith("loss/")
    }
    return (
        f"step {step:,}: held-out loss {measured['loss']:.3f}, accuracy "
        f"{measured['accuracy']:.1%} ("
        + ", ".join(f"{language} {loss:.2f}" for language, loss in losses.items())
        + ")"
    )


@contextlib.contextmanager
def _asked_to_stop() -> Iterator[list[str]]:
    """Collects SIGTERM (preemption) and the first Ctrl-C; the second one interrupts as usual.

    Yields:
        The names of the signals that came so far.
    """
    received: list[str] = []

    def remember(number: int, _frame: Any) -> None:
        received.append(signal.Signals(number).name)
        signal.signal(signal.SIGINT, signal.default_int_handler)

    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, remember) for number in numbers}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
