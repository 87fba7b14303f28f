"""A small parallel corpus in many languages, written for this project."""

from pathlib import Path

LANGUAGES: tuple[str, ...] = (
    "ar",
    "de",
    "el",
    "en",
    "es",
    "fr",
    "hi",
    "ko",
    "ru",
    "sw",
    "tr",
    "zh",
)
"""ISO 639-1 codes of the languages that the corpus is in, sorted."""


def folder() -> Path:
    """The folder that holds `train-{lang}.txt` and `dev-{lang}.txt` of each language."""
    return Path(__file__).resolve().parent
