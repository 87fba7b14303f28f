"""The sample that a vocabulary is trained on."""

import io

import hypothesis
import pytest
from hypothesis import strategies

from kzoo.text.sentencepiece_trainer import MAX_LINE_BYTES
from kzoo.text.vocabulary_sample import copies_per_sentence, split_line, write_sample

SIZES = {"en": 10_000, "de": 100, "eu": 1}


def shares(exponent: float, max_sentences: int) -> dict[str, float]:
    copies = copies_per_sentence(SIZES, exponent, max_sentences)
    sampled = {language: copies[language] * count for language, count in SIZES.items()}
    return {language: count / sum(sampled.values()) for language, count in sampled.items()}


@pytest.mark.parametrize("max_sentences", [10**9, 500])
@pytest.mark.parametrize(
    ("exponent", "expected"),
    [
        (0.5, {"en": 100 / 111, "de": 10 / 111, "eu": 1 / 111}),
        (0.0, {"en": 1 / 3, "de": 1 / 3, "eu": 1 / 3}),
        (1.0, {"en": 10_000 / 10_101, "de": 100 / 10_101, "eu": 1 / 10_101}),
    ],
)
def test_languages_get_shares_by_the_exponent(exponent, expected, max_sentences):
    assert shares(exponent, max_sentences) == pytest.approx(expected)


def test_the_largest_language_is_in_the_sample_once_and_the_bound_is_kept():
    assert copies_per_sentence(SIZES, 0.5, 10**9)["en"] == pytest.approx(1)
    copies = copies_per_sentence(SIZES, 0.5, 500)
    assert sum(copies[language] * count for language, count in SIZES.items()) == pytest.approx(500)


def test_the_sample_is_the_same_every_time_and_as_large_as_asked_for():
    documents = [[f"sentence {n}"] for n in range(10_000)]
    samples = []
    for seed, language in ((0, "en"), (0, "en"), (1, "en"), (0, "de")):
        stream = io.BytesIO()
        counts = write_sample(stream, language, documents, 0.3, seed)
        samples.append(stream.getvalue())
        assert counts.sentences == counts.lines == samples[-1].count(b"\n")
        # Five standard deviations.
        assert abs(counts.sentences - 3000) < 230
    assert samples[0] == samples[1]
    assert len(set(samples)) == 3


def test_whole_copies_are_there_for_certain_and_the_rest_by_chance():
    stream = io.BytesIO()
    write_sample(stream, "en", [[f"sentence {n}" for n in range(1000)]], 2.5, seed=0)
    lines = stream.getvalue().decode().splitlines()
    counts = [lines.count(f"sentence {n}") for n in range(1000)]
    assert set(counts) == {2, 3}
    assert 400 < counts.count(3) < 600


def test_what_the_trainer_would_leave_out_the_line_for_becomes_a_space():
    stream = io.BytesIO()
    write_sample(stream, "en", [["a\0b▅c"]], 1.0, seed=0)
    assert stream.getvalue() == b"a b c\n"


@hypothesis.given(strategies.text(alphabet="a é 中🙂", max_size=200), strategies.integers(4, 40))
def test_long_lines_are_split_between_characters_and_lose_nothing(text, limit):
    parts = list(split_line(text.encode(), limit))
    assert b"".join(parts) == text.encode()
    assert all(0 < len(part.decode().encode()) <= limit for part in parts[:-1])
    assert len(parts[-1]) <= limit


def test_lines_are_split_at_spaces_where_there_are_some():
    parts = list(split_line(b"some words " * 2000))
    assert all(part.endswith(b" ") and len(part) <= MAX_LINE_BYTES for part in parts)
    assert all(part.startswith((b"some", b"words")) for part in parts if part)
