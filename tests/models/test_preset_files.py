"""What a preset says of its model, and presets that say too little or too much."""

import json

import pytest

from kzoo import KzooError
from kzoo.models.preset_files import read_arguments
from kzoo.models.saving import save_preset
from tests.models import shapes


@pytest.fixture
def folder(tmp_path):
    save_preset(shapes.masked_lm(pooler="mean"), None, tmp_path / "preset")
    return tmp_path / "preset"


def change(file, function) -> None:
    content = json.loads(file.read_text())
    function(content)
    file.write_text(json.dumps(content))


def test_arguments_build_the_same_model(folder):
    arguments, output_embedding_dim = read_arguments(folder)
    assert output_embedding_dim == 40
    assert arguments == {
        **shapes.ARGUMENTS,
        "num_segments": 2,
        "dropout": 0.0,
        "attention_dropout": 0.0,
        "activation": "gelu",
        "layer_norm_epsilon": 1e-12,
        "pooler": "mean",
        "project_embeddings": "auto",
    }


def test_an_encoder_alone_has_no_width_of_the_output(folder):
    (folder / "task.json").unlink()
    assert read_arguments(folder)[1] is None


@pytest.mark.parametrize(
    ("file", "function", "message"),
    [
        ("config.json", lambda c: c["config"].pop("num_layers"), "lacks num_layers$"),
        ("config.json", lambda c: c["config"].update(rotary=1), "has the unknown rotary$"),
        ("config.json", lambda c: c.update(config=[1]), "not of a kzoo RemBertBackbone"),
        ("config.json", lambda c: c.update(registered_name="a>B"), "Received: a>B"),
        ("config.json", lambda c: c.pop("registered_name"), "Received: None"),
        ("task.json", lambda c: c["config"].pop("output_embedding_dim"), "output_embedding_dim$"),
    ],
)
def test_what_is_wrong_is_named(folder, file, function, message):
    change(folder / file, function)
    with pytest.raises(KzooError, match=message):
        read_arguments(folder)


@pytest.mark.parametrize(
    ("file", "argument", "value", "message"),
    [
        ("config.json", "num_layers", "3", "positive integer. Received: num_layers='3'"),
        ("config.json", "num_layers", 10**9, "there are 1,000,000,000 layers; .* has 3"),
        ("config.json", "vocabulary_size", 10**30, "at most 2,147,483,647"),
        ("config.json", "num_heads", 5, "must divide `hidden_dim`"),
        ("config.json", "dropout", "0.1", "`dropout` must be a number"),
        ("config.json", "dropout", 1, r"`dropout` must be in \[0, 1\)"),
        ("config.json", "layer_norm_epsilon", None, "`layer_norm_epsilon` must be a number"),
        ("config.json", "activation", [], "`activation` must be one of"),
        ("config.json", "pooler", {}, "`pooler` must be one of"),
        ("task.json", "output_embedding_dim", "wide", 'positive integer or "tied"'),
        ("task.json", "output_embedding_dim", 0, "`output_embedding_dim` must be a positive"),
        ("task.json", "output_embedding_dim", None, "output_embedding_dim is not said"),
    ],
)
def test_a_value_that_makes_no_model_is_named(folder, file, argument, value, message):
    change(folder / file, lambda content: content["config"].update({argument: value}))
    with pytest.raises(KzooError, match=f"preset.*{message}"):
        read_arguments(folder)


@pytest.mark.parametrize("file", ["config.json", "task.json"])
def test_nesting_without_end_is_damage(folder, file):
    (folder / file).write_text("[" * 100_000)
    with pytest.raises(KzooError, match=f"{file} is damaged"):
        read_arguments(folder)


def test_a_folder_that_is_none_and_a_file_that_is_cut_short(folder, tmp_path):
    with pytest.raises(KzooError, match=r"nothing is no model preset: cannot read config\.json"):
        read_arguments(tmp_path / "nothing")
    (folder / "config.json").write_text('{"config"')
    with pytest.raises(KzooError, match="is damaged"):
        read_arguments(folder)
