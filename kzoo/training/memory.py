"""How much memory this process may still take."""

import math
from pathlib import Path

_MEMORY_INFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


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
    return min(machine, _left_in_container())


def _left_in_container() -> float:
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        # What was read from files lately is given up first.
        statistics = dict(line.split() for line in (_CGROUP / "memory.stat").open())
        used -= sum(int(statistics.get(key, 0)) for key in ("active_file", "inactive_file"))
    except (OSError, ValueError):
        return math.inf
    return math.inf if limit == "max" else int(limit) - used
