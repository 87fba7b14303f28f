"""How the loss scale rises and falls, and that checkpoints carry it along."""

import numpy as np
import pytest
import tensorflow as tf

from kzoo.training import loss_scale
from kzoo.training.checkpoints import Checkpoints
from kzoo.training.loss_scale import INITIAL_SCALE, DynamicLossScale
from tests.training import small_steps
from tests.training.subprocesses import run_python


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


TWO_DEVICES = """
import sys
import numpy as np
from kzoo.training.checkpoints import Checkpoints
from kzoo.training.loss_scale import INITIAL_SCALE, DynamicLossScale
from kzoo.training.strategies import configure_runtime, make_strategy
from tests.training import small_steps

configure_runtime(precision="mixed_float16", num_logical_cpus=2)
strategy = make_strategy("mirrored")
with strategy.scope():
    model, scale = small_steps.model(), DynamicLossScale()
step = small_steps.training_step(model, strategy, loss_scale=scale)
variables = [*model.variables, *scale.variables]
assert Checkpoints(sys.argv[1]).restore_latest(variables)["step"] == 4

def assert_scale(*expected):
    for variable, value in zip(scale.variables, expected, strict=True):
        replicas = strategy.experimental_local_results(variable.value)
        assert [float(replica) for replica in replicas] == [value] * 2, variable.path

assert_scale(INITIAL_SCALE / 2, 3)
shares = [small_steps.batch(targets) for targets in ((5, 1), (0, 3))]
bias = model.head.bias
before = bias.numpy()
bias.assign(np.full_like(before, np.inf))
step(shares, 4, small_steps.RATE)
assert_scale(INITIAL_SCALE / 4, 0)
bias.assign(before)
for number in (5, 6):
    step(shares, number, small_steps.RATE)
assert_scale(INITIAL_SCALE / 4, 2)
Checkpoints(sys.argv[2]).save(7, variables, {})
"""


def test_a_checkpoint_carries_the_scale_to_two_devices_and_back(tmp_path):
    model, scale = small_steps.model(), DynamicLossScale()
    _scales(scale, False, True, True, True)
    one, two = tmp_path / "one", tmp_path / "two"
    Checkpoints(one).save(4, [*model.variables, *scale.variables], {})
    run_python(TWO_DEVICES, one, two)

    before = model.head.table.numpy().copy()
    fresh = DynamicLossScale()
    assert Checkpoints(two).restore_latest([*model.variables, *fresh.variables])["step"] == 7
    assert [float(variable) for variable in fresh.variables] == [INITIAL_SCALE / 4, 2]
    assert not np.array_equal(model.head.table.numpy(), before)
