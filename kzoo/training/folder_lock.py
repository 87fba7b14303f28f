"""One run per folder: two processes that wrote into one would destroy each other's work."""

import os

from kzoo.storage import lock_file

# Descriptors of the locks that this process holds, until it ends, by the path of the lock file.
_HELD: dict[str, int] = {}


def claim(folder: str) -> None:
    """Takes the folder for this process until it ends, by whatever end.

    Args:
        folder: an existing local folder.

    Raises:
        KzooError: if another process has it.
        OSError: if the lock file cannot be written.
    """
    path = os.path.join(os.path.realpath(folder), ".lock")
    if path not in _HELD:
        _HELD[path] = lock_file.take(path, f"{folder} is in use by another run")
