"""Runs of `python -m kzoo.pretrain` in real processes: killed, stopped, damaged, finished."""

import shutil
import signal

import numpy as np
import pytest

from kzoo.config import loader
from kzoo.models.backbone import RemBertBackbone
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.training.build import build_model, build_optimizer
from kzoo.training.checkpoints import Checkpoints
from kzoo.training.loss_scale import INITIAL_SCALE
from tests.training import runs

LANGUAGES = ("de", "en")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pretraining")
    return runs.write_config(folder / "config.yaml", folder / "examples")


@pytest.fixture(scope="module")
def whole_run(config):
    """A run of 20 steps that nothing disturbed; the first to need the examples, it makes them."""
    model_dir = config.parent / "whole"
    ended = runs.run(*runs.arguments(config, model_dir))
    assert ended.status == 0, ended.errors
    assert f"finished 20 steps; the model is in {model_dir}/preset" in ended.output
    return model_dir


@pytest.fixture(scope="module")
def short_run(config, whole_run):
    """Ten steps without dropout, a checkpoint after each."""
    model_dir = config.parent / "short"
    ended = runs.run(*runs.arguments(config, model_dir, *SHORT))
    assert ended.status == 0, ended.errors
    return model_dir


SHORT = (
    "trainer.train_steps=10",
    "trainer.checkpoint_interval=1",
    "trainer.validation_interval=10",
    "model.dropout=0",
    "model.attention_dropout=0",
)


def _assert_same_run(model_dir, whole_run):
    """The same examples, step by step, and in the end the same bits."""
    assert runs.metrics(model_dir) == runs.metrics(whole_run)
    assert runs.metrics(model_dir, "held_out") == runs.metrics(whole_run, "held_out")
    assert runs.position(model_dir, 20) == runs.position(whole_run, 20) == 160
    ended, expected = runs.checkpoint(model_dir, 20), runs.checkpoint(whole_run, 20)
    assert ended.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(ended[name], value, err_msg=name)


def test_a_killed_run_ends_in_the_same_weights(config, whole_run, tmp_path):
    command = runs.arguments(config, tmp_path / "run")
    process = runs.start(*command)
    # A checkpoint is written while training goes on: that of step 5 is there by now.
    runs.signal_after_step(process, tmp_path / "run", 8, signal.SIGKILL)
    assert runs.finish(process).status == -signal.SIGKILL
    saved = runs.steps(tmp_path / "run")[-1]
    assert 5 <= saved < 20
    assert runs.metrics(tmp_path / "run")[-1]["step"] > saved

    ended = runs.run(*command)
    assert ended.status == 0, ended.errors
    assert f"resumed at step {saved} of 20, with example {8 * saved}" in ended.errors
    assert "changed since" not in ended.errors
    _assert_same_run(tmp_path / "run", whole_run)


def test_a_run_asked_to_stop_saves_and_goes_on_and_its_own_configuration_repeats_it(
    whole_run, tmp_path
):
    command = runs.arguments(whole_run / "config.yaml", tmp_path / "run")
    process = runs.start(*command)
    # The signal comes in the middle of the measurement after step 7.
    runs.signal_after_step(process, tmp_path / "run", 7, signal.SIGTERM)
    ended = runs.finish(process)
    assert ended.status == 0, ended.errors
    reached = runs.steps(tmp_path / "run")[-1]
    assert 7 <= reached < 20
    assert f"stopped by SIGTERM after step {reached}, which is saved" in ended.errors
    assert not (tmp_path / "run" / "preset").exists()

    ended = runs.run(*command)
    assert ended.status == 0, ended.errors
    assert f"resumed at step {reached} of 20" in ended.errors
    _assert_same_run(tmp_path / "run", whole_run)
    written = (tmp_path / "run" / "config.yaml").read_text()
    assert written == (whole_run / "config.yaml").read_text()


