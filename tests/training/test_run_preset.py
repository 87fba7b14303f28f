"""The preset of a run, whether or not the run has finished."""

import json
import os
import shutil

import numpy as np
import pytest

from kzoo import KzooError
from kzoo.config.model_on_disk import is_run
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.training.run_preset import write_preset_of_run
from tests.training import runs


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The folder of a run of five steps in bfloat16, with its preset."""
    folder = tmp_path_factory.mktemp("run")
    config = runs.write_config(folder / "config.yaml", folder / "examples")
    settings = ("trainer.train_steps=5", "runtime.precision=mixed_bfloat16")
    ended = runs.run(*runs.arguments(config, folder / "run", *settings))
    assert ended.status == 0, ended.errors
    return folder / "run"


@pytest.fixture
def run(finished, tmp_path):
    """A copy of it, with the same times."""
    return shutil.copytree(finished, tmp_path / "run")


def go_on_until(run, train_steps):
    """Makes the run one that ends later."""
    config = run / "config.yaml"
    text = config.read_text()
    assert "train_steps: 5\n" in text
    config.write_text(text.replace("train_steps: 5\n", f"train_steps: {train_steps}\n"))


def assert_is_of_step_5(preset, run):
    """The preset's values are the checkpoint's, in float32, with nothing of the optimizer."""
    stored = runs.checkpoint(run, 5)
    model = RemBertMaskedLM.from_preset(preset, dtype="float32")
    assert model.variables
    for variable in model.variables:
        np.testing.assert_array_equal(variable.numpy(), stored[variable.path], variable.path)


@pytest.mark.parametrize("clock", ["as it was", "set back between checkpoint and preset"])
def test_the_preset_of_a_finished_run_is_left_alone(run, clock):
    if clock != "as it was":
        for path in (run / "preset").iterdir():
            os.utime(path, (0, 0))
    before = runs.files(run)
    assert is_run(run)
    assert write_preset_of_run(run) == (str(run / "preset"), None)
    assert runs.files(run) == before


def test_an_unfinished_run_gets_a_preset_of_its_newest_checkpoint(run):
    go_on_until(run, 20)
    shutil.rmtree(run / "preset")
    preset, step = write_preset_of_run(run)
    assert step == 5
    assert_is_of_step_5(preset, run)


@pytest.mark.parametrize("said", ['{"made_anew": {}, "step": 4}', None])
def test_a_preset_from_before_the_end_is_replaced(run, said):
    assert json.loads((run / "preset" / "kzoo.json").read_text())["step"] == 5
    (run / "preset" / "old").touch()
    if said is None:
        (run / "preset" / "kzoo.json").unlink()
    else:
        (run / "preset" / "kzoo.json").write_text(said)
    preset, step = write_preset_of_run(run)
    assert step is None
    assert not (run / "preset" / "old").exists()
    assert_is_of_step_5(preset, run)


def test_a_run_without_checkpoint_is_a_clear_error(run):
    shutil.rmtree(run / "preset")
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(KzooError, match=r"neither a checkpoint nor a preset.*every 5 steps"):
        write_preset_of_run(run)


def test_examples_of_another_vocabulary_are_a_clear_error(run, finished, tmp_path):
    go_on_until(run, 20)
    examples = shutil.copytree(finished.parent / "examples", tmp_path / "examples")
    info = json.loads((examples / "dataset.json").read_text())
    info["vocabulary_sha256"] = "0" * 64
    (examples / "dataset.json").write_text(json.dumps(info))
    config = run / "config.yaml"
    text = config.read_text()
    config.write_text(text.replace(str(finished.parent / "examples"), str(examples)))
    with pytest.raises(KzooError, match="another vocabulary"):
        write_preset_of_run(run)
