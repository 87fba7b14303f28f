"""Preparing by Apache Beam on a cluster whose workers this command has not started: Dask's."""

import pathlib
import subprocess
import sys

import pytest

from kzoo import sample
from tests.corpora.test_prepare import digests, run

pytest.importorskip("apache_beam", reason="apache-beam is not installed (extra `beam`)")
distributed = pytest.importorskip(
    "distributed", reason="Dask is not installed: pip install 'apache-beam[dask]==2.77.*'"
)


@pytest.fixture(scope="module")
def address():
    """Of a cluster of two processes."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:
        yield cluster.scheduler_address


def test_two_dask_workers_give_the_files_of_a_pool(address, tmp_path, vocabulary_folder):
    common = (
        f"--input={sample.folder()}/train-{{lang}}.txt",
        f"--vocabulary={vocabulary_folder}",
        "--shard_megabytes=0.002",
    )
    on_dask = ("--runner=DaskRunner", f"--dask_client_address={address}", "--dask_npartitions=4")
    assert run(tmp_path, *common, "--output=pool").returncode == 0
    done = run(tmp_path, *common, f"--output={tmp_path}/dask", *on_dask)
    assert done.returncode == 0, done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert digests(tmp_path / "dask") == digests(tmp_path / "pool")


def test_what_a_dask_worker_finds_wrong_is_one_message(address, tmp_path, vocabulary_folder):
    (tmp_path / "train-fr.txt").write_bytes(b"bonjour\ncaf\xe9 ok\n")
    done = run(
        tmp_path,
        f"--input={tmp_path}/train-{{lang}}.txt",
        f"--vocabulary={vocabulary_folder}",
        f"--output={tmp_path}/dask",
        "--runner=DaskRunner",
        f"--dask_client_address={address}",
    )
    assert done.returncode == 2
    assert "train-fr.txt, line 2: byte 0xe9" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


def test_a_worker_elsewhere_does_not_find_a_relative_output(tmp_path, vocabulary_folder):
    """A cluster that was started in another folder, as one on other machines is."""
    code = (
        "import distributed, sys; cluster = distributed.LocalCluster(n_workers=1, "
        "threads_per_worker=1, dashboard_address=None); print(cluster.scheduler_address, "
        "flush=True); sys.stdin.read()"
    )
    elsewhere = pathlib.Path(tmp_path, "elsewhere")
    elsewhere.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", f"if __name__ == '__main__':\n    {code}"],
        cwd=elsewhere,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as cluster:
        address = cluster.stdout.readline().strip()
        done = run(
            tmp_path,
            f"--input={sample.folder()}/train-{{lang}}.txt",
            f"--vocabulary={vocabulary_folder}",
            "--output=dask",
            "--runner=DaskRunner",
            f"--dask_client_address={address}",
        )
        cluster.stdin.close()
    assert done.returncode == 2
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: a worker on ")
    assert "does not find" in last
    assert "name it by an absolute one" in last
