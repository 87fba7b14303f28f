"""RemBERTs in folders of Hugging Face: all that they come in, and all that is refused."""

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kzoo import KzooError
from kzoo.interchange.hugging_face_import import open_hugging_face
from kzoo.interchange.hugging_face_names import hugging_face_name
from kzoo.interchange.source_model import build, with_activation, with_output_width
from kzoo.text.vocabulary import MODEL_FILE
from tests.interchange import hugging_face_folders as folders


@pytest.fixture(scope="module")
def state() -> dict[str, np.ndarray]:
    return folders.tensors()


def imported(folder, **options):
    return build(open_hugging_face(str(folder)), **options)


def assert_has(model, state):
    """Every variable of the model has the values of its tensor."""
    for variable in model.variables:
        value = state[hugging_face_name(variable.path)].astype(np.float32)
        value = value.T if variable.path.endswith("/kernel") else value
        np.testing.assert_array_equal(variable.numpy(), value, variable.path)


def test_the_shape_is_that_of_the_configuration(state, tmp_path):
    built = imported(folders.write_folder(tmp_path, state, hidden_dropout_prob=0.1))
    config = built.backbone.get_config()
    expected = {
        "vocabulary_size": 617,
        "num_layers": 3,
        "num_heads": 3,
        "hidden_dim": 48,
        "intermediate_dim": 80,
        "embedding_dim": 16,
        "max_sequence_length": 32,
        "num_segments": 2,
        "dropout": 0.1,
        "attention_dropout": 0.0,
        "activation": "gelu",
        "layer_norm_epsilon": 1e-12,
        "pooler": "dense",
        "project_embeddings": True,
    }
    assert {key: config[key] for key in expected} == expected
    assert built.model.output_embedding_dim == 40
    assert_has(built.model, state)
    assert len(built.accounts.used) == len(state)


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("container", ["safetensors", "sharded", "pickled", "pickled shards"])
def test_every_container_and_type(container, kind, state, tmp_path):
    state = folders.as_type(state, kind)
    if container == "safetensors":
        folders.write_folder(tmp_path, state)
    elif container == "sharded":
        folders.write_sharded(tmp_path, state)
    elif container == "pickled":
        folders.write_pickled(folders.write_config(tmp_path) / "pytorch_model.bin", state)
    else:
        folders.write_config(tmp_path)
        halves = [dict(list(state.items())[half::2]) for half in (0, 1)]
        weight_map = {}
        for number, half in enumerate(halves):
            name = f"pytorch_model-{number}.bin"
            folders.write_pickled(tmp_path / name, half)
            weight_map |= dict.fromkeys(half, name)
        index = tmp_path / "pytorch_model.bin.index.json"
        index.write_text(json.dumps({"weight_map": weight_map}))
    assert_has(imported(tmp_path).model, state)


def test_a_bare_encoder_becomes_an_encoder(state, tmp_path):
    built = imported(folders.write_folder(tmp_path, folders.bare(state)))
    assert built.model is built.backbone
    assert_has(built.model, state)
    assert any("no masked-LM head (cls.predictions." in note for note in built.notes)


def test_a_head_that_is_asked_for_is_made_anew(state, tmp_path):
    built = imported(
        folders.write_folder(tmp_path, folders.bare(state)), allow_missing=["masked_lm_head"]
    )
    assert_has(built.backbone, state)
    assert built.model.output_embedding_dim == 40
    assert len(built.made_anew) == 6
    assert all(path.startswith("masked_lm_head/") for path in built.made_anew)


def test_a_new_head_can_be_told_its_width(state, tmp_path):
    source = open_hugging_face(
        str(folders.write_folder(tmp_path, folders.bare(state), output_embedding_size=None))
    )
    with pytest.raises(KzooError, match="nothing says how wide the output table is"):
        build(source, ["masked_lm_head"])
    built = build(with_output_width(source, 24), ["masked_lm_head"])
    assert built.model.head.table.shape == (617, 24)
    folders.write_folder(tmp_path, state, output_embedding_size=None)
    source = open_hugging_face(str(tmp_path))
    assert build(source).model.output_embedding_dim == 40
    with pytest.raises(KzooError, match="or the weights say it"):
        with_output_width(source, 24)


