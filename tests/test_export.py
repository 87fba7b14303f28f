"""The command that exports a model."""

import json
import re
import shutil

import pytest

from kzoo.models.preset_metadata import write_metadata
from kzoo.training import run_preset
from tests.saved_model.exports import rewrite_manifest, run_export, state


def refused(*arguments):
    """The error of a command line that is wrong."""
    ended = run_export(*arguments)
    assert ended.status == 2
    assert ended.errors.startswith("error: ")
    assert "Traceback" not in ended.errors
    return ended.errors


def test_what_was_kept_is_said(exported):
    manifest = json.loads((exported.folder / "MANIFEST.json").read_text())
    encoder = manifest["encoder"]
    kept, all_of_them = (f"{encoder[f'parameters_{when}']:,}" for when in ("after", "before"))
    assert f"kept {kept} of {all_of_them} parameters; 6 tensors were left out" in exported.printed
    assert "pooler: as trained: dense" in exported.printed
    for module in ("encoder", "preprocessor", "masked_lm", "serving/1"):
        assert f"{module}: largest difference from the source " in exported.printed


def test_an_export_that_is_there_is_not_replaced(exported):
    before = state(exported.folder)
    errors = refused(f"--model={exported.preset}", f"--output={exported.folder}")
    assert "has encoder, preprocessor, serving, masked_lm" in errors
    assert "--overwrite" in errors
    assert state(exported.folder) == before


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--seq_length=41"], "from 3 to 40 tokens.*Received: seq_length=41"),
        (["--seq_length=2"], "from 3 to 40 tokens.*Received: seq_length=2"),
        (["--keep_layers=4"], "the model has 3 layers. Received: keep_layers=4"),
        (["--keep_layers=0"], "the model has 3 layers. Received: keep_layers=0"),
        (["--dropout=1"], r"must be in \[0, 1\). Received: dropout=1"),
        (["--keep_layers=2", "--masked_lm"], "needs all layers"),
        (["--serving_only", "--masked_lm"], "leave out --masked_lm"),
        (["--serving_only", "--archive"], "leave out --archive"),
        (["--serving_only", "--overwrite"], "leave out --overwrite"),
        (["--precision=float16"], "float16"),
    ],
)
def test_flags_that_do_not_fit_are_refused_before_any_work(exported, tmp_path, flags, message):
    output = tmp_path / "export"
    assert re.search(message, refused(f"--model={exported.preset}", f"--output={output}", *flags))
    assert not output.exists()


def test_an_untrained_head_is_not_exported(exported, tmp_path):
    preset = shutil.copytree(exported.preset, tmp_path / "preset")
    write_metadata(preset, {"masked_lm_head/table": 1})
    errors = refused(f"--model={preset}", f"--output={tmp_path / 'export'}", "--masked_lm")
    assert "never trained" in errors


def test_a_folder_without_a_model_is_a_clear_error(tmp_path):
    assert "no model preset" in refused(f"--model={tmp_path}", f"--output={tmp_path / 'export'}")
    assert "--model is missing" in refused()
    assert "there is no folder nowhere" in refused("--model=nowhere")


def test_the_step_of_an_unfinished_run_is_said(exported, tmp_path, monkeypatch):
    (tmp_path / "config.yaml").touch()
    monkeypatch.setattr(run_preset, "write_preset_of_run", lambda *_: (str(exported.preset), 1500))
    ended = run_export(f"--model={tmp_path}", f"--output={tmp_path / 'export'}", "--seq_length=99")
    assert ended.errors.startswith("the run has not finished: exporting its step 1,500\nerror: ")


def test_check_of_what_is_no_export_is_a_clear_error(tmp_path):
    assert "no complete export" in refused(f"--check={tmp_path}")
    errors = refused(f"--check={tmp_path}", "--overwrite", "--seq_length=9")
    assert "leave out --seq_length and --overwrite" in errors


def test_check_compares_with_a_model_and_sees_what_was_changed(exported, tmp_path):
    folder = tmp_path / "export"
    shutil.copytree(exported.folder / "encoder", folder / "encoder")
    shutil.copy(exported.folder / "MANIFEST.json", folder)
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    # An export of the encoder alone, since it is quickly checked.
    for name in ("preprocessor", "masked_lm"):
        del manifest[name]
    (folder / "MANIFEST.json").write_text(json.dumps(manifest | {"serving": {}}))
    rewrite_manifest(folder)
    ended = run_export(f"--check={folder}")
    assert ended.status == 0, ended.errors
    assert ended.output.endswith("no problems\n")
    assert "encoder" in ended.output

    index = folder / "encoder" / "variables" / "variables.index"
    index.write_bytes(index.read_bytes() + b"\0")
    ended = run_export(f"--check={folder}")
    assert ended.status == 2
    assert "variables/variables.index has changed since it was written" in ended.errors
