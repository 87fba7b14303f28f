"""Which files belong to which language, and what is said when none do."""

import os

import pytest

from kzoo.corpora.files import (
    find_files,
    written_aside,
)
from kzoo.errors import KzooError
from kzoo.storage import remote
from tests.storage import ram


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


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("train-{lang}.txt", {"de": ["train-de.txt"], "zh-Hant": ["train-zh-Hant.txt"]}),
        ("[!d]*-{lang}.t?t", {"de": ["train-de.txt"], "Hant": ["train-zh-Hant.txt"]}),
        ("by/{lang}/*.txt", {"de": ["by/de/a.txt", "by/de/b.txt"]}),
        ("by/{lang}/**/*.txt", {"de": ["by/de/a.txt", "by/de/b.txt"], "en": ["by/en/c/d.txt"]}),
    ],
)
def test_remote_files_are_found_by_language(pattern, expected):
    folder = ram.new_folder()
    names = ("train-de.txt", "train-zh-Hant.txt", "dev-de.txt", "by/de/b.txt", "by/de/a.txt")
    ram.write(folder, dict.fromkeys((*names, "by/en/c/d.txt"), b"text"))
    found = {lang: [f"{folder}/{name}" for name in names] for lang, names in expected.items()}
    assert find_files(f"{folder}/{pattern}") == found


def test_a_slip_in_a_url_shows_what_there_is():
    folder = ram.new_folder()
    ram.write(folder, {"train-de.txt": b"text", "dev-de.txt": b"text"})
    with pytest.raises(KzooError, match=r"no file matches .*/folder holds train-de\.txt, dev-de"):
        find_files(f"{folder}/trian-{{lang}}.txt")
    with pytest.raises(KzooError, match=r"no file of language 'de' .*/folder cannot be listed"):
        find_files({"de": "ram://nowhere/folder/*.txt"})
    with pytest.raises(KzooError, match="no storage foo://"):
        find_files("foo://bucket/{lang}.txt")


def test_a_file_url_is_a_path(corpus):
    assert find_files(f"file://{corpus}/train-{{lang}}.txt")["de"] == [f"{corpus}/train-de.txt"]


def test_a_local_file_is_in_a_folder_of_a_url_only_once(corpus):
    url = ram.new_folder()
    remote.write_bytes(f"{url}/train-de.txt", b"text")
    with pytest.raises(KzooError, match=r"train-de\.txt is named twice"):
        find_files([f"{url}/train-{{lang}}.txt", f"{url}/t*-{{lang}}.txt"])


def test_the_same_file_under_two_names_is_found_out(corpus):
    os.symlink(corpus / "train-de.txt", corpus / "train-nds.txt")
    with pytest.raises(KzooError, match="de and nds"):
        find_files("train-{lang}.txt")


def test_a_name_in_another_encoding_is_refused_before_any_work(corpus):
    (corpus / os.fsdecode(b"caf\xe9-fr.txt")).write_text("texte\n")
    with pytest.raises(KzooError, match=r"the name caf\ufffd-fr\.txt is not utf-8"):
        find_files("*-{lang}.txt")


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
