"""What an export is made of, what it computes, and how it takes its place."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile

import numpy as np
import pytest
import tensorflow as tf

from kzoo import KzooError
from kzoo.models.backbone import RemBertBackbone
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.models.preset_metadata import write_metadata
from kzoo.saved_model import serving
from kzoo.saved_model.encoder import EncoderModule
from kzoo.saved_model.export import ExportOptions, export
from kzoo.saved_model.publishing import STAGE
from kzoo.saved_model.source import Source
from tests.models import shapes
from tests.paths import REPOSITORY
from tests.saved_model.exports import TEXTS, packed, rewrite_manifest, run_export, state
from tests.saved_model.fine_tuning import for_backbone, inputs_and_labels
from tests.training.subprocesses import run_python

INPUTS, _ = inputs_and_labels()
# Exports a version, and dies when everything is written but the check has not begun.
KILLED = """
import os, signal, sys
import kzoo.saved_model.export as exports
exports.self_check = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
from kzoo.saved_model.source import Source
options = exports.ExportOptions(serving_only=True)
exports.export(Source.open(sys.argv[1]), sys.argv[2], options)
"""


@pytest.fixture(scope="module")
def backbone(exported):
    """The source, as KerasHub reads it."""
    return RemBertBackbone.from_preset(str(exported.preset), dtype="float32")


@pytest.fixture
def copied(exported, tmp_path):
    """A copy of the export, beside a file of somebody else, and with edited settings."""
    folder = shutil.copytree(exported.folder, tmp_path / "export")
    (folder / "README.md").write_text("mine")
    (folder / "serving" / "models.config").write_text("# edited")
    return folder


def assert_near(found, expected):
    largest = max(1, np.abs(expected).max(initial=0))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-6 * largest)


def test_the_encoder_computes_in_float32_what_its_source_does(exported, backbone):
    encoder = tf.saved_model.load(str(exported.folder / "encoder"))
    found, expected = encoder(INPUTS), backbone(for_backbone(INPUTS))
    for name in ("sequence_output", "pooled_output"):
        assert found[name].dtype == tf.float32
        assert_near(found[name], expected[name])
    assert {variable.dtype for variable in encoder.variables} == {tf.float32}
    first, second = (encoder(INPUTS, training=True)["default"] for _ in range(2))
    assert np.abs(first - second).max() > 1e-3


def test_text_gives_the_vectors_of_the_source_in_a_moved_folder_and_another_process(
    exported, backbone, tmp_path
):
    moved = shutil.copytree(exported.folder, tmp_path / "moved")
    run_python(
        """
