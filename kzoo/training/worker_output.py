"""What a worker prints, line by line among the lines of the others."""

import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import TextIO

from kzoo.errors import KzooError
from kzoo.training.worker_printer import WorkerPrinter

_CHUNK_BYTES = 1 << 16
# A line without end is shown in pieces of this size.
_LONGEST_LINE_BYTES = 1 << 20
# Foreground colours that can be read on black and on white.
_COLORS = (36, 33, 35, 32, 34, 31)


class WorkerOutput:
    """Copies a worker's output to our own, each line behind the worker's name in brackets.

    Where there is one worker, its lines stay as they are. On a terminal the names are coloured,
    unless `NO_COLOR` is set.
    """

    def __init__(
        self,
        printer: WorkerPrinter,
        name: str,
        place: int,
        num_workers: int,
        log_dir: str | None = None,
    ):
        """
        Args:
            printer: what writes the lines of all workers.
            name: of the worker.
            place: which of the workers here it is, counted from 0.
            num_workers: how many there are here.
            log_dir: folder of `worker-NAME.log`, to which all output is appended; or None.

        Raises:
            KzooError: the log cannot be written.
        """
        self.log: str | None = None
        self._printer = printer
        self._name = name if num_workers > 1 else ""
        self._color = _COLORS[place % len(_COLORS)]
        self._unfinished = {"stdout": b"", "stderr": b""}
        self._last_line = self._last_error = ""
        self._is_silent = False
        self._file: int | None = None
        if log_dir is not None:
            self.log = os.path.join(log_dir, f"worker-{name}.log")
            self._open_log(log_dir)

    @property
    def last_error(self) -> str:
        """The last line that began with `error: `; if none did, the last on stderr."""
        return self._last_error or self._last_line

    def reader(self, descriptor: int, stream: str) -> Callable[[], int]:
        """What copies what a pipe holds, without waiting for more.

        Args:
            descriptor: of the pipe, which must not block.
            stream: "stdout" or "stderr".

        Returns:
            A function that reads once, and returns how many bytes it got: 0 at the end of the
            pipe, -1 if there are none at the moment.
        """

        def read() -> int:
            try:
                data = os.read(descriptor, _CHUNK_BYTES)
            except BlockingIOError:
                return -1
            self._add(data, stream)
            return len(data)

        return read

    def silence(self) -> None:
        """Shows nothing any more; the log goes on."""
        self._is_silent = True

    def finish(self) -> None:
        """Shows the last line of each stream, though nothing has ended it."""
        for stream, rest in self._unfinished.items():
            if rest:
                self._show(rest, stream)
        self._unfinished = dict.fromkeys(self._unfinished, b"")

    def __enter__(self) -> "WorkerOutput":
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            with contextlib.suppress(OSError):
                os.close(self._file)

    def _open_log(self, log_dir: str) -> None:
        started = time.strftime("%Y-%m-%d %H:%M:%S")
        try:
            os.makedirs(log_dir, exist_ok=True)
            self._file = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.write(self._file, f"--- started {started}\n".encode())
        except OSError as error:
            raise KzooError(f"cannot write {self.log}: {error.strerror}") from error

    def _add(self, data: bytes, stream: str) -> None:
        if self._file is not None:
            try:
                os.write(self._file, data)
            except OSError as error:
                # A full disk for logs is no reason to stop training.
                self._printer.show(f"{self.log} ends here: {error.strerror}", "stderr")
                self._file = None
        *lines, rest = (self._unfinished[stream] + data).split(b"\n")
        for line in lines:
            self._show(line, stream)
        if len(rest) > _LONGEST_LINE_BYTES:
            self._show(rest, stream)
            rest = b""
        self._unfinished[stream] = rest

    def _show(self, line: bytes, stream: str) -> None:
        text = line.decode("utf-8", errors="replace").rstrip("\r")
        if stream == "stderr" and text.strip():
            self._last_line = text.strip()
            if self._last_line.startswith("error: "):
                self._last_error = self._last_line.removeprefix("error: ")
        if self._is_silent:
            return
        self._printer.show(f"{self._prefix(getattr(sys, stream))}{text}", stream)

    def _prefix(self, target: TextIO) -> str:
        if not self._name:
            return ""
        if target.isatty() and not os.environ.get("NO_COLOR"):
            return f"\033[{self._color}m[{self._name}]\033[0m "
        return f"[{self._name}] "
