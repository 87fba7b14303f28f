"""Runs of two workers, each a process of the command."""

import re
import shutil
import signal
import time

import numpy as np
import pytest

from kzoo.errors import KzooError
from kzoo.training.cluster import check_tf_config
from tests.training import runs
from tests.training.workers import start_workers, wait_for_all


def _cluster(workers, job, index):
    return (
        f'{{"cluster": {{"worker": [{workers}]}}, "task": {{"type": "{job}", "index": {index}}}}}'
    )


WORKERS = "runtime.strategy=multi_worker_mirrored"
WITHOUT_DROPOUT = ("model.dropout=0.0", "model.attention_dropout=0.0")
MIRRORED = ("runtime.strategy=mirrored", "runtime.devices=2")
END_SECONDS = 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("workers")


@pytest.fixture(scope="module")
def config(folder):
    return runs.write_config(folder / "config.yaml", folder / "examples")


@pytest.fixture(scope="module")
def uninterrupted(config, folder):
    """The run of one process, in which examples were prepared."""
    model_dir = folder / "one"
    ended = runs.run(*runs.arguments(config, model_dir, *WITHOUT_DROPOUT))
    assert ended.status == 0, ended.errors
    return model_dir


def _command(config, model_dir, *settings):
    arguments = runs.arguments(config, model_dir, WORKERS, *WITHOUT_DROPOUT, *settings)
    return ("-m", "kzoo.pretrain", *arguments)


def _start(config, model_dir, *settings):
    return start_workers(*[_command(config, model_dir, *settings)] * 2)


def _assert_close(model_dir, expected_dir, step):
    found, expected = (runs.checkpoint(path, step) for path in (model_dir, expected_dir))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        if not name.endswith("key/bias"):  # its gradient is nothing but rounding
            np.testing.assert_allclose(found[name], value, rtol=1e-3, atol=2e-5, err_msg=name)


def test_two_workers_share_a_file_and_leave_one_set_of_checkpoints(config, uninterrupted, folder):
    model_dir = folder / "two"
    (status, output, errors), (other_status, other_output, _) = wait_for_all(
        _start(config, model_dir)
    )
    assert status == other_status == 0, errors
    assert "2 workers with 1 replicas each" in errors
    assert "finished 20 steps" in output
    assert not other_output
    _assert_close(model_dir, uninterrupted, 20)
    assert runs.metrics(model_dir)[-1]["loss"] == pytest.approx(
        runs.metrics(uninterrupted)[-1]["loss"], rel=1e-4
    )
    held_out = [runs.metrics(path, "held_out") for path in (model_dir, uninterrupted)]
    assert [line["step"] for line in held_out[0]] == [line["step"] for line in held_out[1]]
    assert held_out[0][-1]["loss"] == pytest.approx(held_out[1][-1]["loss"], rel=1e-4)
    names = {path.name for path in (model_dir / "checkpoints").iterdir()} - {".lock"}
    assert names == {f"step-{step:08d}" for step in (5, 10, 15, 20)}
    assert len(list((model_dir / "tensorboard" / "train").iterdir())) == 1


def test_a_signal_to_one_worker_stops_both_and_others_go_on(config, uninterrupted, folder):
    model_dir = folder / "stopped"
    workers = _start(config, model_dir)
    runs.signal_after_step(workers[1], model_dir, 7, signal.SIGTERM)
    (status, _, errors), (other_status, _, other_errors) = wait_for_all(workers)
    assert status == other_status == 0, errors
    assert "stopped by the signal of another worker after step" in errors
    assert "stopped by SIGTERM after step" in other_errors
    stopped = runs.steps(model_dir)[-1]
    assert 7 <= stopped < 20
    assert f"after step {stopped}, which is saved" in errors
    again = folder / "again"
    shutil.copytree(model_dir, again)
    (status, _, errors), _ = wait_for_all(_start(config, again))
    assert status == 0, errors
    assert f"resumed at step {stopped} of 20" in errors
    _assert_close(again, uninterrupted, 20)

    ended = runs.run(
        *runs.arguments(config, model_dir, *WITHOUT_DROPOUT, "trainer.accumulation_steps=2")
    )
    assert ended.status == 0, ended.errors
    assert f"resumed at step {stopped} of 20, with example {8 * stopped}" in ended.errors
    _assert_close(model_dir, uninterrupted, 20)


