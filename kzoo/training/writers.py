"""Where a run's metrics go: `metrics.jsonl` for programs, TensorBoard events for people."""

import contextlib
import json
import logging
import math
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.plugins.scalar.summary_v2 import scalar_pb

from kzoo.errors import KzooError
from kzoo.storage import files, remote
from kzoo.storage.paths import is_remote
from kzoo.storage.publishing import local_files, publish_file
from kzoo.storage.remote import reason

METRICS_FILE = "metrics.jsonl"
SPLITS = ("train", "held_out")
_EVENTS = "events.out.tfevents"

_SECONDS_BETWEEN_COPIES = 60.0

_LOG = logging.getLogger(__name__)


class MetricWriter:
    """Appends metrics to `MODEL_DIR/metrics.jsonl` and `MODEL_DIR/tensorboard/{train,held_out}`.

    On object storage nothing can be appended to: there a file is written anew, whole, from a local
    copy; every minute, and by `flush`.

    One JSON object a line: `step`, `time` (seconds since 1970), `split`, then name → value.
    JSON has no numbers that are not finite: they are written as the strings "NaN", "Infinity"
    and "-Infinity", which `read_metrics` turns back.
    """

    def __init__(
        self,
        model_dir: str | os.PathLike[str],
        resumed_step: int | None = None,
        splits: Sequence[str] = SPLITS,
    ) -> None:
        """
        Args:
            model_dir: the run's folder, or another one for metrics; made if need be.
            resumed_step: the step that the run goes on from. What an earlier attempt wrote about
                later steps is dropped, since those steps will be taken again: so write a step's
                metrics before its checkpoint. None for a new run: everything is dropped.
            splits: those that are going to be written.

        Raises:
            KzooError: if the files cannot be written.
        """
        model_dir = os.fspath(model_dir)
        self._path = os.path.join(model_dir, METRICS_FILE)
        first_step = 0 if resumed_step is None else resumed_step + 1
        with _user_errors(self._path):
            self._mirror = _Mirror(model_dir) if is_remote(model_dir) else None
            folder = self._mirror.folder if self._mirror else model_dir
            os.makedirs(folder, exist_ok=True)
            path = os.path.join(folder, METRICS_FILE)
            _drop_lines_from(first_step, self._path, path)
            self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (closed by `close`)
            self._events = {
                split: _open_events(
                    os.path.join(folder, "tensorboard", split),
                    first_step,
                    files.names(os.path.join(model_dir, "tensorboard", split)),
                )
                for split in splits
            }
            if self._mirror:
                self._mirror.copy()

    def write(self, step: int, split: str, values: Mapping[str, float]) -> None:
        """Writes metrics of a step, so that they are there even if the process is killed next.

        Args:
            step: the number of updates done.
            split: one of `splits`.
            values: name → value; the name of a language's metric ends in it, as in `loss/de`.

        Raises:
            KzooError: if the files cannot be written.
        """
        now = time.time()
        line = {"step": step, "time": round(now, 3), "split": split}
        line.update({name: _to_json(value) for name, value in values.items()})
        with _user_errors(self._path):
            self._file.write(json.dumps(line, allow_nan=False) + "\n")
            self._file.flush()
            events = self._events[split]
            for name, value in values.items():
                event = Event(wall_time=now, step=step, summary=scalar_pb(name, float(value)))
                events.write(event.SerializeToString())
            events.flush()
            if self._mirror and self._mirror.is_due():
                self._mirror.copy()

    def flush(self) -> None:
        """Brings what was written to where it belongs, as is to be done before a checkpoint.

        Raises:
            KzooError: if it cannot be written there.
        """
        if self._mirror:
            with _user_errors(self._path):
                self._mirror.copy()

    def close(self) -> None:
        """Closes the files; nothing can be written afterwards."""
        with _user_errors(self._path):
            for file in (self._file, *self._events.values()):
                file.close()
            if self._mirror:
                self._mirror.close()

    def __enter__(self) -> "MetricWriter":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def read_metrics(path: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Reads a `metrics.jsonl`, also while it is being written.

    Args:
        path: the file.

    Yields:
        One dictionary a line, as `MetricWriter` describes them. A line that is not one, such as
        the torn last line of a killed process, is passed over with a warning.

    Raises:
        KzooError: if the file is not there or cannot be read.
    """
    path = os.fspath(path)
    try:
        with tf.io.gfile.GFile(path) as file:
            for number, text in enumerate(file, start=1):
                try:
                    line = json.loads(text)
                    step, split = line["step"], line["split"]
                except (ValueError, TypeError, KeyError):
                    _LOG.warning("%s, line %d is not a line of metrics: dropped", path, number)
                    continue
                values = {
                    name: float(value) if isinstance(value, str) else value
                    for name, value in line.items()
                    if name not in ("step", "split")
                }
                yield {"step": step, "split": split, **values}
    except tf.errors.OpError as error:
        raise KzooError(f"cannot read metrics from {path}: {reason(error)}") from error


class _Mirror:
    """Local files, and their copies on object storage."""

    def __init__(self, model_dir: str):
        self._model_dir = model_dir
        self._temporary = tempfile.TemporaryDirectory(prefix="kzoo-metrics-")
        self.folder = self._temporary.name
        self._copied_at = time.monotonic()

    def is_due(self) -> bool:
        return time.monotonic() - self._copied_at >= _SECONDS_BETWEEN_COPIES

    def copy(self) -> None:
        """Copies every file, each beside its place first."""

        def copy_one(name: str) -> None:
            publish_file(os.path.join(self.folder, name), os.path.join(self._model_dir, name))

        remote.at_once(copy_one, local_files(self.folder))
        self._copied_at = time.monotonic()

    def close(self) -> None:
        self.copy()
        self._temporary.cleanup()


def _drop_lines_from(first_step: int, path: str, to: str) -> None:
    """Writes a file of metrics anew, without the lines of `first_step` and later, nor torn ones."""
    kept = []
    if tf.io.gfile.exists(path):
        kept = [line for line in read_metrics(path) if line["step"] < first_step]
    lines = ({name: _to_json(value) for name, value in line.items()} for line in kept)
    with open(to + ".partial", "w", encoding="utf-8") as file:
        file.write("".join(json.dumps(line, allow_nan=False) + "\n" for line in lines))
    os.replace(to + ".partial", to)


def _open_events(folder: str, first_step: int, earlier: Iterable[str]) -> tf.io.TFRecordWriter:
    """A new file of TensorBoard events, at which TensorBoard forgets `earlier` ones from a step on.

    It reads them in the order of their names. Written here and now, not by the thread behind
    `tf.summary`, so that a full disk is noticed at the write that met it.
    """
    os.makedirs(folder, exist_ok=True)
    seconds, nanoseconds = _time_after(earlier)
    name = f"{_EVENTS}.{seconds:010d}.{socket.gethostname()}.{nanoseconds:09d}"
    writer = tf.io.TFRecordWriter(os.path.join(folder, name))
    start = SessionLog(status=SessionLog.START)
    for event in (
        Event(wall_time=seconds, file_version="brain.Event:2"),
        Event(wall_time=seconds, step=first_step, session_log=start),
    ):
        writer.write(event.SerializeToString())
    writer.flush()
    return writer


def _time_after(names: Iterable[str]) -> tuple[int, int]:
    """Seconds and nanoseconds: now, or a second after the newest of some files of events.

    The clock may have been set back since, or another machine's may be ahead of ours.
    """
    found = (re.match(rf"{re.escape(_EVENTS)}\.(\d{{10}})\.", name) for name in names)
    newest = max((int(match[1]) for match in found if match), default=0)
    seconds, nanoseconds = divmod(time.time_ns(), 10**9)
    return (seconds, nanoseconds) if seconds > newest else (newest + 1, 0)


def _to_json(value: Any) -> int | float | str:
    """A number as JSON can hold it; what is a string or an integer stays one."""
    if isinstance(value, (str, int)):
        return value
    value = float(value)
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


@contextlib.contextmanager
def _user_errors(path: str) -> Iterator[None]:
    try:
        yield
    except (OSError, tf.errors.OpError) as error:
        raise KzooError(f"cannot write metrics to {path}: {reason(error)}") from error
