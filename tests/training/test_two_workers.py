"""What two workers must agree on when one of them has more to do: held-out windows, loss scales."""

import json

import pytest

from tests.training import held_out_text, small_steps
from tests.training.test_evaluation import NUM_WINDOWS, _frequent_pieces, _one_by_one
from tests.training.workers import start_workers, wait_for_all

WORKER = """
import hashlib
import json
import keras
from kzoo.training.cluster import Cluster
from kzoo.training.loss_scale import DynamicLossScale
from kzoo.training.strategies import configure_runtime, make_strategy
from tests.training import held_out_text, small_steps
from tests.training.test_evaluation import NUM_WINDOWS, _frequent_pieces

configure_runtime(threads=1)
strategy = make_strategy("multi_worker_mirrored", ["CPU:0"])
index = Cluster(strategy).index
with strategy.scope():
    model = _frequent_pieces(small_steps.model())
measured = [held_out_text.evaluation(model, count, strategy)[0].measure() for count in NUM_WINDOWS]

keras.config.set_dtype_policy("mixed_float16")
with strategy.scope():
    model, scale = small_steps.model(), DynamicLossScale()
step = small_steps.training_step(model, strategy, loss_scale=scale)
# One worker has all targets: it alone has gradients that the first scale makes infinite.
share = small_steps.batch(((5, 1), (0, 0))[index])
scales, weights = [], []
for number, first in enumerate((2.0**40, 2.0**10)):
    scale.variables[0].assign(first)
    before = model.head.table.numpy().copy()
    step([share], number, small_steps.RATE)
    after = model.head.table.numpy()
    scales.append(float(scale.value))
    weights.append([bool((before != after).any()), hashlib.sha256(after.tobytes()).hexdigest()])
print(json.dumps({"measured": measured, "scales": scales, "weights": weights}))
"""


@pytest.fixture(scope="module")
def results() -> list[dict]:
    """What each worker prints."""
    command = ("-c", WORKER)
    ended = wait_for_all(start_workers(command, command))
    for status, _, errors in ended:
        assert status == 0, errors
    return [json.loads(output.splitlines()[-1]) for _, output, _ in ended]


def test_every_window_counts_once_on_two_workers(results):
    model = _frequent_pieces(small_steps.model())
    for place, num_windows in enumerate(NUM_WINDOWS):
        _, held_out = held_out_text.evaluation(model, num_windows)
        expected = pytest.approx(_one_by_one(model, held_out), rel=1e-5)
        assert [worker["measured"][place] for worker in results] == [expected, expected]


def test_an_update_that_one_worker_cannot_make_is_skipped_by_both(results):
    first, second = results
    assert first["scales"] == second["scales"] == [2.0**39, 2.0**10]
    assert first["weights"] == second["weights"]
    assert [moved for moved, _ in first["weights"]] == [False, True]
