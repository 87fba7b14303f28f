"""The command that converts: what it prints, what it refuses, and what it leaves behind."""

import json
import pickle
import shutil
import subprocess
import sys

import numpy as np
import pytest

from kzoo import command, convert
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.models.preset_files import read_arguments
from kzoo.models.preset_metadata import read_made_anew
from kzoo.text.vocabulary import MODEL_FILE
from tests.interchange import hugging_face_folders as folders
from tests.interchange.test_pickled_weights import Runs


@pytest.fixture(scope="module")
def state() -> dict[str, np.ndarray]:
    return folders.tensors()


@pytest.fixture
def run(capsys):
    """Runs the command in this process; returns its status and what it printed."""

    def run_with(*arguments: str) -> tuple[int, str, str]:
        for flag in convert.FLAGS:
            convert.FLAGS[flag].unparse()
        status = command.run(convert.main, convert.FLAGS, convert.__doc__, arguments)
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return run_with


def route(source: str, target: str, given, output) -> list[str]:
    return [f"--from={source}", f"--to={target}", f"--input={given}", f"--output={output}"]


def test_a_folder_becomes_a_preset_in_a_process_of_its_own(state, vocabulary_folder, tmp_path):
    folders.write_folder(tmp_path / "in", state)
    arguments = route("hugging_face", "preset", tmp_path / "in", tmp_path / "made" / "preset")
    arguments.append(f"--vocabulary={vocabulary_folder / MODEL_FILE}")
    done = subprocess.run(
        [sys.executable, "-m", "kzoo.convert", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "V 617, L 3, H 48, heads 3, E_in 16, positions 32" in done.stdout
    assert f"used {len(state)}" in " ".join(done.stdout.split())
    model = RemBertMaskedLM.from_preset(str(tmp_path / "made" / "preset"))
    np.testing.assert_array_equal(model.head.table.numpy(), state["cls.predictions.decoder.weight"])
    tokenizer = tmp_path / "made" / "preset" / "assets" / "tokenizer" / "vocabulary.spm"
    assert tokenizer.read_bytes() == (vocabulary_folder / MODEL_FILE).read_bytes()
    assert [path.name for path in (tmp_path / "made").iterdir()] == ["preset"]


def test_out_and_in_and_out_again_are_the_same_bytes(state, run, tmp_path):
    folders.write_folder(tmp_path / "in", folders.without(state, folders.POOLER))
    for source, target, given, output in (
        ("hugging_face", "preset", "in", "preset"),
        ("preset", "hugging_face", "preset", "out"),
        ("hugging_face", "preset", "out", "preset_2"),
        ("preset", "hugging_face", "preset_2", "out_2"),
    ):
        status, _, errors = run(*route(source, target, tmp_path / given, tmp_path / output))
        assert (status, errors) == (0, "")
    for name in ("model.safetensors", "config.json"):
        first, second = ((tmp_path / folder / name).read_bytes() for folder in ("out", "out_2"))
        assert first == second


def test_an_encoder_alone_cannot_go_on_without_being_asked(state, run, tmp_path):
    folders.write_folder(tmp_path / "in", folders.bare(state))
    to_preset = route("hugging_face", "preset", tmp_path / "in", tmp_path / "preset")
    status, printed, _ = run(*to_preset)
    assert status == 0
    for name in ("dense.weight", "dense.bias", "LayerNorm.weight", "LayerNorm.bias"):
        assert f"cls.predictions.{name}" in printed
    for name in ("decoder.weight", "decoder.bias"):
        assert f"cls.predictions.{name}" in printed
    assert read_arguments(tmp_path / "preset")[1] is None
    status, printed, _ = run(*to_preset, "--overwrite", "--allow_missing=masked_lm_head")
    assert status == 0
    assert "made anew" in printed
    assert "never trained: masked_lm_head/table" in printed
    first = RemBertMaskedLM.from_preset(str(tmp_path / "preset"))
    anew = read_made_anew(tmp_path / "preset")
    assert len(anew) == 6
    # What was never trained is still known to be that on the way out and in again.
    run(*route("preset", "preset", tmp_path / "preset", tmp_path / "copy"))
    assert read_made_anew(tmp_path / "copy") == anew
    np.testing.assert_array_equal(
        RemBertMaskedLM.from_preset(str(tmp_path / "copy")).head.table.numpy(),
        first.head.table.numpy(),
    )


def test_another_activation_is_kept(state, run, tmp_path):
    folders.write_folder(tmp_path / "in", state)
    arguments = route("hugging_face", "preset", tmp_path / "in", tmp_path / "preset")
    status, printed, _ = run(*arguments, "--activation=gelu_approximate")
    assert status == 0
    assert "gelu_approximate, as asked for, and not gelu" in printed
    assert (
        RemBertMaskedLM.from_preset(str(tmp_path / "preset")).backbone.activation
        == "gelu_approximate"
    )


def cut_off(folder, state):
    path = folders.write_folder(folder, state) / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1000])


