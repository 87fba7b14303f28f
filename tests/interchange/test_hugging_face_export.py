"""Folders for Hugging Face: the same model there, and the same bits when it comes back."""

import io
import json
import logging
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from kzoo import sample
from kzoo.interchange.hugging_face_export import write_hugging_face
from kzoo.interchange.hugging_face_import import open_hugging_face
from kzoo.interchange.source_model import BuiltModel, build
from kzoo.text.packing import pack
from kzoo.text.vocabulary import MODEL_FILE, Vocabulary
from tests import reference
from tests.interchange import hugging_face_folders as folders
from tests.models import shapes


@pytest.fixture(scope="module")
def state() -> dict[str, np.ndarray]:
    return folders.tensors()


def imported(folder) -> BuiltModel:
    return build(open_hugging_face(str(folder)))


def random_model(**changes) -> BuiltModel:
    model = shapes.masked_lm(**changes)
    reference.random_weights_into(model)
    return as_built(model)


def as_built(model, vocabulary=None) -> BuiltModel:
    return BuiltModel(model, None, vocabulary, {}, ())


def assert_same_weights(ours, theirs):
    theirs = {variable.path: variable for variable in theirs.variables}
    assert {variable.path for variable in ours.variables} == theirs.keys()
    for variable in ours.variables:
        np.testing.assert_array_equal(variable.numpy(), theirs[variable.path].numpy())


def logits(model, length: int = 9) -> np.ndarray:
    inputs = reference.random_inputs(517, [length, 4], length, predictions=3)
    return model(inputs).numpy()


@pytest.mark.parametrize("max_shard_bytes", [5_000_000_000, 60_000])
def test_in_and_out_and_in_are_the_same_bits(state, max_shard_bytes, tmp_path):
    folders.write_folder(tmp_path / "in", state)
    first = imported(tmp_path / "in")
    options = {"keep_pooler": True, "max_shard_bytes": max_shard_bytes}
    assert write_hugging_face(first, str(tmp_path / "out"), **options) == [
        "no tokenizer: the model has no vocabulary"
    ]
    files = sorted(path.name for path in (tmp_path / "out").glob("*.safetensors"))
    assert (len(files) > 3) == (max_shard_bytes < 1e9)
    written = {}
    for name in files:
        written |= load_file(tmp_path / "out" / name)
    assert written.keys() == state.keys()
    for name, value in state.items():
        np.testing.assert_array_equal(written[name], value)
    second = imported(tmp_path / "out")
    assert_same_weights(second.model, first.model)
    assert second.backbone.get_config() == first.backbone.get_config()


def test_shards_hold_what_they_may(state, tmp_path):
    folders.write_folder(tmp_path / "in", state)
    write_hugging_face(imported(tmp_path / "in"), str(tmp_path / "out"), max_shard_bytes=60_000)
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    total = 0
    for name in set(index["weight_map"].values()):
        values = load_file(tmp_path / "out" / name).values()
        size = sum(value.nbytes for value in values)
        # The output table alone is larger.
        assert size <= 60_000 or len(values) == 1
        total += size
    assert index["metadata"]["total_size"] == total


def test_a_pooler_is_left_out_where_their_class_has_none(state, tmp_path):
    folders.write_folder(tmp_path / "in", state)
    first = imported(tmp_path / "in")
    notes = write_hugging_face(first, str(tmp_path / "out"))
    assert any("the pooler is left out" in note for note in notes)
    names = load_file(tmp_path / "out" / "model.safetensors").keys()
    assert names == folders.without(state, folders.POOLER).keys()


def test_an_encoder_alone_has_their_names_without_prefix(state, tmp_path):
    bare = folders.bare(state)
    folders.write_folder(tmp_path / "in", bare)
    write_hugging_face(imported(tmp_path / "in"), str(tmp_path / "out"))
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == bare.keys()
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["architectures"] == ["RemBertModel"]
    assert_same_weights(imported(tmp_path / "out").model, imported(tmp_path / "in").model)


def test_a_tied_table_and_a_missing_projection_become_theirs(tmp_path):
    built = random_model(output_embedding_dim="tied", embedding_dim=48)
    assert built.backbone.embeddings.projection is None
    notes = write_hugging_face(built, str(tmp_path / "out"))
    assert any("identity" in note for note in notes)
    assert any("copy of the input table" in note for note in notes)
    again = imported(tmp_path / "out")
    assert again.model.output_embedding_dim == 48
    np.testing.assert_allclose(logits(again.model), logits(built.model), atol=1e-6, rtol=0)


def test_tanh_gelu_stays_what_it_is(tmp_path):
    built = random_model(activation="gelu_approximate", dropout=0.1)
    write_hugging_face(built, str(tmp_path / "out"))
    again = imported(tmp_path / "out")
    assert again.backbone.activation == "gelu_approximate"
    assert again.backbone.dropout == 0.1
    np.testing.assert_array_equal(logits(again.model), logits(built.model))


