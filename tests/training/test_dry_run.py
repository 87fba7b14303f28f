"""`python -m kzoo.pretrain --dry_run`."""

import json
import os
import re

import pytest

from kzoo.config import loader
from kzoo.corpora.examples import ExampleFiles
from kzoo.training import dry_run
from tests.paths import REPOSITORY
from tests.training import runs

REMBERT = str(REPOSITORY / "configs" / "rembert.yaml")


def numbers(output: str) -> dict[str, str]:
    """The lines of two columns."""
    rows = (re.fullmatch(r" *(.+?)  +(\S.*)", line) for line in output.splitlines())
    return {row[1]: row[2] for row in rows if row}


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dry")
    return runs.write_config(folder / "config.yaml", folder / "examples")


def test_a_run_of_any_size_is_planned_without_making_anything(tmp_path):
    model_dir = tmp_path / "a" / "b"
    flags = ["--dry_run", f"--config={REMBERT}", f"--model_dir={model_dir}"]
    given = ["--replicas=8", "--peak_tflops=312", "--utilization=0.5", "--device_memory_gb=80"]
    settings = ["--set=runtime.precision=mixed_bfloat16", "--set=trainer.accumulation_steps=8"]
    head_alone = "--set=optimizer.frozen=[encoder]"
    [plan, too_large, frozen] = runs.run_all(
        [
            [*flags, *given, *settings],
            [*flags, "--peak_tflops=1", "--device_memory_gb=20"],
            [*flags, *given, *settings, head_alone],
        ]
    )
    assert plan.status == 0, plan.errors
    found = numbers(plan.output)
    assert found["replicas"] == "8"
    assert found["windows of a step"] == "2,048"
    assert found["of a replica"] == "256"
    assert found["of a micro-batch"] == "32"
    assert found["tokens of a step, at most"] == "1,048,576"
    assert found["tokens of the run, at most"] == "1,845,493,760,000"
    assert found["all"] == "993,263,548"
    assert found["weights"] == found["preset"] == "3.97"
    assert found["Adam's two averages"] == "7.95"
    assert found["one checkpoint"] == "11.92"
    assert found["available"] == "80.00"
    # 3.84e15 operations a step, by 8 devices at 156e12 a second.
    assert found["seconds a step"] == "3.08"
    assert found["the run"] == "62.7 days"
    assert "unknown: the examples are not there yet" in plan.output
    assert "trained" not in found
    # Of frozen weights there are no averages, and of frozen layers no activations.
    less = numbers(frozen.output)
    assert less["trained"] == "418,671,420"
    assert less["one checkpoint"] == "7.32"
    assert float(less["activations"]) < 0.2 < float(found["activations"])
    assert too_large.status == 0
    assert "That does not fit" in too_large.output
    assert os.listdir(tmp_path) == []


def test_steps_are_taken_and_compared_and_leave_nothing(config, tmp_path):
    ended = runs.run(*runs.arguments(config, tmp_path / "run"), "--dry_run", "--dry_run_steps=1")
    assert ended.status == 0, ended.errors
    assert re.search(r"peak memory, GB, of the process without libraries +\d", ended.output)
    assert re.search(r"seconds a step +[\d.,]+ +[\d.,]+ +[\d.,]+\n", ended.output)
    assert "The step reached" in ended.output
    assert not (tmp_path / "run").exists()
    assert not (config.parent / "examples").exists()


def test_epochs_are_told_and_misfits_refused_once_the_examples_are_there(config, tmp_path):
    train = runs.arguments(config, tmp_path / "run", "trainer.train_steps=5")
    plan = [*train, "--dry_run", "--peak_tflops=1"]
    begin = f"--set=init_from.path={tmp_path / 'run'}"
    other_folder = [*plan[:1], f"--model_dir={tmp_path / 'next'}", *plan[2:]]
    fewer_rows = ["--set=model.vocabulary_size=299", "--set=corpus.vocabulary_size=null"]
    [trained, planned, shorter, narrower, smaller] = runs.run_all(
        [
            train,
            plan,
            [*plan, "--set=data.sequence_length=24"],
            [*other_folder, begin, "--set=model.hidden_dim=32"],
            [*plan, *fewer_rows],
        ]
    )
    assert (shorter.status, narrower.status, smaller.status) == (2, 2, 2)
    assert "299 rows are too few for the 300 pieces" in smaller.errors
    assert "data.sequence_length is 24, but the examples in" in shorter.errors
    assert "model.hidden_dim is 32, and 16 there" in narrower.errors
    assert (trained.status, planned.status) == (0, 0), trained.errors + planned.errors
    examples = ExampleFiles.open(config.parent / "examples")
    rows = [line.split() for line in planned.output.splitlines()]
    found = {row[0]: row for row in rows if row and row[0] in ("de", "en")}
    assert set(found) == {"de", "en"}
    for language, (_, windows, _, share, epochs) in found.items():
        assert windows == f"{examples.num_windows('train', language):,}"
        expected = 5 * 8 * float(share[:-1]) / 100 / examples.num_windows("train", language)
        assert float(epochs) == pytest.approx(expected, abs=0.06)


@pytest.mark.parametrize(
    ("settings", "addresses", "replicas", "sharing"),
    [
        (["strategy=one_device"], [], 1, 1),
        (["strategy=mirrored", "devices=4"], [], 4, 4),
        (["strategy=multi_worker_mirrored"], ["a:1", "a:2", "b:1"], 3, 2),
        (["strategy=multi_worker_mirrored", "devices=2"], ["a:1", "a:2"], 4, 4),
    ],
)
def test_parts_of_a_cpu_share_its_memory(
    config, monkeypatch, settings, addresses, replicas, sharing
):
    monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": {"worker": addresses}}))
    monkeypatch.setattr(dry_run, "available_memory_bytes", lambda: 8e9)
    loaded = loader.load([str(config)], [f"runtime.{setting}" for setting in settings])
    devices = dry_run._devices(loaded, dry_run.Assumptions())
    assert (devices.num_replicas, devices.memory_bytes) == (replicas, 8e9 / sharing)
    given = dry_run._devices(loaded, dry_run.Assumptions(memory_gigabytes=3))
    assert given.memory_bytes == 3e9


def test_mistakes_are_messages(config, tmp_path, monkeypatch):
    flags = runs.arguments(config, tmp_path / "run")
    workers = {"cluster": {"worker": ["a:1", "b:1", "c:1"]}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(workers))
    ended = runs.run_all(
        [
            [*flags, "--replicas=2"],
            [*flags, "--dry_run", "--mode=eval_loop"],
            [*flags, "--dry_run", "--replicas=3"],
            [*flags, "--dry_run", "--set=runtime.strategy=tpu", "--set=runtime.tpu=local"],
            [*flags, "--dry_run", "--set=runtime.strategy=multi_worker_mirrored"],
        ]
    )
    assert [status for status, _, _ in ended] == [2] * 5
    for found, message in zip(
        ended,
        [
            "--replicas has an effect with --dry_run only",
            "leave out --mode=eval_loop",
            "8 windows cannot be shared evenly by 3 replicas",
            "say --replicas=8",
            "8 windows cannot be shared evenly by 3 replicas",
        ],
        strict=True,
    ):
        assert message in found.errors
