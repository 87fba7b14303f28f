"""The folder in which examples are made: killed at any moment, it is finished the next time."""

import os
import pathlib
import shutil
import subprocess
import sys

import numpy as np
import pytest

from kzoo import sample
from kzoo.corpora.partial import PartialFolder
from kzoo.errors import KzooError

# Runs a preparation in forks of this program, the k-th of which is killed at its k-th change of the
# file system, and after each the same preparation again; until one comes to its end. What workers
# do is done by the same process, so that it is among the changes.
KILLED_AT_EVERY_CHANGE = """
import hashlib, os, pathlib, shutil, signal, sys
from kzoo.corpora import prepare

corpus, vocabulary, output = map(pathlib.Path, sys.argv[1:])
prepare.run_in_order = lambda function, tasks, workers: map(function, tasks)
changes = 0

def dying(change, last):
    def changed(*arguments, **keywords):
        global changes
        changes += 1
        if changes == last:
            os.kill(os.getpid(), signal.SIGKILL)
        return change(*arguments, **keywords)
    return changed

def run(overwrite, last=None):
    if child := os.fork():
        return os.waitpid(child, 0)[1]
    for name in ("rename", "replace", "remove", "unlink", "mkdir", "makedirs", "rmdir"):
        setattr(os, name, dying(getattr(os, name), last))
    prepare.prepare(
        {"de": [str(corpus / "train-de.txt")]}, {"de": [str(corpus / "dev-de.txt")]},
        vocabulary, 32, output, workers=1, shard_bytes=6000, overwrite=overwrite,
    )
    os._exit(0)

def content():
    # The lock of a killed process may stay; the next one takes it.
    files = sorted(output.parent.rglob("*"))
    files = [path for path in files if path.is_file() and path.suffix != ".lock"]
    return [(str(path), hashlib.sha256(path.read_bytes()).hexdigest()) for path in files]

assert run(False) == 0
expected = content()
for overwrite in (False, True):
    last, status = 0, signal.SIGKILL
    while status == signal.SIGKILL:
        if not overwrite:
            shutil.rmtree(output)
        last += 1
        status = run(overwrite, last)
        if status:
            assert run(overwrite) == 0, last
        assert content() == expected, last
    assert status == 0, last
    print(last)
"""


def test_killed_at_any_change_of_a_file_it_ends_in_the_same_bytes(tmp_path, vocabulary_folder):
    for name in ("train-de.txt", "dev-de.txt"):
        shutil.copy(sample.folder() / name, tmp_path)
    output = tmp_path / "made" / "examples"
    done = subprocess.run(
        [sys.executable, "-c", KILLED_AT_EVERY_CHANGE, tmp_path, vocabulary_folder, output],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert min(map(int, done.stdout.split())) > 20


@pytest.mark.parametrize("size", [0, 100])
def test_counts_that_a_power_cut_left_empty_are_one_clear_error(tmp_path, size):
    folder = PartialFolder(str(tmp_path / "examples"))
    path = pathlib.Path(folder.stem("train", "de", 0) + ".npz")
    path.parent.mkdir(parents=True)
    np.savez(path, counts="{}", pieces=np.arange(100))
    os.truncate(path, size)
    with pytest.raises(KzooError, match=r"00000\.npz is damaged.*; remove it"):
        list(folder.counts("train", "de", 1))
