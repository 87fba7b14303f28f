"""Runs that are killed again and again end in the bits of one that was left alone."""

import importlib.util
import json
import shutil
import subprocess
import sys

import pytest

from tests.paths import REPOSITORY
from tests.training import runs

PROGRAM = REPOSITORY / "benchmarks" / "kill_runs.py"


@pytest.fixture(scope="module")
def kill_runs():
    """The program as a module."""
    sys.path.insert(0, str(PROGRAM.parent))
    try:
        spec = importlib.util.spec_from_file_location("kill_runs", PROGRAM)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(str(PROGRAM.parent))
    return module


@pytest.mark.slow
def test_runs_killed_at_random_moments_end_in_the_same_bits(tmp_path):
    output = tmp_path / "results.json"
    done = subprocess.run(
        [
            *(sys.executable, PROGRAM, "--runs=5", "--fresh_runs=0", "--most_kills=2"),
            "--steps=20",
            f"--output={output}",
        ],
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads(output.read_text())
    assert results["survivors"] == results["runs"] == 5
    assert results["kills"] >= 5
    assert "5 runs ended in the bits of the undisturbed run" in done.stdout


def test_what_another_run_has_otherwise_is_named(kill_runs, tmp_path):
    config = runs.write_config(tmp_path / "config.yaml", tmp_path / "examples")
    settings = ("trainer.train_steps=2", "optimizer.warmup_steps=1")
    seeds = [(*settings, f"data.seed={seed}") for seed in (0, 1)]
    commands = [
        runs.arguments(config, tmp_path / f"run-{seed}", *settings)
        for seed, settings in enumerate(seeds)
    ]
    assert [ended.status for ended in runs.run_all(commands)] == [0, 0]
    reference = tmp_path / "run-0"
    assert list(kill_runs.differences(reference, reference)) == []
    found = list(kill_runs.differences(tmp_path / "run-1", reference))
    for part in ("variables.data", "metrics.jsonl", "preset/model.weights", "preset/task.weights"):
        assert any(part in difference for difference in found), (part, found)

    other_end = shutil.copytree(reference, tmp_path / "other_end")
    checkpoints = other_end / "checkpoints"
    (checkpoints / "step-00000002").rename(checkpoints / "step-00000001")
    assert list(kill_runs.differences(other_end, reference)) == [
        "the last checkpoint is step-00000001 instead of step-00000002"
    ]