def not_finite(folder, state):
    value = np.full_like(state["cls.predictions.dense.bias"], np.inf)
    folders.write_folder(folder, {**state, "cls.predictions.dense.bias": value})


def evil_index(folder, state):
    path = folders.write_sharded(folder, state) / "model.safetensors.index.json"
    weight_map = json.loads(path.read_text())["weight_map"]
    weight_map["cls.predictions.dense.bias"] = "../../etc/passwd"
    path.write_text(json.dumps({"weight_map": weight_map}))


def evil_pickle(folder, state):
    program = pickle.dumps({"a": Runs(folder / "made")}, protocol=2)
    path = folders.write_config(folder) / "pytorch_model.bin"
    folders.write_pickled(path, {}, data_pkl=program)


def heads_that_do_not_divide(folder, state):
    folders.write_folder(folder, state, num_attention_heads=5)


LIES = {
    cut_off: "model.safetensors was cut off",
    not_finite: "cls.predictions.dense.bias holds values that are not finite",
    evil_index: "Received: '../../etc/passwd'",
    evil_pickle: "could run anything",
    heads_that_do_not_divide: "num_attention_heads must divide hidden_size",
}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.__name__)
def test_a_file_that_lies_is_refused_and_nothing_is_written(lie, state, run, tmp_path):
    lie(tmp_path / "in", state)
    before = sorted(path.name for path in (tmp_path / "in").iterdir())
    status, printed, errors = run(
        *route("hugging_face", "preset", tmp_path / "in", tmp_path / "preset")
    )
    assert (status, printed) == (2, "")
    assert errors.startswith("error: ")
    assert LIES[lie] in errors
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert sorted(path.name for path in (tmp_path / "in").iterdir()) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "--from is one of hugging_face, "),
        (["--from=onnx"], "Received: 'onnx'"),
        (["--from=preset", "--to=onnx"], "--to is one of preset, hugging_face"),
        (["--from=preset"], "--input is missing"),
        (["--from=preset", "--input=x"], "--output is missing"),
        (["--from=preset", "--input=nowhere", "--output=x"], "there is no nowhere"),
        (["--from=preset", "--input=.", "--output=."], "is there already; --overwrite"),
        (["--from=preset", "--input=.", "--output=x://y/z"], "no storage x://"),
        (["--from=preset", "--input=.", "--output=x", "--keep_pooler"], "is for --to hugging_face"),
        (["--from=preset", "--input=.", "--output=x", "--activation=relu"], "activation"),
    ],
)
def test_wrong_flags_are_named(arguments, message, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    status, _, errors = run(*arguments)
    assert status == 2
    assert message in errors
    assert not list(tmp_path.iterdir())


def test_nothing_but_a_model_is_replaced_and_never_the_input(state, run, tmp_path):
    folders.write_folder(tmp_path / "in", state)
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("mine")
    (tmp_path / "file").write_text("mine")
    for name, message in (
        ("thesis", "holds other things than a model"),
        ("file", "holds other things than a model"),
        ("in", "holds the input"),
    ):
        arguments = route("hugging_face", "preset", tmp_path / "in", tmp_path / name)
        status, _, errors = run(*arguments, "--overwrite")
        assert status == 2
        assert message in errors
    assert (tmp_path / "thesis" / "chapter.tex").read_text() == "mine"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "in", "thesis"]


def test_two_at_a_time_and_a_disk_without_room_are_refused(state, run, tmp_path, monkeypatch):
    folders.write_folder(tmp_path / "in", state)
    arguments = route("hugging_face", "preset", tmp_path / "in", tmp_path / "out")
    code = f"""
from kzoo.storage.lock_file import sole_maker
with sole_maker({str(tmp_path / "out")!r}):
    print(flush=True)
    input()
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", code], **pipes) as other:
        other.stdout.readline()
        status, _, errors = run(*arguments)
        other.communicate("\n")
    assert status == 2
    assert "is being made by another process" in errors
    usage = shutil._ntuple_diskusage(1 << 40, 1 << 40, 1 << 10)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    status, _, errors = run(*arguments)
    assert status == 2
    assert "no room for the model" in errors
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_a_place_that_cannot_be_written_is_named(state, run, tmp_path):
    folders.write_folder(tmp_path / "in", state)
    (tmp_path / "file").touch()
    arguments = route("hugging_face", "preset", tmp_path / "in", tmp_path / "file" / "out")
    status, _, errors = run(*arguments)
    assert status == 2
    assert errors == f"error: cannot write {tmp_path / 'file'}: File exists\n"


def test_what_is_no_preset_is_named(run, tmp_path):
    (tmp_path / "in").mkdir()
    arguments = route("preset", "hugging_face", tmp_path / "in", tmp_path / "out")
    assert "cannot read" in run(*arguments)[2]
    (tmp_path / "in" / "config.json").write_text('{"registered_name": "keras_hub>Bert"}')
    assert "not of a kzoo RemBertBackbone. Received: keras_hub>Bert" in run(*arguments)[2]
