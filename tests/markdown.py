"""What tests read from the project's Markdown files."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

from tests.paths import REPOSITORY

_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^)\s]+)\)")


class Block(NamedTuple):
    """A fenced block of a Markdown file.

    Attributes:
        path: the file.
        language: what stands behind the opening backticks.
        text: what stands between the fences.
    """

    path: Path
    language: str
    text: str


class Command(NamedTuple):
    """One shell command of a document; a test's name is `str` of it."""

    path: Path
    words: list[str]

    def __str__(self) -> str:
        return f"{self.path.relative_to(REPOSITORY)}: {shlex.join(self.words)}"


def documents() -> list[Path]:
    """Every Markdown file of the project, but for those in hidden folders."""
    return [
        path
        for path in sorted(REPOSITORY.rglob("*.md"))
        if not any(part.startswith(".") for part in path.relative_to(REPOSITORY).parts)
    ]


def blocks(path: Path, language: str) -> list[Block]:
    """The fenced blocks of a file in a language, in order."""
    found = _BLOCK.findall(path.read_text("utf-8"))
    return [Block(path, name, text) for name, text in found if name == language]


def commands(path: Path) -> list[Command]:
    """The commands of a file's `sh` blocks, in order; `a && b` is two."""
    lines = [
        line
        for block in blocks(path, "sh")
        for line in block.text.replace("\\\n", " ").splitlines()
    ]
    found = []
    for line in lines:
        words = shlex.split(line, comments=True)
        while "&&" in words:
            end = words.index("&&")
            found.append(Command(path, words[:end]))
            words = words[end + 1 :]
        if words:
            found.append(Command(path, words))
    return found


def table_column(text: str, header: str) -> list[str]:
    """The first cells of the rows of a table, found by its header's first cell."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(f"| {header} |"):
            break
    next(lines)
    cells = []
    for line in lines:
        if not line.startswith("|"):
            break
        cells.append(line.split("|")[1].strip())
    return cells


def prose(path: Path) -> str:
    """A file's text without its fenced blocks."""
    return _BLOCK.sub("", path.read_text("utf-8"))


def code_spans(text: str) -> list[str]:
    """What stands between backticks, in text without fenced blocks."""
    return re.findall(r"`([^`\n]+)`", text)


def links(path: Path) -> list[str]:
    """The targets of a file's links and images, those to other sites left out."""
    return [link for link in _LINK.findall(prose(path)) if "://" not in link]


def anchors(path: Path) -> set[str]:
    """The fragments by which a file's headings are linked to."""
    headings = re.findall(r"^#+ (.*)$", prose(path), re.MULTILINE)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}
