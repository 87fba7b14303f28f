"""Starts several workers on this machine, each with its `TF_CONFIG`."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from tests.paths import REPOSITORY


def start_workers(*commands: Sequence[str]) -> list[subprocess.Popen]:
    """Starts `python COMMAND` for each worker, from 0 on; their output is text.

    One alone has no `TF_CONFIG`.
    """
    with contextlib.ExitStack() as stack:
        addresses = [f"localhost:{stack.enter_context(_free_port())}" for _ in commands]
    return [
        subprocess.Popen(
            [sys.executable, *command],
            cwd=REPOSITORY,
            env={**os.environ, **_tf_config(addresses, index)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for index, command in enumerate(commands)
    ]


def wait_for_all(
    workers: Sequence[subprocess.Popen], timeout_seconds: float = 300
) -> list[tuple[int, str, str]]:
    """Status, output and errors of each worker; none outlives this call."""
    # All at once: one whose output nobody reads would stop, and the others with it.
    try:
        with ThreadPoolExecutor(len(workers)) as pool:
            outputs = list(
                pool.map(lambda worker: worker.communicate(timeout=timeout_seconds), workers)
            )
    finally:
        for worker in workers:
            worker.kill()
    return [(worker.returncode, *output) for worker, output in zip(workers, outputs, strict=True)]


def _tf_config(addresses: list[str], index: int) -> dict[str, str]:
    if len(addresses) == 1:
        return {}
    content = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
    return {"TF_CONFIG": json.dumps(content)}


@contextlib.contextmanager
def _free_port() -> Iterator[int]:
    with socket.socket() as listener:
        listener.bind(("localhost", 0))
        yield listener.getsockname()[1]
