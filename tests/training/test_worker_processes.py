"""Several processes behave as one: their lines, their failures, signals, and the end of them all.

The workers are small programs of real processes; so is what runs them.
"""

import json
import math
import os
import pty
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

import pytest

from tests.paths import REPOSITORY

LAUNCHER = """
import json, os, sys
from kzoo import command
from kzoo.training.worker_processes import Worker, run_workers
from absl import flags

programs, options = json.loads(sys.argv[1]), json.loads(sys.argv[2])
python = options.pop("program", sys.executable)
workers = [
    Worker(str(index), [python, "-u", "-c", program], dict(os.environ))
    for index, program in enumerate(programs)
]
main = lambda: run_workers(workers, **options)
sys.exit(command.run(main, flags.FlagValues(), "usage", []))
"""

# Says what it is sent, saves for a second, and ends well; it runs until then.
SAVES = """
import os, signal, sys, time
asked = []
def remember(number, frame):
    asked.append(signal.Signals(number).name)
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, remember)
print("ready", os.getpid())
while not asked:
    time.sleep(0.01)
time.sleep(1)
print("saved after", *asked)
"""
# Cannot be asked to stop.
STUCK = """
import os, signal, time
for number in (signal.SIGTERM, signal.SIGINT):
    signal.signal(number, signal.SIG_IGN)
print("ready", os.getpid())
time.sleep(100)
"""
FAILS = """
import sys, time
time.sleep(0.5)
print("error: the disk is full", file=sys.stderr)
print("a farewell", file=sys.stderr)
sys.exit(3)
"""


def command(programs: Sequence[str], **options: object) -> list[str]:
    return [sys.executable, "-c", LAUNCHER, json.dumps(programs), json.dumps(options)]


def start(programs: Sequence[str], **options: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command(programs, **options),
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str], status: int) -> tuple[str, str]:
    output, errors = process.communicate(timeout=60)
    assert process.returncode == status, output + errors
    return output, errors


def wait_until_ready(process: subprocess.Popen[str], count: int) -> list[int]:
    """Reads one line of each worker, and returns the workers' process numbers."""
    lines = [process.stdout.readline() for _ in range(count)]
    assert all("ready" in line for line in lines), (lines, process.stderr.read())
    return [int(line.split()[-1]) for line in lines]


def wait_until_gone(numbers: Sequence[int]) -> None:
    deadline = time.monotonic() + 10
    for number in numbers:
        while is_alive(number):
            assert time.monotonic() < deadline, f"process {number} still runs"
            time.sleep(0.02)


def is_alive(number: int) -> bool:
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_lines_of_all_workers_appear_whole_behind_their_names():
    program = """
import sys
for number in range(200):
    sys.stdout.write("left "), sys.stdout.write(f"right {number}\\n")
    print("é" * 3000, file=sys.stderr)
sys.stdout.write("no end")
"""
    output, errors = finish(start([program, program]), 0)
    lines = output.splitlines()
    for name in ("[0] ", "[1] "):
        mine = [line.removeprefix(name) for line in lines if line.startswith(name)]
        assert mine == [*(f"left right {number}" for number in range(200)), "no end"]
    assert len(lines) == 402
    assert sorted(set(errors.splitlines())) == [f"[{name}] {'é' * 3000}" for name in (0, 1)]


def test_the_lines_of_a_single_worker_stay_as_they_are():
    assert finish(start(["print('line')"]), 0) == ("line\n", "")


def test_one_failure_ends_all_and_is_named_with_its_error():
    output, errors = finish(start([SAVES, FAILS]), 3)
    assert "[0] saved after SIGTERM" in output
    assert errors.splitlines()[-1] == (
        "error: worker 1 ended with status 3; its last words: the disk is full"
    )


def test_a_worker_that_does_not_stop_is_killed_after_the_grace():
    process = start([STUCK, FAILS], grace_seconds=0.5)
    numbers = wait_until_ready(process, 1)
    started = time.monotonic()
    _, errors = finish(process, 3)
    assert time.monotonic() - started < 20
    assert "worker 1 ended with status 3" in errors.splitlines()[-1]
    wait_until_gone(numbers)


def test_a_killed_worker_is_said_to_be_killed():
    process = start([SAVES, SAVES])
    numbers = wait_until_ready(process, 2)
    os.kill(numbers[0], signal.SIGKILL)
    _, errors = finish(process, 128 + signal.SIGKILL)
    assert re.search(r"error: worker [01] was killed by SIGKILL, as the system does", errors)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on_and_workers_get_the_time_to_save(number):
    process = start([SAVES, SAVES], grace_seconds=0)
    wait_until_ready(process, 2)
    process.send_signal(number)
    output, errors = finish(process, 0)
    for name in ("[0]", "[1]"):
        assert f"{name} saved after {number.name}\n" in output
    assert errors.startswith(f"{number.name} is passed on to the workers")


def test_a_reader_that_pauses_keeps_no_worker_from_saving(tmp_path):
    program = SAVES.replace("time.sleep(0.01)", "print('x' * 1000)")
    program = program.replace(
        "time.sleep(1)", f"open({str(tmp_path)!r} + f'/{{os.getpid()}}', 'w')"
    )
    process = start([program, program], grace_seconds=60)
    wait_until_ready(process, 1)
    time.sleep(1)
    assert not os.listdir(tmp_path)
    process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 60
    while len(os.listdir(tmp_path)) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert len(os.listdir(tmp_path)) == 2
    finish(process, 0)


