"""Runs Python code in a process of its own: for kills, for settings that a process has once."""

import subprocess
import sys
from collections.abc import Sequence

from tests.paths import REPOSITORY

# A command prefix under which a process may mount file systems that nobody else sees.
NAMESPACE = ("unshare", "--map-root-user", "--mount")


def can_mount() -> bool:
    """Whether processes may do so here."""
    try:
        command = [*NAMESPACE, "mount", "-t", "tmpfs", "tmpfs", "/tmp"]
        return subprocess.run(command, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def run_python(
    code: str, *arguments: object, prefix: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs code that must succeed, after an optional command prefix; its output is text."""
    command = [*prefix, sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done
