"""Runs the processes of several workers as if they were one: one output, one end, no orphans."""

import contextlib
import ctypes
import os
import select
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from kzoo.errors import KzooError
from kzoo.training.worker_output import WorkerOutput
from kzoo.training.worker_printer import WorkerPrinter

_PR_SET_PDEATHSIG = 1  # linux/prctl.h
# The system takes no waits of months.
_LONGEST_WAIT_SECONDS = 3600.0
# Signals that ask the workers to stop, and what they are sent: a terminal that is closed must not
# cost them the steps since the last checkpoint.
_PASSED_ON = {
    signal.SIGTERM: signal.SIGTERM,
    signal.SIGINT: signal.SIGINT,
    signal.SIGHUP: signal.SIGTERM,
}


@dataclass(frozen=True)
class Worker:
    """One process to start.

    Attributes:
        name: by which its output and its failure are told from the others', such as its index.
        command: program and arguments.
        environment: all of its environment variables.
    """

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]


def run_workers(
    workers: Sequence[Worker], *, grace_seconds: float = 30, log_dir: str | None = None
) -> int:
    """Starts all workers and waits until every one has ended.

    Lines of their output appear here, on the stream that they were written to. SIGTERM, Ctrl-C and
    the closing of the terminal are passed on, and the workers get the time that they need to save;
    asked a second time, they get `grace_seconds`. When one fails, the others are asked to stop
    (SIGTERM) and after `grace_seconds` killed. If this process dies, by whatever signal, the
    workers are killed with it (on Linux).

    A reader of the output that pauses holds the workers up, but not once they are to stop: lines
    are then left out, and counted.

    Args:
        workers: what to start; at least one.
        grace_seconds: how long workers that are to stop may take if they cannot be waited for.
        log_dir: folder in which each worker's output is kept besides, or None.

    Returns:
        0 if every worker ended with 0. Otherwise the status of the first that failed, 128 + n for
        signal n; which it was, and the last error that it printed, have been said on stderr.

    Raises:
        KzooError: a log cannot be written, or a worker not be started.
    """
    # Closed when signals do again what they usually do: a reader that pauses can be given up.
    with contextlib.closing(WorkerPrinter()) as printer:
        with _signals() as signals, contextlib.ExitStack() as outputs:
            group = _Group(workers, signals, grace_seconds, outputs, log_dir, printer)
            try:
                group.start()
                group.wait()
            finally:
                # Of an error here, such as a reader of the output that has gone: nothing is left.
                group.stop_silently()
        printer.check()
    return group.report()