def test_a_damaged_checkpoint_is_passed_over_with_a_warning(config, whole_run, tmp_path):
    model_dir = tmp_path / "run"
    shutil.copytree(whole_run, model_dir)
    newest = model_dir / "checkpoints" / "step-00000020"
    data = newest / "variables.data-00000-of-00001"
    with open(data, "r+b") as file:
        file.truncate(data.stat().st_size // 2)
    ended = runs.run(*runs.arguments(config, model_dir, "trainer.keep_checkpoints=19"))
    assert ended.status == 0, ended.errors
    changed = "changed since the last attempt of this run: trainer.keep_checkpoints: 20 → 19"
    assert changed in ended.errors
    assert f"{newest} is passed over: {data} has" in ended.errors
    assert "resumed at step 15 of 20" in ended.errors
    _assert_same_run(model_dir, whole_run)


def test_rates_are_those_of_an_unbroken_run_and_a_finished_run_takes_no_step(
    config, short_run, whole_run, tmp_path
):
    stops = (1, 3, 4, 5)
    for stop in stops:
        shutil.copytree(short_run, tmp_path / str(stop))
        for step in range(stop + 1, 11):
            shutil.rmtree(tmp_path / str(stop) / "checkpoints" / f"step-{step:08d}")
    before = runs.files(whole_run)
    *resumed, again = runs.run_all(
        [
            *(runs.arguments(config, tmp_path / str(stop), *SHORT) for stop in stops),
            runs.arguments(config, whole_run),
        ]
    )

    expected = [1e-3 * share for share in (0.25, 0.5, 0.75, 1, 1, 5 / 6, 4 / 6, 0.5, 2 / 6, 1 / 6)]
    rates = [line["learning_rate"] for line in runs.metrics(short_run)]
    assert rates == pytest.approx(expected)
    for stop, ended in zip(stops, resumed, strict=True):
        assert ended.status == 0, ended.errors
        assert f"resumed at step {stop} of 10" in ended.errors
        assert runs.metrics(tmp_path / str(stop)) == runs.metrics(short_run)

    assert again.status == 0
    assert f"the run in {whole_run} is finished: it has made 20 steps" in again.output
    after = runs.files(whole_run)
    assert after.keys() == before.keys()
    # The preset is written again, with the same weights but a date of its own.
    unchanged = [name for name in before if not name.startswith("preset/")]
    assert [name for name in unchanged if after[name] != before[name]] == []


def test_another_global_batch_goes_on_at_the_same_example_and_says_so(config, short_run, tmp_path):
    model_dir = tmp_path / "run"
    shutil.copytree(short_run, model_dir)
    for step in range(6, 11):
        shutil.rmtree(model_dir / "checkpoints" / f"step-{step:08d}")
    ended = runs.run(*runs.arguments(config, model_dir, *SHORT, "data.global_batch_size=4"))
    assert ended.status == 0, ended.errors
    assert "data.global_batch_size: 8 → 4" in ended.errors
    assert "resumed at step 5 of 10, with example 40" in ended.errors
    assert runs.position(model_dir, 10) == 40 + 5 * 4
    rates = [line["learning_rate"] for line in runs.metrics(model_dir)]
    assert rates == [line["learning_rate"] for line in runs.metrics(short_run)]


def test_two_replicas_train_as_one_device_does(config, short_run, tmp_path):
    mirrored = ("runtime.strategy=mirrored", "runtime.devices=2")
    ended = runs.run(*runs.arguments(config, tmp_path / "run", *SHORT, *mirrored))
    assert ended.status == 0, ended.errors
    for split in ("train", "held_out"):
        lines, expected = runs.metrics(tmp_path / "run", split), runs.metrics(short_run, split)
        assert [line["step"] for line in lines] == [line["step"] for line in expected]
        for line, other in zip(lines, expected, strict=True):
            for name in other.keys() - {"step", "split", "padding_share"}:
                assert line[name] == pytest.approx(other[name], rel=1e-4), name
    for name, value in runs.checkpoint(short_run, 10).items():
        found = runs.checkpoint(tmp_path / "run", 10)[name]
        np.testing.assert_allclose(found, value, atol=1e-4, err_msg=name)


def test_layers_that_run_again_change_neither_the_run_nor_what_it_leaves(
    config, whole_run, tmp_path
):
    ended = runs.run(*runs.arguments(config, tmp_path / "run", "runtime.recompute=true"))
    assert ended.status == 0, ended.errors
    for split in ("train", "held_out"):
        lines, expected = runs.metrics(tmp_path / "run", split), runs.metrics(whole_run, split)
        for line, other in zip(lines, expected, strict=True):
            assert line.pop("split") == other.pop("split") == split
            assert line == pytest.approx(other, rel=1e-4)
    found = runs.checkpoint(tmp_path / "run", 20)
    for name, value in runs.checkpoint(whole_run, 20).items():
        np.testing.assert_allclose(found[name], value, atol=1e-4, err_msg=name)
    for file in (whole_run / "preset").rglob("*config.json"):
        name = file.relative_to(whole_run)
        assert (tmp_path / "run" / name).read_bytes() == file.read_bytes(), name


def test_a_float16_run_goes_on_with_its_loss_scale_on_two_devices(config, whole_run, tmp_path):
    half = ("runtime.precision=mixed_float16", "trainer.validation_interval=10")
    mirrored = ("runtime.strategy=mirrored", "runtime.devices=2")
    for settings in ((*half, "trainer.train_steps=5"), (*half, *mirrored, "trainer.train_steps=8")):
        ended = runs.run(*runs.arguments(config, tmp_path / "run", *settings))
        assert ended.status == 0, ended.errors
    for step in (5, 8):
        found = runs.checkpoint(tmp_path / "run", step)
        assert found["loss_scale/scale"] == INITIAL_SCALE
        assert found["loss_scale/good_steps"] == step


def test_a_checkpoint_holds_every_variable_of_model_and_optimizer(whole_run):
    config = loader.load([str(whole_run / "config.yaml")])
    model = build_model(config)
    optimizer = build_optimizer(config, model)
    expected = [variable.path for variable in [*model.variables, *optimizer.variables]]
    assert sorted(runs.checkpoint(whole_run, 20)) == sorted(expected)
    assert runs.steps(whole_run) == [5, 10, 15, 20]


def test_the_preset_computes_what_the_run_has_learned(whole_run):
    model = build_model(loader.load([str(whole_run / "config.yaml")]))
    newest = whole_run / "checkpoints" / "step-00000020"
    Checkpoints.restore(newest, model.variables, allow_unused=True)
    random = np.random.default_rng(0)
    batch = {
        "token_ids": random.integers(0, 300, (3, 11)),
        "padding_mask": np.arange(11) < np.array([[11], [4], [7]]),
        "segment_ids": np.zeros((3, 11)),
    }
    encoder = RemBertBackbone.from_preset(str(whole_run / "preset"))
    for name, expected in model.backbone(batch).items():
        np.testing.assert_array_equal(encoder(batch)[name], expected, err_msg=name)
    batch["mask_positions"] = random.integers(0, 4, (3, 2))
    loaded = RemBertMaskedLM.from_preset(str(whole_run / "preset"))
    np.testing.assert_array_equal(loaded(batch), model(batch))


def test_losses_are_written_for_every_language_beside_a_unigram_models(whole_run):
    baseline, *measured = runs.metrics(whole_run, "held_out")
    assert baseline["step"] == 0
    assert {f"unigram_loss/{language}" for language in LANGUAGES} < baseline.keys()
    assert 4 < baseline["unigram_loss"] < np.log(300)
    assert [line["step"] for line in measured] == [7, 14, 20]
    for line in measured:
        losses = [line[f"loss/{language}"] for language in LANGUAGES]
        assert line["loss"] == pytest.approx(np.mean(losses))
        assert all(0 <= line[f"accuracy/{language}"] < 0.5 for language in LANGUAGES)
    assert measured[-1]["loss"] < measured[0]["loss"] < 6
    assert [line["step"] for line in runs.metrics(whole_run)] == [*range(1, 21)]
