"""What is saved comes back, bit for bit, from the newest checkpoint that is whole."""

import json
import logging
import os
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

from kzoo import KzooError
from kzoo.training.checkpoints import Best, Checkpoints
from kzoo.training.memory import available_memory_bytes
from tests.storage import ram
from tests.training.subprocesses import run_python


def variables(value: float = 0.0) -> list[keras.Variable]:
    """Three variables that hold `value`."""
    shapes = {"kernel": (64, 32), "bias": (32,), "scale": ()}
    with keras.name_scope("layer"):
        return [
            keras.Variable(np.full(shape, value, np.float32), name=name)
            for name, shape in shapes.items()
        ]


def values(of: list[keras.Variable]) -> set[float]:
    return set(np.concatenate([np.ravel(variable.numpy()) for variable in of]).tolist())


def saved(folder, steps, keep=5) -> Checkpoints:
    """Checkpoints whose variables hold their step."""
    checkpoints = Checkpoints(folder, keep=keep)
    for step in steps:
        checkpoints.save(step, variables(step), {"position": 32 * step})
    return checkpoints


def flip_last_byte(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def cut_in_half(path):
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def change_the_step(path):
    path.write_text(path.read_text().replace('"step": 6', '"step": 7'))


def test_every_dtype_and_shape_comes_back_bit_for_bit(tmp_path):
    generator = np.random.default_rng(0)
    originals = {
        "float32": generator.standard_normal((5, 3)).astype(np.float32),
        "special": np.array([np.nan, -0.0, np.inf, 1e-45], np.float32),
        "bfloat16": tf.cast(generator.standard_normal(7), tf.bfloat16).numpy(),
        "float16": generator.standard_normal(7).astype(np.float16),
        "float64": generator.standard_normal(2),
        "int64": np.array([-(2**63), 2**63 - 1]),
        "uint32": np.array([2**32 - 1], np.uint32),
        "bool": np.array([True, False, True]),
        "scalar": np.float32(0.1),
        "empty": np.zeros((0, 4), np.float32),
    }
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, [tf.Variable(array, name=name) for name, array in originals.items()], {})
    fresh = {
        name: tf.Variable(tf.zeros_like(array), name=name) for name, array in originals.items()
    }
    checkpoints.restore_latest(list(fresh.values()))
    for name, array in originals.items():
        restored = fresh[name].numpy()
        assert (restored.dtype, restored.shape) == (array.dtype, array.shape)
        assert restored.tobytes() == array.tobytes(), name


def test_names_on_disk_are_the_paths_of_the_variables_of_model_and_optimizer(tmp_path):
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3, name="dense")], name="model")
    optimizer = keras.optimizers.AdamW()
    optimizer.build(model.trainable_variables)
    everything = model.variables + optimizer.variables
    path = Checkpoints(tmp_path).save(20, everything, {})
    assert os.path.basename(path) == "step-00000020"
    stored = tf.train.load_checkpoint(os.path.join(path, "variables"))
    shapes = {variable.path: list(variable.shape) for variable in everything}
    assert stored.get_variable_to_shape_map() == shapes
    assert sorted(os.listdir(path)) == [
        "state.json",
        "variables.data-00000-of-00001",
        "variables.index",
    ]


def test_state_comes_back_with_the_step(tmp_path):
    state = {"position": 2**53 + 1, "loss_scale": 0.1 + 0.2, "strategy": "mirrored", "x": [None]}
    Checkpoints(tmp_path).save(4, variables(), state)
    assert Checkpoints(tmp_path).restore_latest(variables()) == {**state, "step": 4}


