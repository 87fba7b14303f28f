"""SentencePiece's trainer, in a process of its own.

Its C++ logs to the screen, cannot be interrupted, and ends the process when memory runs out; from a
process of its own we get the log to ourselves, and an error that can be reported.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

from kzoo.errors import KzooError

MAX_LINE_BYTES = 4096
"""Longer lines must be split; the trainer would leave them out beyond 4192 bytes."""

# Dies of the first line of its log that nobody reads any more.
_PROGRAM = """
import json, signal, sys
import sentencepiece
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
sentencepiece.SentencePieceTrainer.train(**json.load(sys.stdin))
"""
_KEPT_LINES = 20
# The trainer does not say why it could not write.
_LITTLE_BYTES = 65_536


class TrainerReport(NamedTuple):
    """What the trainer's log says.

    Attributes:
        sentences: lines that it has used.
        characters: number of different characters that pieces are made of.
        covered: share of the text that these characters make up.
    """

    sentences: int
    characters: int
    covered: float


def train(
    folder: str, settings: dict[str, Any], on_progress: Callable[[str], object]
) -> TrainerReport:
    """Trains a model.

    Args:
        folder: where the trainer works. Its settings become part of the model: paths in them that
            are relative to this folder keep the model free of where it was made.
        settings: the trainer's own, such as `input`, `model_prefix` and `vocab_size`.
        on_progress: called now and then with a few words about how far it is.

    Raises:
        KzooError: the vocabulary's size does not fit the text, or training failed otherwise.
    """
    log: list[str] = []
    found = {"sentences": 0, "characters": 0, "covered": 0.0}
    with subprocess.Popen(
        [sys.executable, "-P", "-c", _PROGRAM],
        cwd=folder,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        encoding="utf-8",
        errors="replace",
    ) as process:
        try:
            process.stdin.write(json.dumps(settings))
            process.stdin.close()
            for line in process.stderr:
                log = [*log[1 - _KEPT_LINES :], line]
                _read_line(line, found, on_progress)
        finally:
            process.kill()
    if process.returncode or not _is_whole(folder, settings):
        if shutil.disk_usage(folder).free < _LITTLE_BYTES:
            raise KzooError(f"cannot write the vocabulary in {folder}: the disk is full")
        raise KzooError(_why_failed(process.returncode, "".join(log), settings))
    return TrainerReport(**found)


def _is_whole(folder: str, settings: dict[str, Any]) -> bool:
    """Whether the model is there with all its pieces: a full disk cuts it short without a word."""
    import sentencepiece

    path = os.path.join(folder, settings["model_prefix"] + ".model")
    try:
        return sentencepiece.SentencePieceProcessor(path).piece_size() == settings["vocab_size"]
    except (OSError, RuntimeError):
        return False


def _read_line(line: str, found: dict[str, Any], on_progress: Callable[[str], object]) -> None:
    if match := re.search(r"EM sub_iter=0 size=(\d+)", line):
        on_progress(f"training, {int(match[1]):,} candidate pieces left")
    elif match := re.search(r"Loaded all (\d+) sentences", line):
        found["sentences"] = int(match[1])
        on_progress("extracting candidate pieces")
    elif match := re.search(r"Alphabet size=(\d+)", line):
        found["characters"] = int(match[1])
    elif match := re.search(r"Final character coverage=([\d.]+)", line):
        found["covered"] = float(match[1])


def _why_failed(returncode: int, log: str, settings: dict[str, Any]) -> str:
    size = settings["vocab_size"]
    if match := re.search(r"Vocabulary size too high .* value <= (\d+)", log):
        return (
            f"there is too little text for a vocabulary of {size:,} pieces; the largest possible is"
            f" {int(match[1]):,}: use --size={match[1]}, or more text"
        )
    if match := re.search(r"smaller than required_chars\. \d+ vs (\d+)", log):
        return (
            f"a vocabulary of {size:,} pieces has no room for the characters of the text; it needs"
            f" more than {int(match[1]):,} pieces, or a lower --character_coverage"
        )
    if returncode < 0 or "MemoryError" in log or "bad_alloc" in log:
        return (
            "training the vocabulary was killed, most likely because memory ran out; use a smaller"
            " --max_sentences"
        )
    if not returncode:
        return "SentencePiece wrote a model that lacks pieces or cannot be read; train it again"
    last = log.strip().splitlines()[-1] if log.strip() else f"status {returncode}"
    return f"SentencePiece could not train the vocabulary: {last}"
