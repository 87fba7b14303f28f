"""Which files belong to which language, and what is said when none do."""

import os

import pytest

from kzoo.corpora.files import (
    find_files,
    local_path,
    size_bytes,
    written_aside,
)
from kzoo.errors import KzooError


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    for name in ("train-de.txt", "train-en.txt", "train-zh-Hant.txt", "dev-de.txt"):
        (tmp_path / name).write_text("text\n")
    for name in ("de/b.txt", "de/a.txt", "en/deep/down/c.txt"):
        (tmp_path / "by_language" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "by_language" / name).write_text("text\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "train-{lang}.txt",
            {"de": ["train-de.txt"], "en": ["train-en.txt"], "zh-Hant": ["train-zh-Hant.txt"]},
        ),
        ("train-{lang}.t[xy]t", {"de": 1, "en": 1, "zh-Hant": 1}),
        ("[!d]*-{lang}.txt", {"de": 1, "en": 1, "Hant": 1}),
        ("[]t]rain-{lang}[.[]txt", {"de": 1, "en": 1, "zh-Hant": 1}),
        ("by_language/{lang}/*.txt", {"de": ["by_language/de/a.txt", "by_language/de/b.txt"]}),
        ("by_language/{lang}/**/*.txt", {"de": 2, "en": ["by_language/en/deep/down/c.txt"]}),
        (
            ["train-{lang}.txt", "by_language/{lang}/a.txt"],
            {"de": ["train-de.txt", "by_language/de/a.txt"], "en": 1, "zh-Hant": 1},
        ),
        (
            {"gsw": ["train-de.txt", "dev-*.txt"], "en": "train-en.txt"},
            {"en": ["train-en.txt"], "gsw": ["train-de.txt", "dev-de.txt"]},
        ),
    ],
)
def test_files_are_found_by_language(corpus, source, expected):
    found = find_files(source)
    assert list(found) == sorted(expected)
    for language, files in expected.items():
        assert (found[language] if isinstance(files, list) else len(found[language])) == files


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("trian-{lang}.txt", ["trian-{lang}.txt", "holds train-"]),
        ("nowhere/train-{lang}.txt", ["no file matches", "by_language"]),
        ("[z-a]rain-{lang}.txt", ["no file matches", "[z-a]rain"]),
        ("[!]{lang}.txt", ["no file matches"]),
        ("[\\]{lang}.txt", ["no file matches"]),
        ("train-de.txt", ["must contain {lang}"]),
        ({"de": "train-{lang}.txt"}, ["'de'", "the key says the language"]),
        ({"de": "train-fr.txt"}, ["'de'", "train-fr.txt", "train-de.txt"]),
        (["train-{lang}.txt", "t*-{lang}.txt"], ["train-de.txt is named twice"]),
        ({"de": "train-de.txt", "nds": "train-de.txt"}, ["languages de and nds"]),
        ({}, ["no files of text"]),
    ],
)
def test_what_is_not_found_or_found_twice_is_an_error(corpus, source, parts):
    with pytest.raises(KzooError) as error:
        find_files(source)
    for part in parts:
        assert part in str(error.value)


def test_the_same_file_under_two_names_is_found_out(corpus):
    os.symlink(corpus / "train-de.txt", corpus / "train-nds.txt")
    with pytest.raises(KzooError, match="de and nds"):
        find_files("train-{lang}.txt")


def test_a_pipe_is_refused_rather_than_waited_for(corpus):
    os.mkfifo(corpus / "pipe-de.txt")
    with pytest.raises(KzooError, match=r"pipe-de\.txt: it is a pipe or a device"):
        size_bytes(str(corpus / "pipe-de.txt"))


def test_a_name_in_another_encoding_is_refused_before_any_work(corpus):
    (corpus / os.fsdecode(b"caf\xe9-fr.txt")).write_text("texte\n")
    with pytest.raises(KzooError, match=r"the name caf\ufffd-fr\.txt is not utf-8"):
        find_files("*-{lang}.txt")
    with pytest.raises(KzooError, match="the name caf\ufffd is not utf-8"):
        local_path(os.fsdecode(b"caf\xe9"))


def test_a_file_appears_only_when_it_is_whole(tmp_path):
    path = tmp_path / "counts.json"
    path.write_text("old")

    def write_half():
        with written_aside(str(path)) as aside, open(aside, "w") as file:
            file.write("half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["counts.json"]


def test_a_url_is_refused_where_a_local_folder_would_be_made_of_it(tmp_path):
    assert local_path(tmp_path / "examples") == str(tmp_path / "examples")
    assert local_path("data/mini/") == "data/mini"
    with pytest.raises(KzooError, match="gs://bucket/run is not a local path"):
        local_path("gs://bucket/run")


@pytest.mark.parametrize("path", ["", "/"])
def test_a_folder_has_a_name(path):
    with pytest.raises(KzooError, match=f"expected the name of a folder, received '{path}'"):
        local_path(path)
