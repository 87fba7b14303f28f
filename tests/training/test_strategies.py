"""Devices and runtime settings, each in a process of its own, since a process has them once."""

import tensorflow as tf

from kzoo.training import strategies
from tests.training.subprocesses import run_python

HEADER = """
import keras
import tensorflow as tf
from kzoo import KzooError
from kzoo.training.strategies import configure_runtime, make_strategy

def refused(action, *parts):
    try:
        action()
    except KzooError as error:
        assert all(part in str(error) for part in parts), error
    else:
        raise AssertionError("not refused")
"""


def test_a_mirrored_strategy_is_made_once_over_all_devices_and_mistakes_are_named():
    run_python(
        HEADER
        + """
refused(lambda: configure_runtime(precision="float8"), "'float8'", "mixed_bfloat16")
configure_runtime(precision="mixed_bfloat16", threads=1, num_logical_cpus=3)
assert keras.config.dtype_policy().name == "mixed_bfloat16"
assert tf.config.threading.get_intra_op_parallelism_threads() == 1
refused(lambda: make_strategy("mirorred"), "'mirorred'", "one_device, mirrored")
refused(lambda: make_strategy("mirrored", ["CPU:0", "GPU:5"]), "GPU:5", "CPU:0, CPU:1, CPU:2")
refused(lambda: make_strategy("mirrored", ["CPU:0", "/cpu:0"]), "twice")
refused(lambda: make_strategy("one_device", ["CPU:0", "CPU:1"]), "one device")
strategy = make_strategy("mirrored")
assert strategy.num_replicas_in_sync == 3
assert make_strategy("mirrored") is strategy
refused(lambda: make_strategy("mirrored", ["CPU:0"]), "'mirrored'", "a process for each")
refused(lambda: make_strategy("one_device"), "'one_device'", "a process for each")
# Random operations without a seed are refused: the run would not be deterministic.
try:
    tf.random.uniform([])
except RuntimeError as error:
    assert "seed" in str(error)
else:
    raise AssertionError("determinism is off")
"""
    )


def test_one_device_can_be_chosen_and_settings_that_come_too_late_are_refused():
    run_python(
        HEADER
        + """
configure_runtime(num_logical_cpus=2, deterministic=False)
with make_strategy("one_device", ["CPU:1"]).scope():
    variable = keras.Variable(tf.random.uniform([]))
assert variable.value.device.endswith("CPU:1"), variable.value.device
refused(lambda: configure_runtime(num_logical_cpus=3), "a new process")
refused(lambda: configure_runtime(threads=1), "a new process")
"""
    )


def test_a_port_of_another_program_is_named():
    run_python(
        HEADER
        + """
import json, os, socket

with socket.socket() as other:
    other.bind(("", 0))
    other.listen()
    address = f"localhost:{other.getsockname()[1]}"
    task = {"type": "worker", "index": 0}
    os.environ["TF_CONFIG"] = json.dumps({"cluster": {"worker": [address]}, "task": task})
    refused(lambda: make_strategy("multi_worker_mirrored"), address, "another program's")
"""
    )


def test_one_device_needs_no_strategy(monkeypatch):
    monkeypatch.setattr(strategies, "_made", None)
    assert strategies.make_strategy("one_device") is tf.distribute.get_strategy()
