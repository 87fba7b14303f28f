"""Says what a run waits for, when it waits for long."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator

_LOG = logging.getLogger(__name__)


class Watchdog:
    """Warns when a stage of a run takes longer than expected, and again each time that doubles.

    It only speaks: whoever reads it knows whether a file server is slow or gone. Time is the
    monotonic clock's, which nobody sets.

    Example:
        with Watchdog(300) as watchdog:
            with watchdog.stage("the input: the next batch"):
                batch = next(batches)

    Args:
        seconds: how long a stage may take without a word; None never warns.
    """

    def __init__(self, seconds: float | None):
        self._seconds = seconds
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)
        # One reference, so that reading it needs no lock: what, since when.
        self._current: tuple[str, float] | None = None

    def __enter__(self) -> "Watchdog":
        if self._seconds is not None:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    @contextlib.contextmanager
    def stage(self, what: str) -> Iterator[None]:
        """Names what is waited for inside.

        Args:
            what: goes on from "waiting for 300 s already for".
        """
        self._current = (what, time.monotonic())
        try:
            yield
        finally:
            self._current = None

    def _watch(self) -> None:
        warned: tuple[str, float] | None = None
        limit = self._seconds
        while not self._ended.wait(min(1.0, self._seconds / 4)):
            current = self._current
            if current is not warned:
                limit = self._seconds
            if current is None or time.monotonic() - current[1] < limit:
                continue
            what, since = current
            _LOG.warning("waiting for %.0f s already for %s", time.monotonic() - since, what)
            warned, limit = current, 2 * limit
