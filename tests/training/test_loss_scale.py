"""How the loss scale rises and falls."""

import pytest
import tensorflow as tf

from kzoo.training import loss_scale
from kzoo.training.loss_scale import INITIAL_SCALE, DynamicLossScale


def _scales(scale: DynamicLossScale, *finite: bool) -> list[float]:
    values = []
    for each in finite:
        scale.update(tf.constant(each))
        values.append(float(scale.value))
    return values


@pytest.fixture
def quick_growth(monkeypatch):
    monkeypatch.setattr(loss_scale, "GROWTH_INTERVAL", 3)


def test_it_doubles_after_enough_good_updates_in_a_row(quick_growth):
    one = INITIAL_SCALE
    scales = _scales(DynamicLossScale(), True, True, True, True, True, True)
    assert scales == [one, one, 2 * one, 2 * one, 2 * one, 4 * one]


def test_a_bad_update_halves_it_and_starts_the_count_again(quick_growth):
    one = INITIAL_SCALE
    scales = _scales(DynamicLossScale(), True, True, False, True, True, True)
    assert scales == [one, one, one / 2, one / 2, one / 2, one]


def test_it_does_not_fall_below_one():
    assert _scales(DynamicLossScale(), *[False] * 20)[-3:] == [1.0, 1.0, 1.0]


def test_its_variables_hold_all_of_its_state(quick_growth):
    first, second = DynamicLossScale(), DynamicLossScale()
    _scales(first, False, True, True)
    for variable, value in zip(second.variables, first.variables, strict=True):
        variable.assign(value)
    assert _scales(second, True, True) == _scales(first, True, True) == [INITIAL_SCALE] * 2
    paths = [variable.path for variable in first.variables]
    assert paths == ["loss_scale/scale", "loss_scale/good_steps"]
