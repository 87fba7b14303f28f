"""The learning rate of every step, against values worked out by hand."""

import math

import pytest

from kzoo import KzooError
from kzoo.training.schedules import SCHEDULES, learning_rate_schedule

ARGUMENTS = {"peak": 1.0, "train_steps": 10, "warmup_steps": 4, "end": 0.1}


def _rates(schedule: str, **changes) -> list[float]:
    arguments = {**ARGUMENTS, **changes}
    if schedule == "warmup_stable_decay":
        arguments.setdefault("decay_steps", 3)
    rate = learning_rate_schedule(schedule, **arguments)
    return [rate(step) for step in range(arguments["train_steps"])]


@pytest.mark.parametrize(
    ("schedule", "after_warmup"),
    [
        ("constant", [1, 1, 1, 1, 1, 1]),
        ("linear", [1, 0.85, 0.7, 0.55, 0.4, 0.25]),
        ("cosine", [0.55 + 0.45 * math.cos(math.pi * done / 6) for done in range(6)]),
        ("warmup_stable_decay", [1, 1, 1, 1, 0.7, 0.4]),
    ],
)
def test_the_rate_of_every_step_of_a_short_run(schedule, after_warmup):
    assert _rates(schedule) == pytest.approx([0.25, 0.5, 0.75, 1, *after_warmup], rel=1e-12)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rates_rise_to_the_peak_and_never_rise_again(schedule):
    rates = _rates(schedule, peak=3e-4, train_steps=500, warmup_steps=37, end=1e-5)
    assert rates[0] == pytest.approx(3e-4 / 37)
    assert rates[:37] == sorted(rates[:37])
    assert rates[36] == max(rates) == 3e-4
    assert rates[36:] == sorted(rates[36:], reverse=True)
    assert min(rates[36:]) >= 1e-5


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_rate_stays_at_the_end_value_beyond_the_last_step(schedule):
    decay_steps = 3 if schedule == "warmup_stable_decay" else None
    rate = learning_rate_schedule(schedule, decay_steps=decay_steps, **ARGUMENTS)
    expected = 1.0 if schedule == "constant" else 0.1
    assert rate(10) == pytest.approx(expected)
    assert rate(1000) == pytest.approx(expected)


@pytest.mark.parametrize("stop", [1, 3, 4, 5])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_run_that_was_stopped_goes_on_with_the_same_rates(schedule, stop):
    decay_steps = 3 if schedule == "warmup_stable_decay" else None
    first, second = (
        learning_rate_schedule(schedule, decay_steps=decay_steps, **ARGUMENTS) for _ in range(2)
    )
    before = [first(step) for step in range(stop)]
    assert before + [second(step) for step in range(stop, 10)] == _rates(schedule)


def test_runs_of_one_phase_only():
    assert _rates("linear", warmup_steps=0, end=0.0)[0] == 1.0
    assert _rates("linear", warmup_steps=10, end=0.0)[-1] == 1.0
    assert _rates("warmup_stable_decay", warmup_steps=0, decay_steps=10, end=0.0) == pytest.approx(
        [1 - step / 10 for step in range(10)]
    )
    assert _rates("cosine", train_steps=1, warmup_steps=0) == [1.0]


def test_an_unknown_schedule_and_a_decay_without_length_are_refused():
    with pytest.raises(KzooError, match=r"constant, linear.*received 'lineal'"):
        learning_rate_schedule("lineal", **ARGUMENTS)
    with pytest.raises(KzooError, match="needs decay_steps"):
        learning_rate_schedule("warmup_stable_decay", **ARGUMENTS)
