"""What a person sees: on a terminal one line at the bottom, in a log a line now and then."""

import fcntl
import io
import os
import pty
import re
import struct
import subprocess
import sys
import termios

import pytest

from kzoo.training.progress import Progress

ON_A_TERMINAL = """
import logging, sys, warnings
from absl import logging as absl_logging
from kzoo.training.progress import Progress

absl_logging.use_absl_handler()
absl_logging.set_verbosity("info")
logging.getLogger("ours").addHandler(logging.StreamHandler())
logging.getLogger("ours").propagate = False
with Progress(2000, first_step=1000) as progress:
    for step in range(1001, 1101):
        progress.update(step, loss=5.5, accuracy=0.125, tokens_per_second=12345.6)
        if step == 1050:
            print("to stdout")
            print("to stderr", file=sys.stderr)
            logging.getLogger("ours").warning("from a handler of our own")
            absl_logging.info("from absl")
            warnings.warn("from a warning")
            print("in two ", end="")
            print("parts")
            progress.update(step, loss=5.5, accuracy=0.125, tokens_per_second=12345.6)
    print("begun", end="")
print("afterwards")
"""


def run_on_a_terminal(code: str, columns: int) -> list[str]:
    """Runs code on a terminal; returns the lines on its screen at the end."""
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24, columns, 0, 0))
    process = subprocess.Popen([sys.executable, "-c", code], stdout=terminal, stderr=terminal)
    os.close(terminal)
    received = b""
    while True:
        try:
            chunk = os.read(main, 65536)
        except OSError:  # the other end was closed
            break
        if not chunk:
            break
        received += chunk
    os.close(main)
    assert process.wait() == 0, received.decode()
    return screen(received.decode())


def screen(text: str) -> list[str]:
    """What a terminal shows after carriage returns have overwritten and newlines have scrolled."""
    lines = [""]
    column = 0
    for part in re.findall(r"\r|\n|[^\r\n]+", re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", text)):
        if part == "\n":
            lines.append("")
            column = 0
        elif part == "\r":
            column = 0
        else:
            lines[-1] = lines[-1][:column] + part + lines[-1][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines if line.strip()]


@pytest.mark.parametrize("columns", [120, 0])
def test_on_a_terminal_everything_else_appears_above_the_one_line(columns):
    lines = run_on_a_terminal(ON_A_TERMINAL, columns)
    messages = [
        "^to stdout$",
        "^to stderr$",
        "^from a handler of our own$",
        "^I.*from absl$",
        "^.*UserWarning: from a warning",
        "^in two parts$",
        "^begun$",
    ]
    for message in messages:
        assert sum(bool(re.match(message, line)) for line in lines) == 1, lines
    bars = [index for index, line in enumerate(lines) if "step" in line]
    assert bars == [len(lines) - 2], lines
    assert lines[-1] == "afterwards"
    assert re.fullmatch(
        r"step 1,100/2,000 \|.+\| loss 5\.5000, accuracy 12\.5%, 12,346 tokens/s, 00:0\d left",
        lines[-2],
    )


def log_of(steps, *, total_steps, first_step=0, line_interval=100) -> list[str]:
    stream = io.StringIO()
    with Progress(
        total_steps, first_step=first_step, line_interval=line_interval, stream=stream
    ) as progress:
        for step in steps:
            progress.update(step, loss=5.5, accuracy=0.125, tokens_per_second=12345.6)
    return stream.getvalue().splitlines()


def test_elsewhere_there_is_a_plain_line_every_n_steps_and_at_the_end():
    lines = log_of(range(1, 251), total_steps=250)
    assert [line.split(":")[0] for line in lines] == [
        "step 100/250",
        "step 200/250",
        "step 250/250",
    ]
    pattern = r"step 250/250: loss 5\.5000, accuracy 12\.5%, 12,346 tokens/s, 00:00 left"
    assert re.fullmatch(pattern, lines[-1])


@pytest.mark.parametrize(
    ("steps", "shown"),
    [
        (range(1025, 1300, 25), ["1,100", "1,200"]),  # several steps at a time
        (range(1070, 1350, 70), ["1,140", "1,210"]),  # that do not divide the interval
    ],
)
def test_lines_come_when_an_interval_is_passed_even_if_not_hit(steps, shown):
    lines = log_of(steps, total_steps=2000, first_step=1000)
    assert [re.match(r"step ([\d,]+)/2,000", line)[1] for line in lines] == shown
