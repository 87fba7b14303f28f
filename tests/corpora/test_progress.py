"""What is shown of the progress, on a terminal and elsewhere."""

import io

from kzoo.corpora import progress
from kzoo.corpora.progress import ReadingProgress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def show(stream: io.StringIO) -> str:
    with ReadingProgress("prepare", 1000, stream) as display:
        for _ in range(4):
            display.read(250)
            display.done(documents=500, text_bytes=1_000_000)
        display.say("training")
    return stream.getvalue()


def test_a_terminal_shows_one_line_that_renews_itself():
    shown = show(Terminal())
    assert shown.count("\n") == 1
    last = shown.strip().split("\r")[-1]
    assert last.startswith("prepare 100% |")
    assert last.endswith("training")


def test_elsewhere_short_work_is_silent_and_long_work_prints_a_line_now_and_then(monkeypatch):
    assert show(io.StringIO()) == ""
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0.0)
    lines = show(io.StringIO()).splitlines()
    assert len(lines) == 5
    assert lines[0].startswith("prepare: 25%, 500 documents, ")
    assert lines[0].endswith(" MB/s")
    assert lines[-1] == "prepare: training"
