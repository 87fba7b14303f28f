"""How far a run is: one line that renews itself on a terminal, a line now and then elsewhere."""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, TextIO

from tqdm import tqdm


class Progress:
    """Shows step, loss, accuracy, speed and time left.

    On a terminal, whatever else the process prints or logs between `__enter__` and `__exit__`
    appears above the progress line, by whichever stream or handler it goes.

    Example:
        with Progress(total_steps=1000) as progress:
            for step in range(1, 1001):
                …
                progress.update(step, loss=5.9, accuracy=0.12, tokens_per_second=12000)
    """

    def __init__(
        self,
        total_steps: int,
        *,
        first_step: int = 0,
        line_interval: int = 100,
        stream: TextIO | None = None,
    ) -> None:
        """
        Args:
            total_steps: the step at which the run ends.
            first_step: the steps done before, as in a resumed run.
            line_interval: where the stream is not a terminal, how many steps lie between lines.
            stream: where to show it; default `sys.stderr`.
        """
        self._total_steps = total_steps
        self._first_step = first_step
        self._line_interval = line_interval
        self._stream = sys.stderr if stream is None else stream
        self._printed_step = first_step
        self._started = time.monotonic()
        self._bar: tqdm | None = None
        self._cleanup = contextlib.ExitStack()

    def __enter__(self) -> "Progress":
        self._started = time.monotonic()
        if self._stream.isatty():
            # Some terminals, of containers for example, say that they have no columns.
            has_width = os.get_terminal_size(self._stream.fileno()).columns > 0
            self._bar = self._cleanup.enter_context(
                tqdm(
                    total=self._total_steps,
                    initial=self._first_step,
                    file=self._stream,
                    dynamic_ncols=has_width,
                    ncols=None if has_width else 100,
                    bar_format="step {n:,}/{total:,} |{bar}| {desc}",
                )
            )
            self._cleanup.enter_context(_output_above(self._bar))
        return self

    def __exit__(self, *error: object) -> None:
        self._cleanup.close()
        self._bar = None

    def update(self, step: int, *, loss: float, accuracy: float, tokens_per_second: float) -> None:
        """Shows the state after a step.

        Args:
            step: the steps done, those before this run included.
            loss: in nats a target.
            accuracy: between 0 and 1.
            tokens_per_second: over whatever time the caller measures.
        """
        text = (
            f"loss {loss:.4f}, accuracy {accuracy:.1%}, {tokens_per_second:,.0f} tokens/s, "
            f"{self._time_left(step)} left"
        )
        if self._bar is not None:
            self._bar.set_description_str(text, refresh=False)
            self._bar.update(step - self._bar.n)
        elif self._is_due(step):
            self._printed_step = step
            print(f"step {step:,}/{self._total_steps:,}: {text}", file=self._stream, flush=True)

    def _is_due(self, step: int) -> bool:
        """Whether a multiple of the interval, or the end, was reached since the last line."""
        intervals = step // self._line_interval - self._printed_step // self._line_interval
        return intervals > 0 or (step == self._total_steps != self._printed_step)

    def _time_left(self, step: int) -> str:
        """Hours, minutes and seconds at the average speed since the start."""
        done = step - self._first_step
        if done <= 0:
            return "?"
        seconds = (time.monotonic() - self._started) / done * (self._total_steps - step)
        return tqdm.format_interval(seconds)


class _AboveTheBar:
    """A terminal's stream, whose lines appear above a bar on the same terminal."""

    def __init__(self, stream: TextIO, bar: tqdm) -> None:
        self._stream = stream
        self._bar = bar
        self._unfinished = ""

    def write(self, text: str) -> int:
        lines, newline, self._unfinished = (self._unfinished + text).rpartition("\n")
        if newline:
            with self._bar.get_lock():
                self._bar.clear(nolock=True)
                self._stream.write(lines + newline)
                self._stream.flush()
                self._bar.refresh(nolock=True)
        return len(text)

    def finish(self) -> None:
        """Ends a line that was begun."""
        if self._unfinished:
            self.write("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _output_above(bar: tqdm) -> Iterator[None]:
    """Sends what the process writes to the terminal by way of `_AboveTheBar`."""
    replacements = {
        stream: _AboveTheBar(stream, bar) for stream in (sys.stdout, sys.stderr) if stream.isatty()
    }
    with contextlib.ExitStack() as stack:
        for stream, replacement in replacements.items():
            stack.callback(replacement.finish)
            redirect = (
                contextlib.redirect_stdout if stream is sys.stdout else contextlib.redirect_stderr
            )
            stack.enter_context(redirect(replacement))
        for handler in _stream_handlers():
            if handler.stream in replacements:
                stack.callback(handler.setStream, handler.stream)
                handler.setStream(replacements[handler.stream])
        yield


def _stream_handlers() -> Iterator[logging.StreamHandler]:
    """The handlers that hold a stream of their own, and so would not see `sys.stderr` change."""
    for logger in (logging.root, *logging.root.manager.loggerDict.values()):
        for handler in getattr(logger, "handlers", ()):
            # The handler of absl, which TensorFlow uses, wraps the one that writes.
            handler = getattr(handler, "python_handler", handler)
            if isinstance(handler, logging.StreamHandler):
                yield handler
