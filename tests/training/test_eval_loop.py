"""The process that measures the checkpoints of a run from beside it."""

import json
import os
import shutil
import signal
import time

import numpy as np
import pytest
import tensorflow as tf

from kzoo.config import loader
from kzoo.config.model_on_disk import is_run
from kzoo.errors import KzooError
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.training import best_run
from kzoo.training.best_run import BestRun, CheckpointGoneError
from kzoo.training.checkpoints import Checkpoints
from kzoo.training.ready_examples import ready_examples
from kzoo.training.run_preset import write_preset_of_run
from tests.training import runs
from tests.training.subprocesses import run_python

EVERY_STEP = [5, 10, 15, 20]
# Removes step 10 from the run while its files are being linked.
_REMOVING = """
import os, shutil, sys
from kzoo import command, pretrain
from kzoo.training import best_run

link = best_run._link

def removing(source, target):
    if "step-00000010" in source:
        shutil.rmtree(os.path.dirname(source), ignore_errors=True)
    link(source, target)

best_run._link = removing
sys.exit(command.run(pretrain.main, pretrain.FLAGS, pretrain.__doc__))
"""


def follow(config, model_dir, *settings, timeout_seconds=0):
    return [
        *runs.arguments(config, model_dir, *settings),
        "--mode=eval_loop",
        f"--eval_timeout_seconds={timeout_seconds}",
    ]


def measured(model_dir) -> dict[int, dict]:
    """The lines of `eval/metrics.jsonl` that are of a checkpoint."""
    lines = runs.metrics(model_dir / "eval", "held_out")
    found = {line["step"]: line for line in lines if "loss" in line}
    assert len(found) == sum("loss" in line for line in lines), "a step was measured twice"
    return found


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("config")
    return runs.write_config(folder / "config.yaml", folder / "examples")


@pytest.fixture(scope="module")
def followed(config, tmp_path_factory):
    """A run and how the two processes ended, the one that follows being there first."""
    model_dir = tmp_path_factory.mktemp("runs") / "followed"
    follower = runs.start(*follow(config, model_dir, timeout_seconds=200))
    trainer = runs.start(*runs.arguments(config, model_dir, "trainer.validation_interval=null"))
    trained, ended = runs.finish(trainer), runs.finish(follower)
    assert trained.status == 0, trained.errors
    return model_dir, ended


@pytest.fixture
def copy(followed, tmp_path):
    """The run before anything has followed it."""
    model_dir = shutil.copytree(followed[0], tmp_path / "run")
    shutil.rmtree(model_dir / "eval")
    return model_dir


def test_every_checkpoint_is_measured_while_the_run_goes_on(followed):
    model_dir, ended = followed
    assert ended.status == 0, ended.errors
    assert list(measured(model_dir)) == EVERY_STEP
    assert not runs.metrics(model_dir, "held_out")
    assert "Traceback" not in ended.errors
    assert "step 20: held-out loss" in ended.errors
    assert ended.output.startswith("measured 4 checkpoints; the best is that of step ")
    baseline = runs.metrics(model_dir / "eval", "held_out")[0]
    assert baseline["step"] == 0
    assert {"unigram_loss", "unigram_loss/de"} <= set(baseline)
    events = list((model_dir / "eval" / "tensorboard").glob("*/*tfevents*"))
    assert [path.parent.name for path in events] == ["held_out"]


def test_what_is_measured_is_what_training_would_have_measured(followed, config, tmp_path):
    settings = ("trainer.validation_interval=5",)
    ended = runs.run(*runs.arguments(config, tmp_path / "alone", *settings))
    assert ended.status == 0, ended.errors
    alone = runs.metrics(tmp_path / "alone", "held_out")
    assert alone == runs.metrics(followed[0] / "eval", "held_out")


