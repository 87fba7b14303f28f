"""Every benchmark of training runs, measures the same training everywhere, and writes its JSON."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import REPOSITORY

VOCABULARY_SIZE = 400


def run_program(
    name: str, output: Path, *arguments: str
) -> tuple[subprocess.CompletedProcess[str], dict]:
    done = subprocess.run(
        [sys.executable, str(REPOSITORY / "benchmarks" / name), *arguments, "--output", output],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done, json.loads(output.read_text())


def run_benchmark(name: str, output: Path, *arguments: str) -> dict:
    done, results = run_program(name, output, *arguments)
    for system in systems_of(results):
        assert system in done.stdout
    return results


def systems_of(results: dict) -> dict:
    return results["workloads"][0]["systems"] if "workloads" in results else results["systems"]


def measure_steps(output: Path, *systems: str) -> dict:
    results = run_benchmark(
        "pretrain_step.py",
        output,
        f"--vocabulary_sizes={VOCABULARY_SIZE}",
        "--rounds=1",
        "--warm_up_steps=3",
        "--steps=1",
        *(f"--systems={system}" for system in systems),
    )
    return systems_of(results)


def measure_updates(output: Path, *systems: str) -> dict:
    return run_benchmark(
        "optimizer.py",
        output,
        f"--vocabulary_size={VOCABULARY_SIZE}",
        "--rounds=1",
        "--updates=1",
        *(f"--systems={system}" for system in systems),
    )


def check_training(measured: dict) -> None:
    """The loss starts at that of a guess and falls, and the numbers are numbers."""
    losses = measured["rounds"][0]["losses"]
    assert losses[0] == pytest.approx(math.log(VOCABULARY_SIZE), abs=0.5)
    assert losses[-1] < losses[0] - 0.3
    assert measured["share_of_bound"] > 0
    assert measured["peak_memory_bytes"] > 100e6


def test_steps_of_kzoo_are_measured(tmp_path):
    check_training(measure_steps(tmp_path / "results.json", "kzoo")["kzoo"])


def test_updates_of_kzoo_and_keras_are_measured(tmp_path):
    results = measure_updates(tmp_path / "results.json", "kzoo", "keras")
    assert list(results["systems"]) == ["kzoo", "keras"]
    for measured in results["systems"].values():
        assert measured["seconds"] > 0
        assert measured["extra_memory_bytes"] >= 0


def test_the_workload_counts_the_parameters_that_kzoo_trains():
    from kzoo.models.backbone import RemBertBackbone
    from kzoo.models.masked_lm import RemBertMaskedLM

    code = (
        "import json, dataclasses, measuring\n"
        f"workload = measuring.Workload({VOCABULARY_SIZE})\n"
        "print(json.dumps([dataclasses.asdict(workload), workload.num_parameters()]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=REPOSITORY / "benchmarks",
        capture_output=True,
        text=True,
        check=True,
    )
    sizes, num_parameters = json.loads(done.stdout)
    output_embedding_dim = sizes.pop("output_embedding_dim")
    for key in ("batch_size", "sequence_length", "predictions", "learning_rate"):
        del sizes[key]
    model = RemBertMaskedLM(RemBertBackbone(**sizes, pooler=None), output_embedding_dim)
    assert model.count_params() == num_parameters


def test_recomputation_is_measured_in_memory_and_time(tmp_path):
    arguments = ("--num_layers=1", "--hidden_dim=18", "--batches=8x128")
    results = run_benchmark("recomputation.py", tmp_path / "results.json", *arguments)
    for workload in results["workloads"]:
        assert list(workload["systems"]) == ["kzoo", "kzoo_recomputing"]
        for measured in workload["systems"].values():
            assert measured["seconds"] > 0
            assert measured["peak_memory_bytes"] > 100e6
            assert measured["rounds"][0][0]["losses"] == pytest.approx([math.log(1000)], abs=0.5)


@pytest.mark.peers
@pytest.mark.parametrize(
    ("system", "module"),
    [
        ("keras", "keras_hub"),
        ("hugging_face", "transformers"),
        ("model_garden", "official.nlp"),
    ],
)
def test_steps_of_peers_train_the_same_model(tmp_path, system, module):
    pytest.importorskip(module)
    check_training(measure_steps(tmp_path / "results.json", system)[system])


@pytest.mark.peers
def test_updates_of_model_garden_are_measured(tmp_path):
    pytest.importorskip("official.nlp")
    measured = measure_updates(tmp_path / "results.json", "model_garden")["systems"]["model_garden"]
    assert measured["seconds"] > 0


def test_exported_encoders_are_measured_with_their_sizes_and_on_text(tmp_path):
    text = tmp_path / "text.txt"
    lines = (REPOSITORY / "kzoo" / "sample" / "train-en.txt").read_text().splitlines()
    text.write_text("\n".join(line for line in lines if line))
    results = run_benchmark(
        "encoder_inference.py",
        tmp_path / "encoder_inference.json",
        "--vocabulary_size=4000",
        "--num_layers=1",
        "--rounds=1",
        "--calls=1",
        "--sentences=40",
        f"--text={text}",
        *(f"--systems={system}" for system in ("kzoo", "kzoo_int8")),
    )
    for measured in results["systems"].values():
        assert measured["8 x 128"]["tokens_per_second"] > 0
        assert len(measured["4 x 512"]["pooled"]) == 4
    sizes = results["bytes"]
    assert sizes["kzoo"] > 3 * sizes["kzoo_int8"]
    assert results["text"]["sentences"] >= 40
    assert all(seconds > 0 for seconds in results["text"]["seconds"].values())


def test_sharing_out_is_measured(tmp_path):
    ways = ["one device", "two workers"]
    done, results = run_program(
        "sharing_out.py",
        tmp_path / "results.json",
        "--vocabulary_size=1000",
        "--batch_size=4",
        "--rounds=1",
        "--steps=1",
        *(f"--ways={way}" for way in ways),
    )
    assert list(results["ways"]) == ways
    for way in ways:
        assert way in done.stdout
        assert results["ways"][way]["cpu_seconds"] > 0
    assert results["all_reduce_cpu_seconds"] > 0


def test_saving_is_measured(tmp_path):
    done, results = run_program(
        "checkpoint.py",
        tmp_path / "results.json",
        "--vocabulary_size=1000",
        "--rounds=1",
        "--steps=1",
    )
    assert "in the background" in done.stdout
    assert results["step_seconds"] > 0
    assert results["bytes"] > 3 * 4 * 1000 * (64 + 768)
