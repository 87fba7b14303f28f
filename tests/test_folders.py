"""Folders that appear, or are replaced, as a whole."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from kzoo import KzooError
from kzoo.folders import check_room, replace_folder, restore_folder, written_aside
from tests.paths import REPOSITORY

# Replaces a folder and dies at one of the steps: the number of its call.
KILLED = """
import os, signal, sys
from kzoo.folders import written_aside

folder, deadly = sys.argv[1], int(sys.argv[2])
calls = 0
rename = os.rename


def renamed(*arguments):
    global calls
    calls += 1
    if calls == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    rename(*arguments)


os.rename = renamed
with written_aside(folder) as aside:
    (aside / "content").write_text("new")
    if deadly == 0:
        os.kill(os.getpid(), signal.SIGKILL)
"""


def write(folder, content):
    folder.mkdir()
    (folder / "content").write_text(content)


def test_a_folder_takes_the_place_of_another_and_of_no_third(tmp_path):
    # The last is what somebody may call a copy of the folder.
    for name in ("new", "data", "data.old"):
        write(tmp_path / name, name)
    replace_folder(tmp_path / "data", tmp_path / "new")
    assert sorted(os.listdir(tmp_path)) == ["data", "data.old"]
    assert (tmp_path / "data" / "content").read_text() == "new"
    assert (tmp_path / "data.old" / "content").read_text() == "data.old"


@pytest.mark.parametrize("deadly", [0, 1, 2])
def test_a_process_that_is_killed_leaves_the_old_folder(deadly, tmp_path):
    write(tmp_path / "data", "old")
    command = [sys.executable, "-c", KILLED, str(tmp_path / "data"), str(deadly)]
    status = subprocess.run(command, cwd=REPOSITORY, check=False).returncode
    assert status == -signal.SIGKILL
    restore_folder(tmp_path / "data")
    assert (tmp_path / "data" / "content").read_text() == "old"
    # The next one finds and removes what was left.
    subprocess.run([*command[:-1], "9"], cwd=REPOSITORY, check=True)
    assert (tmp_path / "data" / "content").read_text() == "new"
    assert os.listdir(tmp_path) == ["data"]


def test_a_block_that_fails_leaves_what_was_there(tmp_path):
    write(tmp_path / "data", "old")

    def write_half():
        with written_aside(tmp_path / "data") as aside:
            (aside / "content").write_text("new")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert (tmp_path / "data" / "content").read_text() == "old"
    assert os.listdir(tmp_path) == ["data"]


def test_a_link_is_replaced_and_not_what_it_leads_to(tmp_path):
    write(tmp_path / "version_1", "one")
    (tmp_path / "data").symlink_to("version_1")
    with written_aside(tmp_path / "data") as aside:
        (aside / "content").write_text("new")
    assert (tmp_path / "data" / "content").read_text() == "new"
    assert (tmp_path / "version_1" / "content").read_text() == "one"
    assert sorted(os.listdir(tmp_path)) == ["data", "version_1"]


def test_a_disk_without_room_is_an_error(tmp_path, monkeypatch):
    usage = shutil._ntuple_diskusage(1 << 40, 1 << 40, 1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    check_room(tmp_path / "not" / "there", 1 << 20, "it")
    with pytest.raises(KzooError, match=r"no room for it in .*there: it needs 2\.1 MB and 1\.0 MB"):
        check_room(tmp_path / "not" / "there", 1 << 21, "it")
