"""Runs that go on from a model, in real processes: killed too, and without a head to begin with."""

import json
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import yaml

from kzoo import sample
from kzoo.text.vocabulary import MODEL_FILE, Vocabulary
from kzoo.text.vocabulary_training import train_vocabulary
from tests.interchange import hugging_face_folders as folders
from tests.paths import REPOSITORY, SHARED, needs_shared
from tests.training import runs
from tests.training.test_initialization import HEAD

SHORT = ("trainer.train_steps=6", "trainer.checkpoint_interval=2", "optimizer.warmup_steps=2")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("going_on")
    return runs.write_config(folder / "config.yaml", folder / "examples")


@pytest.fixture(scope="module")
def source(config):
    """A run of five steps, all of whose checkpoints are there."""
    model_dir = config.parent / "source"
    settings = ("trainer.train_steps=5", "trainer.checkpoint_interval=3", "trainer.keep_best=true")
    ended = runs.run(*runs.arguments(config, model_dir, *settings, "trainer.validation_interval=3"))
    assert ended.status == 0, ended.errors
    return model_dir


@pytest.fixture(scope="module")
def without_model(config):
    """The same configuration without a word about the model."""
    content = yaml.safe_load(config.read_text())
    del content["model"]
    path = config.parent / "without_model.yaml"
    path.write_text(yaml.safe_dump(content))
    return path


def state_of(model_dir, step: int) -> dict:
    path = model_dir / "checkpoints" / f"step-{step:08d}" / "state.json"
    return json.loads(path.read_text())["state"]


def test_a_run_goes_on_with_moments_and_what_is_frozen_stays(without_model, source, tmp_path):
    settings = (
        *SHORT,
        f"init_from.path={source}",
        "init_from.optimizer=kept",
        "optimizer.frozen=[embeddings, output_table]",
        "optimizer.layer_decay=0.5",
        "model.max_sequence_length=40",
        "init_from.position_table=repeat",
        "trainer.checkpoint_interval=1",
    )
    ended = runs.run(*runs.arguments(without_model, tmp_path / "run", *settings))
    assert ended.status == 0, ended.errors
    assert f"weights from the checkpoint of step 5 of {source}" in ended.errors
    assert "changed: positions 32 → 40, repeat" in ended.errors
    assert "moments of the optimizer: kept, with the count of their 5 updates" in ended.errors
    assert "parameters; frozen are embeddings, output_table" in ended.errors
    assert "head 1, layer 0 0.5, embeddings 0.25" in ended.errors
    old, first, last = (
        runs.checkpoint(source, 5),
        *(runs.checkpoint(tmp_path / "run", step) for step in (1, 6)),
    )
    still = {name for name, value in first.items() if np.array_equal(value, last[name])}
    assert still == {
        *(f"embeddings/{name}_embedding/embeddings" for name in ("token", "position", "segment")),
        *("embeddings/layer_norm/gamma", "embeddings/layer_norm/beta"),
        *("masked_lm_head/table", "masked_lm_head/bias"),
    }
    for name in still - {"embeddings/position_embedding/embeddings"}:
        np.testing.assert_array_equal(last[name], old[name])
    assert f"optimizer/momentum/{next(iter(still))}" not in last
    # v = 0.999 v + 0.001 g², of which an update of clipped gradients adds 0.001 at the most.
    velocity = "optimizer/velocity/masked_lm_head/dense/kernel"
    added = first[velocity] - np.float32(0.999) * old[velocity]
    assert -1e-9 < added.min() < added.sum() < 1.001e-3
    assert state_of(tmp_path / "run", 6)["begun_from"] == {
        "path": str(source),
        "step": 5,
        "made_anew": {},
        "updates_before": 5,
    }
    assert [line["learning_rate"] for line in runs.metrics(tmp_path / "run")][:2] == [5e-4, 1e-3]


def test_a_run_killed_goes_on_from_its_own_checkpoint_to_the_same_bits(config, source, tmp_path):
    moved = shutil.copytree(source, tmp_path / "moved")
    settings = (*SHORT, f"init_from.path={moved}", "init_from.optimizer=kept")
    settings = (*settings, "trainer.train_steps=10", "trainer.validation_interval=5")
    command = runs.arguments(config, tmp_path / "whole", *settings)
    ended = runs.run(*command)
    assert ended.status == 0, ended.errors

    command = runs.arguments(config, tmp_path / "run", *settings)
    process = runs.start(*command)
    # A checkpoint is written while training goes on: that of step 2 is there by now.
    runs.signal_after_step(process, tmp_path / "run", 5, signal.SIGKILL)
    assert runs.finish(process).status == -signal.SIGKILL
    saved = runs.steps(tmp_path / "run")[-1]
    assert 2 <= saved < 10
    # The run does not need the model that it has begun with any more.
    shutil.rmtree(moved)
    ended = runs.run(*runs.arguments(tmp_path / "run" / "config.yaml", tmp_path / "run"))
    assert ended.status == 0, ended.errors
    assert f"resumed at step {saved} of 10" in ended.errors
    assert "weights from" not in ended.errors
    assert runs.metrics(tmp_path / "run") == runs.metrics(tmp_path / "whole")
    found, expected = (runs.checkpoint(tmp_path / name, 10) for name in ("run", "whole"))
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
    assert state_of(tmp_path / "run", 10) == state_of(tmp_path / "whole", 10)
    begun_from = json.loads((tmp_path / "run" / "preset" / "kzoo.json").read_text())["begun_from"]
    assert begun_from["updates_before"] == 5
    # The next one counts on.
    ended = runs.run(
        *runs.arguments(
            config,
            tmp_path / "third",
            *SHORT,
            f"init_from.path={tmp_path / 'run'}",
            "init_from.optimizer=kept",
        )
    )
    assert "kept, with the count of their 15 updates" in ended.errors


