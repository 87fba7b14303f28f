"""Being asked to stop."""

import contextlib
import signal
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def asked_to_stop() -> Iterator[list[str]]:
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