def test_what_is_saved_is_what_the_variables_held_when_it_began(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    moving = variables(1)
    checkpoints.start_saving(1, moving, {})
    for variable in moving:
        # As an optimizer does: in place.
        tf.raw_ops.AssignSubVariableOp(
            resource=variable.value.handle, value=tf.fill(variable.shape, 3.0)
        )
    checkpoints.wait()
    assert values(moving) == {-2}
    fresh = variables()
    checkpoints.restore_latest(fresh)
    assert values(fresh) == {1}


def test_a_save_that_fails_in_the_background_is_reported_by_the_next_or_at_the_end(
    tmp_path, monkeypatch, caplog
):
    def fail(*_):
        raise OSError(28, "No space left on device", "variables.data")

    checkpoints = saved(tmp_path, [1])
    monkeypatch.setattr("kzoo.training.checkpoint_files.write", fail)
    checkpoints.start_saving(2, variables(2), {})
    with pytest.raises(KzooError, match=r"step-00000002: variables.data: No space left"):
        checkpoints.start_saving(3, variables(3), {})
    checkpoints.start_saving(4, variables(4), {})
    checkpoints.close()
    assert "No space left" in caplog.text
    assert checkpoints.steps() == [1]
    assert not [name for name in os.listdir(tmp_path) if "partial" in name]


def test_values_that_do_not_fit_into_memory_twice_are_written_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("kzoo.training.checkpoints.available_memory_bytes", lambda: 1e6)
    checkpoints = Checkpoints(tmp_path)
    checkpoints.start_saving(1, variables(1), {}, loss=2.0)
    assert checkpoints.steps() == [1]
    assert checkpoints.best() == Best(1, 2.0)


def test_the_machine_says_how_much_memory_is_left():
    assert 1e6 < available_memory_bytes() < 1e14


def test_without_a_checkpoint_nothing_is_restored(tmp_path):
    fresh = variables(1)
    assert Checkpoints(tmp_path / "absent").restore_latest(fresh) is None
    assert Checkpoints(tmp_path).latest() is None
    assert values(fresh) == {1}


def test_the_last_ones_and_the_best_are_kept(tmp_path):
    checkpoints = saved(tmp_path, [1, 2, 3], keep=2)
    assert checkpoints.steps() == [2, 3]
    assert checkpoints.mark_best(2, 5.0)
    for step, loss in ((4, 6.0), (5, float("nan")), (6, 5.0)):
        checkpoints.save(step, variables(step), {})
        assert not checkpoints.mark_best(step, loss)
    assert checkpoints.steps() == [2, 5, 6]
    assert Checkpoints(tmp_path).best() == Best(2, 5.0)
    assert checkpoints.mark_best(6, 4.0)
    assert checkpoints.steps() == [5, 6]
    assert checkpoints.latest() == str(tmp_path / "step-00000006")


def test_the_best_step_taken_again_is_marked_anew(tmp_path):
    checkpoints = saved(tmp_path, [1, 2])
    checkpoints.mark_best(2, 5.0)
    checkpoints.save(2, variables(7), {})
    assert checkpoints.mark_best(2, 5.0)
    assert checkpoints.mark_best(2, 6.0)
    assert Checkpoints(tmp_path).best() == Best(2, 6.0)


def test_nan_is_not_even_the_first_best(tmp_path):
    checkpoints = saved(tmp_path, [1, 2])
    assert not checkpoints.mark_best(1, float("nan"))
    assert checkpoints.mark_best(2, 3.0)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("variables.data-00000-of-00001", cut_in_half),
        ("variables.data-00000-of-00001", flip_last_byte),
        ("variables.data-00000-of-00001", os.remove),
        ("variables.index", os.remove),
        ("variables.index", flip_last_byte),
        ("state.json", cut_in_half),
        ("state.json", change_the_step),
        ("state.json", lambda path: path.write_bytes(b"")),
        ("state.json", os.remove),
    ],
)
def test_a_broken_checkpoint_is_passed_over_with_a_warning(tmp_path, caplog, file, damage):
    checkpoints = saved(tmp_path, [3, 6])
    damage(tmp_path / "step-00000006" / file)
    fresh = variables()
    with caplog.at_level(logging.WARNING):
        assert checkpoints.restore_latest(fresh) == {"position": 96, "step": 3}
    assert values(fresh) == {3}
    (warning,) = caplog.messages
    assert str(tmp_path / "step-00000006") in warning


def test_a_broken_checkpoint_that_is_asked_for_changes_no_variable(tmp_path):
    saved(tmp_path, [6])
    path = tmp_path / "step-00000006"
    flip_last_byte(path / "variables.data-00000-of-00001")
    fresh = variables(1)
    with pytest.raises(KzooError, match=r"tensor layer/scale: .*Checksum does not match"):
        Checkpoints.restore(path, fresh)
    assert values(fresh) == {1}


def test_a_run_whose_checkpoints_are_all_broken_does_not_start_anew(tmp_path):
    checkpoints = saved(tmp_path, [3, 6])
    for step in ("3", "6"):
        os.remove(tmp_path / f"step-0000000{step}" / "variables.index")
    fresh = variables(1)
    with pytest.raises(KzooError, match="none of the checkpoints"):
        checkpoints.restore_latest(fresh)
    assert values(fresh) == {1}


def test_stray_files_in_the_folder_do_no_harm(tmp_path):
    checkpoints = saved(tmp_path, [3])
    (tmp_path / "checkpoint").write_bytes(b"")
    (tmp_path / "step-notes").mkdir()
    assert checkpoints.restore_latest(variables())["step"] == 3
    saved(tmp_path, [4, 5], keep=1)
    assert {"checkpoint", "step-notes", "step-00000005"} < set(os.listdir(tmp_path))