def test_half_a_head_is_an_error_that_names_the_rest(state, tmp_path):
    lacking = folders.without(state, "cls.predictions.decoder.")
    folders.write_folder(tmp_path, lacking)
    with pytest.raises(KzooError) as caught:
        imported(tmp_path)
    assert "missing: cls.predictions.decoder.weight [617, 40]" in str(caught.value)
    assert "missing: cls.predictions.decoder.bias [617]" in str(caught.value)
    built = imported(
        tmp_path, allow_missing=["cls.predictions.decoder.weight", "masked_lm_head/bias"]
    )
    assert built.made_anew.keys() == {"masked_lm_head/table", "masked_lm_head/bias"}


def test_without_a_pooler_texts_are_pooled_by_their_mean(state, tmp_path):
    built = imported(folders.write_folder(tmp_path, folders.without(state, folders.POOLER)))
    assert built.backbone.pooler == "mean"
    assert any("no pooler (rembert.pooler.dense.weight" in note for note in built.notes)
    built = imported(tmp_path, allow_missing=["pooler"])
    assert built.backbone.pooler == "dense"
    assert built.made_anew.keys() == {"pooler/dense/kernel", "pooler/dense/bias"}


def test_buffers_and_heads_of_tasks_are_left_out_for_a_reason(state, tmp_path):
    more = {
        **state,
        "rembert.embeddings.position_ids": np.arange(32)[None],
        "classifier.weight": np.zeros((3, 48), np.float32),
        "qa_outputs.bias": np.zeros(2, np.float32),
    }
    built = imported(folders.write_folder(tmp_path, more))
    reasons = built.accounts.ignored
    assert "old versions" in reasons["rembert.embeddings.position_ids"]
    assert "fine-tuned" in reasons["classifier.weight"]
    assert "fine-tuned" in reasons["qa_outputs.bias"]
    assert len(reasons) == 3


def test_a_buffer_in_a_pickled_bare_encoder(state, tmp_path):
    more = {"embeddings.position_ids": np.arange(32)[None], **folders.bare(state)}
    folders.write_pickled(folders.write_config(tmp_path) / "pytorch_model.bin", more)
    built = imported(tmp_path)
    assert_has(built.model, state)
    assert list(built.accounts.ignored) == ["rembert.embeddings.position_ids"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_attention_heads": 5}, "num_attention_heads must divide hidden_size. Received: num"),
        ({"num_attention_heads": 0}, "`num_heads` must be a positive integer"),
        ({"hidden_size": "48"}, "hidden_size must be a number. Received: '48'"),
        ({"vocab_size": 617.5}, "`vocabulary_size` must be a positive integer"),
        ({"hidden_dropout_prob": True}, "hidden_dropout_prob must be a number"),
        ({"hidden_act": "relu"}, "hidden_act must be gelu or gelu_new .* Received: 'relu'"),
        ({"hidden_act": ["gelu"]}, "hidden_act must be gelu"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type must be 'absolute'"),
        ({"is_decoder": True}, "is_decoder must be False. Received: True"),
        ({"tie_word_embeddings": True}, "tie_word_embeddings must be False"),
        ({"quantization_config": {"bits": 4}}, "quantization_config must be None"),
        ({"rope_theta": 1e4}, "unknown key 'rope_theta'"),
        ({"model_type": "bert"}, "reads models of type 'rembert'. Received: model_type='bert'"),
        ({"vocab_size": None, "hidden_size": None}, "lacks vocab_size, hidden_size"),
        ({"num_hidden_layers": 10**9}, "says that there are 1,000,000,000 layers"),
        ({"num_hidden_layers": 2}, r"unknown: rembert.encoder.layer.2.attention"),
        ({"num_hidden_layers": 4}, r"missing: rembert.encoder.layer.3.attention"),
        ({"vocab_size": 10**9}, r"word_embeddings.weight .* \[617, 16\], and should be \[10000"),
        ({"vocab_size": 10**30}, "`vocabulary_size` must be at most 2,147,483,647"),
        ({"hidden_size": 3 * 10**15}, "`hidden_dim` must be at most 2,147,483,647"),
        (
            {"layer_norm_eps": float("inf")},
            "`layer_norm_epsilon` must be a number. Received: .*inf",
        ),
        ({"output_embedding_size": 41}, r"decoder.weight .* \[617, 40\], and should be \[617, 41"),
    ],
)
def test_another_model_is_refused(change, message, state, tmp_path):
    folders.write_folder(tmp_path, state, **change)
    with pytest.raises(KzooError, match=f"(?s){message}"):
        imported(tmp_path)


