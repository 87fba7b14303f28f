"""Two processes and one folder: the second is told so, and nothing is lost."""

import os
import subprocess
import sys

import pytest

from kzoo import sample
from kzoo.errors import KzooError
from kzoo.storage.lock_file import sole_maker

HOLD = """
import sys
from kzoo.storage.lock_file import sole_maker
with sole_maker(sys.argv[1]):
    print("taken", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def other_process(tmp_path):
    """A process that makes `tmp_path/made` until it is killed."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, tmp_path / "made"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "taken\n"
        yield process
        process.kill()


def test_a_folder_that_is_being_made_is_refused_with_its_maker(tmp_path, other_process):
    message = rf"made is being made by another process \(process {other_process.pid} on "
    with pytest.raises(KzooError, match=message), sole_maker(str(tmp_path / "made")):
        pytest.fail("two processes make one folder")
    other_process.kill()
    other_process.wait()
    with sole_maker(str(tmp_path / "made")):
        assert os.listdir(tmp_path) == ["made.lock"]
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "arguments",
    [["kzoo.vocabulary", "--size=900"], ["kzoo.prepare", "--vocabulary={vocabulary}"]],
    ids=["vocabulary", "prepare"],
)
def test_commands_leave_the_work_of_another_process_alone(
    tmp_path, vocabulary_folder, other_process, arguments
):
    partial = tmp_path / "made.partial"
    partial.mkdir()
    command = [part.format(vocabulary=vocabulary_folder) for part in arguments]
    pattern = sample.folder() / "train-{lang}.txt"
    failed = subprocess.run(
        [sys.executable, "-m", *command, f"--input={pattern}", f"--output={tmp_path / 'made'}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert failed.returncode == 2
    assert "is being made by another process" in failed.stderr
    assert sorted(os.listdir(tmp_path)) == ["made.lock", "made.partial"]
