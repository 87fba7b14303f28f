"""The picture of a run's losses."""

import subprocess
import sys

import matplotlib
import pytest

from kzoo import KzooError
from kzoo.training.plots import plot_losses
from kzoo.training.writers import MetricWriter


def write_run(model_dir, languages) -> None:
    with MetricWriter(model_dir) as metrics:
        metrics.write(0, "held_out", {f"unigram_loss/{name}": 7.0 for name in languages})
        for step in (0, 10, 20):
            metrics.write(step, "train", {"loss": 5.0})
            losses = {f"loss/{name}": 8 - step / 10 for name in languages}
            metrics.write(step, "held_out", {"loss": 5.0, **losses})


def test_a_picture_names_each_language_with_its_last_loss(tmp_path):
    write_run(tmp_path, ["de", "sw"])
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot_losses(tmp_path / "metrics.jsonl", tmp_path / "loss.svg")
    picture = (tmp_path / "loss.svg").read_text()
    for text in ("de  6.00", "sw  6.00", "unigram model", "step", "nats per target"):
        assert text in picture
    assert picture.count("stroke-dasharray") == 3  # one baseline each, and the legend's


def test_the_same_metrics_give_the_same_bytes(tmp_path):
    write_run(tmp_path, [f"x{index}" for index in range(30)])
    for name in ("a.svg", "b.svg"):
        plot_losses(tmp_path / "metrics.jsonl", tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_the_command_draws_and_overwrites_only_when_told(tmp_path):
    write_run(tmp_path, ["de"])
    picture = tmp_path / "loss.png"
    command = [sys.executable, "-m", "kzoo.training.plots", f"--output={picture}"]
    command.append(f"--metrics={tmp_path / 'metrics.jsonl'}")
    subprocess.run(command, check=True)
    assert picture.read_bytes().startswith(b"\x89PNG")
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert again.stderr == f"error: {picture} is there already; --overwrite replaces it\n"


def test_nothing_to_draw_and_wrong_names_are_clear_errors(tmp_path):
    with MetricWriter(tmp_path) as metrics:
        metrics.write(1, "train", {"loss": 5.0})
    with pytest.raises(KzooError, match="no held-out loss"):
        plot_losses(tmp_path / "metrics.jsonl", tmp_path / "loss.svg")
    with pytest.raises(KzooError, match=r"received .*loss\.jpg"):
        plot_losses(tmp_path / "metrics.jsonl", tmp_path / "loss.jpg")
    write_run(tmp_path, ["de"])
    with pytest.raises(KzooError, match="No such file"):
        plot_losses(tmp_path / "metrics.jsonl", tmp_path / "absent" / "loss.svg")