def test_a_damaged_mark_of_the_best_is_no_mark(tmp_path):
    checkpoints = saved(tmp_path, [3])
    checkpoints.mark_best(3, 1.0)
    (tmp_path / "best.json").write_text("{")
    assert checkpoints.best() is None
    assert checkpoints.mark_best(3, 2.0)


def test_after_going_back_the_abandoned_checkpoint_never_is_the_newest(tmp_path, caplog):
    checkpoints = saved(tmp_path, [3, 6], keep=2)
    os.remove(tmp_path / "step-00000006" / "variables.index")
    assert checkpoints.restore_latest(variables())["step"] == 3
    checkpoints.save(4, variables(4), {})
    assert checkpoints.steps() == [3, 4]
    assert "step-00000006 is removed" in caplog.messages[-1]


def test_a_step_saved_again_replaces_its_checkpoint(tmp_path):
    checkpoints = saved(tmp_path, [3])
    checkpoints.save(3, variables(30), {})
    fresh = variables()
    checkpoints.restore_latest(fresh)
    assert values(fresh) == {30}
    assert sorted(os.listdir(tmp_path)) == [".lock", "step-00000003"]


def test_what_a_dead_process_left_is_cleared_and_a_replaced_checkpoint_comes_back(tmp_path):
    saved(tmp_path, [3])
    shutil.copytree(tmp_path / "step-00000003", tmp_path / ".step-00000009.partial")
    os.rename(tmp_path / "step-00000003", tmp_path / ".step-00000003.replaced")
    assert Checkpoints(tmp_path).steps() == []
    Checkpoints(tmp_path).claim()
    assert sorted(os.listdir(tmp_path)) == [".lock", "step-00000003"]
    assert Checkpoints(tmp_path).restore_latest(variables())["step"] == 3


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda model: model[1:], "unknown to the model: layer/kernel"),
        (lambda model: [*model, keras.Variable(1.0, name="extra")], "missing .*: extra"),
        (
            lambda model: [tf.Variable(tf.zeros([64, 16]), name="layer/kernel"), *model[1:]],
            r"kernel \(checkpoint float32\[64, 32\], model float32\[64, 16\]\)",
        ),
        (
            lambda model: [*model[:2], tf.Variable(1.0, name="layer/scale", dtype="bfloat16")],
            r"scale \(checkpoint float32\[\], model bfloat16\[\]\)",
        ),
    ],
)
def test_a_checkpoint_of_another_model_is_refused_with_the_tensors(tmp_path, change, problem):
    checkpoints = saved(tmp_path, [3, 6])
    fresh = variables(1)
    with pytest.raises(KzooError, match=problem):
        checkpoints.restore_latest(change(fresh))
    assert values(fresh) == {1}


def test_only_a_few_of_many_missing_tensors_are_named(tmp_path):
    checkpoints = saved(tmp_path, [3])
    many = [keras.Variable(0.0, name=f"extra_{i}") for i in range(50)]
    with pytest.raises(KzooError, match="extra_0, extra_1, extra_2 and 47 more;"):
        checkpoints.restore_latest(many)


def test_where_only_moments_differ_the_way_to_freeze_or_thaw_is_said(tmp_path):
    checkpoints = saved(tmp_path, [3])
    with keras.name_scope("optimizer"):
        thawed = keras.Variable(0.0, name="momentum")
    with pytest.raises(KzooError, match=r"momentum\. .* freeze or thaw parts.*init_from\.path"):
        checkpoints.restore_latest([*variables(), thawed])
    with pytest.raises(KzooError) as error:
        checkpoints.restore_latest([*variables(), thawed, keras.Variable(0.0, name="other")])
    assert "thaw" not in str(error.value)


def test_a_model_can_be_restored_without_its_optimizer(tmp_path):
    checkpoints = saved(tmp_path, [3])
    fresh = variables()
    assert checkpoints.restore_latest(fresh[:1], allow_unused=True)["step"] == 3
    assert values(fresh[:1]) == {3}
    assert values(fresh[1:]) == {0}
    with pytest.raises(KzooError, match="missing in the checkpoint: other"):
        checkpoints.restore_latest([keras.Variable(0.0, name="other")], allow_unused=True)


def test_two_variables_of_one_name_are_refused_before_anything_is_written(tmp_path):
    with pytest.raises(KzooError, match="layer/kernel, layer/bias, layer/scale"):
        Checkpoints(tmp_path / "new").save(1, variables() + variables(), {})
    assert not (tmp_path / "new").exists()


