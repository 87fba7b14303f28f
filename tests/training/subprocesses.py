"""Runs Python code in a process of its own: for kills, for settings that a process has once."""

import subprocess
import sys
from collections.abc import Sequence


def run_python(
    code: str, *arguments: object, prefix: Sequence[str] = ()
) -> subprocess.CompletedProcess[str]:
    """Runs code that must succeed, after an optional command prefix; its output is text."""
    command = [*prefix, sys.executable, "-c", code, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done
