"""What a manifest says, and what it says it of."""

import hashlib
import importlib.metadata
import json

import numpy as np
import pytest
import tensorflow as tf

from kzoo import KzooError
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.saved_model.manifest import EDITABLE_FILES, read_manifest
from tests.models import shapes
from tests.saved_model.exports import state

PARTS = {
    "format_version": 1,
    "files": {},
    "serving": {},
    "source": {"config": {}},
    "largest_difference": {},
}


@pytest.fixture(scope="module")
def manifest(exported):
    return read_manifest(exported.folder)


def test_every_file_has_its_size_and_sha256(exported, manifest):
    files = state(exported.folder)
    expected = {
        name: {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
        for name, content in files.items()
        if name not in (*EDITABLE_FILES, "MANIFEST.json")
    }
    assert {"encoder.tar.gz", "masked_lm/saved_model.pb"} < expected.keys()
    assert manifest["files"] == expected


def test_what_was_kept_and_left_out_is_the_whole_model(exported, manifest):
    model = RemBertMaskedLM.from_preset(str(exported.preset), dtype="float32")
    encoder = manifest["encoder"]
    kept, stripped = (
        {variable["name"]: variable for variable in encoder[part]} for part in ("kept", "stripped")
    )
    assert kept.keys() == {variable.path for variable in model.backbone.variables}
    assert stripped.keys() == {variable.path for variable in model.head.variables}
    for variable in model.variables:
        said = (kept | stripped)[variable.path]
        assert said["shape"] == list(variable.shape)
        assert said["bytes"] == 4 * np.prod(variable.shape)
    assert encoder["parameters_before"] == model.count_params()
    assert encoder["parameters_after"] == model.backbone.count_params()
    assert sum(encoder["bytes_before"].values()) == 4 * model.count_params()
    assert encoder["bytes_before"]["masked_lm_head"] == 4 * model.head.count_params()


def test_the_input_table_is_that_of_the_encoder(exported, manifest):
    said = manifest["encoder"]["input_table"]
    encoder = tf.saved_model.load(str(exported.folder / "encoder"))
    [table] = [
        variable
        for variable in encoder.variables
        if variable.shape == [exported.vocabulary.size, shapes.ARGUMENTS["embedding_dim"]]
    ]
    assert hashlib.sha256(table.numpy().tobytes()).hexdigest() == said["sha256"]
    assert said["name"] == "embeddings/token_embedding/embeddings"


def test_settings_versions_and_differences_are_there(exported, manifest):
    assert manifest["versions"]["tensorflow"] == importlib.metadata.version("tensorflow")
    encoder = manifest["encoder"]
    assert (encoder["dropout"], encoder["attention_dropout"]) == (0.5, 0.5)
    assert encoder["keep_layers"] == shapes.ARGUMENTS["num_layers"]
    assert encoder["pooler"] == "as trained: dense"
    vocabulary = hashlib.sha256(exported.vocabulary.model).hexdigest()
    assert manifest["source"]["vocabulary_sha256"] == vocabulary
    found = manifest["largest_difference"]
    assert found.keys() == {"encoder", "preprocessor", "serving/1", "masked_lm"}
    for outputs in found.values():
        assert outputs
        for output in outputs.values():
            assert 0 <= output["difference"] <= 2e-6 * max(1, output["largest_value"])
    assert not any(output["difference"] for output in found["preprocessor"].values())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "no complete export"),
        ("{", "is damaged"),
        ("[]", "is damaged"),
        ("[" * 100_000, "is damaged"),
        (json.dumps({"format_version": 99}), "format version 99"),
        (json.dumps({"format_version": 1}), "files is to be an object. Received: None"),
        (json.dumps({**PARTS, "files": []}), r"files is to be an object. Received: \[\]"),
        (json.dumps({**PARTS, "source": {}}), "source has no config"),
        (json.dumps({**PARTS, "encoder": {"config": {}}}), "encoder has no keep_layers"),
        (json.dumps({**PARTS, "masked_lm": 3}), "masked_lm is to be an object. Received: 3"),
        (json.dumps({**PARTS, "serving": {"1": 3}}), "serving.1 has no precision"),
    ],
)
def test_what_is_no_manifest_is_a_clear_error(tmp_path, text, message):
    if text is not None:
        (tmp_path / "MANIFEST.json").write_text(text)
    with pytest.raises(KzooError, match=message):
        read_manifest(tmp_path)