@pytest.mark.parametrize("killed", [0, 1])
def test_when_a_worker_is_killed_the_other_ends_and_says_so(config, uninterrupted, folder, killed):
    model_dir = folder / f"killed-{killed}"
    workers = _start(config, model_dir, "trainer.train_steps=100000")
    runs.signal_after_step(workers[killed], model_dir, 7, signal.SIGKILL)
    since = time.monotonic()
    ended = wait_for_all(workers)
    assert time.monotonic() - since < END_SECONDS
    status, _, errors = ended[1 - killed]
    assert status == 2, errors
    last = errors.strip().splitlines()[-1]
    assert last.startswith("error: another worker has ended or cannot be reached")
    assert "Traceback" not in errors


def test_workers_that_do_not_share_the_folder_are_refused(config, uninterrupted, folder):
    workers = start_workers(_command(config, folder / "here"), _command(config, folder / "there"))
    for status, _, errors in wait_for_all(workers):
        assert status == 2
        assert "worker 1 does not find in" in errors.splitlines()[-1]
    assert not runs.steps(folder / "here")


def test_workers_with_other_settings_are_refused(config, uninterrupted, folder):
    model_dir = folder / "other"
    workers = start_workers(
        _command(config, model_dir), _command(config, model_dir, "optimizer.learning_rate=0.5")
    )
    for status, _, errors in wait_for_all(workers):
        assert status == 2
        assert "error: the configuration, or the examples that it names, of worker 1" in errors
    assert not model_dir.exists()


def _command_in(place, *command):
    """The command of a worker whose relative paths begin somewhere else."""
    code = "import os, runpy, kzoo; os.chdir({!r}); runpy.run_module({!r}, run_name='__main__')"
    return ("-c", code.format(str(place), command[1]), *command[2:])


def test_workers_begin_with_the_same_model_or_not_at_all(config, uninterrupted, folder):
    settings = ("trainer.train_steps=2", "optimizer.warmup_steps=1", "init_from.optimizer=kept")
    begun = (*settings, f"init_from.path={uninterrupted}")
    ended = wait_for_all(_start(config, folder / "begun", *begun))
    assert [status for status, _, _ in ended] == [0, 0], ended[0][2]
    command = runs.arguments(config, folder / "mirrored", *WITHOUT_DROPOUT, *begun, *MIRRORED)
    done = runs.run(*command)
    assert done.status == 0, done.errors
    _assert_close(folder / "mirrored", folder / "begun", 2)

    # One name, behind which each worker finds something else.
    places = [folder / "place-0", folder / "place-1"]
    for place in places:
        shutil.copytree(uninterrupted, place / "source")
    shutil.rmtree(places[1] / "source" / "checkpoints" / "step-00000020")
    command = _command(config, folder / "apart", *settings, "init_from.path=source")
    for status, _, errors in wait_for_all(
        start_workers(*(_command_in(place, *command) for place in places))
    ):
        assert status == 2, errors
        assert errors.splitlines()[-1].startswith(
            "error: the model that the run begins with (init_from.path) of worker 1 differs"
        )
    assert not (folder / "apart").exists()


def test_what_the_chief_cannot_do_ends_all_workers(config, folder, tmp_path):
    settings = (f"data.examples={tmp_path / 'none'}", "corpus.train_files=no/{lang}.txt")
    (status, _, errors), (other_status, _, other_errors) = wait_for_all(
        _start(config, folder / "nothing", *settings, "corpus.held_out_files=null")
    )
    assert status == other_status == 2
    assert "error: no file matches 'no/{lang}.txt'" in errors
    assert "worker 0 could not open the examples" in other_errors


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "needs TF_CONFIG in the environment"),
        ("{", "is no JSON"),
        ('{"cluster": {"worker": ["a:1"]}}', "lacks cluster, or task"),
        ('{"cluster": {"worker": 3}, "task": {"type": "worker", "index": 0}}', "must be a list"),
        (_cluster('"a:1"', "worker", "true"), "lacks cluster, or task"),
        (_cluster('"a:1", "a:1"', "worker", 0), "the same address: a:1"),
        (_cluster('"a:1"', "worker", 1), "cluster has no worker 1"),
        (_cluster('"a"', "worker", 0), "expected host:port of a worker; received 'a'"),
        (_cluster('"a:port"', "worker", 0), "expected host:port of a worker; received 'a:port'"),
        (_cluster("3", "worker", 0), "expected host:port of a worker; received 3"),
        (_cluster('"a:1"', "ps", 0), "task type 'ps' does not train"),
        (_cluster('"a:1"], "ps": ["b:1"', "worker", 0), "the job 'ps' does not train"),
    ],
)
def test_a_cluster_that_cannot_be_is_refused(content, problem, monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    if content is not None:
        monkeypatch.setenv("TF_CONFIG", content)
    with pytest.raises(KzooError, match=re.escape(problem)):
        check_tf_config()
