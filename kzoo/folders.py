"""Folders that appear, or are replaced, as a whole."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from kzoo.errors import KzooError


@contextlib.contextmanager
def written_aside(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """A new folder beside `folder`, which takes its place if the block ends without an exception.

    Args:
        folder: where it goes; parents are made, and what is there is replaced.
    """
    folder = Path(os.path.abspath(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    restore_folder(folder)
    # Always the same name, so that what a killed process has left there is found and removed.
    aside = _hidden(folder, "partial")
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir()
    try:
        yield aside
        replace_folder(folder, aside)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def replace_folder(folder: str | os.PathLike[str], new: str | os.PathLike[str]) -> None:
    """Puts the folder `new` in the place of another, and removes what was there.

    What is there waits under a hidden name, from where `restore_folder` takes it back if the
    process dies before the new one is in its place.

    Args:
        folder: the place.
        new: a folder beside it.
    """
    restore_folder(folder)
    old = _hidden(folder, "old")
    _remove(old)
    if os.path.lexists(folder):
        os.rename(folder, old)
    try:
        os.rename(new, folder)
    except OSError:
        restore_folder(folder)
        raise
    _remove(old)


def check_room(folder: str | os.PathLike[str], needed_bytes: float, what: str) -> None:
    """Raises a KzooError if the disk has no room.

    Args:
        folder: where something is to be written; it need not be there yet.
        needed_bytes: how much.
        what: it is, for the message.
    """
    disk = Path(os.path.abspath(folder))
    while not disk.is_dir():
        disk = disk.parent
    free_bytes = shutil.disk_usage(disk).free
    if free_bytes < needed_bytes:
        raise KzooError(
            f"no room for {what} in {os.fspath(folder)}: it needs {needed_bytes / 1e6:,.1f} MB and "
            f"{free_bytes / 1e6:,.1f} MB are free. Free some space, or choose another --output"
        )


def restore_folder(folder: str | os.PathLike[str]) -> None:
    """Puts back what a process that died in `replace_folder` had taken out of its place."""
    old = _hidden(folder, "old")
    if os.path.lexists(old) and not os.path.lexists(folder):
        os.rename(old, folder)


def _hidden(folder: str | os.PathLike[str], suffix: str) -> Path:
    path = Path(os.path.abspath(folder))
    return path.with_name(f".{path.name}.{suffix}")


def _remove(path: Path) -> None:
    """Removes a folder, or the file or link that was in its place."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
