"""The files in configs/ load, say why, and hold the paper's numbers; their README is current."""

import re

import pytest

from kzoo import config
from kzoo.config import reference
from tests.paths import REPOSITORY

FOLDER = REPOSITORY / "configs"
FILES = sorted(FOLDER.glob("*.yaml"))


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_file_loads(file):
    loaded = config.load([str(file)])
    assert loaded.model.preset == file.stem
    assert loaded.data.examples == f"data/{file.stem}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_key_has_a_comment(file):
    lines = file.read_text("utf-8").splitlines()
    keys = [number for number, line in enumerate(lines) if re.match(r"  \w+:", line)]
    assert keys
    for number in keys:
        above = lines[number - 1].strip()
        assert " # " in lines[number] or above.startswith("# "), f"{file.name}:{number + 1}"


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_file_is_in_the_table_of_the_readme(file):
    assert f"[{file.name}]({file.name})" in (FOLDER / "README.md").read_text("utf-8")


def test_readme_lists_every_key_as_the_schema_has_it():
    readme = (FOLDER / "README.md").read_text("utf-8")
    assert reference.with_tables(readme) == readme, "run python -m kzoo.config.reference"


def test_rembert_has_the_recipe_of_table_14():
    loaded = config.load([str(FOLDER / "rembert.yaml")])
    model, data, optimizer = loaded.model, loaded.data, loaded.optimizer
    assert (model.num_layers, model.hidden_dim, model.num_heads) == (32, 1152, 18)
    assert (model.embedding_dim, model.dropout, model.attention_dropout) == (256, 0.0, 0.0)
    assert (model.vocabulary_size, model.output_embedding_dim) == (250_300, 1664)
    assert (data.global_batch_size, data.sequence_length) == (2048, 512)
    assert (loaded.trainer.train_steps, data.sampling_exponent) == (1_760_000, 0.5)
    assert (optimizer.learning_rate, optimizer.warmup_steps) == (2e-4, 15_000)
    assert (optimizer.beta_1, optimizer.beta_2, optimizer.epsilon) == (0.9, 0.999, 1e-6)
    assert (optimizer.weight_decay, optimizer.clip_norm) == (0.01, 1.0)


def test_what_the_comment_of_rembert_sets_for_one_machine_loads():
    file = FOLDER / "rembert.yaml"
    comment = re.findall(r"--set (\w+\.\w+=\S+)", file.read_text("utf-8").partition("model:")[0])
    loaded = config.load([str(file)], comment)
    assert loaded.data.global_batch_size == loaded.trainer.train_steps == 2
