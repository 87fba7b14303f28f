"""What tells the workers of a run of each other: addresses, free ports, shares of the GPUs."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
from collections.abc import Mapping, Sequence

from kzoo.errors import KzooError

_LOOPBACK = "127.0.0.1"
_HIGHEST_PORT = 65535
# A driver that is asked for the first time may have to start.
_DRIVER_SECONDS = 60


def reserve_ports(count: int) -> list[socket.socket]:
    """Takes free ports of this machine, for servers that share them (`SO_REUSEPORT`).

    As long as a socket is open, nobody else gets its port: neither a program that asks for any
    free one, nor another user. It does not listen, so that connections go to the server.

    Args:
        count: how many.

    Returns:
        The sockets; `local_addresses` tells their ports. Close them when the servers have ended.

    Raises:
        KzooError: the system has not so many to give.
    """
    with contextlib.ExitStack() as stack:
        sockets = []
        for _ in range(count):
            try:
                reserved = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                stack.enter_context(reserved)
                reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
                reserved.bind(("", 0))
            except OSError as error:
                raise KzooError(
                    f"cannot reserve ports for {count} workers: {error.strerror}; start fewer, or "
                    "raise the limit (ulimit -n)"
                ) from error
            sockets.append(reserved)
        stack.pop_all()
        return sockets


def local_addresses(sockets: Sequence[socket.socket]) -> list[str]:
    """The `host:port` of each reserved port, as this machine reaches it."""
    return [f"{_LOOPBACK}:{reserved.getsockname()[1]}" for reserved in sockets]


def check_addresses(addresses: Sequence[str]) -> None:
    """Raises `KzooError` unless all are `host:port` and no two are the same."""
    for address in addresses:
        host, _, port = address.rpartition(":") if isinstance(address, str) else ("", "", "")
        if not (host and port.isdecimal() and 0 < int(port) <= _HIGHEST_PORT):
            raise KzooError(f"expected host:port of a worker; received {address!r}")
    repeated = sorted({address for address in addresses if addresses.count(address) > 1})
    if repeated:
        raise KzooError(f"two workers cannot have the same address: {', '.join(repeated)}")


def worker_environment(
    addresses: Sequence[str],
    index: int,
    *,
    gpus: Sequence[str] | None = None,
    shares_port: bool = False,
) -> dict[str, str]:
    """The environment of one worker: this process's own, and its place among the others.

    Args:
        addresses: `host:port` of every worker; the first one is the chief.
        index: which of them this one is.
        gpus: what it sees of the GPUs, as `visible_gpus` names them; None leaves that alone.
        shares_port: whether its port is one of `reserve_ports`.
    """
    task = {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": index}}
    hosts = {address.rpartition(":")[0] for address in addresses}
    # Lines are to be seen when they are printed, though the output is no terminal. And workers
    # talk to each other directly, where a proxy is for the rest of the world.
    environment = {
        "PYTHONUNBUFFERED": "1",
        "no_grpc_proxy": ",".join(sorted(hosts)),
        **os.environ,
        "TF_CONFIG": json.dumps(task),
    }
    if gpus is not None:
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    if shares_port:
        environment["TF_GRPC_REUSE_PORT"] = "true"
    return environment


def visible_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The GPUs that a program here would see, as `CUDA_VISIBLE_DEVICES` names them.

    Raises:
        KzooError: the driver does not say which there are.
    """
    chosen = environment.get("CUDA_VISIBLE_DEVICES")
    if chosen is None:
        return [str(index) for index in range(_count_gpus())]
    names = [name.strip() for name in chosen.split(",")]
    # CUDA takes what stands before the first that is none.
    end = next((place for place, name in enumerate(names) if name in ("", "-1")), len(names))
    return names[:end]


def _count_gpus() -> int:
    """The GPUs that the driver lists; TensorFlow takes five seconds to say the same."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return 0
    try:
        listed = subprocess.run(
            [program, "--list-gpus"],
            capture_output=True,
            text=True,
            timeout=_DRIVER_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KzooError(
            f"{program} does not tell which GPUs there are ({error}); set CUDA_VISIBLE_DEVICES to "
            "those to train on, or to nothing to train on the CPU"
        ) from error
    return sum(line.startswith("GPU ") for line in listed.stdout.splitlines())


def share_gpus(
    gpus: Sequence[str], workers: int, per_worker: int | None = None
) -> list[list[str]] | None:
    """Which GPUs each worker of this machine gets.

    Args:
        gpus: those that are there.
        workers: how many workers share them.
        per_worker: how many each gets; None for as many as there are for each.

    Returns:
        The GPUs of each worker; None on a machine without any, where workers share the CPU.

    Raises:
        KzooError: there are fewer GPUs than that.
    """
    if per_worker is None:
        if not gpus:
            return None
        per_worker = max(1, len(gpus) // workers)
    if workers * per_worker > len(gpus):
        there = f"{len(gpus)} ({', '.join(gpus)})" if gpus else "none"
        raise KzooError(
            f"{workers} workers with {per_worker} GPUs each need {workers * per_worker} GPUs, and "
            f"{there} can be seen here; ask for fewer, or set CUDA_VISIBLE_DEVICES= to train on "
            "the CPU"
        )
    return [list(gpus[index * per_worker : (index + 1) * per_worker]) for index in range(workers)]
