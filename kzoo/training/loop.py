"""The host loop: batches in, updates, and what has to happen between two of them."""

import contextlib
import dataclasses
import functools
import logging
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from kzoo.config.schema import Trainer
from kzoo.corpora.batching import Batch
from kzoo.errors import KzooError
from kzoo.training.checkpoints import Checkpoints
from kzoo.training.cluster import Cluster
from kzoo.training.evaluation import Evaluation
from kzoo.training.interval import Interval, Pause, held_out_line
from kzoo.training.progress import Progress
from kzoo.training.signals import asked_to_stop
from kzoo.training.step import StepMetrics, TrainingStep
from kzoo.training.watchdog import Watchdog
from kzoo.training.writers import MetricWriter

_LOG = logging.getLogger(__name__)

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


@dataclass(frozen=True)
class Progressed:
    """How far a run is: what a checkpoint says of it, beside the values of variables.

    Attributes:
        step: updates made, skipped ones included.
        position: examples seen.
        nonfinite_steps: steps that were skipped, since their loss or gradient was not finite.
        unmeasured: whether held-out text was to be measured after this step, and was not, since
            the run was asked to stop.
        best_loss: on held-out text, if this step was the best so far. A kill may come between its
            checkpoint and the mark of the best.
    """

    step: int = 0
    position: int = 0
    nonfinite_steps: int = 0
    unmeasured: bool = False
    best_loss: float | None = None

    @classmethod
    def of(cls, state: dict[str, Any]) -> "Progressed":
        """From the state of a checkpoint."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: state[name] for name in names if name in state})

    def state(self) -> dict[str, int | bool | float | None]:
        """For a checkpoint, which holds the step anyhow."""
        state = dataclasses.asdict(self)
        del state["step"]
        return state


class TrainingLoop:
    """Trains from a step to the last, and measures, reports and saves on the way.

    The learning rate, the batch and the dropout of a step depend on its number and on the
    position alone, so a loop that starts at a checkpoint goes on as if nothing had happened.

    Args:
        step: makes one update.
        learning_rate: rate of each update.
        data: where its batches come from.
        cluster: the workers, each of which runs this loop; the chief alone reports and saves.
        variables: everything that a checkpoint must hold.
        run_state: what else it says of the run, beside what the loop counts.
        checkpoints: where they are kept.
        writer: of metrics; None on other workers than the chief.
        evaluation: on held-out text, or None.
        settings: how many steps, and how often what is done.
        peak_share: from positions, targets and seconds to the share of the machine's peak, or
            None where that is not known.
    """

    def __init__(
        self,
        step: TrainingStep,
        learning_rate: Callable[[int], float],
        data: DataStream,
        *,
        cluster: Cluster,
        variables: Sequence[Any],
        run_state: dict[str, Any],
        checkpoints: Checkpoints,
        writer: MetricWriter | None,
        evaluation: Evaluation | None,
        settings: Trainer,
        peak_share: Callable[[float, float, float], float] | None,
    ):
        self._step = step
        self._learning_rate = learning_rate
        self._data = data
        self._cluster = cluster
        self._variables = variables
        self._run_state = run_state
        self._checkpoints = checkpoints
        self._writer = writer
        self._evaluation = evaluation
        self._settings = settings
        self._peak_share = peak_share
        self._watchdog = Watchdog(settings.stall_warning_seconds)

    def run(self, start: Progressed) -> int:
        """Trains until the last step, or until a worker is asked to stop.

        Args:
            start: where the run is; at the last step only if that is still to be measured.

        Returns:
            The updates made in all. A checkpoint of that step has been saved.

        Raises:
            KzooError: a loss or a gradient is not finite, or something cannot be written.
        """
        now, unread, interval, pause, ends = start, [], Interval(), Pause(), False
        self._max_skipped_steps = max_skipped_steps(self._settings, start.nonfinite_steps)
        with (
            asked_to_stop() as signals,
            contextlib.closing(self._data.batches_from(now.position)) as batches,
            self._progress(now.step) as progress,
            self._watchdog,
            contextlib.closing(self._checkpoints),
        ):
            if start.best_loss is not None and self._cluster.is_chief:
                self._checkpoints.mark_best(start.step, start.best_loss)
            if start.unmeasured and self._measures(start.step):
                is_interrupted = self._measure_late(start, signals)
                ends = is_interrupted or start.step >= self._settings.train_steps
            # A signal that comes after `ends` is set stops the next step, so that the last step
            # taken is always one that is read, reported and saved.
            while not ends:
                unread.append(self._take_step(batches, now, stop=bool(signals)))
                now = self._after(now)
                ends = now.step == self._settings.train_steps or self._stops_alone(signals)
                if ends or self._reads(now.step):
                    now, stops = self._read(unread, now, interval)
                    unread = []
                    ends = ends or stops
                    interval.seconds = pause.running_seconds()
                    if progress is not None:
                        progress.update(now.step, **interval.shown())
                if ends or now.step % self._settings.log_interval == 0:
                    self._report(now.step, interval)
                    interval = Interval()
                    pause = Pause()
                with pause:
                    ends = self._between_steps(now, ends, signals)
        if now.step < self._settings.train_steps and (signals or self._cluster.is_chief):
            print(
                f"stopped by {signals[0] if signals else 'the signal of another worker'} after "
                f"step {now.step:,}, which is saved; the same command goes on from there",
                file=sys.stderr,
            )
        return now.step

    def _take_step(self, batches: Iterator[list[Batch]], now: Progressed, stop: bool):
        first, last = now.position, now.position + self._data.global_batch_size - 1
        with self._watchdog.stage(
            f"the input: examples {first:,} to {last:,} have not been read and masked yet"
        ):
            shares = next(batches)
        # The device may compute on while the host goes on, but a collective operation blocks it.
        with self._watchdog.stage(f"step {now.step + 1:,} to be traced, compiled or started"):
            return self._step(shares, now.step, self._learning_rate(now.step), stop=stop)

    def _after(self, now: Progressed) -> Progressed:
        position = now.position + self._data.global_batch_size
        return Progressed(now.step + 1, position, now.nonfinite_steps)

    def _progress(self, first_step: int):
        if not self._cluster.is_chief:
            return contextlib.nullcontext()
        return Progress(
            self._settings.train_steps,
            first_step=first_step,
            line_interval=self._settings.log_interval,
        )

    def _stops_alone(self, signals: list[str]) -> bool:
        """Whether this process ends after a step; several workers must agree: see `_read`."""
        return bool(signals) and self._cluster.num_workers == 1

    def _reads(self, step: int) -> bool:
        """Whether the metrics of the steps so far are read now, which waits for the device."""
        settings = self._settings
        intervals = (
            settings.steps_per_loop,
            settings.log_interval,
            settings.validation_interval,
            settings.checkpoint_interval,
        )
        return any(interval is not None and step % interval == 0 for interval in intervals)

    def _read(
        self, unread: list[StepMetrics], now: Progressed, interval: Interval
    ) -> tuple[Progressed, bool]:
        """Adds steps to the interval, or ends the run if one too many was not finite.

        Returns:
            Where the run is, and whether a worker was asked to stop. All workers read the same
            numbers at the same steps, so they stop after the same one.
        """
        self._checkpoints.check()
        skipped, stops = now.nonfinite_steps, False
        for behind, metrics in zip(reversed(range(len(unread))), unread, strict=True):
            with self._watchdog.stage(
                f"the devices, perhaps of another worker, to end step {now.step - behind:,}"
            ):
                total = int(metrics.nonfinite_steps)
            if total > skipped:
                position = now.position - behind * self._data.global_batch_size
                self._not_finite(now.step - behind, position, total)
                skipped = total
            interval.add(metrics)
            stops = stops or (self._cluster.num_workers > 1 and float(metrics.stops) > 0)
        return dataclasses.replace(now, nonfinite_steps=skipped), stops

    def _not_finite(self, step: int, position: int, total: int) -> None:
        """Warns of a step that was skipped, or raises if it is one too many."""
        first = position - self._data.global_batch_size
        named = [
            self._data.describe(example)
            for example in range(first, min(position, first + _NAMED_EXAMPLES))
        ]
        what = (
            f"the loss or a gradient of step {step:,} is not a finite number. Its batch holds the "
            f"examples {first:,} to {position - 1:,} ({'; '.join(named)}; …)."
        )
        allowed = self._max_skipped_steps
        if total <= allowed:
            _LOG.warning("%s The weights stay as they were (%d of %d)", what, total, allowed)
            return
        self._checkpoints.wait()
        limit = f"{allowed} such steps were skipped before. " if allowed else ""
        raise KzooError(
            f"{what} The step was not taken and nothing was saved; {limit}the last good checkpoint "
            f"is {self._checkpoints.latest() or 'none yet'}. A lower optimizer.learning_rate, a "
            "longer warm-up or runtime.precision=float32 may help"
        )

    def _report(self, step: int, interval: Interval) -> None:
        if self._writer is None:
            return
        report = interval.report()
        report["learning_rate"] = self._learning_rate(step - 1)
        if interval.seconds > 0 and self._peak_share is not None:
            report["peak_share"] = self._peak_share(
                interval.positions, interval.targets, interval.seconds
            )
        self._writer.write(step, "train", report)

    def _between_steps(self, now: Progressed, ends: bool, signals: list[str]) -> bool:
        """Measures and saves where it is time to. Metrics first: a save makes them permanent.

        A run that is asked to stop saves at once: what it was to measure, it measures when it goes
        on.

        Returns:
            Whether the run ends here.
        """
        measured, due = None, self._measures(now.step)
        if due and (not ends or now.step == self._settings.train_steps):
            measured = self._measure(now.step, signals)
        if due and measured is None:
            now, ends = dataclasses.replace(now, unmeasured=True), True
        is_best = self._is_best(now.step, measured)
        if ends:
            # All workers learn whether their last step is safe.
            save = functools.partial(self._save_last, now, measured if is_best else None)
            self._cluster.chief_first(save, "write the checkpoint")
        elif self._cluster.is_chief and (
            is_best or now.step % self._settings.checkpoint_interval == 0
        ):
            self._start_saving(now, measured if is_best else None)
        return ends

    def _measure(self, step: int, signals: list[str]) -> dict[str, float] | None:
        """Measures and reports, or is interrupted."""
        with self._watchdog.stage(f"the measurement on held-out text after step {step:,}"):
            measured = self._evaluation.measure(lambda: bool(signals))
        if measured is not None and self._writer is not None:
            self._writer.write(step, "held_out", measured)
            print(held_out_line(step, measured), file=sys.stderr)
        return measured

    def _measure_late(self, start: Progressed, signals: list[str]) -> bool:
        """Measures what was left when the run was asked to stop; returns whether it is again."""
        measured = self._measure(start.step, signals)
        if self._is_best(start.step, measured):
            self._checkpoints.mark_best(start.step, measured["loss"])
        return measured is None

    def _start_saving(self, now: Progressed, best: dict[str, float] | None) -> None:
        loss = None if best is None else best["loss"]
        state = {**self._run_state, **dataclasses.replace(now, best_loss=loss).state()}
        with self._watchdog.stage(f"the checkpoint of step {now.step:,} to be written"):
            self._writer.flush()
            self._checkpoints.start_saving(now.step, self._variables, state, loss)

    def _save_last(self, now: Progressed, best: dict[str, float] | None) -> None:
        # That an earlier one failed is no reason not to try this one.
        self._checkpoints.close()
        self._start_saving(now, best)
        self._checkpoints.wait()

    def _measures(self, step: int) -> bool:
        interval = self._settings.validation_interval
        if self._evaluation is None or interval is None:
            return False
        return step == self._settings.train_steps or step % interval == 0

    def _is_best(self, step: int, measured: dict[str, float] | None) -> bool:
        """Whether the chief is to mark this step."""
        if measured is None or not self._settings.keep_best or not self._cluster.is_chief:
            return False
        with self._watchdog.stage("the last checkpoint to be written"):
            self._checkpoints.wait()
        best = self._checkpoints.best()
        return best is None or best.step == step or measured["loss"] < best.loss


def max_skipped_steps(settings: Trainer, skipped: int) -> int:
    """How many steps that are not finite a run may have.

    Args:
        settings: where the limit may be another one than when the run began.
        skipped: how many it has had: these are no reason to stop now.
    """
    limit = settings.max_skipped_steps if settings.on_nonfinite == "skip" else 0
    return max(limit, skipped)