def test_a_folder_is_replaced_only_when_asked_and_all_at_once(tmp_path, monkeypatch):
    built = random_model()
    folder = tmp_path / "out"
    folder.mkdir()
    (folder / "old").touch()
    with pytest.raises(FileExistsError):
        write_hugging_face(built, str(folder))
    monkeypatch.setattr("kzoo.interchange.hugging_face_export.write_safetensors", None)
    with pytest.raises(TypeError):
        write_hugging_face(built, str(folder), overwrite=True)
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert [path.name for path in folder.iterdir()] == ["old"]
    monkeypatch.undo()
    write_hugging_face(built, str(folder), overwrite=True)
    assert sorted(path.name for path in folder.iterdir()) == ["config.json", "model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.fixture(scope="module")
def with_vocabulary(state, vocabulary_folder, tmp_path_factory):
    """A folder that was written with a vocabulary, and the model in it."""
    folder = tmp_path_factory.mktemp("tokenizer")
    folders.write_folder(folder / "in", state)
    shutil.copy(vocabulary_folder / MODEL_FILE, folder / "in")
    built = imported(folder / "in")
    write_hugging_face(built, str(folder / "out"))
    return folder / "out", built


def test_vocabulary_and_ids_come_along(with_vocabulary, vocabulary_folder):
    folder, built = with_vocabulary
    model = (vocabulary_folder / MODEL_FILE).read_bytes()
    assert (folder / MODEL_FILE).read_bytes() == model
    config = json.loads((folder / "config.json").read_text())
    ids = [config[key] for key in ("pad_token_id", "bos_token_id", "eos_token_id")]
    assert ids == [0, 3, 4]
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    assert settings["do_lower_case"] is False
    assert settings["keep_accents"] is True
    assert settings["model_max_length"] == 32
    assert imported(folder).vocabulary.sha256 == built.vocabulary.sha256


@pytest.mark.peers
@pytest.mark.parametrize("max_shard_bytes", [5_000_000_000, 60_000])
@pytest.mark.parametrize("activation", ["gelu", "gelu_approximate"])
def test_transformers_loads_it_without_a_warning(activation, max_shard_bytes, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    built = random_model(activation=activation)
    write_hugging_face(built, str(tmp_path / "out"), max_shard_bytes=max_shard_bytes)
    peer, warnings = loaded_with_warnings(
        transformers.RemBertForMaskedLM, tmp_path / "out", transformers
    )
    assert warnings == ""
    inputs = reference.random_inputs(517, [9, 4], 9)
    mask = inputs["padding_mask"].astype(bool)
    with torch.no_grad():
        expected = peer(
            torch.tensor(inputs["token_ids"], dtype=torch.long),
            torch.tensor(inputs["padding_mask"], dtype=torch.long),
            torch.tensor(inputs["segment_ids"], dtype=torch.long),
        ).logits.numpy()
    positions = np.tile(np.arange(9, dtype=np.int32), (2, 1))
    ours = built.model({**inputs, "mask_positions": positions}).numpy()
    np.testing.assert_allclose(ours[mask], expected[mask], atol=1e-5, rtol=0)
    # And what they save, we read.
    peer.save_pretrained(tmp_path / "theirs")
    again = imported(tmp_path / "theirs")
    ours = {variable.path: variable for variable in built.model.variables}
    for variable in again.model.variables:
        np.testing.assert_array_equal(variable.numpy(), ours[variable.path].numpy())


@pytest.mark.peers
def test_transformers_loads_an_encoder_alone_without_a_warning(state, tmp_path):
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    folders.write_folder(tmp_path / "in", folders.bare(state))
    built = imported(tmp_path / "in")
    write_hugging_face(built, str(tmp_path / "out"))
    peer, warnings = loaded_with_warnings(transformers.RemBertModel, tmp_path / "out", transformers)
    assert warnings == ""
    inputs = reference.random_inputs(617, [9], 9)
    with torch.no_grad():
        expected = peer(
            torch.tensor(inputs["token_ids"], dtype=torch.long),
            token_type_ids=torch.tensor(inputs["segment_ids"], dtype=torch.long),
        )
    ours = built.model(inputs)
    for key, theirs in (("sequence_output", 0), ("pooled_output", 1)):
        np.testing.assert_allclose(ours[key].numpy(), expected[theirs], atol=1e-5, rtol=0)


def loaded_with_warnings(kind, folder, transformers) -> tuple:
    """A model of theirs, and what was said while it was loaded."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    logger = transformers.utils.logging.get_logger("transformers")
    logger.addHandler(handler)
    try:
        peer = kind.from_pretrained(str(folder)).eval()
    finally:
        logger.removeHandler(handler)
    return peer, stream.getvalue()


@pytest.mark.peers
@pytest.mark.parametrize("kind", ["AutoTokenizer", "RemBertTokenizer"])
def test_their_tokenizer_gives_our_ids(kind, with_vocabulary):
    transformers = pytest.importorskip("transformers")
    folder, built = with_vocabulary
    tokenizer = getattr(transformers, kind).from_pretrained(str(folder), model_max_length=10**6)
    vocabulary: Vocabulary = built.vocabulary
    special = {"cls_id": vocabulary.cls_id, "sep_id": vocabulary.sep_id}
    files = [sample.folder() / f"train-{language}.txt" for language in ("de", "en", "hi", "ar")]
    texts = [line for file in files for line in file.read_text("utf-8").split("\n")[:60] if line]
    if kind == "AutoTokenizer":
        # RemBERT's own class is not so exact about spaces.
        texts += ["", "   ", " Ünder  the BIG tree ", "e\u0301 ﬁne … Ａ１", "zero\u200bwidth 😀😀"]
        texts += ["x\ty\r\nz"]
    for text in texts:
        ids, _ = pack(vocabulary.encode(text), **special)
        assert tokenizer(text)["input_ids"] == ids.tolist(), text
    # A second text that is empty is none to them.
    for a, b in [("a b", "c"), ("", "b")]:
        ids, segments = pack(vocabulary.encode(a), vocabulary.encode(b), **special)
        encoded = tokenizer(a, b)
        assert encoded["input_ids"] == ids.tolist()
        if kind == "AutoTokenizer":
            assert encoded["token_type_ids"] == segments.tolist()
    assert tokenizer.mask_token_id == vocabulary.mask_id
    assert tokenizer.pad_token_id == vocabulary.pad_id