import sys
sys.modules["kzoo"] = None
import numpy as np, tensorflow as tf, tensorflow_text
folder, texts = sys.argv[1], tf.constant(sys.argv[3:])
serving = tf.saved_model.load(f"{folder}/serving/1")
encoder = tf.saved_model.load(f"{folder}/encoder")
preprocessor = tf.saved_model.load(f"{folder}/preprocessor")
np.savez(
    sys.argv[2],
    served=serving.signatures["serving_default"](text=texts)["pooled_output"],
    encoded=encoder(preprocessor(texts))["pooled_output"],
)
""",
        moved,
        tmp_path / "found.npz",
        *TEXTS,
    )
    # 40 positions: as long as a text may be.
    expected = backbone(packed(exported.vocabulary, TEXTS, 40))["pooled_output"]
    for found in np.load(tmp_path / "found.npz").values():
        assert_near(found, expected)


def test_masked_lm_computes_what_its_source_does(exported):
    model = RemBertMaskedLM.from_preset(str(exported.preset), dtype="float32")
    positions = np.array([[0, 3]] * len(INPUTS["input_mask"]), np.int32)
    module = tf.saved_model.load(str(exported.folder / "masked_lm"))
    found = module({**INPUTS, "masked_lm_positions": positions})["mlm_logits"]
    assert_near(found, model({**for_backbone(INPUTS), "mask_positions": positions}))


def test_nothing_names_where_it_was_made(exported):
    files = state(exported.folder)
    assert {"encoder/saved_model.pb", "serving/1/saved_model.pb"} < files.keys()
    places = [str(exported.folder), str(exported.preset), STAGE, str(REPOSITORY)]
    for name, content in files.items():
        assert not [place for place in places if place.encode() in content], name


def test_archives_have_the_modules_at_their_root_and_always_the_same_bytes(exported, tmp_path):
    for name in ("encoder", "preprocessor"):
        with tarfile.open(exported.folder / f"{name}.tar.gz") as archive:
            archive.extractall(tmp_path / name, filter="data")
        assert state(tmp_path / name) == state(exported.folder / name)
        with tarfile.open(exported.folder / f"{name}.tar.gz") as archive:
            entries = archive.getmembers()
        assert {(entry.mtime, entry.uid, entry.uname) for entry in entries} == {(0, 0, "")}
        assert [entry.name for entry in entries] == sorted(entry.name for entry in entries)
    # The time of packing would be here.
    header = (exported.folder / "encoder.tar.gz").read_bytes()[:10]
    assert header[4:8] == bytes(4)


def test_a_version_is_added_beside_what_is_there(copied, exported):
    # What takes longest to check, and has nothing to do with it.
    for name in ("masked_lm", "encoder"):
        shutil.rmtree(copied / name)
    manifest = json.loads((copied / "MANIFEST.json").read_text())
    del manifest["masked_lm"]
    encoder = manifest.pop("encoder")
    (copied / "MANIFEST.json").write_text(json.dumps(manifest))
    rewrite_manifest(copied)
    before = state(copied)
    flags = (f"--model={exported.preset}", f"--output={copied}", "--serving_only")
    ended = run_export(*flags, "--precision=int8", "--seq_length=12")
    assert ended.status == 0, ended.errors
    assert "serving/2: largest difference" in ended.output
    assert "preprocessor:" not in ended.output
    after = state(copied)
    added = {name for name in after if name.startswith("serving/2/")}
    assert "serving/2/saved_model.pb" in added
    assert after.keys() - before.keys() == added
    assert all(after[name] == before[name] for name in before if name != "MANIFEST.json")
    manifest = json.loads(after["MANIFEST.json"])
    assert [served["precision"] for served in manifest["serving"].values()] == ["float32", "int8"]
    assert manifest["serving"]["2"]["sequence_length"] == 12
    assert manifest["serving"]["2"]["keep_layers"] == encoder["keep_layers"]
    assert added < manifest["files"].keys()
    sizes = [
        manifest["files"][f"serving/{version}/variables/variables.data-00000-of-00001"]["bytes"]
        for version in "12"
    ]
    assert sizes[0] > 2.5 * sizes[1]
    # With a source, each module is compared at its own length and in its own precision.
    checked = run_export(f"--check={copied}", f"--model={exported.preset}")
    assert checked.status == 0, checked.errors
    assert checked.output.count("values up to") == 3


def test_lower_layers_and_an_untrained_pooler_in_the_place_of_the_old_export(
    copied, exported, backbone, tmp_path
):
    preset = shutil.copytree(exported.preset, tmp_path / "preset")
    write_metadata(preset, {"pooler/dense/kernel": 1, "pooler/dense/bias": 1})
    (copied / "serving" / "7").mkdir()
    options = ExportOptions(keep_layers=2, overwrite=True)
    manifest = export(Source.open(preset), copied, options)
    assert set(os.listdir(copied)) == {
        *("encoder", "preprocessor", "serving", "MANIFEST.json", "README.md")
    }
    assert set(os.listdir(copied / "serving")) == {"1", "models.config", "batching_parameters.txt"}
    assert (copied / "README.md").read_text() == "mine"
    assert (copied / "serving" / "models.config").read_text() == "# edited"
    assert json.loads((copied / "MANIFEST.json").read_text()) == manifest
    assert "never trained" in manifest["encoder"]["pooler"]
    assert {"pooler/dense/bias", "encoder_block_2/output/kernel"} < {
        variable["name"] for variable in manifest["encoder"]["stripped"]
    }

    encoder = tf.saved_model.load(str(copied / "encoder"))
    arguments = {**shapes.ARGUMENTS, "vocabulary_size": exported.vocabulary.size}
    lower = RemBertBackbone(**{**arguments, "num_layers": 2, "pooler": "mean"})
    values = {variable.path: variable.value for variable in backbone.variables}
    for variable in lower.variables:
        variable.assign(values[variable.path])
    found, expected = encoder(INPUTS), lower(for_backbone(INPUTS))
    assert len(encoder.variables) == len(lower.variables)
    assert len(found["encoder_outputs"]) == 2
    for name in ("sequence_output", "pooled_output"):
        assert_near(found[name], expected[name])


def test_a_faulty_export_is_not_put_in_place(copied, exported, monkeypatch):
    encode = serving.encode

    def faulty(*arguments):
        outputs = encode(*arguments)
        return {**outputs, "pooled_output": outputs["pooled_output"] + 0.01}

    monkeypatch.setattr(serving, "encode", faulty)
    before = state(copied)
    with pytest.raises(KzooError, match=r"not put in place:\n  serving/2: `pooled_output` differs"):
        export(Source.open(exported.preset), copied, ExportOptions(serving_only=True))
    assert state(copied) == before


def test_a_killed_export_leaves_what_was_there_and_no_version(copied, exported):
    before = state(copied)
    command = [sys.executable, "-c", KILLED, str(exported.preset), str(copied)]
    status = subprocess.run(command, cwd=REPOSITORY, capture_output=True, check=False).returncode
    assert status == -signal.SIGKILL
    left = {name: content for name, content in state(copied).items() if STAGE not in name}
    assert left == before
    assert (copied / STAGE / "new" / "serving" / "2" / "saved_model.pb").exists()


def test_no_room_is_said_before_anything_is_written(exported, tmp_path, monkeypatch):
    usage = shutil._ntuple_diskusage(1 << 40, 1 << 40, 1 << 20)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(KzooError, match=r"no room for the export.*1\.0 MB are free"):
        export(Source.open(exported.preset), tmp_path / "export", ExportOptions())
    assert not state(tmp_path / "export")


def test_a_disk_that_fills_up_while_it_is_written_is_an_error(exported, tmp_path, monkeypatch):
    def fail(*_):
        raise tf.errors.ResourceExhaustedError(None, None, "encoder/variables; No space left")

    monkeypatch.setattr(EncoderModule, "save", fail)
    with pytest.raises(KzooError, match=r"cannot export into .*export: .*No space left"):
        export(Source.open(exported.preset), tmp_path / "export", ExportOptions())
    assert not state(tmp_path / "export")