def test_asked_twice_workers_that_do_not_stop_are_killed():
    process = start([STUCK, STUCK], grace_seconds=0.2)
    numbers = wait_until_ready(process, 2)
    process.send_signal(signal.SIGINT)
    time.sleep(1)
    assert all(map(is_alive, numbers))
    process.send_signal(signal.SIGINT)
    _, errors = finish(process, 128 + signal.SIGKILL)
    assert re.search(r"stopped before all was saved: worker [01] was killed by SIGKILL\n", errors)
    wait_until_gone(numbers)


def test_the_second_request_is_not_passed_on_and_any_grace_will_do():
    process = start([SAVES, SAVES], grace_seconds=math.inf)
    wait_until_ready(process, 2)
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    output, _ = finish(process, 0)
    for name in ("[0]", "[1]"):
        assert f"{name} saved after SIGINT\n" in output


def test_a_worker_that_cannot_be_started_is_one_clear_error():
    _, errors = finish(start(["print('ready')"], program="/no/such/python"), 2)
    assert errors.startswith("error: cannot start worker 0 of 1: No such file or directory")


@pytest.mark.skipif(sys.platform != "linux", reason="needs a signal on the death of a parent")
def test_workers_of_a_killed_launcher_end():
    process = start([STUCK, STUCK])
    numbers = wait_until_ready(process, 2)
    process.kill()
    process.wait()
    wait_until_gone(numbers)


def test_what_a_worker_has_started_ends_with_it():
    program = f"""
import subprocess, sys
child = subprocess.Popen([sys.executable, "-c", {STUCK!r}])
print("ready", child.pid)
"""
    process = start([program])
    numbers = wait_until_ready(process, 1)
    finish(process, 0)
    wait_until_gone(numbers)


def test_when_nobody_reads_the_output_any_more_the_workers_end():
    program = SAVES.replace("time.sleep(0.01)", "print('x' * 1000)")
    process = start([program, program], grace_seconds=10)
    numbers = [int(re.search(r"ready (\d+)", process.stdout.readline())[1])]
    process.stdout.close()
    assert process.wait(timeout=60) == 141
    assert process.stderr.read() == ""
    wait_until_gone(numbers)


def test_logs_keep_all_output_of_all_attempts(tmp_path):
    for attempt in (1, 2):
        program = f"import sys; print('out {attempt}'); print('err {attempt}', file=sys.stderr)"
        finish(start([program, program], log_dir=str(tmp_path / "logs")), 0)
    assert sorted(os.listdir(tmp_path / "logs")) == ["worker-0.log", "worker-1.log"]
    for file in (tmp_path / "logs").iterdir():
        first, second = file.read_text().split("--- started ")[1:]
        assert sorted(first.splitlines()[1:]) == ["err 1", "out 1"]
        assert sorted(second.splitlines()[1:]) == ["err 2", "out 2"]
    _, errors = finish(start([FAILS], log_dir=str(tmp_path / "logs")), 3)
    assert errors.strip().endswith(f"all of them are in {tmp_path}/logs/worker-0.log")


def test_a_log_that_cannot_be_written_is_an_error_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("")
    program = f"open({str(tmp_path / 'ran')!r}, 'w')"
    _, errors = finish(start([program], log_dir=str(tmp_path / "file")), 2)
    assert errors.startswith(f"error: cannot write {tmp_path}/file/worker-0.log: ")
    assert os.listdir(tmp_path) == ["file"]


def run_on_a_terminal(programs: Sequence[str], **options: object) -> tuple[subprocess.Popen, int]:
    """Starts the launcher as the foreground job of a terminal; returns it and our side of that."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        ["setsid", "--ctty", *command(programs, **options)],
        cwd=REPOSITORY,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={name: value for name, value in os.environ.items() if name != "NO_COLOR"},
        # What runs the tests may have it ignored, as `nohup` does, and that would be inherited.
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    os.close(theirs)
    return process, ours


def read_terminal(terminal: int, until: str | None = None) -> str:
    text = b""
    while until is None or until.encode() not in text:
        try:
            data = os.read(terminal, 1000)
        except OSError:  # The other side is closed.
            data = b""
        if not data:
            break
        text += data
    return text.decode()


def test_on_a_terminal_names_have_colours_and_ctrl_c_reaches_each_worker_once():
    process, terminal = run_on_a_terminal([SAVES, SAVES], grace_seconds=0)
    seen = read_terminal(terminal, until="[1]\033[0m ready")
    while seen.count("ready") < 2:
        seen += read_terminal(terminal, until="ready")
    os.write(terminal, b"\x03")
    seen += read_terminal(terminal)
    assert process.wait(timeout=60) == 0, seen
    os.close(terminal)
    for color, name in ((36, 0), (33, 1)):
        assert f"\033[{color}m[{name}]\033[0m saved after SIGINT\r\n" in seen, seen


def test_when_the_terminal_is_closed_the_workers_save(tmp_path):
    program = SAVES + f"\nopen({str(tmp_path / 'saved')!r} + str(os.getpid()), 'w')"
    process, terminal = run_on_a_terminal([program, program], grace_seconds=0)
    seen = ""
    while seen.count("ready") < 2:
        more = read_terminal(terminal, until="ready")
        assert more, seen
        seen += more
    os.close(terminal)
    process.wait(timeout=60)
    assert len(os.listdir(tmp_path)) == 2