def test_a_later_format_is_refused(tmp_path):
    from kzoo.training import checkpoint_files

    checkpoints = saved(tmp_path, [3])
    path = tmp_path / "step-00000003" / "state.json"
    content = json.loads(path.read_text())
    del content["sha256"]
    content["format_version"] = 2
    checkpoint_files.write_json(str(path), {"sha256": checkpoint_files._digest(content), **content})
    with pytest.raises(KzooError, match="format version 2"):
        checkpoints.restore_latest(variables())


def test_a_folder_that_another_process_uses_is_refused(tmp_path):
    code = """
import sys
from kzoo import KzooError
from kzoo.training import folder_lock
try:
    folder_lock.claim(sys.argv[1])
except KzooError as error:
    print(error)
"""
    assert run_python(code, tmp_path).stdout == ""
    Checkpoints(tmp_path).claim()
    Checkpoints(tmp_path).claim()
    assert f"in use by another run (process {os.getpid()} on" in run_python(code, tmp_path).stdout


def test_a_folder_that_cannot_be_made_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(KzooError, match=r"cannot write checkpoints into .*/file/checkpoints"):
        Checkpoints(tmp_path / "file" / "checkpoints").save(1, variables(), {})


def test_object_storage_keeps_and_finds_checkpoints(caplog):
    folder = "ram://bucket/run/checkpoints"
    checkpoints = saved(folder, [1, 2, 3], keep=2)
    assert checkpoints.steps() == [2, 3]
    checkpoints.mark_best(2, 1.0)
    checkpoints.save(4, variables(4), {})
    checkpoints.save(5, variables(5), {})
    assert checkpoints.steps() == [2, 4, 5]
    tf.io.gfile.remove(f"{folder}/step-00000005/state.json")
    fresh = variables()
    assert checkpoints.restore_latest(fresh)["step"] == 4
    assert values(fresh) == {4}
    assert "never finished" in caplog.text
    checkpoints.save(5, variables(50), {})
    assert checkpoints.restore_latest(fresh)["step"] == 5
    assert values(fresh) == {50}


@pytest.mark.parametrize("part", ["", "/step-00000003", "/step-00000003/state.json", "/variables."])
def test_checkpoints_that_cannot_be_looked_at_are_neither_absent_nor_broken(monkeypatch, part):
    folder = f"{ram.new_folder()}/checkpoints"
    saved(folder, [3])
    fresh, run = variables(), Checkpoints(folder)
    with monkeypatch.context() as away:
        ram.cut_off(away, folder + part if not part.startswith("/var") else part)
        with pytest.raises(KzooError, match="the network is away"):
            run.restore_latest(fresh)
        if not part.startswith("/var"):
            for look in (run.steps, run.latest):
                with pytest.raises(KzooError, match="the network is away"):
                    look()
    assert run.restore_latest(fresh)["step"] == 3


def test_a_value_that_cannot_be_read_now_is_not_taken_for_damaged(tmp_path, monkeypatch):
    checkpoints = saved(tmp_path, [3, 6])

    def fails(**_):
        raise tf.errors.UnavailableError(None, None, "the network is away")

    monkeypatch.setattr(tf.raw_ops, "RestoreV2", fails)
    with pytest.raises(KzooError, match=r"cannot read .*step-00000006/variables: the network is"):
        checkpoints.restore_latest(variables())
    assert checkpoints.steps() == [3, 6]


def test_a_mark_of_the_best_that_cannot_be_read_is_one_clear_error(monkeypatch):
    folder = f"{ram.new_folder()}/checkpoints"
    saved(folder, [3]).mark_best(3, 1.0)
    ram.cut_off(monkeypatch, "best.json")
    with pytest.raises(KzooError, match=r"best\.json: the network is away"):
        Checkpoints(folder).best()


@pytest.mark.parametrize("step", [2, 3, 6])
def test_a_run_that_did_not_see_the_checkpoints_does_not_remove_them(tmp_path, step):
    run = Checkpoints(tmp_path, keep=1)
    assert run.restore_latest(variables()) is None
    shutil.copytree(saved(tmp_path / "other", [3, 6]).path(3), tmp_path / "step-00000003")
    shutil.copytree(tmp_path / "other" / "step-00000006", tmp_path / "step-00000006")
    with pytest.raises(KzooError, match=f"step {step} is not saved: .* up to step 6 "):
        run.save(step, variables(), {})
    assert run.steps() == [3, 6]
