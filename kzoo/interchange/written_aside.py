"""Folders that appear at once, when everything in them has been written."""

import contextlib
import os
import shutil
from collections.abc import Iterator

from kzoo.corpora.files import replace_folder


@contextlib.contextmanager
def written_aside(folder: str) -> Iterator[str]:
    """A folder beside `folder`, which takes its place when the block ends without an exception.

    Args:
        folder: where it goes; parents are made, and what is there is replaced.
    """
    os.makedirs(os.path.dirname(os.path.abspath(folder)), exist_ok=True)
    # Always the same name, so that what a killed process has left there is found and removed.
    parent, name = os.path.split(folder)
    aside = os.path.join(parent, f".{name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    os.mkdir(aside)
    try:
        yield aside
        replace_folder(folder, aside)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
