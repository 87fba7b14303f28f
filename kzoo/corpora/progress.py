"""How far the reading of files is: a bar on a terminal, a line now and then elsewhere."""

import sys
import time
from typing import TextIO

from tqdm import tqdm

_SECONDS_BETWEEN_LINES = 30.0


class ReadingProgress:
    """Shows the share of the files that has been read, with documents and megabytes a second.

    Example:
        with ReadingProgress("prepare", total_bytes=26_000_000) as progress:
            for document in read_documents(path, on_read=progress.read):
                progress.done(documents=1)
    """

    def __init__(self, name: str, total_bytes: int, stream: TextIO | None = None) -> None:
        """
        Args:
            name: what stands before the bar.
            total_bytes: of all files, as they are stored.
            stream: where to show it; default `sys.stderr`.
        """
        self._name = name
        self._total_bytes = total_bytes
        self._stream = sys.stderr if stream is None else stream
        self._read_bytes = self._documents = self._text_bytes = 0
        self._bar: tqdm | None = None

    def __enter__(self) -> "ReadingProgress":
        self._started = self._last_line = time.monotonic()
        if self._stream.isatty():
            self._bar = tqdm(
                total=self._total_bytes,
                desc=self._name,
                file=self._stream,
                dynamic_ncols=True,
                bar_format="{desc} {percentage:3.0f}% |{bar}| {elapsed}<{remaining}{postfix}",
            )
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.close()

    def read(self, stored_bytes: int) -> None:
        """Counts bytes that have been read from a file."""
        self._read_bytes += stored_bytes
        if self._bar is not None:
            self._bar.update(stored_bytes)

    def say(self, text: str) -> None:
        """Shows what is being done after the reading."""
        if self._bar is not None:
            self._bar.set_postfix_str(text)
        else:
            self._print_now_and_then(text)

    def done(self, documents: int, text_bytes: int = 0) -> None:
        """Counts documents that are finished and, where it is known, the size of their text."""
        self._documents += documents
        self._text_bytes += text_bytes
        if self._bar is not None:
            self._bar.set_postfix_str(self._speed(), refresh=False)
        else:
            share = self._read_bytes / max(1, self._total_bytes)
            self._print_now_and_then(f"{share:.0%}, {self._speed()}")

    def _print_now_and_then(self, text: str) -> None:
        now = time.monotonic()
        if now - self._last_line >= _SECONDS_BETWEEN_LINES:
            self._last_line = now
            print(f"{self._name}: {text}", file=self._stream, flush=True)

    def _speed(self) -> str:
        seconds = max(1e-3, time.monotonic() - self._started)
        speed = f"{self._documents:,} documents, {self._documents / seconds:,.0f} documents/s"
        megabytes = f", {self._text_bytes / seconds / 1e6:,.1f} MB/s" if self._text_bytes else ""
        return speed + megabytes
