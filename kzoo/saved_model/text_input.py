"""Texts to predict on: one a line of a file or of standard input."""

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import BinaryIO

from kzoo.errors import KzooError
from kzoo.storage.files import open_stored

STDIN = "-"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def read_texts(path: str) -> Iterator[str]:
    """Reads one text a line, as UTF-8; only LF and CRLF end lines, an empty line is a text too.

    Args:
        path: a file, here or on object storage, or "-" for standard input.

    Raises:
        KzooError: if the file cannot be read, or a line is not UTF-8.
    """
    name = "standard input" if path == STDIN else path
    with _opened(path) as file:
        for number, line in enumerate(file, 1):
            if number == 1:
                line = line.removeprefix(_BYTE_ORDER_MARK)
            if line.endswith(b"\n"):
                line = line[:-1].removesuffix(b"\r")
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                raise KzooError(
                    f"{name}, line {number}: byte {error.start + 1} of the line "
                    f"(0x{line[error.start]:02x}) is not UTF-8; convert the file, for example with "
                    "`iconv -t UTF-8`"
                ) from None


def count_lines(path: str) -> int | None:
    """How many texts `read_texts` will read; None where that is known only at the end.

    Raises:
        KzooError: if the file cannot be read.
    """
    if path == STDIN or not os.path.isfile(path):
        return None
    with _opened(path) as file:
        return sum(1 for _ in file)


@contextlib.contextmanager
def _opened(path: str) -> Iterator[BinaryIO]:
    if path == STDIN:
        yield sys.stdin.buffer
        return
    try:
        with open_stored(path) as file:
            yield file
    except OSError as error:
        raise KzooError(f"{path}: cannot be read: {error.strerror}") from error