def test_the_best_checkpoint_is_a_run_of_its_own(followed, tmp_path):
    model_dir, _ = followed
    losses = {step: line["loss"] for step, line in measured(model_dir).items()}
    step = min(losses, key=losses.__getitem__)
    best = shutil.copytree(model_dir / "eval" / "best", tmp_path / "best")
    assert Checkpoints(best / "checkpoints").best() == (step, losses[step])
    assert runs.steps(best) == [step]
    assert is_run(best)
    preset, _ = write_preset_of_run(best)
    stored = runs.checkpoint(model_dir, step)
    for variable in RemBertMaskedLM.from_preset(preset).variables:
        np.testing.assert_array_equal(variable.numpy(), stored[variable.path], variable.path)


def test_following_writes_nothing_outside_of_its_folder_and_measures_no_step_twice(copy, config):
    before = runs.files(copy)
    command = follow(config, copy)
    first, again = runs.run_all([command, command])
    assert (first.status, again.status) == (0, 0), first.errors + again.errors
    assert again.output == first.output
    assert "held-out loss" not in again.errors
    after = {name: data for name, data in runs.files(copy).items() if not name.startswith("eval/")}
    assert after == before
    assert list(measured(copy)) == EVERY_STEP


def test_a_damaged_checkpoint_is_passed_over_and_a_killed_process_goes_on(copy, config):
    data = copy / "checkpoints" / "step-00000010" / "variables.data-00000-of-00001"
    whole = data.read_bytes()
    data.write_bytes(whole[:-7])
    first = runs.run(*follow(config, copy, "trainer.train_steps=15"))
    assert first.status == 0, first.errors
    assert "step-00000010 is passed over" in first.errors
    assert "Traceback" not in first.errors
    assert list(measured(copy)) == [5, 15]
    # As a kill leaves it between keeping a checkpoint and writing its line.
    path = copy / "eval" / "metrics.jsonl"
    text = path.read_text()
    path.write_text(text.replace(text.splitlines(keepends=True)[-1], '{"step": 15, "ti'))
    (copy / "eval" / ".best.partial").mkdir()
    shutil.move(copy / "eval" / "best", copy / "eval" / ".best.partial" / "old")
    data.write_bytes(whole)
    [second] = runs.run_all([follow(config, copy)])
    assert second.status == 0, second.errors
    assert sorted(measured(copy)) == EVERY_STEP
    losses = {step: line["loss"] for step, line in measured(copy).items()}
    best = Checkpoints(copy / "eval" / "best" / "checkpoints").best()
    assert best.loss == min(losses.values())
    assert not (copy / "eval" / ".best.partial").exists()


def test_a_checkpoint_that_is_removed_while_it_is_read_is_a_message(copy, config):
    done = run_python(_REMOVING, *follow(config, copy))
    assert "step 10: the run removed this checkpoint" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(measured(copy)) == [5, 15, 20]


def test_it_stops_when_asked_to_and_is_alone(copy, config):
    command = follow(config, copy, "trainer.train_steps=40", timeout_seconds=200)
    process = runs.start(*command)
    deadline = time.monotonic() + 200
    while 20 not in measured(copy):
        assert process.poll() is None, runs.finish(process)
        assert time.monotonic() < deadline
        time.sleep(0.1)
    [second] = runs.run_all([command])
    assert second.status == 2
    assert "eval is in use by another run" in second.errors
    process.send_signal(signal.SIGTERM)
    ended = runs.finish(process)
    assert ended.status == 0, ended.errors
    assert "stopped by SIGTERM" in ended.errors
    assert "Traceback" not in ended.errors


def test_it_ends_where_nothing_comes_any_more(copy, config, tmp_path):
    [late, nothing, unmade] = runs.run_all(
        [
            follow(config, copy, "trainer.train_steps=40"),
            follow(config, tmp_path / "nothing"),
            follow(config, tmp_path / "unmade", f"data.examples={tmp_path / 'none'}"),
        ]
    )
    assert late.status == 0
    assert "no new checkpoint in 0 seconds, and none yet of step 40" in late.errors
    assert (nothing.status, unmade.status) == (2, 2)
    assert "no checkpoint appeared in" in nothing.errors
    assert "there were no examples in" in unmade.errors
    assert not (tmp_path / "none").exists()


