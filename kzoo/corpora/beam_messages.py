"""What Apache Beam logs: kept for the case that it is needed, or shown."""

import collections
import contextlib
import logging
import sys
from collections.abc import Iterator, Sequence

_KEPT = 100


class _Keeping(logging.Handler):
    def __init__(self, messages: collections.deque):
        super().__init__(logging.WARNING)
        self._messages = messages

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(self.format(record))


@contextlib.contextmanager
def unheard() -> Iterator[None]:
    """Lets nothing be heard of what Beam's import finds missing, such as Google's clients."""
    root = logging.getLogger()
    # Else the first message would give it a handler that prints the names of modules.
    logging.basicConfig(format="%(message)s")
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        yield
    finally:
        root.setLevel(before)


@contextlib.contextmanager
def kept() -> Iterator[Sequence[str]]:
    """Keeps the last warnings and errors to itself: a worker's traceback is no user's business."""
    messages: collections.deque = collections.deque(maxlen=_KEPT)
    with _handled(_Keeping(messages), logging.WARNING):
        yield messages


@contextlib.contextmanager
def shown() -> Iterator[Sequence[str]]:
    """Shows what a cluster's runner says: the job's name, where to look at it, its state."""
    with _handled(logging.StreamHandler(sys.stderr), logging.INFO):
        yield ()


@contextlib.contextmanager
def _handled(handler: logging.Handler, level: int) -> Iterator[None]:
    logger = logging.getLogger("apache_beam")
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(level)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
