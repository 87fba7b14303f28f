"""What is wrong with a run is said in one clear error, and nothing is left behind."""

import shutil
import subprocess
import sys

import pytest

from kzoo.config import loader
from kzoo.training import folder_lock
from kzoo.training.ready_examples import ready_examples
from tests.training import runs
from tests.training.subprocesses import NAMESPACE, can_mount

FROM_TEXT = "data.examples={folder}/new"

# The settings of a mistaken command in a folder of its own, and what its error must say.
MISTAKES = {
    "wrong_key": (["trainer.train_step=3"], ["trainer.train_step: unknown key", "train_steps"]),
    "wrong_type": (["trainer.train_steps=many"], ["trainer.train_steps: expected", "'many'"]),
    "longer_than_the_position_table": (
        ["data.sequence_length=33"],
        ["data.sequence_length: 33 pieces are more than model.max_sequence_length, 32"],
    ),
    "neither_examples_nor_text": (
        [FROM_TEXT, "corpus.train_files=null", "corpus.held_out_files=null"],
        ["no examples in {folder}/new", "python -m kzoo.vocabulary", "python -m kzoo.prepare"],
    ),
    "missing_text": (
        [FROM_TEXT, "corpus.train_files={{de: {folder}/none.txt, en: {folder}/text.txt}}"],
        ["no file of language 'de' matches '{folder}/none.txt'", "text.txt"],
    ),
    "empty_text": (
        [
            FROM_TEXT,
            "corpus.held_out_files=null",
            "corpus.train_files={{de: {folder}/empty.txt}}",
        ],
        ["there is no text in the files of 'de'"],
    ),
    "unreadable_line": (
        [
            FROM_TEXT,
            "corpus.held_out_files=null",
            "corpus.train_files={{de: {folder}/unreadable.txt}}",
        ],
        ["{folder}/unreadable.txt", "line 2", "use --set corpus.on_bad_text=replace or --set"],
    ),
    "other_things_in_the_place_of_examples": (
        ["data.examples={folder}/text.txt"],
        ["{folder}/text.txt holds other things than examples"],
    ),
    "a_file_in_both_splits": (
        [
            FROM_TEXT,
            "corpus.train_files={{de: {folder}/text.txt}}",
            "corpus.held_out_files={{de: ['{folder}/text.tx?']}}",
        ],
        ["{folder}/text.txt is both in the training and in the held-out text"],
    ),
    "examples_with_more_pieces_than_rows": (
        ["model.vocabulary_size=299", "corpus.vocabulary_size=null"],
        ["model.vocabulary_size: 299 rows are too few for the 300 pieces"],
    ),
    "vocabulary_with_more_pieces_than_rows": (
        [
            FROM_TEXT,
            "corpus.vocabulary={examples}.vocabulary",
            "model.vocabulary_size=299",
            "corpus.vocabulary_size=null",
        ],
        ["model.vocabulary_size: 299 rows are too few for the 300 pieces"],
    ),
    "examples_of_another_length": (
        ["data.sequence_length=24"],
        ["data.sequence_length is 24", "prepared with 32"],
    ),
    "another_models_checkpoint": (
        ["model.hidden_dim=24", "model.num_layers=2", "trainer.train_steps=30"],
        ["{folder}/run/checkpoints/step-00000001", "encoder_block_1", "embeddings/projection"],
    ),
    "a_model_that_no_machine_holds": (
        ["model.vocabulary_size=2147483647", "model.embedding_dim=65536"],
        ["memory ran out: ", "2147483647,65536", "A higher trainer.accumulation_steps"],
    ),
    "a_folder_in_use": (["trainer.train_steps=30"], ["{folder}/run/checkpoints is in use by"]),
}
HAVE_A_RUN = ("another_models_checkpoint", "a_folder_in_use")


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    return runs.write_config(folder / "config.yaml", folder / "examples")


