"""Small pre-training runs, as processes of the command `python -m kzoo.pretrain`."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import yaml

from kzoo import sample
from tests.paths import REPOSITORY

_TIMEOUT_SECONDS = 300

# Several command lines one after the other in one process, which spares the imports.
_COMMANDS = """
import contextlib, io, json, sys
from kzoo import command, pretrain

ended = []
for arguments in json.loads(sys.argv[1]):
    pretrain.FLAGS.unparse_flags()
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        status = command.run(pretrain.main, pretrain.FLAGS, pretrain.__doc__, arguments)
    ended.append((status, output.getvalue(), errors.getvalue()))
print(json.dumps(ended))
"""


class Ended(NamedTuple):
    """How a command ended."""

    status: int
    output: str
    errors: str


def write_config(path: Path, examples: Path) -> Path:
    """Writes the configuration of a run of 20 steps on the sample, in German and English."""
    files = {
        split: {
            language: str(sample.folder() / f"{prefix}-{language}.txt") for language in ("de", "en")
        }
        for split, prefix in (("train_files", "train"), ("held_out_files", "dev"))
    }
    config = {
        "model": {
            "vocabulary_size": 320,
            "num_layers": 1,
            "num_heads": 2,
            "hidden_dim": 16,
            "intermediate_dim": 32,
            "embedding_dim": 8,
            "output_embedding_dim": 24,
            "max_sequence_length": 32,
            "dropout": 0.1,
            "attention_dropout": 0.1,
        },
        "corpus": {**files, "vocabulary_size": 300},
        "data": {"examples": str(examples), "sequence_length": 32, "global_batch_size": 8},
        "optimizer": {"learning_rate": 1e-3, "warmup_steps": 4},
        "trainer": {
            "train_steps": 20,
            "steps_per_loop": 1,
            "log_interval": 1,
            "checkpoint_interval": 5,
            "keep_checkpoints": 20,
            "keep_best": False,
            # The first measurement, which is traced, leaves time for a signal after step 7.
            "validation_interval": 7,
        },
        "runtime": {"threads": 1},
    }
    path.write_text(yaml.safe_dump(config))
    return path


def arguments(config: Path, model_dir: Path, *settings: str) -> list[str]:
    """The command line without the program."""
    overrides = [f"--set={setting}" for setting in settings]
    return [f"--config={config}", f"--model_dir={model_dir}", *overrides]


def start(*given: str, prefix: Sequence[str] = ()) -> subprocess.Popen:
    """Starts the command."""
    return subprocess.Popen(
        [*prefix, sys.executable, "-m", "kzoo.pretrain", *given],
        cwd=REPOSITORY,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen) -> Ended:
    """Waits for a command to end."""
    output, errors = process.communicate(timeout=_TIMEOUT_SECONDS)
    return Ended(process.returncode, output, errors)


def run(*given: str) -> Ended:
    """Runs the command to its end."""
    return finish(start(*given))


def run_all(commands: Sequence[Sequence[str]], prefix: Sequence[str] = ()) -> list[Ended]:
    """Runs the command with several command lines, one after the other in one process."""
    done = subprocess.run(
        [*prefix, sys.executable, "-c", _COMMANDS, json.dumps(list(map(list, commands)))],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [Ended(*ended) for ended in json.loads(done.stdout.splitlines()[-1])]


def signal_after_step(process: subprocess.Popen, model_dir: Path, step: int, number: int) -> None:
    """Sends a signal as soon as a step's metrics are written."""
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while step not in [line["step"] for line in metrics(model_dir)]:
        assert process.poll() is None, finish(process)
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.send_signal(signal.Signals(number))


def metrics(model_dir: Path, split: str = "train") -> list[dict[str, Any]]:
    """The whole lines of a `metrics.jsonl`, without what depends on time."""
    path = model_dir / "metrics.jsonl"
    text = path.read_text() if path.exists() else ""
    lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
    timed = ("time", "tokens_per_second", "peak_share")
    return [
        {name: value for name, value in line.items() if name not in timed}
        for line in lines
        if line["split"] == split
    ]


def checkpoint(model_dir: Path, step: int) -> dict[str, np.ndarray]:
    """The values of a checkpoint under their names."""
    reader = tf.train.load_checkpoint(os.fspath(_checkpoint_folder(model_dir, step) / "variables"))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def position(model_dir: Path, step: int) -> int:
    """How many examples a checkpoint says were seen."""
    text = (_checkpoint_folder(model_dir, step) / "state.json").read_text()
    return json.loads(text)["state"]["position"]


def steps(model_dir: Path) -> list[int]:
    """The steps that have a checkpoint."""
    return sorted(int(path.name[5:]) for path in (model_dir / "checkpoints").glob("step-*"))


def files(folder: Path) -> dict[str, bytes]:
    """Every file below a folder and what is in it, but for the lock, which names its last owner.

    (Reading a lock file would drop a lock that this process holds on it.)
    """
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def _checkpoint_folder(model_dir: Path, step: int) -> Path:
    return model_dir / "checkpoints" / f"step-{step:08d}"
