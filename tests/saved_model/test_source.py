"""The preset that is exported."""

import json
import shutil

import numpy as np
import pytest

from kzoo import KzooError
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.models.preset_metadata import write_metadata
from kzoo.saved_model.source import UNTRAINED_POOLER, Source
from tests.saved_model.exports import write_preset


@pytest.fixture
def preset(exported, tmp_path):
    return shutil.copytree(exported.preset, tmp_path / "preset")


def assert_same(found, expected):
    assert found.variables
    for variable, wanted in zip(found.variables, expected.variables, strict=True):
        np.testing.assert_array_equal(variable.numpy(), wanted.numpy(), variable.path)


def test_models_are_those_of_keras_hub_in_float32(exported):
    source = Source.open(exported.preset)
    model = source.load_masked_lm(source.load_backbone())
    assert_same(model, RemBertMaskedLM.from_preset(str(exported.preset), dtype="float32"))
    assert {layer.compute_dtype for layer in model._flatten_layers()} == {"float32"}
    assert source.sentencepiece_model == exported.vocabulary.model
    assert source.pooler_note is None


def test_a_tied_table_is_that_of_the_input(vocabulary_folder, tmp_path):
    write_preset(vocabulary_folder, tmp_path / "preset", output_embedding_dim="tied")
    source = Source.open(tmp_path / "preset")
    model = source.load_masked_lm(source.load_backbone())
    assert_same(model, RemBertMaskedLM.from_preset(str(tmp_path / "preset"), dtype="float32"))
    assert model.head.table is model.backbone.token_embedding.embeddings


def test_rates_and_layers_are_those_that_were_asked_for(exported):
    source = Source.open(exported.preset)
    whole, changed = source.load_backbone(), source.load_backbone(2, dropout=0.25)
    assert (changed.dropout, changed.attention_dropout) == (0.25, 0.25)
    assert (changed.num_layers, whole.num_layers) == (2, 3)
    assert_same(changed.embeddings, whole.embeddings)
    assert_same(changed.encoder_blocks[1], whole.encoder_blocks[1])


def test_an_untrained_pooler_becomes_the_mean(preset):
    write_metadata(preset, {"pooler/dense/kernel": 0})
    source = Source.open(preset)
    assert source.pooler_note == UNTRAINED_POOLER
    assert source.load_backbone().pooler == "mean"
    source.check_head()


def test_an_untrained_head_is_refused(preset):
    write_metadata(preset, {"masked_lm_head/table": 0})
    with pytest.raises(KzooError, match=r"never trained \(masked_lm_head/table\)"):
        Source.open(preset).check_head()


def test_an_encoder_alone_has_no_head(preset):
    (preset / "task.json").unlink()
    with pytest.raises(KzooError, match="no masked-LM head"):
        Source.open(preset).check_head()


def of_another_class(preset):
    content = json.loads((preset / "config.json").read_text())
    content["registered_name"] = "keras_hub>BertBackbone"
    (preset / "config.json").write_text(json.dumps(content))


def damaged(preset):
    (preset / "config.json").write_text("{")


def without_configuration(preset):
    (preset / "config.json").unlink()


def without_tokenizer(preset):
    shutil.rmtree(preset / "assets")


def damaged_tokenizer(preset):
    (preset / "assets" / "tokenizer" / "vocabulary.spm").write_bytes(b"text")


def fewer_rows_than_pieces(preset):
    content = json.loads((preset / "config.json").read_text())
    content["config"]["vocabulary_size"] = 599
    (preset / "config.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (damaged_tokenizer, r"vocabulary\.spm is not a SentencePiece model"),
        (fewer_rows_than_pieces, r"has 600 pieces, but .* has 599 rows"),
        (of_another_class, r"config\.json: not of a kzoo .*Received: keras_hub>BertBackbone"),
        (damaged, r"config\.json is damaged"),
        (without_configuration, r"no model preset: cannot read config\.json"),
        (without_tokenizer, "has no tokenizer"),
    ],
)
def test_what_is_no_preset_is_a_clear_error(preset, change, message):
    change(preset)
    with pytest.raises(KzooError, match=message):
        Source.open(preset)
