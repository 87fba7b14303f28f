"""Object storage by `tf.io.gfile`, with the errors that local files have.

TensorFlow is imported at the first use. What fails raises the `OSError` that fits, with
TensorFlow's own words as its `strerror`, so that code for local files reports both alike.
"""

import contextlib
import errno
import functools
import hashlib
import io
import os
import re
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from typing import Any, BinaryIO, NamedTuple, TypeVar

from kzoo.errors import KzooError

Item = TypeVar("Item")
Result = TypeVar("Result")

_BLOCK_BYTES = 8 << 20
_READ_AHEAD_BYTES = 1 << 20
# Requests at a time: each waits for the network most of its time.
_NUM_REQUESTS = 16


def _ignore(count: int) -> None:
    """Hears of the progress for those who do not want to know."""


class Stat(NamedTuple):
    """What is known of a remote file: its size, and when it was changed (0: nobody knows)."""

    size_bytes: int
    modified_ns: int


def reason(error: Exception) -> str:
    """What went wrong, without the names of TensorFlow's operations around it."""
    if hasattr(error, "message"):
        return " ".join(re.sub(r"\{\{.*?\}\} ?| ?\[Op:\w*\]", "", error.message).split())
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


@contextlib.contextmanager
def os_errors(path: str) -> Iterator[Any]:
    """Yields `tf.io.gfile`, and turns TensorFlow's errors inside into the fitting `OSError`.

    Args:
        path: what is read or written, for the error.

    Raises:
        KzooError: TensorFlow does not know the storage at all.
        OSError: what failed.
    """
    import tensorflow as tf

    check_scheme(path)
    numbers = {
        tf.errors.NotFoundError: errno.ENOENT,
        tf.errors.PermissionDeniedError: errno.EACCES,
        tf.errors.UnauthenticatedError: errno.EACCES,
        tf.errors.AlreadyExistsError: errno.EEXIST,
        tf.errors.ResourceExhaustedError: errno.ENOSPC,
    }
    try:
        yield tf.io.gfile
    except tf.errors.OpError as error:
        number = numbers.get(type(error), errno.EIO)
        # Which makes a FileNotFoundError or PermissionError of it, where it is one.
        raise OSError(number, reason(error) or os.strerror(number), path) from error


def check_scheme(path: str) -> None:
    """Refuses a URL whose scheme TensorFlow does not know here.

    Raises:
        KzooError: it is one; those that there are are named.
    """
    scheme = path.partition("://")[0]
    if scheme in _known_schemes():
        return
    there = ", ".join(f"{known}://" for known in _known_schemes())
    raise KzooError(
        f"{path}: TensorFlow here knows no storage {scheme}://, only {there}; mend the scheme, copy"
        " the files, or install a file system plug-in for this version of TensorFlow"
    )


@functools.cache
def _known_schemes() -> tuple[str, ...]:
    import tensorflow as tf

    return tuple(sorted(name for name in tf.io.gfile.get_registered_schemes() if name))


class _Reader(io.RawIOBase):
    """A remote file as Python's own streams are."""

    def __init__(self, path: str):
        self._path = path
        with os_errors(path) as gfile:
            self._file = gfile.GFile(path, "rb")
            # It is opened at the first look, which is to fail here.
            self._size = self._file.size()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def readinto(self, buffer) -> int:
        with os_errors(self._path):
            data = self._file.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self.tell(), os.SEEK_END: self._size}[whence]
        with os_errors(self._path):
            self._file.seek(start + offset)
        return start + offset

    def tell(self) -> int:
        with os_errors(self._path):
            return self._file.tell()

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


def open_binary(path: str) -> BinaryIO:
    """Opens a file for reading bytes."""
    return io.BufferedReader(_Reader(path), _READ_AHEAD_BYTES)


def read_bytes(path: str) -> bytes:
    """The content of a small file."""
    with open_binary(path) as stream:
        return stream.read()


def write_bytes(path: str, data: bytes) -> None:
    """Writes a small file, which is there whole when this returns.

    The folders above it are made, where the storage has any.
    """
    with os_errors(path) as gfile, _written_anew(gfile, path) as file:
        file.write(data)


@contextlib.contextmanager
def _written_anew(gfile: Any, path: str) -> Iterator[Any]:
    gfile.makedirs(os.path.dirname(path))
    if path.startswith("ram://") and gfile.exists(path):
        # It would go on behind what is there.
        gfile.remove(path)
    with gfile.GFile(path, "wb") as file:
        # It is made at the first write: an empty file needs one, too.
        file.write(b"")
        yield file


def exists(path: str) -> bool:
    """Whether there is a file or a folder."""
    with os_errors(path) as gfile:
        return gfile.exists(path) or _is_folder(gfile, path)


def is_folder(path: str) -> bool:
    """Whether there is a folder: something whose name goes on behind the path and a slash."""
    with os_errors(path) as gfile:
        return _is_folder(gfile, path)


def _is_folder(gfile: Any, path: str) -> bool:
    """What `isdir` says; which also says no when the storage could not be asked."""
    import tensorflow as tf

    if gfile.isdir(path):
        return True
    try:
        return gfile.stat(path).is_directory
    except tf.errors.NotFoundError:
        return False