class _Group:
    """The processes, from the start of the first to the end of the last."""

    def __init__(
        self,
        workers: Sequence[Worker],
        signals: int,
        grace_seconds: float,
        outputs: contextlib.ExitStack,
        log_dir: str | None,
        printer: WorkerPrinter,
    ):
        self._printer = printer
        self._is_silent = False
        self._signals = signals
        self._workers = workers
        self._grace_seconds = grace_seconds
        self._outputs = outputs
        self._log_dir = log_dir
        self._running: list[_Process] = []
        self._failed: _Process | None = None
        self._requests = 0
        self._deadline: float | None = None
        self._selector = outputs.enter_context(selectors.DefaultSelector())
        self._selector.register(signals, selectors.EVENT_READ, self._pass_signals_on)

    def start(self) -> None:
        # All or none: what can be wrong with the logs is found before anything runs.
        outputs = [
            self._outputs.enter_context(
                WorkerOutput(self._printer, worker.name, place, len(self._workers), self._log_dir)
            )
            for place, worker in enumerate(self._workers)
        ]
        for worker, output in zip(self._workers, outputs, strict=True):
            try:
                process = _Process(worker, output)
            except OSError as error:
                raise KzooError(
                    f"cannot start worker {worker.name} of {len(self._workers)}: {error.strerror}; "
                    "start fewer, or raise the limit (ulimit -a shows them)"
                ) from error
            self._running.append(process)
            for pipe, read in process.readers:
                self._selector.register(pipe, selectors.EVENT_READ, self._reader(read))

    def wait(self) -> None:
        """Returns when all processes have ended."""
        while self._running:
            self._handle_events()
            for process in [process for process in self._running if process.has_ended()]:
                self._bury(process)
            if self._seconds_left() == 0:
                self._deadline = None
                for process in self._running:
                    process.kill()

    def _handle_events(self) -> None:
        """Waits for output and signals; for signals alone while what is to be shown is not read."""
        seconds = self._seconds_left()
        if self._printer.is_full and not self._printer.may_drop:
            if select.select([self._signals], [], [], seconds)[0]:
                self._pass_signals_on(self._signals)
        else:
            for key, _ in self._selector.select(seconds):
                key.data(key.fileobj)
        if not self._is_silent:
            self._printer.check()

    def stop_silently(self) -> None:
        """Ends what is still running, with its grace, and prints nothing any more."""
        self._is_silent = True
        for process in self._running:
            process.output.silence()
        self._ask_to_stop(signal.SIGTERM)
        self._set_deadline()
        self.wait()

    def report(self) -> int:
        """Says on stderr which worker failed, and returns the exit status of all."""
        if self._failed is None:
            return 0
        status, name = self._failed.status, self._failed.name
        if status < 0:
            end = f"was killed by {signal.Signals(-status).name}"
            if -status == signal.SIGKILL and not self._requests:
                end += ", as the system does when memory runs out"
        else:
            end = f"ended with status {status}"
        said = self._failed.output.last_error
        print(
            ("stopped before all was saved: " if self._requests else "error: ")
            + f"worker {name} {end}"
            + (f"; its last words: {said}" if said else "")
            + (f"; all of them are in {self._failed.output.log}" if self._log_dir else ""),
            file=sys.stderr,
        )
        return 128 - status if status < 0 else status

    def _reader(self, read: Callable[[], int]) -> Callable[[object], None]:
        def read_until_the_end(pipe: object) -> None:
            if read() == 0:
                self._selector.unregister(pipe)

        return read_until_the_end

    def _bury(self, process: "_Process") -> None:
        self._running.remove(process)
        for pipe, _ in process.readers:
            with contextlib.suppress(KeyError):
                self._selector.unregister(pipe)
        process.close()
        if process.status and self._failed is None:
            self._failed = process
            self._ask_to_stop(signal.SIGTERM)
            self._set_deadline()

    def _pass_signals_on(self, pipe: int) -> None:
        for number in os.read(pipe, 1024):
            if number in _PASSED_ON:
                self._requests += 1
                if self._requests > 1:
                    # Not passed on: a second Ctrl-C ends a worker at once, before it has saved.
                    self._set_deadline()
                else:
                    self._ask_to_stop(_PASSED_ON[number])
                    self._printer.show(
                        f"{signal.Signals(number).name} is passed on to the workers, which save "
                        "after the step that they are in",
                        "stderr",
                    )

    def _ask_to_stop(self, number: int) -> None:
        # Who waits for a reader cannot save.
        self._printer.may_drop = True
        for process in self._running:
            process.send(number)

    def _set_deadline(self) -> None:
        if self._deadline is None:
            self._deadline = time.monotonic() + self._grace_seconds

    def _seconds_left(self) -> float | None:
        """Until what still runs is killed, or is looked at again; None if it is waited for."""
        if self._deadline is None:
            return None
        return min(max(0.0, self._deadline - time.monotonic()), _LONGEST_WAIT_SECONDS)


class _Process:
    """One running worker, the leader of a process group of its own.

    Of its own, so that Ctrl-C in a terminal reaches it once, from us, and not twice.
    """

    def __init__(self, worker: Worker, output: WorkerOutput):
        self.name = worker.name
        self.output = output
        self._process = subprocess.Popen(
            worker.command,
            env=worker.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
            preexec_fn=_end_with_parent(),
        )
        # Its pipes, each with what copies what is in it.
        self.readers = []
        for pipe, stream in ((self._process.stdout, "stdout"), (self._process.stderr, "stderr")):
            os.set_blocking(pipe.fileno(), False)
            self.readers.append((pipe, self.output.reader(pipe.fileno(), stream)))

    @property
    def status(self) -> int | None:
        """Of the ended process: its exit status, or -n if it died of signal n."""
        return self._process.returncode

    def send(self, number: int) -> None:
        self._process.send_signal(number)

    def kill(self) -> None:
        """Kills the worker and all processes that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def has_ended(self) -> bool:
        """Whether it has; it keeps its number until `close`."""
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        return os.waitid(os.P_PID, self._process.pid, flags) is not None

    def close(self) -> None:
        """Takes leave of an ended process: what it has started ends, what it said is copied."""
        self.kill()
        self._process.wait()
        for pipe, read in self.readers:
            while read() > 0:
                pass
            pipe.close()
        self.output.finish()


def _end_with_parent() -> Callable[[], None] | None:
    """What a new process calls so that it is killed when this one dies; None where none can."""
    if sys.platform != "linux":
        return None
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    parent = os.getpid()

    def in_the_child() -> None:
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # It has died before the request.
            os._exit(1)

    return in_the_child


@contextlib.contextmanager
def _signals() -> Iterator[int]:
    """Turns signals into something to select on.

    Yields:
        A pipe's descriptor, on which the number of each signal arrives as a byte: those that are
        passed on, and SIGCHLD.
    """
    reader, writer = os.pipe()
    for descriptor in (reader, writer):
        os.set_blocking(descriptor, False)
    before = {}
    for number in (*_PASSED_ON, signal.SIGCHLD):
        # `nohup` has SIGHUP ignored, and that is how it should stay.
        if not (number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN):
            before[number] = signal.signal(number, lambda *_: None)
    wakeup = signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    try:
        yield reader
    finally:
        signal.set_wakeup_fd(wakeup)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)