def test_new_text_is_prepared_with_the_vocabulary_of_the_model(without_model, source, tmp_path):
    examples = tmp_path / "new"
    settings = (*SHORT, f"init_from.path={source}", "init_from.checkpoint=best")
    ended = runs.run(
        *runs.arguments(without_model, tmp_path / "run", *settings, f"data.examples={examples}")
    )
    assert ended.status == 0, ended.errors
    assert not (tmp_path / "new.vocabulary").exists()
    old = Vocabulary.load(source / "preset" / "assets" / "tokenizer" / "vocabulary.spm")
    assert Vocabulary.load(examples / "vocabulary").sha256 == old.sha256
    best = json.loads((source / "checkpoints" / "best.json").read_text())["step"]
    assert f"weights from the checkpoint of step {best} of" in ended.errors
    assert "moments of the optimizer: begin at zero" in ended.errors


def test_another_vocabulary_is_matched_by_its_pieces(without_model, source, tmp_path):
    settings = (
        *SHORT,
        f"init_from.path={source}",
        f"data.examples={tmp_path / 'new'}",
        "model.vocabulary_size=340",
    )
    files = {name: [str(sample.folder() / f"train-{name}.txt")] for name in ("de", "en")}
    train_vocabulary(files, 340, tmp_path / "vocabulary")
    ended = runs.run(
        *runs.arguments(
            without_model,
            tmp_path / "run",
            *settings,
            f"corpus.vocabulary={tmp_path / 'vocabulary'}",
            "init_from.optimizer=kept",
        )
    )
    assert ended.status == 0, ended.errors
    assert "changed: rows 320 → 340, " in ended.errors
    assert " new (mean of what has spelled them)" in ended.errors
    assert runs.checkpoint(tmp_path / "run", 6)["masked_lm_head/bias"].shape == (340,)


def convert(given, output, *flags: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [
            *(sys.executable, "-m", "kzoo.convert", "--from=hugging_face"),
            *(f"--input={given}", f"--output={output}", *flags),
        ],
        capture_output=True,
        text=True,
        check=False,
        cwd=REPOSITORY,
    )


@pytest.fixture(params=["written", pytest.param("published", marks=needs_shared)])
def encoder_only(request, tmp_path):
    """A folder of Hugging Face's without a head, and its width of the output table."""
    if request.param == "published":
        return SHARED / "peers" / "hf_tiny_rembert" / "encoder_only", 96
    folders.write_folder(tmp_path / "in", folders.bare(folders.tensors()))
    return tmp_path / "in", 40


def test_a_head_is_made_anew_only_when_asked_and_can_be_exported_when_it_was_trained(
    encoder_only, without_model, source, vocabulary_folder, tmp_path
):
    """CASES C04."""
    given, width = encoder_only
    vocabulary = f"--vocabulary={vocabulary_folder / MODEL_FILE}"
    preset = tmp_path / "preset"
    done = convert(given, preset, vocabulary)
    assert done.returncode == 0, done.stderr
    settings = (
        f"init_from.path={preset}",
        f"model.output_embedding_dim={width}",
        f"data.examples={tmp_path / 'examples'}",
        *SHORT,
    )
    command = runs.arguments(without_model, tmp_path / "run", *settings)
    before = sorted(tmp_path.iterdir())
    ended = runs.run(*command)
    assert ended.status == 2
    assert ended.errors.startswith("error: ")
    assert f"{', '.join(HEAD)} are missing" in ended.errors
    assert sorted(tmp_path.iterdir()) == before

    ended = runs.run(*command, "--set=init_from.allow_missing=[masked_lm_head]")
    assert ended.status == 0, ended.errors
    assert "made anew from data.seed 0: masked_lm_head" in ended.errors
    assert sorted(state_of(tmp_path / "run", 6)["begun_from"]["made_anew"]) == sorted(HEAD)
    metadata = json.loads((tmp_path / "run" / "preset" / "kzoo.json").read_text())
    assert metadata["made_anew"] == {}
    assert sorted(metadata["begun_from"]["made_anew"]) == sorted(HEAD)

    # A head that no run has trained is refused where one that a run has trained is not.
    done = convert(given, tmp_path / "untrained", vocabulary, "--allow_missing=masked_lm_head")
    assert done.returncode == 0, done.stderr
    for model, status in ((tmp_path / "untrained", 2), (tmp_path / "run", 0)):
        done = subprocess.run(
            [
                *(sys.executable, "-m", "kzoo.export", f"--model={model}", "--masked_lm"),
                *(f"--output={tmp_path / 'export'}", "--seq_length=16"),
            ],
            capture_output=True,
            text=True,
            check=False,
            cwd=REPOSITORY,
        )
        assert done.returncode == status, done.stdout + done.stderr
        assert ("never trained" in done.stderr) == (status == 2)
    assert (tmp_path / "export" / "masked_lm").is_dir()
