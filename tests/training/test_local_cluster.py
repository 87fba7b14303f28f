"""Addresses, ports and GPUs of workers."""

import json
import os
import socket

import pytest

from kzoo import KzooError
from kzoo.training import local_cluster
from tests.training.subprocesses import run_python


def listen(port: int, *, shares_port: bool) -> socket.socket:
    server = socket.socket()
    if shares_port:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    server.bind(("", port))
    server.listen()
    return server


def test_a_reserved_port_is_kept_from_others_and_open_to_its_server():
    ports = local_cluster.reserve_ports(3)
    addresses = local_cluster.local_addresses(ports)
    assert len(set(addresses)) == 3
    local_cluster.check_addresses(addresses)
    host, port = addresses[0].split(":")
    with pytest.raises(OSError, match="in use"):
        listen(int(port), shares_port=False)
    with (
        listen(int(port), shares_port=True) as server,
        socket.create_connection((host, int(port)), timeout=5) as client,
    ):
        accepted, peer = server.accept()
        accepted.close()
        assert peer == client.getsockname()
    unused = int(addresses[1].split(":")[1])
    for reserved in ports:
        reserved.close()
    listen(unused, shares_port=False).close()


def test_a_worker_is_told_its_place_and_its_share(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("ANYTHING", "else")
    environment = local_cluster.worker_environment(["a:1", "b:2"], 1, gpus=["1"], shares_port=True)
    assert json.loads(environment["TF_CONFIG"]) == {
        "cluster": {"worker": ["a:1", "b:2"]},
        "task": {"type": "worker", "index": 1},
    }
    assert environment["CUDA_VISIBLE_DEVICES"] == "1"
    assert environment["ANYTHING"] == "else"
    assert environment["no_grpc_proxy"] == "a,b"
    left_alone = local_cluster.worker_environment(["a:1"], 0)
    assert left_alone["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "TF_GRPC_REUSE_PORT" not in left_alone


@pytest.mark.parametrize(
    ("chosen", "names"),
    [
        ("0,1", ["0", "1"]),
        ("3", ["3"]),
        ("", []),
        ("-1", []),
        ("1,-1,2", ["1"]),
        ("GPU-8", ["GPU-8"]),
    ],
)
def test_gpus_that_were_chosen_are_those_that_are_seen(chosen, names):
    assert local_cluster.visible_gpus({"CUDA_VISIBLE_DEVICES": chosen}) == names


def test_gpus_are_those_that_the_driver_lists(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert local_cluster.visible_gpus({}) == []
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\necho 'GPU 0: A (UUID: x)'\necho 'GPU 1: A (UUID: y)'\n")
    program.chmod(0o755)
    assert local_cluster.visible_gpus({}) == ["0", "1"]


def test_a_driver_that_does_not_answer_is_an_error(tmp_path, monkeypatch):
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexec sleep 100\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setattr(local_cluster, "_DRIVER_SECONDS", 0.1)
    with pytest.raises(KzooError, match=r"does not tell which GPUs there are .*CUDA_VISIBLE_DEV"):
        local_cluster.visible_gpus({})


def test_more_ports_than_the_system_gives_are_an_error_and_none_stays_taken():
    # In a process of its own, since limits are of a process.
    run_python(
        """
import os, resource
from kzoo import KzooError
from kzoo.training import local_cluster

_, most = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (50, most))
before = os.listdir("/proc/self/fd")
try:
    local_cluster.reserve_ports(400)
except KzooError as error:
    assert "cannot reserve ports for 400 workers: Too many open files" in str(error), error
else:
    raise AssertionError("not refused")
assert os.listdir("/proc/self/fd") == before
"""
    )


def test_gpus_are_shared_evenly_and_never_twice():
    assert local_cluster.share_gpus([], 2) is None
    assert local_cluster.share_gpus(["0", "1", "2", "3"], 2) == [["0", "1"], ["2", "3"]]
    assert local_cluster.share_gpus(["0", "1", "2"], 2) == [["0"], ["1"]]
    assert local_cluster.share_gpus(["4", "5", "6"], 2, per_worker=1) == [["4"], ["5"]]


@pytest.mark.parametrize(
    ("gpus", "workers", "per_worker", "said"),
    [
        (["0"], 2, None, r"2 workers with 1 GPUs each need 2 GPUs, and 1 \(0\) can be seen"),
        ([], 1, 2, "need 2 GPUs, and none can be seen here"),
        (["0", "1", "2"], 2, 2, r"need 4 GPUs, and 3 \(0, 1, 2\) can be seen"),
    ],
)
def test_fewer_gpus_than_wanted_are_an_error(gpus, workers, per_worker, said):
    with pytest.raises(KzooError, match=said):
        local_cluster.share_gpus(gpus, workers, per_worker)


@pytest.mark.parametrize("address", ["a", "a:", ":1", "a:b", "a:0", "a:65536", ""])
def test_an_address_without_host_or_port_is_an_error(address):
    with pytest.raises(KzooError, match=f"expected host:port of a worker; received '{address}'"):
        local_cluster.check_addresses(["a:1", address])


def test_one_address_for_two_workers_is_an_error():
    with pytest.raises(KzooError, match="the same address: a:1"):
        local_cluster.check_addresses(["a:1", "b:1", "a:1"])
    local_cluster.check_addresses(["a:1", "[::1]:1", "a:2"])