def test_mistakes_are_messages(copy, config, tmp_path):
    silent = tmp_path / "silent"
    without_held_out = ("corpus.held_out_files=null", f"data.examples={silent}")
    ready_examples(loader.load([str(config)], without_held_out))
    made = runs.files(silent)
    [other_model, no_text, wrong_mode] = runs.run_all(
        [
            follow(config, copy, "model.hidden_dim=32"),
            follow(config, copy, *without_held_out),
            [*runs.arguments(config, copy), "--eval_timeout_seconds=3"],
        ]
    )
    assert [ended.status for ended in (other_model, no_text, wrong_mode)] == [2, 2, 2]
    assert "is of another model" in other_model.errors
    assert "--mode=eval_loop only" in wrong_mode.errors
    assert f"the examples in {silent} have no held-out text" in no_text.errors
    assert runs.files(silent) == made
    assert not list((copy / "eval").glob(".*.partial"))


@pytest.fixture
def checkpoint(tmp_path):
    """Two checkpoints of a variable, and the folder of the first."""
    checkpoints = Checkpoints(tmp_path / "run" / "checkpoints")
    variable = tf.Variable([1.0, 2.0], name="a")
    paths = []
    for step in (1, 2):
        variable.assign([step, 2.0 * step])
        paths.append(checkpoints.save(step, [variable], {}))
    return variable, paths


@pytest.fixture
def best(tmp_path, config):
    (tmp_path / "eval").mkdir()
    return BestRun(str(tmp_path / "eval" / "best"), loader.load([str(config)]))


@pytest.mark.parametrize("links", [True, False], ids=["links", "copies"])
def test_what_is_held_stays_though_the_run_removes_it(checkpoint, best, links, monkeypatch):
    if not links:
        monkeypatch.setattr(os, "link", _no_links)
    variable, (path, other) = checkpoint
    held = best.hold(path, 1)
    shutil.rmtree(path)
    Checkpoints.restore(held, [variable])
    assert variable.numpy().tolist() == [1.0, 2.0]
    best.keep(1, 3.5)
    assert best.best() == (1, 3.5)
    best.hold(other, 2)
    assert best.best() == (1, 3.5)
    best.keep(2, 3.25)
    assert best.best() == (2, 3.25)
    assert os.listdir(best.folder + "/checkpoints") != []
    assert sorted(os.listdir(os.path.dirname(best.folder))) == ["best"]


def _no_links(_source, _target):
    raise OSError(95, "Operation not supported")


@pytest.mark.parametrize("removed", range(3))
def test_a_checkpoint_that_vanishes_is_not_held(checkpoint, best, removed, monkeypatch):
    _, (path, _) = checkpoint
    link, count = best_run._link, [0]

    def racing(source, target):
        if count[0] == removed:
            shutil.rmtree(path)
        count[0] += 1
        link(source, target)

    monkeypatch.setattr(best_run, "_link", racing)
    with pytest.raises(CheckpointGoneError):
        best.hold(path, 1)
    assert os.listdir(os.path.dirname(best.folder)) == []


def test_a_checkpoint_of_which_the_removal_has_begun_is_not_held(checkpoint, best):
    _, (path, _) = checkpoint
    os.remove(os.path.join(path, "state.json"))
    with pytest.raises(CheckpointGoneError):
        best.hold(path, 1)


def test_a_full_disk_is_a_message(checkpoint, best, monkeypatch):
    def full(_source, _target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "link", full)
    with pytest.raises(KzooError, match=r"cannot hold the checkpoint .*No space left"):
        best.hold(checkpoint[1][0], 1)


def test_the_mark_says_which_checkpoint_is_the_best(checkpoint, best):
    _, (path, _) = checkpoint
    best.hold(path, 1)
    best.keep(1, 3.5)
    with open(os.path.join(best.folder, "checkpoints", "best.json")) as file:
        assert json.load(file) == {"step": 1, "loss": 3.5}
