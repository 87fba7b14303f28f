"""Every command takes URLs: `ram://`, which is one process's own, and `file://`, which is local."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from kzoo import sample
from tests.paths import REPOSITORY
from tests.training import runs

# Several commands one after the other in one process, and what is on `ram://` in the end.
_COMMANDS = """
import contextlib, importlib, io, json, sys
from kzoo import command
from kzoo.storage import remote

request = json.load(sys.stdin)
for path, text in request["files"].items():
    remote.write_bytes(path, text.encode())
ended = []
for name, *arguments in request["commands"]:
    if name == "remove":
        remote.remove(arguments[0])
        continue
    if name == "cut":
        remote.write_bytes(arguments[0], remote.read_bytes(arguments[0])[:-1])
        continue
    module = importlib.import_module(f"kzoo.{name}")
    module.FLAGS.unparse_flags()
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        status = command.run(module.main, module.FLAGS, module.__doc__, arguments)
    ended.append((status, output.getvalue(), errors.getvalue()))
sizes = {path: stat.size_bytes for path, stat in remote.list_files("ram://bucket").items()}
texts = {path: remote.read_bytes(path).decode() for path in request["shown"]}
print(json.dumps([ended, sizes, texts]))
"""
_TEXTS = "Guten Tag\nGood day\n"


def run_on_ram(commands, files, shown, cache: Path):
    """How each command ended; the files there are on `ram://bucket`; the text of some."""
    done = subprocess.run(
        [sys.executable, "-c", _COMMANDS],
        cwd=REPOSITORY,
        env={**os.environ, "XDG_CACHE_HOME": str(cache)},
        input=json.dumps({"commands": commands, "files": files, "shown": shown}),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    ended, sizes, texts = json.loads(done.stdout.splitlines()[-1])
    return [runs.Ended(*one) for one in ended], sizes, texts


def corpus(folder: str) -> dict[str, str]:
    return {
        f"{folder}/{split}-{language}.txt": (sample.folder() / f"{split}-{language}.txt").read_text(
            "utf-8"
        )
        for split in ("train", "dev")
        for language in ("de", "en")
    }


def config(tmp_path: Path, folder: str) -> str:
    """A configuration whose paths are all below a URL."""
    settings = yaml.safe_load(runs.write_config(tmp_path / "c.yaml", "unused").read_text())
    settings["corpus"] |= {
        "train_files": f"{folder}/corpus/train-{{lang}}.txt",
        "held_out_files": f"{folder}/corpus/dev-{{lang}}.txt",
    }
    settings["data"]["examples"] = f"{folder}/examples"
    return yaml.safe_dump(settings)


def test_a_model_is_made_without_a_local_file(tmp_path):
    url = "ram://bucket"
    train = ["pretrain", f"--config={url}/c.yaml", f"--model_dir={url}/run"]
    export = ["export", f"--model={url}/run", f"--output={url}/export"]
    commands = [
        [*train, "--set=trainer.train_steps=7"],
        ["cut", f"{url}/run/checkpoints/step-00000007/variables.data-00000-of-00001"],
        [*train, "--set=trainer.train_steps=8"],
        export,
        export,
        [*export, "--serving_only"],
        ["export", f"--check={url}/export"],
        [
            *("predict", f"--model={url}/export/serving/2", f"--input={url}/texts.txt"),
            f"--output={url}/vectors.jsonl",
        ],
        [
            *("convert", "--from=preset", "--to=hugging_face", f"--input={url}/run/preset"),
            f"--output={url}/hugging_face",
        ],
        [
            *("convert", "--from=hugging_face", f"--input={url}/hugging_face"),
            f"--output={url}/preset",
        ],
        ["cut", f"{url}/preset/task.weights.h5"],
        [
            *("convert", "--from=preset", "--to=hugging_face", f"--input={url}/preset"),
            f"--output={url}/other",
        ],
        ["remove", f"{url}/export/MANIFEST.json"],
        ["export", f"--check={url}/export"],
        ["predict", f"--model={url}/nowhere", "--text=a"],
        ["predict", "--model=foo://bucket/model", "--text=a"],
        ["pretrain", f"--config={url}/c.yaml", "--model_dir=foo://bucket/run"],
    ]
    files = {
        **corpus(f"{url}/corpus"),
        f"{url}/c.yaml": config(tmp_path, url),
        f"{url}/texts.txt": _TEXTS,
    }
    shown = [f"{url}/run/metrics.jsonl", f"{url}/vectors.jsonl"]
    ended, sizes, texts = run_on_ram(commands, files, shown, tmp_path / "cache")
    assert [one.status for one in ended] == [0, 0, 0, 2, 0, 0, 0, 0, 0, 2, 2, 2, 2, 2], ended
    resumed, again = ended[1].errors, ended[3].errors
    assert "resumed at step 5 of 8" in resumed
    assert f"error: {url}/export has encoder, preprocessor, serving" in again
    messages = [one.errors for one in ended[9:]]
    assert "preset/task.weights.h5 has" in messages[0]
    assert "it was cut short" in messages[0]
    assert f"{url}/export has no MANIFEST.json" in messages[1]
    assert messages[2] == f"error: there is no folder {url}/nowhere\n"
    for message in messages[3:]:
        assert message.startswith("error: foo://bucket/")
        assert "knows no storage foo://, only file://, gs://, ram://" in message
    lines = [json.loads(line) for line in texts[shown[0]].splitlines()]
    assert [line["step"] for line in lines if line["split"] == "train"] == list(range(1, 9))
    assert [json.loads(line)["text"] for line in texts[shown[1]].splitlines()] == [
        "Guten Tag",
        "Good day",
    ]
    assert {"preset/config.json", "export/serving/2/saved_model.pb", "examples/dataset.json"} <= {
        *sizes
    }
    assert sizes["preset/model.weights.h5"] == sizes["run/preset/model.weights.h5"]
    assert not [path for path in sizes if "partial" in path]
    kept = os.listdir(tmp_path / "cache" / "kzoo")
    assert not [name for name in kept if name.startswith("making")]


@pytest.fixture(scope="module")
def places(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("places")
    for path, text in corpus(f"{folder}/corpus").items():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_text(text, "utf-8")
    (folder / "c.yaml").write_text(config(folder, f"file://{folder}"))
    (folder / "texts.txt").write_text(_TEXTS)
    return folder


def test_file_urls_are_local_paths_to_every_command(places):
    url = f"file://{places}"
    text = f"--input={url}/corpus/train-{{lang}}.txt"
    commands = [
        ["vocabulary", text, "--size=300", f"--output={url}/vocabulary"],
        ["prepare", text, f"--vocabulary={url}/vocabulary", f"--output={url}/other"],
        [
            *("pretrain", f"--config={url}/c.yaml", f"--model_dir={url}/run"),
            *("--set=trainer.train_steps=4", f"--set=corpus.vocabulary={url}/vocabulary"),
        ],
        [
            *("pretrain", f"--config={url}/c.yaml", f"--model_dir={url}/next"),
            *("--set=trainer.train_steps=4", f"--set=init_from.path={url}/run"),
        ],
        ["export", f"--model={url}/run", f"--output={url}/export"],
        [
            *("predict", f"--model={url}/export/serving/1", f"--input={url}/texts.txt"),
            f"--output={url}/vectors.jsonl",
        ],
        [
            *("convert", "--from=preset", "--to=hugging_face", f"--input={url}/run/preset"),
            f"--output={url}/hugging_face",
        ],
    ]
    for name, *arguments in commands:
        done = subprocess.run(
            [sys.executable, "-m", f"kzoo.{name}", *arguments],
            cwd=places,
            env={
                **os.environ,
                "PYTHONPATH": str(REPOSITORY),
                "XDG_CACHE_HOME": str(places / "cache"),
            },
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    made = (
        "vocabulary",
        "other",
        "run",
        "next",
        "examples",
        "export",
        "vectors.jsonl",
        "hugging_face",
    )
    # Other libraries have caches of their own.
    assert {*made, "corpus", "c.yaml", "texts.txt"} == {*os.listdir(places)} - {"cache"}
    assert not (places / "cache" / "kzoo").exists()
