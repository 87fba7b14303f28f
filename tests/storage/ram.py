"""Object storage that every process has for itself: TensorFlow's `ram://`."""

import itertools
import os
from collections.abc import Mapping

import pytest
import tensorflow as tf
from tensorflow.python.lib.io import file_io

from kzoo.storage import remote

_NUMBERS = itertools.count()


def new_folder() -> str:
    """A URL below which nothing is."""
    return f"ram://bucket/{next(_NUMBERS)}-test/folder"


def write(folder: str, files: Mapping[str, bytes]) -> None:
    """Writes files below a folder, by their paths in it."""
    for name, content in files.items():
        remote.write_bytes(os.path.join(folder, name), content)


def read(folder: str) -> dict[str, bytes]:
    """All files below a folder, by their paths in it."""
    return {name: remote.read_bytes(f"{folder}/{name}") for name in remote.list_files(folder)}


def cut_off(monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """Lets every look at paths with `part` in them fail, as where a network is away."""
    for name in ("IsDirectory", "FileExists", "Stat", "GetChildren"):
        ask = getattr(file_io._pywrap_file_io, name)

        def look(path, *rest, ask=ask):
            if part in os.fsdecode(path):
                raise tf.errors.UnavailableError(None, None, "the network is away")
            return ask(path, *rest)

        monkeypatch.setattr(file_io._pywrap_file_io, name, look)
