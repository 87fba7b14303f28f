"""Files that are local or remote, whichever their path says."""

import os
import stat as modes
from typing import BinaryIO

from kzoo.errors import KzooError
from kzoo.storage import remote
from kzoo.storage.paths import is_remote


def open_stored(path: str) -> BinaryIO:
    """Opens a file for reading bytes; what fails is an `OSError`."""
    return remote.open_binary(path) if is_remote(path) else open(path, "rb")


def open_binary(path: str) -> BinaryIO:
    """Opens a file for reading bytes.

    Raises:
        KzooError: it cannot be read.
    """
    try:
        return open_stored(path)
    except OSError as error:
        raise KzooError(f"cannot read {path}: {error.strerror}") from error


def stat(path: str) -> remote.Stat:
    """The size of a file as it is stored, and when it was changed.

    Raises:
        KzooError: it cannot be read, or is a pipe or a device, which would be waited for.
    """
    try:
        if is_remote(path):
            return remote.stat(path)
        found = os.stat(path)
    except OSError as error:
        raise KzooError(f"cannot read {path}: {error.strerror}") from error
    if not modes.S_ISREG(found.st_mode):
        raise KzooError(
            f"cannot read {path}: it is a pipe or a device, and text is read more than once; write"
            " what it gives to a file"
        )
    return remote.Stat(found.st_size, found.st_mtime_ns)


def exists(path: str) -> bool:
    """Whether there is a file or a folder.

    Raises:
        KzooError: the storage cannot be asked.
    """
    try:
        return remote.exists(path) if is_remote(path) else _local_mode(path) is not None
    except OSError as error:
        raise KzooError(f"cannot read {path}: {error.strerror}") from error


def is_folder(path: str) -> bool:
    """Whether there is a folder.

    Raises:
        KzooError: the storage cannot be asked.
    """
    try:
        return remote.is_folder(path) if is_remote(path) else modes.S_ISDIR(_local_mode(path) or 0)
    except OSError as error:
        raise KzooError(f"cannot read {path}: {error.strerror}") from error


def names(folder: str) -> list[str]:
    """What is in a folder, sorted; nothing if it is not there.

    Raises:
        KzooError: it cannot be read, or is no folder.
    """
    try:
        return remote.names(folder) if is_remote(folder) else sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise KzooError(f"cannot read {folder}: {error.strerror}") from error


def _local_mode(path: str) -> int | None:
    """The mode of a local file or folder, or None.

    `os.path.exists` takes what it could not ask about, as on a network disk that is away, for what
    is not there; and then something else is written, or removed.
    """
    try:
        return os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return None
