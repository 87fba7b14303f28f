"""Presets on disk: what is in which file, and what happens to what was there."""

import h5py
import keras_hub
import numpy as np
import pytest

from kzoo import KzooError, RemBertTokenizer
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.models.saving import save_preset
from kzoo.text.vocabulary import MODEL_FILE
from tests import reference
from tests.models import shapes


@pytest.fixture(scope="module")
def tokenizer(vocabulary_folder):
    return RemBertTokenizer(str(vocabulary_folder / MODEL_FILE))


@pytest.fixture
def model():
    model = shapes.masked_lm()
    reference.random_weights_into(model)
    return model


def sizes_in(path) -> list[int]:
    sizes = []
    with h5py.File(path) as file:
        file.visititems(lambda _, node: sizes.append(getattr(node, "size", None)))
    return sorted(size for size in sizes if size is not None)


def test_a_preset_comes_back_with_weights_and_tokenizer(model, tokenizer, tmp_path):
    folder = tmp_path / "runs" / "preset"
    save_preset(model, tokenizer, folder)
    again = RemBertMaskedLM.from_preset(str(folder))
    for mine, saved in zip(again.variables, model.variables, strict=True):
        assert mine.path == saved.path
        np.testing.assert_array_equal(mine.numpy(), saved.numpy(), err_msg=mine.path)
    loaded = keras_hub.tokenizers.Tokenizer.from_preset(str(folder))
    assert type(loaded) is RemBertTokenizer
    assert loaded.mask_token_id == 5
    assert [path.name for path in folder.parent.iterdir()] == ["preset"]


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_a_preset_of_mixed_precision_is_read_like_any_other(policy, tokenizer, tmp_path):
    model = shapes.masked_lm(dtype=policy)
    save_preset(model, tokenizer, tmp_path / "preset")
    backbone = keras_hub.models.Backbone.from_preset(str(tmp_path / "preset"))
    assert backbone.dtype_policy.name == "float32"
    again = RemBertMaskedLM.from_preset(str(tmp_path / "preset"))
    for mine, saved in zip(again.variables, model.variables, strict=True):
        np.testing.assert_array_equal(mine.numpy(), saved.numpy(), err_msg=mine.path)
    chosen = keras_hub.models.Backbone.from_preset(str(tmp_path / "preset"), dtype="bfloat16")
    assert chosen.compute_dtype == "bfloat16"


def test_backbone_and_head_are_in_files_of_their_own(model, tokenizer, tmp_path):
    folder = tmp_path / "preset"
    save_preset(model, tokenizer, folder)
    backbone_sizes = sorted(np.prod(v.shape) for v in model.backbone.variables)
    head_sizes = sorted(np.prod(v.shape) for v in model.head.variables)
    assert sizes_in(folder / "model.weights.h5") == backbone_sizes
    assert sizes_in(folder / "task.weights.h5") == head_sizes


def test_a_tied_table_is_saved_once(tokenizer, tmp_path):
    model = shapes.masked_lm("tied")
    save_preset(model, tokenizer, tmp_path / "preset")
    assert 517 * 16 in sizes_in(tmp_path / "preset" / "model.weights.h5")
    assert 517 * 16 not in sizes_in(tmp_path / "preset" / "task.weights.h5")


def test_a_preset_is_replaced_only_when_asked(model, tokenizer, tmp_path):
    folder = tmp_path / "preset"
    save_preset(model, tokenizer, folder)
    with pytest.raises(KzooError, match="preset is there already"):
        save_preset(model, tokenizer, folder)
    model.head.bias.assign(np.full(517, 3.0))
    # What a killed process leaves aside.
    (tmp_path / ".preset.partial").mkdir()
    (tmp_path / ".preset.partial" / "model.weights.h5").touch()
    save_preset(model, tokenizer, folder, overwrite=True)
    np.testing.assert_array_equal(
        RemBertMaskedLM.from_preset(str(folder)).head.bias.numpy(), np.full(517, 3.0)
    )
    assert [path.name for path in tmp_path.iterdir()] == ["preset"]


def test_a_preset_that_a_killed_process_had_moved_aside_is_not_lost(model, tokenizer, tmp_path):
    folder = tmp_path / "preset"
    save_preset(model, tokenizer, folder)
    folder.rename(tmp_path / ".preset.old")
    with pytest.raises(KzooError, match="preset is there already"):
        save_preset(model, tokenizer, folder)
    assert RemBertMaskedLM.from_preset(str(folder)).count_params() == model.count_params()
    assert [path.name for path in tmp_path.iterdir()] == ["preset"]


def test_a_write_that_fails_leaves_the_old_preset(model, tokenizer, tmp_path, monkeypatch):
    folder = tmp_path / "preset"
    save_preset(model, tokenizer, folder)
    before = RemBertMaskedLM.from_preset(str(folder)).head.bias.numpy()

    def fail(_):
        raise OSError("disk full")

    monkeypatch.setattr(tokenizer, "save_to_preset", fail)
    model.head.bias.assign(np.full(517, 3.0))
    with pytest.raises(OSError, match="disk full"):
        save_preset(model, tokenizer, folder, overwrite=True)
    np.testing.assert_array_equal(
        RemBertMaskedLM.from_preset(str(folder)).head.bias.numpy(), before
    )
    assert [path.name for path in tmp_path.iterdir()] == ["preset"]
