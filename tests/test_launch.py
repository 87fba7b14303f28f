"""The command that starts workers: what it refuses before it starts any, and what it starts."""

import os
import re
import signal
import subprocess
import sys

import pytest

from kzoo import command, launch
from tests.paths import REPOSITORY
from tests.training import runs

MISTAKES = {
    "nothing_to_run": (["--workers=2"], [], "expected one of kzoo.pretrain and its flags behind"),
    "not_a_command": (["--workers=2"], ["kzoo.zoo"], "received kzoo.zoo"),
    "python_before_it": (["--workers=2"], ["python", "-m", "kzoo.pretrain"], "received python"),
    "no_workers": ([], ["kzoo.pretrain", "{config}"], "give either --workers, or --hosts"),
    "both": (
        ["--workers=2", "--hosts=a:1,b:1", "--index=0"],
        ["kzoo.pretrain", "{config}"],
        "give either --workers, or --hosts",
    ),
    "no_worker_at_all": (["--workers=0"], ["kzoo.pretrain", "{config}"], "--workers=0"),
    "no_index": (["--hosts=a:1"], ["kzoo.pretrain", "{config}"], "--hosts and --index go together"),
    "index_alone": (
        ["--workers=2", "--index=0"],
        ["kzoo.pretrain", "{config}"],
        "--hosts and --index go together",
    ),
    "index_beyond": (
        ["--hosts=a:1,b:1", "--index=2"],
        ["kzoo.pretrain", "{config}"],
        "--index counts from 0 to 1 for 2 hosts; received 2",
    ),
    "no_port": (
        ["--hosts=a:1,b", "--index=0"],
        ["kzoo.pretrain", "{config}"],
        "expected host:port of a worker; received 'b'",
    ),
    "too_few_gpus": (
        ["--workers=2", "--devices_per_worker=1"],
        ["kzoo.pretrain", "{config}"],
        "need 2 GPUs, and none can be seen here",
    ),
    "no_number": (
        ["--workers=2", "--grace_seconds=nan"],
        ["kzoo.pretrain", "{config}"],
        "--grace_seconds=nan: must be a number of seconds",
    ),
    "logs_elsewhere": (
        ["--workers=2", "--log_dir=gs://bucket/logs"],
        ["kzoo.pretrain", "{config}"],
        "--log_dir: expected a folder of this machine; received gs://bucket/logs",
    ),
    "unknown_flag_of_the_command": (
        ["--workers=2"],
        ["kzoo.pretrain", "{config}", "--colour=red"],
        "Unknown command line flag 'colour'",
    ),
    "missing_flag_of_the_command": (["--workers=2"], ["kzoo.pretrain"], "--config"),
    "stray_word": (["--workers=2"], ["kzoo.pretrain", "{config}", "stray"], "unexpected argument"),
    "wrong_setting": (
        ["--workers=2"],
        ["kzoo.pretrain", "{config}", "--set=trainer.train_step=3"],
        "trainer.train_step: unknown key",
    ),
    "an_evaluation": (
        ["--workers=2"],
        ["kzoo.pretrain", "{config}", "--mode=eval_loop"],
        "--mode=eval_loop is the work of one process: start python -m kzoo.pretrain itself",
    ),
    "a_dry_run": (
        ["--workers=2"],
        ["kzoo.pretrain", "{config}", "--dry_run"],
        "--dry_run is the work of one process",
    ),
    "another_strategy": (
        ["--workers=2"],
        ["kzoo.pretrain", "{config}", "--set=runtime.strategy=mirrored"],
        "workers compute with runtime.strategy=multi_worker_mirrored, not mirrored: leave",
    ),
}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("launch")
    return runs.write_config(folder / "config.yaml", folder / "examples")


def run(own: list[str], passed_on: list[str], config) -> int:
    launch.FLAGS.unparse_flags()
    words = [f"--config={config}" if word == "{config}" else word for word in passed_on]
    if "{config}" in passed_on:
        words.append(f"--model_dir={config.parent / 'run'}")
    return command.run(lambda: launch.main(words), launch.FLAGS, launch.__doc__, own)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_error_before_any_worker_starts(name, config, capsys, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    own, passed_on, said = MISTAKES[name]
    assert run(own, passed_on, config) == 2
    errors = capsys.readouterr().err
    assert errors.count("error: ") == 1
    assert said in errors
    assert not (config.parent / "run").exists()


def test_a_process_that_is_in_a_cluster_already_starts_no_other(config, capsys, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", '{"cluster": {}}')
    assert run(["--workers=2"], ["kzoo.pretrain", "{config}"], config) == 2
    assert "TF_CONFIG is set, so something else has put" in capsys.readouterr().err


def test_help_is_the_launchers_own_and_ends_with_0():
    done = subprocess.run(
        [sys.executable, "-m", "kzoo.launch", "--help"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    for flag in ("--workers", "--devices_per_worker", "--hosts", "--index", "--log_dir"):
        assert f"\n  {flag}" in done.stdout


def start(config, model_dir, *settings: str, own=("--workers=2",)) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [
            *(sys.executable, "-m", "kzoo.launch", *own, "--", "kzoo.pretrain"),
            *runs.arguments(config, model_dir, *settings),
        ],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "TF_CONFIG"},
    )


@pytest.mark.slow
def test_two_workers_that_are_asked_to_stop_save_and_go_on_to_the_end(config):
    model_dir = config.parent / "two"
    process = start(config, model_dir, own=("--workers=2", f"--log_dir={config.parent / 'logs'}"))
    runs.signal_after_step(process, model_dir, 7, signal.SIGTERM)
    ended = runs.finish(process)
    assert ended.status == 0, ended.errors
    reached = runs.steps(model_dir)[-1]
    assert 7 <= reached < 20
    for name in ("[0]", "[1]"):
        assert re.search(rf"^\{name} stopped by .* after step {reached}, ", ended.errors, re.M)
    assert "runtime.strategy: one_device → multi_worker_mirrored" in ended.errors

    ended = runs.finish(start(config, model_dir))
    assert ended.status == 0, ended.errors
    assert f"[0] resumed at step {reached} of 20" in ended.errors
    assert f"[0] finished 20 steps; the model is in {model_dir}/preset" in ended.output
    assert [line["step"] for line in runs.metrics(model_dir)] == [*range(1, 21)]
    logs = sorted(path.name for path in (config.parent / "logs").iterdir())
    assert logs == ["worker-0.log", "worker-1.log"]