def test_tanh_gelu_by_configuration_and_by_wish(state, tmp_path):
    folders.write_folder(tmp_path, state, hidden_act="gelu_new")
    source = open_hugging_face(str(tmp_path))
    assert source.arguments["activation"] == "gelu_approximate"
    changed = with_activation(source, "gelu")
    assert changed.arguments["activation"] == "gelu"
    assert "not gelu_approximate" in changed.notes[-1]
    assert with_activation(changed, "gelu") is changed


def test_the_vocabulary_comes_along(state, vocabulary_folder, tmp_path):
    folders.write_folder(tmp_path, state)
    shutil.copy(vocabulary_folder / MODEL_FILE, tmp_path)
    source = open_hugging_face(str(tmp_path))
    assert source.vocabulary.size == 600
    assert source.notes == []
    folders.write_config(tmp_path, bos_token_id=312)
    [note] = open_hugging_face(str(tmp_path)).notes
    assert "bos_token_id=312" in note
    assert "it is 3, which counts" in note


def test_more_pieces_than_rows_are_refused(state, vocabulary_folder, tmp_path):
    folders.write_folder(tmp_path, state, vocab_size=599)
    shutil.copy(vocabulary_folder / MODEL_FILE, tmp_path)
    with pytest.raises(KzooError, match=r"has 600 pieces, but .* 599 rows .*config\.json"):
        imported(tmp_path)


def test_no_weights_and_no_configuration_are_named(state, tmp_path):
    with pytest.raises(KzooError, match=r"cannot read .*config\.json: No such file"):
        imported(tmp_path)
    folders.write_config(tmp_path)
    with pytest.raises(KzooError, match=r"no weights: none of model\.safetensors, model\.safe"):
        imported(tmp_path)
    (tmp_path / "config.json").write_text("[1]")
    with pytest.raises(KzooError, match="must hold a JSON object"):
        imported(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(KzooError, match="is no JSON"):
        imported(tmp_path)


def index_of(folder):
    path = folder / "model.safetensors.index.json"
    return path, json.loads(path.read_text())


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "/etc/passwd",
        "..",
        "a/b.safetensors",
        "a\\b.safetensors",
        "\0.safetensors",
        3,
    ],
)
def test_an_index_that_names_other_places_is_refused(name, state, tmp_path):
    path, index = index_of(folders.write_sharded(tmp_path, state))
    index["weight_map"]["cls.predictions.dense.bias"] = name
    path.write_text(json.dumps(index))
    with pytest.raises(KzooError, match=r"file of cls\.predictions\.dense\.bias must be a plain"):
        imported(tmp_path)


def test_an_index_and_shards_that_differ_are_refused(state, tmp_path):
    path, index = index_of(folders.write_sharded(tmp_path, state))
    first, second = sorted(set(index["weight_map"].values()))[:2]
    name = next(name for name, shard in index["weight_map"].items() if shard == first)
    path.write_text(json.dumps({"weight_map": {**index["weight_map"], name: second}}))
    with pytest.raises(KzooError, match=rf"says that {second} holds {name}; it does not"):
        imported(tmp_path)
    del index["weight_map"][name]
    path.write_text(json.dumps(index))
    with pytest.raises(KzooError, match=rf"{first} holds {name}, which .* lacks"):
        imported(tmp_path)
    path.write_text(json.dumps({"metadata": {}}))
    with pytest.raises(KzooError, match="has no weight_map"):
        imported(tmp_path)


def test_a_tensor_in_two_shards_is_refused(state, tmp_path):
    _, index = index_of(folders.write_sharded(tmp_path, state))
    first, second = sorted(set(index["weight_map"].values()))[:2]
    name = next(name for name, shard in index["weight_map"].items() if shard == first)
    save_file({**load_file(tmp_path / second), name: state[name]}, tmp_path / second)
    with pytest.raises(KzooError, match=rf"there twice: {name} \(in .*{first} and .*{second}\)"):
        imported(tmp_path)


def test_one_tensor_with_and_without_the_prefix_is_refused(state, tmp_path):
    name = "pooler.dense.bias"
    folders.write_folder(tmp_path, {**state, name: state[f"rembert.{name}"]})
    with pytest.raises(KzooError, match=rf"there twice: rembert\.{name}"):
        imported(tmp_path)


def test_values_that_are_not_finite_are_named(state, tmp_path):
    broken = state["cls.predictions.dense.weight"].copy()
    broken[3, 4] = np.nan
    folders.write_folder(tmp_path, {**state, "cls.predictions.dense.weight": broken})
    with pytest.raises(KzooError, match=r"cls\.predictions\.dense\.weight holds values that are n"):
        imported(tmp_path)
