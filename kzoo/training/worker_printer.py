"""Lines to our own stdout and stderr, whose reader may pause without holding up anything else."""

import collections
import errno
import os
import signal
import sys
import threading

# Beyond this, workers wait for the reader.
_FULL_BYTES = 1 << 20


class WorkerPrinter:
    """Writes from threads: one for each stream, or one for both where both go to one place.

    When there is something to look at, room again or an error, SIGCHLD is raised, which whoever
    waits for processes listens to.

    Attributes:
        may_drop: whether lines are left out, and counted, while nobody reads them.
    """

    def __init__(self):
        self.may_drop = False
        stdout = _Stream("stdout")
        is_one = os.path.samestat(os.fstat(sys.stdout.fileno()), os.fstat(sys.stderr.fileno()))
        self._streams = {"stdout": stdout, "stderr": stdout if is_one else _Stream("stderr")}

    @property
    def is_full(self) -> bool:
        """Whether so much waits to be read that no more should come."""
        return any(stream.pending_bytes > _FULL_BYTES for stream in self._streams.values())

    def show(self, line: str, stream: str) -> None:
        """Writes a line to "stdout" or "stderr", some time."""
        target = self._streams[stream]
        if self.may_drop and target.pending_bytes > _FULL_BYTES:
            target.dropped += 1
        else:
            target.add(line, getattr(sys, stream))

    def check(self) -> None:
        """Raises what writing has failed with, such as the `BrokenPipeError` of a reader gone."""
        for stream in self._streams.values():
            if stream.error is not None:
                raise stream.error

    def close(self) -> None:
        """Returns when all is written. What cannot be written is left."""
        for stream in set(self._streams.values()):
            if stream.dropped:
                stream.add(f"{stream.dropped:,} lines were left out: nobody read them", sys.stderr)
            stream.close()


class _Stream:
    """What waits to be written to one place, and the thread that writes it."""

    def __init__(self, name: str):
        self.error: OSError | None = None
        self.pending_bytes = 0
        self.dropped = 0
        self._lines: collections.deque[tuple[bytes, int]] = collections.deque()
        self._changed = threading.Condition()
        self._is_closing = False
        # A daemon: if its reader never reads on, a second Ctrl-C ends the program all the same.
        self._thread = threading.Thread(target=self._run, name=f"print {name}", daemon=True)
        self._thread.start()

    def add(self, line: str, target) -> None:
        target.flush()
        data = f"{line}\n".encode(target.encoding or "utf-8", errors="replace")
        with self._changed:
            self._lines.append((data, target.fileno()))
            self.pending_bytes += len(data)
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify()
        self._thread.join()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._lines or self._is_closing)
                if not self._lines:
                    return
                data, descriptor = self._lines.popleft()
            self._write(data, descriptor)
            with self._changed:
                was_full = self.pending_bytes > _FULL_BYTES
                self.pending_bytes -= len(data)
                has_room_again = was_full and self.pending_bytes <= _FULL_BYTES
            if has_room_again:
                signal.raise_signal(signal.SIGCHLD)

    def _write(self, data: bytes, descriptor: int) -> None:
        """Writes with no lock of Python's streams, which a paused reader would keep locked."""
        try:
            while data and self.error is None:
                data = data[os.write(descriptor, data) :]
        except OSError as error:
            if error.errno == errno.EIO:  # The terminal has been closed.
                return
            self.error = error
            signal.raise_signal(signal.SIGCHLD)
