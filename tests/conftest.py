"""What many tests need and is costly to make."""

import os
import pathlib

import pytest

from kzoo import sample


@pytest.fixture(scope="session")
def vocabulary_folder(tmp_path_factory) -> pathlib.Path:
    """A vocabulary of 600 pieces, trained on the sample corpus in German, English and Hindi."""
    from kzoo.text.vocabulary_training import train_vocabulary

    folder = tmp_path_factory.mktemp("vocabulary") / "sample"
    files = {
        language: [str(sample.folder() / f"train-{language}.txt")]
        for language in ("de", "en", "hi")
    }
    train_vocabulary(files, 600, folder)
    return folder


@pytest.fixture(scope="session")
def served(vocabulary_folder, tmp_path_factory):
    """A small model with random weights, and what a server gets of it."""
    from kzoo.text.vocabulary import Vocabulary
    from tests.saved_model.exports import write_exports

    folder = tmp_path_factory.mktemp("export")
    return write_exports(Vocabulary.load(vocabulary_folder), folder)


@pytest.fixture(scope="session")
def exported(vocabulary_folder, tmp_path_factory):
    """A small preset with random weights, and its whole export, which no test may change."""
    from tests.saved_model.exports import write_whole_export

    return write_whole_export(vocabulary_folder, tmp_path_factory.mktemp("exported"))


@pytest.fixture(autouse=True, scope="module")
def environment_variables_are_put_back():
    """Commands that are called in this process set some, for the process that they are else."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
