"""Training vocabularies by the command: real text, real processes."""

import json
import pathlib
import subprocess
import sys

import pytest

from kzoo import KzooError, sample
from kzoo.text import sentencepiece_trainer
from kzoo.text.vocabulary import Vocabulary
from kzoo.text.vocabulary_info import VocabularyInfo


def run(folder: pathlib.Path, *arguments: str, **options) -> subprocess.CompletedProcess:
    """Runs the command in `folder`."""
    return subprocess.run(
        [sys.executable, "-m", "kzoo.vocabulary", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


SAMPLE = f"--input={sample.folder()}/train-{{lang}}.txt"


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> tuple[pathlib.Path, subprocess.CompletedProcess]:
    """A folder with a vocabulary of the whole sample corpus, and what the command printed."""
    folder = tmp_path_factory.mktemp("made")
    return folder, run(folder, SAMPLE, "--size=2500", "--output=vocabulary")


def test_the_command_makes_a_vocabulary_and_says_what_of(made):
    folder, done = made
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(path.name for path in (folder / "vocabulary").iterdir()) == [
        "sentencepiece.model",
        "vocabulary.json",
    ]
    vocabulary = Vocabulary.load(folder / "vocabulary")
    pieces = vocabulary.processor.id_to_piece(list(range(7)))
    assert pieces[:6] == ["<pad>", "</s>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
    assert vocabulary.size == 2500
    info = VocabularyInfo.load(str(folder / "vocabulary"))
    assert info.sha256 == vocabulary.sha256
    assert info.settings.num_threads == 16
    assert info.lines_lost == 0
    for language in sample.LANGUAGES:
        assert info.languages[language].sentences == 96
        assert any(line.split()[:2] == [language, "96"] for line in done.stdout.splitlines())


def test_text_cannot_produce_control_pieces_and_case_is_kept(made):
    vocabulary = Vocabulary.load(made[0] / "vocabulary")
    ids = vocabulary.encode("x [MASK] y [SEP] </s> <pad> [CLS] <unk>")
    assert not {0, 1, 3, 4, 5} & set(ids.tolist())
    assert vocabulary.encode("The").tolist() != vocabulary.encode("the").tolist()


def test_the_same_text_gives_the_same_vocabulary(made, tmp_path):
    assert run(tmp_path, SAMPLE, "--size=2500", "--output=again").returncode == 0
    again = Vocabulary.load(tmp_path / "again")
    assert again.sha256 == Vocabulary.load(made[0] / "vocabulary").sha256
    # Nor does it say where it was made.
    assert str(tmp_path).encode() not in again.model


def test_run_again_it_changes_nothing_and_other_settings_need_overwrite(made):
    folder, first = made
    model = folder / "vocabulary/sentencepiece.model"
    before = model.stat().st_mtime_ns
    again = run(folder, SAMPLE, "--size=2500", "--output=vocabulary")
    assert (again.returncode, again.stdout) == (0, first.stdout)
    refused = run(folder, SAMPLE, "--size=2400", "--output=vocabulary")
    assert refused.returncode == 2
    assert "size is 2400, was 2500" in refused.stderr
    assert model.stat().st_mtime_ns == before


@pytest.fixture
def text(tmp_path) -> pathlib.Path:
    """A folder with a little English text, `en.txt`."""
    content = (sample.folder() / "train-en.txt").read_bytes()
    (tmp_path / "en.txt").write_bytes(content)
    return tmp_path


def test_overwrite_replaces_a_vocabulary_and_what_an_interrupted_training_left(text):
    (text / "v.partial").mkdir()
    (text / "v.partial/sample.txt").write_text("half a sam")
    assert run(text, "--input={lang}.txt", "--size=200", "--output=v").returncode == 0
    arguments = ("--input={lang}.txt", "--size=210", "--output=v", "--overwrite")
    assert run(text, *arguments).returncode == 0
    assert Vocabulary.load(text / "v").size == 210
    assert sorted(path.name for path in text.iterdir()) == ["en.txt", "v"]


def test_long_lines_reach_the_trainer_whole(text):
    words = (text / "en.txt").read_text(encoding="utf-8").split()
    # Neither is as the trainer takes it: one has spaces, the other has none and no end.
    (text / "en.txt").write_text(" ".join(words * 5) + "\n" + "ไทยคำ" * 20_000 + "\n")
    done = run(text, "--input={lang}.txt", "--size=200", "--output=v")
    assert done.returncode == 0
    info = VocabularyInfo.load(str(text / "v"))
    assert info.lines_lost == 0
    assert info.languages["en"].sentences == 2
    assert Vocabulary.load(text / "v").unk_id not in Vocabulary.load(text / "v").encode("ไทยคำ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--size=50000"], "too little text for a vocabulary of 50,000 pieces; the largest"),
        (["--size=20"], "has no room for the characters of the text; it needs more than"),
        (["--size=6"], "size"),
        (["--size=200", "--input=no/{lang}.txt"], "no file matches 'no/{lang}.txt'"),
        (["--size=200", "--character_coverage=0.5"], "character_coverage"),
        (["--size=200", "--output=en.txt"], "en.txt holds other things than a vocabulary"),
        (["--size=200", "--input=en.txt"], "must contain {lang}"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_become_a_vocabulary_is_one_clear_error(text, arguments, message):
    failed = run(text, "--input={lang}.txt", "--output=v", *arguments)
    assert failed.returncode == 2
    [printed] = failed.stderr.splitlines()
    assert printed.startswith("error: ")
    assert message in printed
    assert [path.name for path in text.iterdir()] == ["en.txt"]


def test_the_largest_size_that_is_named_is_possible(text):
    failed = run(text, "--input={lang}.txt", "--output=v", "--size=50000")
    [largest] = [word for word in failed.stderr.split() if word.startswith("--size=")]
    done = run(text, "--input={lang}.txt", "--output=v", largest.rstrip(","))
    assert done.returncode == 0, done.stderr


def test_bad_text_is_named_or_counted(text):
    with open(text / "en.txt", "ab") as stream:
        stream.write(b"caf\xe9 ok\n")
    arguments = ("--input={lang}.txt", "--size=200", "--output=v")
    assert "en.txt, line 108: byte 0xe9" in run(text, *arguments).stderr
    skipped = run(text, *arguments, "--on_bad_text=skip")
    assert skipped.returncode == 0
    assert skipped.stderr.startswith("1 line of the vocabulary's text could not be read: ")
    info = json.loads((text / "v/vocabulary.json").read_text())
    assert (info["skipped_lines"], info["replaced_lines"]) == (1, 0)


def test_a_trainer_that_is_killed_is_reported(monkeypatch, tmp_path):
    program = "import os, signal, sys; sys.stdin.read(); os.kill(os.getpid(), signal.SIGKILL)"
    monkeypatch.setattr(sentencepiece_trainer, "_PROGRAM", program)
    with pytest.raises(KzooError, match=r"killed, .*memory ran out; use a smaller --max_sentences"):
        sentencepiece_trainer.train(tmp_path, {"vocab_size": 100}, print)


def test_what_the_trainer_does_not_explain_is_passed_on(tmp_path):
    with pytest.raises(KzooError, match=r"could not train the vocabulary: .*no-such-file"):
        sentencepiece_trainer.train(
            tmp_path,
            {"vocab_size": 100, "input": ["no-such-file"], "model_prefix": "no-such-folder/m"},
            print,
        )


def test_a_model_that_a_full_disk_cut_short_is_not_taken(monkeypatch, tmp_path):
    program = sentencepiece_trainer._PROGRAM + "open('m.model', 'r+b').truncate(500)\n"
    monkeypatch.setattr(sentencepiece_trainer, "_PROGRAM", program)
    (tmp_path / "text").write_text("one two three four five six\n" * 20)
    settings = {"vocab_size": 20, "input": ["text"], "model_prefix": "m"}
    with pytest.raises(KzooError, match="lacks pieces or cannot be read"):
        sentencepiece_trainer.train(tmp_path, settings, print)
