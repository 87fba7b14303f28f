"""How many texts are done: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from typing import TextIO

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 30.0


class PredictionProgress:
    """Counts the texts that are done.

    Example:
        with PredictionProgress(total=100_000) as progress:
            for result in predict(client, signature, texts):
                …
                progress.done()
    """

    def __init__(self, total: int | None, bar: bool, stream: TextIO | None = None) -> None:
        """
        Args:
            total: the number of texts, if it is known.
            bar: whether a bar is shown if `stream` is a terminal: not where results appear on the
                same one.
            stream: where to show it; default `sys.stderr`.
        """
        self._total = total
        self._stream = sys.stderr if stream is None else stream
        self._on_terminal = self._stream.isatty()
        self._show_bar = bar and self._on_terminal
        self._bar: tqdm | None = None
        self._done = 0

    def __enter__(self) -> "PredictionProgress":
        self._started = self._last_line = time.monotonic()
        if self._show_bar:
            self._bar = tqdm(
                total=self._total, unit=" texts", file=self._stream, dynamic_ncols=True
            )
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def done(self) -> None:
        """Counts a text."""
        self._done += 1
        if self._bar is not None:
            self._bar.update()
        elif not self._on_terminal:
            self._print_now_and_then()

    def _print_now_and_then(self) -> None:
        now = time.monotonic()
        if now - self._last_line < _SECONDS_BETWEEN_LINES:
            return
        self._last_line = now
        of = "" if self._total is None else f" of {self._total:,}"
        speed = self._done / (now - self._started)
        print(
            f"predict: {self._done:,}{of} texts, {speed:,.0f} texts/s",
            file=self._stream,
            flush=True,
        )
