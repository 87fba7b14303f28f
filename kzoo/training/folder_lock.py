"""One run per folder: two processes that wrote into one would destroy each other's work."""

import errno
import fcntl
import os
import socket

from kzoo.errors import KzooError

# Descriptors of the locks that this process holds, until it ends, by the path of the lock file.
_HELD: dict[str, int] = {}


def claim(folder: str) -> None:
    """Takes the folder for this process until it ends, by whatever end.

    A record lock: the kernel drops it with the process, and worker processes that outlive a
    killed parent do not inherit it (as they would the lock of `flock`). A file system without
    locks is used without.

    Args:
        folder: an existing local folder.

    Raises:
        KzooError: if another process has it.
        OSError: if the lock file cannot be written.
    """
    path = os.path.join(os.path.realpath(folder), ".lock")
    if path in _HELD:
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EACCES, errno.EAGAIN):
            owner = os.read(descriptor, 200).decode(errors="replace")
            os.close(descriptor)
            raise KzooError(
                f"{folder} is in use by another run ({owner or 'unknown process'}); wait for it, "
                "stop it, or choose another folder"
            ) from None
    os.ftruncate(descriptor, 0)
    os.write(descriptor, f"process {os.getpid()} on {socket.gethostname()}".encode())
    _HELD[path] = descriptor
