"""The sample corpus is what its README says: parallel, varied, clean, and each in its own script.

Two sentences are compared by their sets of distinct words. A word is a maximal run of letters,
combining marks and digits after case folding, so punctuation and apostrophes part words. Chinese
does not part its words: there, every two neighbouring characters of a run count as one. The number
of shared words is held against the shorter set, which is the stricter choice.
"""

import itertools
import unicodedata
from collections import Counter

import pytest

from kzoo import sample

PARTS = ("train", "dev")
SCRIPTS = {
    "ar": "ARABIC",
    "el": "GREEK",
    "hi": "DEVANAGARI",
    "ko": "HANGUL",
    "ru": "CYRILLIC",
    "zh": "CJK",
}
"""First word of the letters' Unicode names; of languages that are not here: LATIN."""

SENTENCE_ENDS = {"ar": ".؟", "el": ".;", "hi": "।?", "zh": "。？"}
CLOSING_QUOTES = "”’»“"

each_language = pytest.mark.parametrize("language", sample.LANGUAGES)
each_part = pytest.mark.parametrize("part", PARTS)


def lines_of(part: str, language: str) -> list[str]:
    text = (sample.folder() / f"{part}-{language}.txt").read_bytes().decode("utf-8")
    assert text.endswith("\n")
    return text.removesuffix("\n").split("\n")


def sentences_of(language: str) -> list[str]:
    return [line for part in PARTS for line in lines_of(part, language) if line]


def words_of(sentence: str, language: str) -> frozenset[str]:
    runs = "".join(
        character if unicodedata.category(character)[0] in "LMN" else " "
        for character in sentence.casefold()
    ).split()
    if language == "zh":
        return frozenset(a + b for run in runs for a, b in itertools.pairwise(run))
    return frozenset(runs)


def script_shares(text: str) -> dict[str, float]:
    """From a script to its share of the letters."""
    counts = Counter(
        unicodedata.name(character).split()[0].split("-")[0]
        for character in text
        if character.isalpha()
    )
    return {script: count / counts.total() for script, count in counts.items()}


def test_languages_are_sorted_and_are_those_of_the_files():
    assert list(sample.LANGUAGES) == sorted(set(sample.LANGUAGES))
    for part in PARTS:
        files = sorted(path.stem for path in sample.folder().glob(f"{part}-*.txt"))
        assert files == [f"{part}-{language}" for language in sample.LANGUAGES]


def test_there_are_many_languages_in_many_scripts():
    scripts = {
        max(shares, key=shares.get)
        for shares in (script_shares("".join(sentences_of(lang))) for lang in sample.LANGUAGES)
    }
    assert len(sample.LANGUAGES) >= 10
    assert len(scripts) >= 5


@each_language
def test_each_language_has_fourteen_documents_of_eight_sentences(language):
    for part, documents in (("train", 12), ("dev", 2)):
        lines = lines_of(part, language)
        groups = [list(group) for filled, group in itertools.groupby(lines, bool) if filled]
        assert [len(group) for group in groups] == [8] * documents
    assert len(sentences_of(language)) >= 80


@each_part
@each_language
def test_files_are_aligned_line_by_line(part, language):
    assert list(map(bool, lines_of(part, language))) == list(map(bool, lines_of(part, "en")))


@each_language
def test_no_two_sentences_share_more_than_half_of_their_words(language):
    sentences = sentences_of(language)
    words = [words_of(sentence, language) for sentence in sentences]
    for i, j in itertools.combinations(range(len(sentences)), 2):
        shared = words[i] & words[j]
        assert len(shared) * 2 <= min(len(words[i]), len(words[j])), (
            f"{sorted(shared)} in {sentences[i]!r} and {sentences[j]!r}"
        )


@each_language
def test_text_is_mostly_in_the_script_of_its_language(language):
    shares = script_shares("".join(sentences_of(language)))
    assert shares.get(SCRIPTS.get(language, "LATIN"), 0) > 0.99, shares


@each_part
@each_language
def test_text_is_normalised_and_has_no_stray_white_space(part, language):
    for line in lines_of(part, language):
        assert unicodedata.is_normalized("NFC", line), line
        assert line == line.strip(), line
        assert all(character.isprintable() or character == "\u00a0" for character in line), line
        assert not any(a.isspace() and b.isspace() for a, b in itertools.pairwise(line)), line


@each_language
def test_every_sentence_ends_with_sentence_punctuation(language):
    for sentence in sentences_of(language):
        end = sentence.rstrip(CLOSING_QUOTES + "\u00a0")
        assert end[-1] in SENTENCE_ENDS.get(language, ".?"), sentence


def test_no_sentence_is_there_twice_or_untranslated():
    counts = Counter(
        sentence.casefold() for language in sample.LANGUAGES for sentence in sentences_of(language)
    )
    assert [sentence for sentence, count in counts.items() if count > 1] == []
