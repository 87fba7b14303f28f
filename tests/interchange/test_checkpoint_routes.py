"""The command on checkpoints of TensorFlow, in processes of its own."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kzoo.models.masked_lm import RemBertMaskedLM
from tests import reference
from tests.interchange.tf1_checkpoints import tensors_of, with_optimizer, write_checkpoint
from tests.models import shapes


def convert(*arguments: str | Path) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "kzoo.convert", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def model():
    model = shapes.masked_lm()
    reference.random_weights_into(model)
    return model


def test_a_release_becomes_a_preset_once_a_mapping_says_what_is_unknown(model, tmp_path):
    tensors = with_optimizer(tensors_of(model))
    tensors["cls/unknown"] = np.zeros(7, np.float32)
    prefix = write_checkpoint(tmp_path / "release" / "model.ckpt", tensors)
    output = tmp_path / "presets" / "rembert"
    arguments = ["--from=tf1", "--input", prefix, "--output", output, "--num_heads=3"]
    refused = convert(*arguments)
    assert refused.returncode == 2
    assert "unknown: cls/unknown [7]" in refused.stderr
    assert "Traceback" not in refused.stderr
    assert not output.parent.exists()

    mapping = tmp_path / "mapping.yaml"
    mapping.write_text("cls/unknown: {ignore: nobody knows}\n")
    done = convert(*arguments, "--mapping", mapping, "--activation=gelu")
    assert done.returncode == 0, done.stderr
    assert "a slot of the optimizer" in done.stdout
    assert "nobody knows" in done.stdout
    read = RemBertMaskedLM.from_preset(str(output))
    assert read.backbone.activation == "gelu"
    for mine, other in zip(read.variables, model.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), other.numpy(), other.path)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--from=preset", "--num_heads=3"], "--num_heads is for --from tf1"),
        (["--from=preset", "--mapping=m.yaml"], "--mapping is for --from tf1 and --from model_"),
        (["--from=hugging_face", "--config=c.json"], "--config is for --from tf1 and --from mod"),
    ],
)
def test_a_flag_that_would_do_nothing_is_refused(tmp_path, arguments, message):
    refused = convert("--input", tmp_path, "--output", tmp_path / "out", *arguments)
    assert refused.returncode == 2
    assert message in refused.stderr
