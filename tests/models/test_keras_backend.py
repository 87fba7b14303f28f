"""Another backend of Keras is an error that says what to do."""

import importlib.util
import os
import subprocess
import sys

import pytest


def run(code: str, **environment: str) -> str:
    completed = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        capture_output=True,
        encoding="utf-8",
    )
    return completed.stderr.strip().split("\n")[-1]


@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_a_wrong_environment_is_named(backend):
    last_line = run("import kzoo; kzoo.RemBertBackbone", KERAS_BACKEND=backend)
    assert last_line.startswith("kzoo.errors.KzooError: kzoo needs Keras's TensorFlow backend")
    assert last_line.endswith(f"Received: {backend}")


@pytest.mark.peers
@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="needs torch, for its backend")
def test_keras_that_was_imported_before_with_another_backend_is_named():
    code = "import keras, os; del os.environ['KERAS_BACKEND']; import kzoo; kzoo.RemBertBackbone"
    assert run(code, KERAS_BACKEND="torch").endswith("Received: torch")
