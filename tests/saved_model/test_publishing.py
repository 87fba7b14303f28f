"""Old or new, never a mixture, wherever a process is killed."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from kzoo import KzooError
from kzoo.saved_model.publishing import STAGE, finish, publishing
from tests.paths import REPOSITORY

NAMES = ["a", "sub/b", "MANIFEST"]
# Publishes, and dies at the Nth rename or removal.
KILLED = """
import os, pathlib, signal, sys
from kzoo.saved_model import publishing
left = int(sys.argv[2])
rename = pathlib.Path.rename
def counted(self, target):
    global left
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    left -= 1
    return rename(self, target)
pathlib.Path.rename = counted
with publishing.publishing(pathlib.Path(sys.argv[1])) as place:
    for name in ("a", "sub/b", "MANIFEST"):
        (place.new / name).parent.mkdir(exist_ok=True)
        (place.new / name).write_text("new")
    place.publish(["a", "sub/b", "MANIFEST"], ["a", "sub", "MANIFEST", "stale"])
"""


def state(folder):
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and STAGE not in path.parts
    }


def old_state(folder):
    (folder / "sub").mkdir()
    for name in (*NAMES, "sub/stale", "stale", "README"):
        (folder / name).write_text("old")
    return state(folder)


def test_a_process_that_is_killed_leaves_old_or_new(tmp_path):
    seen = set()
    for renames in range(20):
        folder = tmp_path / str(renames)
        folder.mkdir()
        old = old_state(folder)
        new = {**dict.fromkeys(NAMES, "new"), "README": "old"}
        command = [sys.executable, "-c", KILLED, str(folder), str(renames)]
        status = subprocess.run(command, cwd=REPOSITORY, check=False).returncode
        if state(folder) not in (old, new):
            assert "MANIFEST" not in state(folder)
            seen.add("mixture")
        finish(folder)
        assert state(folder) == (old if not renames else new)
        assert not (folder / STAGE).exists()
        if status == 0:
            break
        assert status == -signal.SIGKILL
    assert status == 0
    assert seen == {"mixture"}


def publish_nothing(folder):
    with publishing(folder) as place:
        (place.new / "a").write_text("new")
        raise KzooError("a fault")


def begin(folder):
    with publishing(folder):
        pass


def test_what_is_not_published_is_removed(tmp_path):
    old = old_state(tmp_path)
    with pytest.raises(KzooError, match="a fault"):
        publish_nothing(tmp_path)
    assert state(tmp_path) == old
    assert not (tmp_path / STAGE).exists()


def test_two_at_a_time_are_refused(tmp_path):
    with publishing(tmp_path), pytest.raises(KzooError, match="another process"):
        begin(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(KzooError, match="cannot"), publishing(tmp_path / "export"):
        pass


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "cannot export into .*: No space left"),
        (FileNotFoundError(2, "No such file", "elsewhere.h5"), "given up: elsewhere.h5: No such"),
    ],
)
def test_an_error_is_told_of_the_file_that_it_is_about(error, message, tmp_path):
    with pytest.raises(KzooError, match=message), publishing(tmp_path):
        raise error
    assert not list(tmp_path.iterdir())
