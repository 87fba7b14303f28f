"""Metrics are on disk when written, valid JSON, and without the steps of an abandoned attempt."""

import json
import math
import time

import pytest
from tensorboard.backend.event_processing.plugin_event_accumulator import EventAccumulator
from tensorboard.util.tensor_util import make_ndarray

from kzoo import KzooError
from kzoo.training.writers import MetricWriter, read_metrics


def steps(model_dir) -> list[int]:
    return [line["step"] for line in read_metrics(model_dir / "metrics.jsonl")]


def tensorboard_points(model_dir, split: str, tag: str) -> list[tuple[int, float]]:
    """What TensorBoard shows."""
    folder = str(model_dir / "tensorboard" / split)
    events = EventAccumulator(folder, tensor_size_guidance={"scalars": 0})
    events.Reload()
    return [(event.step, make_ndarray(event.tensor_proto).item()) for event in events.Tensors(tag)]


def write_attempt(model_dir, first: int, last: int, loss: float, resumed_step=None) -> None:
    with MetricWriter(model_dir, resumed_step) as metrics:
        for step in range(first, last + 1):
            metrics.write(step, "train", {"loss": loss, "tokens": 1000})


def test_a_line_is_complete_as_soon_as_it_is_written(tmp_path):
    metrics = MetricWriter(tmp_path)
    metrics.write(10, "train", {"loss": 0.1 + 0.2, "tokens": 1000})
    metrics.write(10, "held_out", {"loss/de": 6.5})
    first, second = map(json.loads, (tmp_path / "metrics.jsonl").read_text().splitlines())
    assert first.pop("time") > 1.5e9
    assert first == {"step": 10, "split": "train", "loss": 0.1 + 0.2, "tokens": 1000}
    assert second["split"] == "held_out"
    assert tensorboard_points(tmp_path, "train", "tokens") == [(10, 1000)]
    assert tensorboard_points(tmp_path, "held_out", "loss/de") == [(10, 6.5)]


def test_values_that_are_not_finite_are_valid_json_and_come_back(tmp_path):
    values = {"a": math.nan, "b": math.inf, "c": -math.inf}
    for resumed_step in (None, 1):
        with MetricWriter(tmp_path, resumed_step) as metrics:
            metrics.write(1 if resumed_step is None else 2, "train", values)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    for text in (tmp_path / "metrics.jsonl").read_text().splitlines():
        json.loads(text, parse_constant=refuse)
    for line in read_metrics(tmp_path / "metrics.jsonl"):
        assert math.isnan(line["a"])
        assert (line["b"], line["c"]) == (math.inf, -math.inf)


def test_a_resumed_run_takes_back_what_was_written_about_later_steps(tmp_path):
    write_attempt(tmp_path, 0, 9, loss=1.0)
    write_attempt(tmp_path, 6, 8, loss=2.0, resumed_step=5)
    expected = [(step, 1.0) for step in range(6)] + [(step, 2.0) for step in range(6, 9)]
    lines = list(read_metrics(tmp_path / "metrics.jsonl"))
    assert [(line["step"], line["loss"]) for line in lines] == expected
    assert tensorboard_points(tmp_path, "train", "loss") == expected


@pytest.mark.parametrize("hours", [-5, 5])
def test_a_clock_that_was_set_leaves_the_order_of_attempts_alone(tmp_path, monkeypatch, hours):
    write_attempt(tmp_path, 0, 9, loss=1.0)
    now = time.time_ns()
    monkeypatch.setattr(time, "time_ns", lambda: now + hours * 3600 * 10**9)
    monkeypatch.setattr(time, "time", lambda: now / 1e9 + hours * 3600)
    write_attempt(tmp_path, 6, 7, loss=2.0, resumed_step=5)
    write_attempt(tmp_path, 7, 8, loss=3.0, resumed_step=6)
    expected = [(step, 1.0) for step in range(6)] + [(6, 2.0), (7, 3.0), (8, 3.0)]
    lines = [(line["step"], line["loss"]) for line in read_metrics(tmp_path / "metrics.jsonl")]
    assert lines == expected
    assert tensorboard_points(tmp_path, "train", "loss") == expected


def test_a_new_run_begins_with_no_lines(tmp_path):
    write_attempt(tmp_path, 0, 3, loss=1.0)
    write_attempt(tmp_path, 0, 1, loss=2.0)
    assert steps(tmp_path) == [0, 1]
    assert tensorboard_points(tmp_path, "train", "loss") == [(0, 2.0), (1, 2.0)]


def test_a_torn_last_line_is_removed_before_the_next_is_written(tmp_path, caplog):
    write_attempt(tmp_path, 1, 3, loss=1.0)
    path = tmp_path / "metrics.jsonl"
    path.write_text(path.read_text()[:-20])
    write_attempt(tmp_path, 4, 4, loss=1.0, resumed_step=3)
    assert "line 3" in caplog.text
    caplog.clear()
    assert steps(tmp_path) == [1, 2, 4]
    assert not caplog.messages


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(KzooError, match=r"cannot write metrics to .*file/run/metrics.jsonl"):
        MetricWriter(tmp_path / "file" / "run")


def test_missing_metrics_are_one_clear_error(tmp_path):
    with pytest.raises(KzooError, match=r"cannot read metrics from .*metrics.jsonl"):
        list(read_metrics(tmp_path / "metrics.jsonl"))


def test_object_storage_can_hold_the_metrics():
    write_attempt_to = "ram://bucket/metrics-run"
    with MetricWriter(write_attempt_to) as metrics:
        metrics.write(1, "train", {"loss": 1.0})
    with MetricWriter(write_attempt_to, resumed_step=1) as metrics:
        metrics.write(2, "train", {"loss": 1.0})
    assert [line["step"] for line in read_metrics(f"{write_attempt_to}/metrics.jsonl")] == [1, 2]
