"""Exit statuses and what is printed, for every kind of end that a command can have."""

import os
import subprocess
import sys

import pytest
from absl import flags

from kzoo import KzooError, command


@pytest.fixture
def flag_values():
    values = flags.FlagValues()
    flags.DEFINE_integer("count", 3, "How many.", flag_values=values)
    flags.DEFINE_multi_string("input", None, "What to read.", flag_values=values)
    flags.DEFINE_boolean("quiet", False, "Say less.", flag_values=values)
    flags.DEFINE_enum("mode", "fast", ["fast", "slow"], "Which way.", flag_values=values)
    return values


def test_flags_reach_the_command(flag_values):
    seen = []
    status = command.run(
        lambda: seen.append((flag_values.count, flag_values.input)),
        flag_values,
        "usage",
        ["--count=5", "--input", "a", "--input=b"],
    )
    assert (status, seen) == (0, [(5, ["a", "b"])])


def test_help_lists_every_flag_with_its_default_and_exits_with_0(flag_values, capsys):
    assert command.run(pytest.fail, flag_values, "What it does.", ["--help"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("What it does.")
    for part in ("--count (default: '3')", "How many.", "--input", "--mode"):
        assert part in printed


@pytest.mark.parametrize(
    "arguments",
    [["--cuont=5"], ["--count=many"], ["--mode=slower"], ["stray"], ["--count"], ["--noquiet=1"]],
)
def test_wrong_flags_are_one_line_and_exit_with_2(flag_values, arguments, capsys):
    assert command.run(pytest.fail, flag_values, "usage", arguments) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("error: ")
    assert printed.err.count("\n") == 1
    assert printed.out == ""


def test_a_mistake_of_the_user_is_printed_and_exits_with_2(flag_values, capsys):
    def fail():
        raise KzooError("no such file: corpus.txt")

    assert command.run(fail, flag_values, "usage", []) == 2
    assert capsys.readouterr().err == "error: no such file: corpus.txt\n"


def test_importing_kzoo_does_not_import_tensorflow():
    code = "import sys, kzoo; sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("arguments", ["kzoo.pretrain --help", "kzoo.zoo"])
def test_a_reader_that_goes_away_is_no_traceback(arguments):
    done = subprocess.run(
        f"set -o pipefail; {sys.executable} -m {arguments} | true",
        shell=True,
        executable="/bin/bash",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stderr == ""
    # 0 if all was written before the reader went.
    assert done.returncode in (0, 141)


@pytest.mark.parametrize(
    ("redirection", "status", "message"),
    [
        ("> /dev/full", 2, "error: cannot write the output: No space left on device\n"),
        ("--preset nothing 2> /dev/full", 2, ""),
        (">&-", 0, ""),
        (">&- 2>&- <&-", 0, ""),
    ],
)
def test_streams_that_cannot_be_written_are_no_traceback(redirection, status, message):
    done = subprocess.run(
        f"{sys.executable} -m kzoo.zoo {redirection}",
        shell=True,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (status, message)


def test_characters_that_the_terminal_lacks_are_replaced():
    done = subprocess.run(
        [sys.executable, "-m", "kzoo.zoo"],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        encoding="ascii",
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "23?12" in done.stdout  # the arrow of discard_11_layers
