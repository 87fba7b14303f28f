"""Checkpoints through kills, a full disk, and a change of strategy, each in real processes."""

import pytest

from tests.training.subprocesses import NAMESPACE, can_mount, run_python

KILLS = """
import logging, os, random, signal, struct, sys, time
import numpy as np
import tensorflow as tf
from kzoo.training.checkpoints import Checkpoints

folder, log = sys.argv[1:]

def save_without_end(acknowledge, least):
    logging.basicConfig(filename=log)
    variables = [tf.Variable(tf.zeros([100_000]), name=f"v{i}") for i in range(8)]
    checkpoints = Checkpoints(folder, keep=2)
    state = checkpoints.restore_latest(variables) or {"step": 0, "square": 0}
    step = state["step"]
    assert step >= least, (step, least)
    assert state["square"] == step**2
    assert all((variable.numpy() == step).all() for variable in variables)
    while True:
        step += 1
        for variable in variables:
            variable.assign(tf.fill([100_000], float(step)))
        checkpoints.save(step, variables, {"square": step**2})
        os.write(acknowledge, struct.pack("q", step))

# TensorFlow is imported once; each child sets up its own runtime and is killed in mid-save.
acknowledged = half_written = 0
for kill in range(10):
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            save_without_end(writer, acknowledged)
        finally:
            os._exit(1)
    os.close(writer)
    acknowledged, = struct.unpack("q", os.read(reader, 8))
    time.sleep(random.Random(kill).uniform(0, 0.1))
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), status
    while rest := os.read(reader, 8):
        acknowledged, = struct.unpack("q", rest)
    os.close(reader)
    half_written += any(name.endswith(".partial") for name in os.listdir(folder))
print(acknowledged, half_written)
"""

FULL_DISK = """
import os, subprocess, sys
import tensorflow as tf
from kzoo import KzooError
from kzoo.training import checkpoint_files
from kzoo.training.checkpoints import Checkpoints
from kzoo.training.writers import MetricWriter

folder = sys.argv[1]
subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6M", "tmpfs", folder], check=True)
checkpoints = Checkpoints(folder)
metrics = MetricWriter(folder + "/metrics")
variable = tf.Variable(tf.fill([500_000], 1.0), name="v")

def fails(action, *parts):
    try:
        action()
    except KzooError as error:
        assert all(part in str(error) for part in parts), error
    else:
        raise AssertionError("the disk was not full")
    assert checkpoints.steps() == [1]
    assert not [name for name in os.listdir(folder) if name.endswith(".partial")]
    variable.assign(tf.zeros([500_000]))
    assert checkpoints.restore_latest([variable]) == {"step": 1}
    assert (variable.numpy() == 1).all()

checkpoints.save(1, [variable], {})
twice = [variable, tf.Variable(tf.zeros([500_000]), name="w")]
fails(lambda: checkpoints.save(2, twice, {}), folder, "needs 5.", "MB are free", "stay as they are")

check = checkpoint_files.check_free_space

def fill_after_the_check(folder, needed_bytes):
    check(folder, needed_bytes)
    with open(folder + "/ballast", "wb") as file:
        file.write(bytes(3_500_000))

checkpoint_files.check_free_space = fill_after_the_check
fails(lambda: checkpoints.save(2, [variable], {}), folder, "step-00000002", "No space left")

def fill():
    with open(folder + "/more", "wb", buffering=0) as file:
        try:
            while file.write(bytes(1000)):
                pass
        except OSError:
            pass

fill()
fails(lambda: [metrics.write(step, "train", {"loss": 1.0}) for step in range(10_000)],
      "metrics.jsonl", "No space left")
"""

MIRRORED = """
import sys
import keras
import numpy as np
import tensorflow as tf
from kzoo.training.checkpoints import Checkpoints
from kzoo.training.strategies import configure_runtime, make_strategy

configure_runtime(num_logical_cpus=2)
mirrored = make_strategy("mirrored")
assert mirrored.num_replicas_in_sync == 2

def build(scope):
    with scope, keras.name_scope("model"):
        model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3, name="dense")], name="m")
        optimizer = keras.optimizers.Adam(0.1, name="adam")
        optimizer.build(model.trainable_variables)
    return model, optimizer

def everything(model, optimizer):
    return model.variables + optimizer.variables

def copies(variable, strategy):
    return [copy.numpy() for copy in strategy.experimental_local_results(variable.value)]

# Five updates, different on the two replicas before they are added up.
model, optimizer = build(mirrored.scope())

@tf.function
def update(scale):
    def replica(scale):
        gradients = [scale * tf.ones_like(v.value) for v in model.trainable_variables]
        context = tf.distribute.get_replica_context()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    mirrored.run(replica, args=(scale,))

for step in range(5):
    update(tf.constant(0.1 * (step + 1)))
expected = {v.path: copies(v, mirrored) for v in everything(model, optimizer)}
assert all(len(both) == 2 for both in expected.values())
assert any(path.endswith("velocity") and both[0].any() for path, both in expected.items())
checkpoints = Checkpoints(sys.argv[1])
checkpoints.save(5, everything(model, optimizer), {})

# On one device, where the same names are those of plain variables.
single = build(tf.distribute.get_strategy().scope())
assert checkpoints.restore_latest(everything(*single)) == {"step": 5}
for variable in everything(*single):
    np.testing.assert_array_equal(variable.numpy(), expected[variable.path][0])
    variable.assign(variable.value * 2 if variable.dtype == "float32" else variable.value + 1)
doubled = {v.path: v.numpy() for v in everything(*single)}
checkpoints.save(6, everything(*single), {})

# And back: every replica has the values, inside the scope of the strategy and outside of it.
import contextlib
for scope in (contextlib.nullcontext(), mirrored.scope()):
    with scope:
        assert checkpoints.restore_latest(everything(model, optimizer)) == {"step": 6}
    for variable in everything(model, optimizer):
        for copy in copies(variable, mirrored):
            np.testing.assert_array_equal(copy, doubled[variable.path])
        variable.assign(tf.zeros_like(variable.value))
"""


def test_a_process_killed_while_saving_loses_no_finished_checkpoint(tmp_path):
    log = tmp_path / "log"
    done = run_python(KILLS, tmp_path / "checkpoints", log)
    saves, half_written = map(int, done.stdout.split())
    assert saves >= 10
    assert half_written >= 1, "no kill came while a checkpoint was being written"
    assert log.read_text() == ""


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a small file system")
def test_a_full_disk_is_one_clear_error_and_loses_nothing(tmp_path):
    run_python(FULL_DISK, tmp_path, prefix=NAMESPACE)


def test_optimizer_slots_survive_a_change_of_strategy_and_back(tmp_path):
    run_python(MIRRORED, tmp_path)