def stat(path: str) -> Stat:
    """What is known of a file."""
    with os_errors(path) as gfile:
        found = gfile.stat(path)
        if found.is_directory:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), path)
        return Stat(found.length, max(0, found.mtime_nsec))


def names(folder: str) -> list[str]:
    """What is in a folder, sorted; folders without the slash that some storages put behind them."""
    return sorted(name.rstrip("/") for name in _children(folder))


def _children(folder: str) -> list[str]:
    """What is in a folder, as the storage names it.

    Where folders are nothing but beginnings of names, as in `ram://`, `data.partial` is taken for a
    `.partial` in `data`.
    """
    with os_errors(folder) as gfile:
        return [
            name
            for name in _listed(gfile, folder)
            if name.strip("/")
            and (not name.startswith(".") or gfile.exists(os.path.join(folder, name)))
        ]


def _listed(gfile: Any, folder: str) -> list[str]:
    """What `listdir` says; which takes what could not be asked about for what is not there."""
    import tensorflow as tf

    try:
        return gfile.listdir(folder)
    except tf.errors.NotFoundError:
        if not _is_folder(gfile, folder):
            raise
    try:
        return gfile.listdir(folder)
    except tf.errors.NotFoundError as error:
        message = "the folder is there and cannot be listed"
        raise tf.errors.UnavailableError(None, None, message) from error


def list_files(folder: str) -> dict[str, Stat]:
    """All files below a folder, by their paths in it; none if it is not there."""
    found: dict[str, Stat] = {}
    pending = [""]
    while pending:
        folders, pending = pending, []
        for below in folders:
            where = os.path.join(folder, below) if below else folder
            try:
                children = [os.path.join(below, child) for child in _children(where)]
            except FileNotFoundError:
                continue
            stats = at_once(lambda name: _stat_or_folder(os.path.join(folder, name)), children)
            for child, known in zip(children, stats, strict=True):
                if known is None:
                    pending.append(child.rstrip("/"))
                else:
                    found[child] = known
    return dict(sorted(found.items()))


def _stat_or_folder(path: str) -> Stat | None:
    """What is known of a file; None for a folder."""
    if path.endswith("/"):
        return None
    try:
        return stat(path)
    except IsADirectoryError:
        return None


def glob(pattern: str) -> list[str]:
    """What matches a pattern of `*`, `?` and `[…]`, none of which matches a slash."""
    try:
        with os_errors(pattern) as gfile:
            return sorted(gfile.glob(pattern))
    except FileNotFoundError:
        return []


def remove(path: str) -> None:
    """Removes a file, if it is there."""
    with contextlib.suppress(FileNotFoundError), os_errors(path) as gfile:
        gfile.remove(path)


def remove_folder(folder: str) -> None:
    """Removes a folder and all in it, if it is there."""
    at_once(lambda name: remove(os.path.join(folder, name)), list_files(folder))
    # Its own folders, where the storage has any.
    with contextlib.suppress(FileNotFoundError), os_errors(folder) as gfile:
        if _is_folder(gfile, folder):
            gfile.rmtree(folder)


def move(path: str, to: str) -> None:
    """Moves a file within its storage, in the place of what is there."""
    with os_errors(path) as gfile:
        gfile.makedirs(os.path.dirname(to))
        gfile.rename(path, to, overwrite=True)


def copy_from(path: str, local: str, on_read: Callable[[int], object] = _ignore) -> tuple[int, str]:
    """Copies a remote file to a local one.

    Args:
        path: the remote file.
        local: the local one, which is written in place.
        on_read: hears of bytes that have been copied.

    Returns:
        Its size in bytes and its sha256.

    Raises:
        OSError: by its `filename`, of the one or the other.
    """
    digest, size = hashlib.sha256(), 0
    with open_binary(path) as source, open(local, "wb") as target:
        while block := source.read(_BLOCK_BYTES):
            _write(target, block, local)
            digest.update(block)
            size += len(block)
            on_read(len(block))
        _write(target, b"", local)
    return size, digest.hexdigest()


def _write(stream: BinaryIO, block: bytes, path: str) -> None:
    try:
        stream.write(block)
        stream.flush()
    except OSError as error:
        raise OSError(error.errno, error.strerror, path) from error


def copy_to(local: str, path: str, on_read: Callable[[int], object] = _ignore) -> tuple[int, str]:
    """Copies a local file to a remote one; see `copy_from`.

    Raises:
        OSError: also if the storage has less of it afterwards than was written.
    """
    digest, size = hashlib.sha256(), 0
    with (
        open(local, "rb") as source,
        os_errors(path) as gfile,
        _written_anew(gfile, path) as target,
    ):
        while block := source.read(_BLOCK_BYTES):
            target.write(block)
            digest.update(block)
            size += len(block)
            on_read(len(block))
    there = stat(path).size_bytes
    if there != size:
        raise OSError(errno.EIO, f"{there} bytes have arrived instead of {size}", path)
    return size, digest.hexdigest()


def at_once(function: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """Applies a function that waits for the network to many things at a time, in their order."""
    items = list(items)
    if len(items) < 2:
        return [function(item) for item in items]
    executor = futures.ThreadPoolExecutor(min(_NUM_REQUESTS, len(items)))
    try:
        return list(executor.map(function, items))
    finally:
        # After a failure, what has not begun is left.
        executor.shutdown(cancel_futures=True)
