"""How much memory this process may still take."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_MEMORY_INFO = Path("/proc/meminfo")
_GROUPS = Path("/proc/self/cgroup")
_MOUNT = Path("/sys/fs/cgroup")


class _Files(NamedTuple):
    """Where a version of control groups says what a group may take, and what it has taken."""

    limit: str
    used: str
    # Of what was read from files lately, which is given up first; of the group and those below it.
    cached: tuple[str, str]


_VERSION_1 = _Files(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_active_file", "total_inactive_file"),
)
_VERSION_2 = _Files("memory.max", "memory.current", ("active_file", "inactive_file"))


def available_memory_bytes() -> float:
    """Memory that is free or can be freed, on this machine and in this container.

    Returns:
        Bytes; 0 where the system does not say.
    """
    try:
        lines = _MEMORY_INFO.read_text().splitlines()
    except OSError:
        return 0
    entries = dict(line.split(":", 1) for line in lines)
    machine = int(entries.get("MemAvailable", "0 kB").split()[0]) * 1024
    return min([machine, *(_left_in_group(*group) for group in _groups())])


def _groups() -> Iterator[tuple[Path, _Files]]:
    """The groups whose limits hold here: that of this process, and all above it."""
    try:
        lines = _GROUPS.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, files = _MOUNT, _VERSION_2
        elif "memory" in controllers.split(","):
            mount, files = _MOUNT / "memory", _VERSION_1
        else:
            continue
        # In a container the path may be the machine's, of which only the mount is seen.
        below = Path(path.lstrip("/"))
        for group in (below, *below.parents):
            yield mount / group, files


def _left_in_group(folder: Path, files: _Files) -> float:
    try:
        limit = (folder / files.limit).read_text().strip()
        used = int((folder / files.used).read_text())
        statistics = dict(line.split() for line in (folder / "memory.stat").open())
        used -= sum(int(statistics.get(key, 0)) for key in files.cached)
        return math.inf if limit == "max" else int(limit) - used
    except (OSError, ValueError):
        return math.inf