@pytest.fixture(scope="module")
def finished_run(config):
    """A run of one step, after which the examples and their vocabulary are there."""
    model_dir = config.parent / "finished"
    ended = runs.run(*runs.arguments(config, model_dir, *ONE_STEP))
    assert ended.status == 0, ended.errors
    return model_dir


ONE_STEP = ("trainer.train_steps=1", "optimizer.warmup_steps=0")


@pytest.fixture(scope="module")
def mistaken(config, finished_run):
    """How each mistaken command ended, and the files around it before and afterwards."""
    commands, before = [], []
    for name, (settings, _) in MISTAKES.items():
        folder = config.parent / name
        folder.mkdir()
        (folder / "text.txt").write_text("Ein Satz.\n")
        (folder / "empty.txt").write_text("\n\n")
        (folder / "unreadable.txt").write_bytes(b"Ein Satz.\nNoch \xff einer.\n")
        if name in HAVE_A_RUN:
            shutil.copytree(finished_run, folder / "run")
        if name == "a_folder_in_use":
            folder_lock.claim(str(folder / "run" / "checkpoints"))
        places = {"folder": folder, "examples": config.parent / "examples"}
        formatted = [setting.format(**places) for setting in settings]
        commands.append(runs.arguments(config, folder / "run", *formatted))
        before.append(_content(folder))
    ended = runs.run_all(commands)
    after = [_content(config.parent / name) for name in MISTAKES]
    return dict(zip(MISTAKES, zip(ended, before, after, strict=True), strict=True))


def _content(folder):
    """Files, and folders too: an empty one would be left behind as well."""
    return {**runs.files(folder), **{str(path): b"" for path in folder.rglob("*/")}}


def _assert_one_clear_error(ended: runs.Ended, *parts: str) -> None:
    assert ended.status == 2, ended.errors
    assert ended.output == ""
    assert "Traceback" not in ended.errors
    # The error comes last; what was done before it may have been said.
    assert ended.errors.count("error: ") == 1
    error = ended.errors[ended.errors.index("error: ") :]
    assert [part for part in parts if part not in error] == [], error


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_one_clear_error_and_changes_nothing(name, config, mistaken):
    ended, before, after = mistaken[name]
    folder = config.parent / name
    _assert_one_clear_error(ended, *(part.format(folder=folder) for part in MISTAKES[name][1]))
    assert after.keys() == before.keys()
    assert [path for path in before if after[path] != before[path]] == []


def test_a_missing_configuration_is_named_and_the_process_ends_with_status_2(tmp_path):
    ended = runs.run(*runs.arguments(tmp_path / "none.yaml", tmp_path / "run"))
    _assert_one_clear_error(ended, str(tmp_path / "none.yaml"))
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_kind_of_storage_is_refused_as_the_folder_of_a_run(config):
    ended = runs.run(*runs.arguments(config, "foo://bucket/run"))
    _assert_one_clear_error(ended, "foo://bucket/run", "gs://")


def test_xla_is_not_asked_to_share_a_step_out_over_parts_of_a_cpu(config, tmp_path):
    settings = ("runtime.strategy=mirrored", "runtime.devices=2", "runtime.jit_compile=true")
    ended = runs.run(*runs.arguments(config, tmp_path / "run", *settings))
    _assert_one_clear_error(ended, "runtime.jit_compile: XLA cannot share a step out over parts")
    assert not (tmp_path / "run").exists()


def make_other_examples(config, folder):
    """Examples with a smaller vocabulary."""
    settings = [f"data.examples={folder}", "corpus.vocabulary_size=280"]
    return ready_examples(loader.load([config], settings)).folder


