"""Lock files: two processes that wrote into one folder would destroy each other's work."""

import contextlib
import errno
import fcntl
import os
import socket
import sys
from collections.abc import Iterator

from kzoo.errors import KzooError


def take(path: str, busy: str) -> int:
    """Locks a file for this process, until the descriptor is closed or the process ends.

    A record lock: the kernel drops it with the process, and worker processes that outlive a
    killed parent do not inherit it (as they would the lock of `flock`). A file system without
    locks is used without.

    Args:
        path: of the lock file, which is made if need be; it says whose it is.
        busy: what to say before the owner if another process has it.

    Returns:
        The descriptor that holds the lock.

    Raises:
        KzooError: if another process has it.
        OSError: if the lock file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            owner = os.read(descriptor, 200).decode(errors="replace")
            os.close(descriptor)
            raise KzooError(
                f"{busy} ({owner or 'unknown process'}); wait for it, stop it, or choose another"
                " folder"
            ) from None
    with contextlib.suppress(OSError):  # A full disk keeps the name of the owner out, not the lock.
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
    return descriptor


@contextlib.contextmanager
def waiting(path: str, busy: str) -> Iterator[None]:
    """Makes this process the only one in the block, after waiting for others to leave it.

    Args:
        path: of the lock file, which is made if need be, and stays.
        busy: what to say on stderr if another process is in it.

    Raises:
        OSError: if the lock file cannot be opened.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        with contextlib.suppress(OSError):  # A file system without locks is used without.
            try:
                fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    raise
                print(f"{busy}: waiting for it", file=sys.stderr, flush=True)
                fcntl.lockf(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def sole_maker(output: str) -> Iterator[None]:
    """Makes this process the only one that makes a folder, by `OUTPUT.lock` beside it.

    Whether the folder is there is to be looked at inside: another process may just have made it.

    Args:
        output: the folder, which need not be there.

    Raises:
        KzooError: if another process is making it.
        OSError: if nothing can be written beside it.
    """
    path = output + ".lock"
    os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
    busy = f"{output} is being made by another process"
    descriptor = take(path, busy)
    while not _is_at(path, descriptor):
        # Its last owner has removed it between our opening and our locking it.
        os.close(descriptor)
        descriptor = take(path, busy)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.remove(path)
        os.close(descriptor)


def _is_at(path: str, descriptor: int) -> bool:
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except FileNotFoundError:
        return False
