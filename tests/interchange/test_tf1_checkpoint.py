"""RemBERT's own checkpoint, from names that are known and from names that are not."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from kzoo.errors import KzooError
from kzoo.interchange.source_model import build
from kzoo.interchange.tf1_checkpoint import open_tf1_checkpoint
from kzoo.models.backbone import RemBertBackbone
from tests import reference
from tests.interchange.tf1_checkpoints import tensors_of, with_optimizer, write_checkpoint
from tests.models import shapes

HEADS = {"num_heads": 3}
CONFIG = {
    "vocab_size": 517,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "hidden_size": 48,
    "intermediate_size": 80,
    "input_embedding_size": 16,
    "output_embedding_size": 40,
    "max_position_embeddings": 40,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.2,
    "attention_probs_dropout_prob": 0.3,
    "initializer_range": 0.02,
}
TABLE, TRANSFORM = "cls/predictions/output_embedding", "cls/predictions/transform/dense/kernel"

# Nothing of these names is in BERT's code.
ODD_NAMES = {
    "cls/predictions/output_embedding": "output_embedding/table",
    "cls/predictions/output_bias": "cls/mlm/bias",
    "cls/predictions/transform/dense/kernel": "cls/mlm/transform/w",
    "cls/predictions/transform/dense/bias": "cls/mlm/transform/bias",
    "cls/predictions/transform/LayerNorm/gamma": "cls/mlm/norm/scale",
    "cls/predictions/transform/LayerNorm/beta": "cls/mlm/norm/bias",
}


@pytest.fixture(scope="module")
def model():
    model = shapes.masked_lm(activation="gelu_approximate")
    reference.random_weights_into(model)
    return model


@pytest.fixture(scope="module")
def released(model, tmp_path_factory):
    """A checkpoint with everything in it that the release has."""
    prefix = tmp_path_factory.mktemp("release") / "rembert.ckpt"
    return write_checkpoint(prefix, with_optimizer(tensors_of(model)))


def renamed(model, names) -> dict[str, np.ndarray]:
    return {names.get(name, name): value for name, value in tensors_of(model).items()}


def assert_same_weights(ours: keras.Model, theirs: keras.Model) -> None:
    values = {variable.path: variable.numpy() for variable in theirs.variables}
    assert {variable.path for variable in ours.variables} == values.keys()
    for variable in ours.variables:
        np.testing.assert_array_equal(variable.numpy(), values[variable.path], variable.path)


@pytest.mark.parametrize("kind", ["prefix", "index", "folder"])
def test_a_release_is_read_with_its_head_and_without_its_optimizer(released, model, kind):
    path = {"prefix": released, "index": f"{released}.index", "folder": released.parent}[kind]
    built = build(open_tf1_checkpoint(str(path), **HEADS))
    assert_same_weights(built.model, model)
    inputs = reference.random_inputs(517, [9, 1, 5], 9, predictions=2)
    np.testing.assert_array_equal(built.model(inputs), model(inputs))
    assert len(built.accounts.used) == len(model.variables)
    reasons = sorted(built.accounts.ignored.values())
    assert reasons.count("a slot of the optimizer") == 2 * len(model.variables)
    assert len(reasons) == 2 * len(model.variables) + 1
    assert built.made_anew == {}


def test_the_activation_is_that_of_googles_code_and_the_report_says_so(released):
    source = open_tf1_checkpoint(str(released), **HEADS)
    assert source.arguments["activation"] == "gelu_approximate"
    assert any("tanh" in note and "1e-3" in note for note in source.notes)
    chosen = open_tf1_checkpoint(str(released), **HEADS, activation="gelu")
    assert chosen.arguments["activation"] == "gelu"
    assert not any("tanh" in note for note in chosen.notes)


def test_a_configuration_says_heads_and_dropouts(released, model, tmp_path):
    config = tmp_path / "bert_config.json"
    config.write_text(json.dumps(CONFIG))
    source = open_tf1_checkpoint(str(released), config=str(config))
    assert source.arguments["num_heads"] == 3
    assert source.arguments["dropout"] == 0.2
    assert source.arguments["attention_dropout"] == 0.3
    # Its one name for two activations decides nothing.
    assert source.arguments["activation"] == "gelu_approximate"
    assert_same_weights(build(source).model, model)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"vocab_size": 600}, "vocab_size is 600, but the tensors say 517"),
        ({"embedding_size": 32}, "embedding_size is 32, but the tensors say 16"),
        ({"num_hidden_layers": 4}, "num_hidden_layers is 4, but the tensors say 3"),
        ({"hidden_act": "relu"}, "hidden_act must be"),
        ({"num_attention_heads": 4}, "--num_heads is 3, but .* says 4"),
        ({"share_layers": True}, "unknown key 'share_layers'"),
        ({"embedding_dropout_prob": 0.5}, "embedding_dropout_prob must be 0"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(released, tmp_path, changes, message):
    config = tmp_path / "bert_config.json"
    config.write_text(json.dumps({**CONFIG, **changes}))
    with pytest.raises(KzooError, match=message):
        open_tf1_checkpoint(str(released), config=str(config), **HEADS)


def test_heads_are_64_wide_where_nothing_says_how_many_there_are(released, tmp_path):
    with pytest.raises(KzooError, match="48 is no multiple of 64: give --num_heads"):
        open_tf1_checkpoint(str(released))
    wide = RemBertBackbone(**{**shapes.ARGUMENTS, "hidden_dim": 128, "num_heads": 2})
    reference.random_weights_into(wide)
    source = open_tf1_checkpoint(str(write_checkpoint(tmp_path / "wide", tensors_of(wide))))
    assert source.arguments["num_heads"] == 2
    assert any("2 attention heads" in note for note in source.notes)


def test_a_head_with_other_names_is_found_by_parts_of_them_and_by_shape(model, tmp_path):
    prefix = write_checkpoint(tmp_path / "odd", renamed(model, ODD_NAMES))
    source = open_tf1_checkpoint(str(prefix), **HEADS)
    assert_same_weights(build(source).model, model)
    for odd in ODD_NAMES.values():
        assert any(note.startswith(f"{odd} is masked_lm_head/") for note in source.notes)


def test_an_output_table_with_a_column_for_each_piece_is_turned(model, tmp_path):
    tensors = tensors_of(model)
    tensors[TABLE] = np.ascontiguousarray(tensors[TABLE].T)
    source = open_tf1_checkpoint(str(write_checkpoint(tmp_path / "turned", tensors)), **HEADS)
    assert_same_weights(build(source).model, model)
    assert any("turned" in note for note in source.notes)


def test_what_could_be_two_things_is_named_until_a_mapping_says_which(model, tmp_path):
    tensors = tensors_of(model)
    tensors["cls/teacher/output_embedding"] = tensors[TABLE] + 1
    tensors["some/counter"] = np.zeros(7, np.float32)
    prefix = str(write_checkpoint(tmp_path / "two", tensors))
    with pytest.raises(KzooError) as error:
        open_tf1_checkpoint(prefix, **HEADS)
    message = str(error.value)
    two = f"{TABLE} [517, 40] or cls/teacher/output_embedding [517, 40]"
    assert f"could be masked_lm_head/table: {two}" in message
    assert "unknown: some/counter [7]" in message
    assert "--mapping" in message

    mapping = tmp_path / "mapping.yaml"
    mapping.write_text(
        f"{TABLE}: masked_lm_head/table\n"
        "cls/teacher/output_embedding: {ignore: the teacher's}\n"
        "some/counter:\n  ignore: counts\n"
    )
    built = build(open_tf1_checkpoint(prefix, **HEADS, mapping=str(mapping)))
    assert_same_weights(built.model, model)
    assert built.accounts.ignored == {
        "cls/teacher/output_embedding": "the teacher's",
        "some/counter": "counts",
    }


def test_a_mapping_finds_what_has_neither_a_known_name_nor_a_clear_shape(model, tmp_path):
    names = {
        TABLE: "decoder/matrix",
        "cls/predictions/transform/LayerNorm/gamma": "decoder/a",
        "cls/predictions/transform/LayerNorm/beta": "decoder/b",
        "bert/encoder/layer_1/attention/self/query/kernel": "bert/encoder/layer_1/q",
    }
    prefix = str(write_checkpoint(tmp_path / "strange", renamed(model, names)))
    with pytest.raises(KzooError, match="still without a tensor: masked_lm_head/table"):
        open_tf1_checkpoint(prefix, **HEADS)
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text(
        "decoder/matrix: masked_lm_head/table\n"
        "decoder/a: masked_lm_head/layer_norm/gamma\n"
        "decoder/b: masked_lm_head/layer_norm/beta\n"
        "bert/encoder/layer_1/q: encoder_block_1/attention/query/kernel\n"
    )
    built = build(open_tf1_checkpoint(prefix, **HEADS, mapping=str(mapping)))
    assert_same_weights(built.model, model)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("cls/predictions/output_embeding: masked_lm_head/table", "no tensor is called .*output"),
        (f"{TABLE}: masked_lm_head/tabel", "no variable 'masked_lm_head/tabel'; .*_head/table"),
        (f"{TABLE}: x\n{TRANSFORM}: x", "mapping.yaml:2: .* are both for x"),
        (f"{TABLE}: {{ignore: a}}\n{TABLE}: b", "stands twice"),
        (f"{TABLE}: {{skip: a}}", "mapping.yaml:1: a tensor is the path of a variable, or"),
        (f"{TABLE}: 7", "Received: 7"),
        ("- a", "must be lines of `NAME: PATH`"),
    ],
)
def test_a_mapping_with_a_mistake_is_refused(released, tmp_path, text, message):
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text(text)
    with pytest.raises(KzooError, match=message):
        open_tf1_checkpoint(str(released), **HEADS, mapping=str(mapping))


def test_an_encoder_without_a_head_is_one_and_a_head_is_made_anew_where_that_is_allowed(
    model, tmp_path
):
    prefix = write_checkpoint(tmp_path / "encoder", tensors_of(model.backbone))
    built = build(open_tf1_checkpoint(str(prefix), **HEADS))
    assert isinstance(built.model, RemBertBackbone)
    assert_same_weights(built.model, model.backbone)
    config = tmp_path / "bert_config.json"
    config.write_text(json.dumps(CONFIG))
    source = open_tf1_checkpoint(str(prefix), config=str(config))
    built = build(source, ["masked_lm_head"])
    assert built.model.output_embedding_dim == 40
    assert len(built.made_anew) == 6


def test_a_bert_with_a_shared_table_and_a_next_sentence_head_becomes_a_tied_model(tmp_path):
    bert = shapes.masked_lm("tied", embedding_dim=48, activation="gelu_approximate")
    reference.random_weights_into(bert)
    tensors = with_optimizer(tensors_of(bert, scope="model/bert/"))
    tensors["cls/seq_relationship/output_weights"] = np.zeros((2, 48), np.float32)
    tensors["cls/seq_relationship/output_bias"] = np.zeros(2, np.float32)
    prefix = write_checkpoint(tmp_path / "bert", tensors)
    source = open_tf1_checkpoint(str(prefix), **HEADS)
    built = build(source)
    assert built.model.output_embedding_dim == "tied"
    assert_same_weights(built.model, bert)
    assert sum("next-sentence" in reason for reason in built.accounts.ignored.values()) == 2


def test_a_missing_tensor_and_one_of_the_wrong_shape_are_named(model, tmp_path):
    tensors = tensors_of(model)
    tensors.pop("bert/encoder/layer_1/output/dense/bias")
    tensors["bert/encoder/layer_2/output/LayerNorm/beta"] = np.zeros(47, np.float32)
    prefix = write_checkpoint(tmp_path / "broken", tensors)
    with pytest.raises(KzooError) as error:
        build(open_tf1_checkpoint(str(prefix), **HEADS))
    assert "missing: bert/encoder/layer_1/output/dense/bias" in str(error.value)
    assert "wrong shape: bert/encoder/layer_2/output/LayerNorm/beta" in str(error.value)


def test_a_missing_layer_is_named(model, tmp_path):
    tensors = {name: value for name, value in tensors_of(model).items() if "layer_1" not in name}
    prefix = write_checkpoint(tmp_path / "gap", tensors)
    with pytest.raises(KzooError, match=r"2 layers, the last of them number 2, but none .* 1"):
        open_tf1_checkpoint(str(prefix), **HEADS)


def test_weights_in_half_precision_become_float32(model, tmp_path):
    tensors = tensors_of(model)
    halved = {name: value.astype(tf.bfloat16.as_numpy_dtype) for name, value in tensors.items()}
    built = build(open_tf1_checkpoint(str(write_checkpoint(tmp_path / "half", halved)), **HEADS))
    for variable, value in zip(built.model.variables, model.variables, strict=True):
        assert variable.dtype == "float32"
        expected = tf.cast(tf.cast(value.numpy(), tf.bfloat16), tf.float32)
        np.testing.assert_array_equal(variable.numpy(), expected)


def test_weights_that_are_integers_or_not_finite_are_refused(model, tmp_path):
    name = "bert/pooler/dense/bias"
    for kind, value, message in (
        ("integers", np.zeros(48, np.int64), "pooler/dense/bias is of type int64"),
        ("nan", np.full(48, np.nan, np.float32), "pooler/dense/bias holds values .* not finite"),
    ):
        prefix = write_checkpoint(tmp_path / kind, {**tensors_of(model), name: value})
        with pytest.raises(KzooError, match=message):
            build(open_tf1_checkpoint(str(prefix), **HEADS))


def test_a_truncated_checkpoint_is_refused(model, tmp_path):
    prefix = write_checkpoint(tmp_path / "model", tensors_of(model))
    data = prefix.with_name(f"{prefix.name}.data-00000-of-00001")
    data.write_bytes(data.read_bytes()[:5000])
    with pytest.raises(KzooError, match=r"cannot be read|no checkpoint that TensorFlow reads"):
        build(open_tf1_checkpoint(str(prefix), **HEADS))
    index = prefix.with_name(f"{prefix.name}.index")
    index.write_bytes(index.read_bytes()[:100])
    with pytest.raises(KzooError, match="no checkpoint that TensorFlow reads"):
        open_tf1_checkpoint(str(prefix), **HEADS)


def test_a_folder_without_a_checkpoint_or_with_several_is_refused(model, tmp_path):
    with pytest.raises(KzooError, match=r"no \.index file"):
        open_tf1_checkpoint(str(tmp_path))
    with pytest.raises(KzooError, match="neither a folder"):
        open_tf1_checkpoint(str(tmp_path / "nothing"))
    for name in ("one", "two"):
        write_checkpoint(tmp_path / name, tensors_of(model))
    # What the folder says to be the newest is taken, wherever it was written.
    (tmp_path / "checkpoint").write_text('model_checkpoint_path: "/elsewhere/one-1000"\n')
    assert open_tf1_checkpoint(str(tmp_path), **HEADS).where == str(tmp_path / "one-1000")
    (tmp_path / "checkpoint").unlink()
    with pytest.raises(KzooError, match="name one of one-1000, two-1000"):
        open_tf1_checkpoint(str(tmp_path))


def test_a_checkpoint_of_objects_is_sent_to_its_own_route(tmp_path):
    tf.train.Checkpoint(variable=tf.Variable(1.0)).save(str(tmp_path / "ckpt"))
    with pytest.raises(KzooError, match="--from model_garden"):
        open_tf1_checkpoint(str(tmp_path))