def test_examples_that_are_gone_are_made_with_the_vocabulary_of_the_run(
    config, finished_run, tmp_path
):
    for name in ("whole", "no_preset"):
        shutil.copytree(finished_run, tmp_path / name)
    shutil.rmtree(tmp_path / "no_preset" / "preset")
    # A vocabulary of this size is another one.
    smaller = ("corpus.vocabulary_size=280", "trainer.train_steps=4")
    whole, no_preset = runs.run_all(
        [
            runs.arguments(config, tmp_path / name, f"data.examples={tmp_path}/of-{name}", *smaller)
            for name in ("whole", "no_preset")
        ]
    )
    assert whole.status == 0, whole.errors
    assert "resumed at step 1 of 4" in whole.errors
    assert not (tmp_path / "of-whole.vocabulary").exists()
    _assert_one_clear_error(
        no_preset,
        f"the run in {tmp_path}/no_preset was trained with another vocabulary than "
        f"{tmp_path}/of-no_preset.vocabulary",
        "Set corpus.vocabulary to the one that the run began with",
    )
    assert not (tmp_path / "of-no_preset").exists()


def test_a_run_that_cannot_go_on_says_why(config, finished_run, tmp_path):
    for name in ("vocabulary", "infinite", "skipping"):
        shutil.copytree(finished_run, tmp_path / name)
    others = make_other_examples(config, tmp_path / "others")
    other_vocabulary = (f"data.examples={others}", "trainer.train_steps=30")
    # Steps that long throw the weights out of float32's range.
    infinite = (
        "optimizer.learning_rate=1e38",
        "optimizer.weight_decay=0.0",
        "optimizer.clip_norm=null",
    )
    skipping = ("trainer.on_nonfinite=skip", "trainer.max_skipped_steps=2")
    refused, stopped, skipped = runs.run_all(
        [
            runs.arguments(config, tmp_path / "vocabulary", *other_vocabulary),
            runs.arguments(config, tmp_path / "infinite", *infinite),
            runs.arguments(config, tmp_path / "skipping", *infinite, *skipping),
        ]
    )
    _assert_one_clear_error(refused, f"{others} were made with another vocabulary than the run in")
    assert runs.steps(tmp_path / "vocabulary") == [1]

    newest = tmp_path / "infinite" / "checkpoints" / "step-00000001"
    _assert_one_clear_error(
        stopped, "is not a finite number", "example ", "window ", f"checkpoint is {newest}"
    )
    _assert_one_clear_error(skipped, "is not a finite number", "2 such steps were skipped before")


FULL_DISK = """
import os, shutil, subprocess, sys
config, finished, folder, *overrides = sys.argv[1:]

def disk(name, size):
    path = os.path.join(folder, name)
    os.mkdir(path)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", path], check=True)
    return path

def try_on(path):
    command = [sys.executable, "-m", "kzoo.pretrain", f"--config={config}"]
    done = subprocess.run([*command, f"--model_dir={path}", *overrides],
                          capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr and "error: " in done.stderr, done.stderr
    print(done.stderr[done.stderr.index("error: "):])
    for name in os.listdir(path) + os.listdir(path + "/checkpoints"):
        assert "partial" not in name and not name.startswith(".preset"), name

# No room for a checkpoint; then room for all but the preset.
path = disk("small", "600k")
try_on(path)
assert os.listdir(path + "/checkpoints") == [".lock"]
path = disk("larger", "1200k")
shutil.copytree(finished + "/checkpoints", path + "/checkpoints")
with open(path + "/ballast", "wb", buffering=0) as file:
    free = os.statvfs(path)
    file.write(bytes(free.f_bavail * free.f_frsize - 40_000))
try_on(path)
assert not os.path.exists(path + "/preset")
"""


@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a small file system")
def test_a_full_disk_is_one_clear_error(config, finished_run, tmp_path):
    overrides = [f"--set={setting}" for setting in ONE_STEP]
    done = subprocess.run(
        [*NAMESPACE, sys.executable, "-c", FULL_DISK, config, finished_run, tmp_path, *overrides],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    no_checkpoint, no_preset = done.stdout.strip().split("error: ")[1:]
    assert f"no room for a checkpoint in {tmp_path}/small/checkpoints" in no_checkpoint
    assert f"no room for the preset in {tmp_path}/larger: it needs" in no_preset
