"""Examples are made on first use, and used as they are afterwards."""

import shutil

import pytest

from kzoo import KzooError, sample
from kzoo.config import loader
from kzoo.training.known_vocabulary import KnownVocabulary
from kzoo.training.ready_examples import ready_examples
from tests.training import runs


def test_examples_that_are_there_are_used_with_a_warning_if_the_text_is_another(tmp_path, caplog):
    path = runs.write_config(tmp_path / "config.yaml", tmp_path / "examples")
    made = ready_examples(loader.load([str(path)]))
    again = ready_examples(loader.load([str(path)]))
    assert again.info == made.info
    assert caplog.text == ""

    other = tmp_path / "other-de.txt"
    shutil.copy(sample.folder() / "train-de.txt", other)
    changed = loader.load([str(path)], [f"corpus.train_files={{de: {other}}}", NO_HELD_OUT])
    assert ready_examples(changed).info == made.info
    assert "made from other files than corpus.train_files names" in caplog.text


def test_the_text_need_not_be_there_once_the_examples_are(tmp_path, caplog):
    path = runs.write_config(tmp_path / "config.yaml", tmp_path / "examples")
    made = ready_examples(loader.load([str(path)]))
    gone = loader.load([str(path)], ["corpus.train_files={de: gone.txt}", NO_HELD_OUT])
    assert ready_examples(gone).info == made.info
    assert caplog.text == ""


NO_HELD_OUT = "corpus.held_out_files=null"


def test_examples_are_not_made_with_another_vocabulary_than_that_of_the_checkpoints(tmp_path):
    path = runs.write_config(tmp_path / "config.yaml", tmp_path / "examples")
    config = loader.load([str(path)])
    made = ready_examples(config).vocabulary()
    shutil.rmtree(tmp_path / "examples")
    other = KnownVocabulary(lambda: made, "0" * 64, "the run in here")
    with pytest.raises(KzooError, match="the run in here was trained with another vocabulary"):
        ready_examples(config, other)
    assert not (tmp_path / "examples").exists()
