"""Encoders of Model Garden, beside Model Garden itself, and without it."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras
import yaml

from kzoo.errors import KzooError
from kzoo.interchange.model_garden import open_model_garden, write_model_garden
from kzoo.interchange.model_garden_config import encoder_config
from kzoo.interchange.model_garden_names import ENCODER_PARTS
from kzoo.interchange.source_model import BuiltModel, SourceModel, build
from kzoo.text.vocabulary import Vocabulary
from tests import reference
from tests.interchange.arrays import weights_of
from tests.models import shapes

INPUTS = reference.random_inputs(517, [9, 1, 5], 9, predictions=2)
THEIR_INPUTS = {
    "input_word_ids": INPUTS["token_ids"],
    "input_mask": INPUTS["padding_mask"],
    "input_type_ids": INPUTS["segment_ids"],
}
TOKENS = INPUTS["padding_mask"].astype(bool)


def built(model: keras.Model, vocabulary: Vocabulary | None = None, made_anew=None) -> BuiltModel:
    """A model of ours, as the conversion has it before it is written."""
    backbone = getattr(model, "backbone", model)
    source = SourceModel(
        arguments={name: getattr(backbone, name) for name in backbone._argument_names},
        output_embedding_dim=getattr(model, "output_embedding_dim", None),
        weights=weights_of(model),
        where="test",
        vocabulary=vocabulary,
        made_anew=made_anew or {},
    )
    return build(source)


def random_model(output_embedding_dim: int | str | None = 40, **changes) -> keras.Model:
    if output_embedding_dim is None:
        model = shapes.backbone(**changes)
    else:
        model = shapes.masked_lm(output_embedding_dim, **changes)
    reference.random_weights_into(model)
    return model


def their_encoder(kind: str = "BertEncoderV2", **changes):
    """An encoder of Model Garden with random weights."""
    networks = pytest.importorskip("official.nlp.modeling.networks")
    arguments = {
        "vocab_size": 517,
        "hidden_size": 48,
        "num_layers": 3,
        "num_attention_heads": 3,
        "max_sequence_length": 40,
        "type_vocab_size": 2,
        "inner_dim": 80,
        "embedding_width": 16,
    }
    encoder = getattr(networks, kind)(**{**arguments, **changes})
    encoder(their_inputs())
    random_weights_into(encoder)
    return encoder


def random_weights_into(layer: tf_keras.layers.Layer) -> None:
    random = np.random.default_rng(3)
    for variable in layer.variables:
        value = random.normal(0, 0.1, variable.shape)
        variable.assign(value + 1 if "gamma" in variable.name else value)


def their_inputs(with_positions: bool = False) -> dict[str, tf.Tensor]:
    inputs = {name: tf.constant(value) for name, value in THEIR_INPUTS.items()}
    if with_positions:
        inputs["masked_lm_positions"] = tf.constant(INPUTS["mask_positions"])
    return inputs


def assert_same_outputs(backbone, theirs, atol: float = 1e-5) -> None:
    """Compares the outputs, where there are tokens: what padding gives means nothing."""
    inputs = {name: INPUTS[name] for name in backbone.input}
    ours, theirs = backbone(inputs), theirs(their_inputs())
    pooled = ours["pooled_output"], theirs["pooled_output"]
    np.testing.assert_allclose(*map(np.asarray, pooled), rtol=0, atol=atol)
    states = backbone.hidden_states(inputs)[1:]
    for mine, other in zip(states, theirs["encoder_outputs"], strict=True):
        mine, other = np.asarray(mine)[TOKENS], np.asarray(other)[TOKENS]
        np.testing.assert_allclose(mine, other, rtol=0, atol=atol)


def assert_same_weights(ours: keras.Model, theirs: keras.Model) -> None:
    values = {variable.path: variable.numpy() for variable in theirs.variables}
    assert {variable.path for variable in ours.variables} == values.keys()
    for variable in ours.variables:
        np.testing.assert_array_equal(variable.numpy(), values[variable.path], variable.path)


@pytest.mark.parametrize("activation", ["gelu", "gelu_approximate"])
@pytest.mark.parametrize("embedding_dim", [16, 48])
def test_model_garden_computes_what_a_converted_model_does(tmp_path, activation, embedding_dim):
    encoders = pytest.importorskip("official.nlp.configs.encoders")
    model = random_model(activation=activation, embedding_dim=embedding_dim)
    notes = write_model_garden(built(model), str(tmp_path / "converted"))
    assert any("masked-LM head is left out" in note for note in notes)
    # What is in it does not depend on where it was written.
    folder = (tmp_path / "converted").rename(tmp_path / "moved")
    encoder = encoders.build_encoder(encoder_config(folder))
    encoder(their_inputs())
    status = tf.train.Checkpoint(encoder=encoder).read(tf.train.latest_checkpoint(str(folder)))
    status.expect_partial().assert_existing_objects_matched()
    assert_same_outputs(model.backbone, encoder)


def test_model_garden_refuses_the_exact_gelu_of_a_file_and_takes_the_other(tmp_path):
    encoders = pytest.importorskip("official.nlp.configs.encoders")
    for activation in ("gelu", "gelu_approximate"):
        folder = tmp_path / activation
        notes = write_model_garden(built(random_model(None, activation=activation)), str(folder))
        text = (folder / "encoder.yaml").read_text()
        config = encoders.EncoderConfig(**yaml.safe_load(text))
        if activation == "gelu":
            assert any("exact GELU" in note for note in notes)
            with pytest.raises(ValueError, match="gelu_exact"):
                encoders.build_encoder(config)
        else:
            assert not notes
            assert "exact" not in text
            encoders.build_encoder(config)


@pytest.mark.parametrize("kind", ["bert", "bert_v2"])
def test_a_task_of_model_garden_fine_tunes_a_converted_model(tmp_path, kind):
    pytest.importorskip("official.nlp.tasks.sentence_prediction")
    from official.nlp.data import sentence_prediction_dataloader
    from official.nlp.tasks import sentence_prediction

    model = random_model(None, activation="gelu_approximate")
    write_model_garden(built(model), str(tmp_path))
    fields = yaml.safe_load((tmp_path / "encoder.yaml").read_text())["bert_v2"]
    config = sentence_prediction.SentencePredictionConfig(
        init_checkpoint=str(tmp_path),
        train_data=sentence_prediction_dataloader.SentencePredictionDataConfig(
            input_path="dummy", seq_length=9, global_batch_size=1
        ),
    )
    config.override(
        {
            "model": {
                "num_classes": 3,
                "use_encoder_pooler": True,
                "encoder": {"type": kind, kind: fields},
            }
        }
    )
    task = sentence_prediction.SentencePredictionTask(config)
    classifier = task.build_model()
    task.initialize(classifier)
    encoder = classifier.checkpoint_items["encoder"]
    assert_same_outputs(model, encoder)
    before = [variable.numpy() for variable in encoder.trainable_variables]
    rows = {**their_inputs(), task.label_field: tf.constant([[0], [1], [2]])}
    optimizer, metrics = tf_keras.optimizers.SGD(0.1), task.build_metrics()
    losses = [float(task.train_step(rows, classifier, optimizer, metrics)["loss"]) for _ in "123"]
    assert losses[-1] < losses[0]
    after = [variable.numpy() for variable in encoder.trainable_variables]
    # Softmax takes away what is the same for all keys: the gradient of their bias is rounding.
    names = [variable.name for variable in encoder.trainable_variables]
    moved = [not np.array_equal(*pair) for pair in zip(before, after, strict=True)]
    assert [n for n, m in zip(names, moved, strict=True) if not m and "key/bias" not in n] == []


@pytest.mark.parametrize("kind", ["BertEncoder", "BertEncoderV2"])
@pytest.mark.parametrize("embedding_width", [16, 48])
def test_an_encoder_of_model_garden_comes_in(tmp_path, kind, embedding_width):
    changes = {"dict_outputs": True} if kind == "BertEncoder" else {}
    encoder = their_encoder(kind, embedding_width=embedding_width, **changes)
    prefix = tf.train.Checkpoint(encoder=encoder).save(str(tmp_path / "ckpt"))
    source = open_model_garden(prefix)
    assert any("gelu_approximate" in note for note in source.notes)
    ours = build(source)
    assert_same_outputs(ours.model, encoder)
    assert len(ours.accounts.used) == len(encoder.variables)
    assert ours.accounts.ignored == {"save_counter": "how often the checkpoint was saved"}


def test_an_encoder_with_the_exact_gelu_comes_in_where_its_configuration_says_so(tmp_path):
    encoder = their_encoder(inner_activation=tf_keras.activations.gelu)
    prefix = tf.train.Checkpoint(encoder=encoder).save(str(tmp_path / "ckpt"))
    config = tmp_path / "encoder.yaml"
    fields = "dropout_rate: 0.2, embedding_size: 16, hidden_activation: gelu_exact"
    config.write_text(f"{{type: bert_v2, bert_v2: {{{fields}}}}}\n")
    for source in (open_model_garden(str(tmp_path)), open_model_garden(prefix, config=str(config))):
        assert source.arguments["dropout"] == 0.2
        assert not source.notes
        assert_same_outputs(build(source).model, encoder)


@pytest.mark.parametrize("tied", [True, False])
def test_the_masked_lm_head_of_model_garden_comes_in(tmp_path, tied):
    encoder = their_encoder()
    from official.nlp.modeling import layers, models

    table = None if tied else tf.Variable(tf.random.stateless_normal((517, 40), (1, 2)) * 0.1)
    head = None if tied else layers.MaskedLM(table, activation=approximate_gelu, name="predictions")
    pretrainer = models.BertPretrainerV2(
        encoder, mlm_activation=approximate_gelu, customized_masked_lm=head
    )
    pretrainer(their_inputs(with_positions=True))
    random_weights_into(pretrainer.masked_lm)
    checkpoint = tf.train.Checkpoint(**pretrainer.checkpoint_items)
    ours = build(open_model_garden(checkpoint.save(str(tmp_path / "ckpt")))).model
    assert ours.output_embedding_dim == ("tied" if tied else 40)
    theirs = pretrainer(their_inputs(with_positions=True))["mlm_logits"].numpy()
    rows = np.take_along_axis(TOKENS, INPUTS["mask_positions"], axis=1)
    logits = ours(INPUTS).numpy()
    np.testing.assert_allclose(logits[rows], theirs[rows], rtol=0, atol=1e-5)


def approximate_gelu(inputs):
    return tf.nn.gelu(inputs, approximate=True)


def test_a_checkpoint_of_a_whole_training_run_comes_in(tmp_path):
    encoder = their_encoder()
    from official.nlp.modeling import models

    classifier = models.BertClassifier(encoder, num_classes=3)
    optimizer = tf_keras.optimizers.Adam()
    optimizer.build(classifier.trainable_variables)
    checkpoint = tf.train.Checkpoint(
        model=classifier, optimizer=optimizer, global_step=tf.Variable(7)
    )
    source = open_model_garden(checkpoint.save(str(tmp_path / "ckpt")))
    ours = build(source)
    assert_same_outputs(ours.model, encoder)
    reasons = set(ours.accounts.ignored.values())
    assert {"the state of an optimizer", "the head of a task"} <= reasons


def test_a_round_trip_changes_nothing(tmp_path, vocabulary_folder):
    vocabulary = Vocabulary.load(vocabulary_folder)
    model = random_model(None, activation="gelu", dropout=0.1, vocabulary_size=600)
    seeds = {"pooler/dense/kernel": 5}
    write_model_garden(built(model, vocabulary, seeds), str(tmp_path / "there"))
    back = build(open_model_garden(str(tmp_path / "there")))
    assert_same_weights(back.model, model)
    assert back.model.get_config() | {"name": ""} == model.get_config() | {"name": ""}
    assert back.vocabulary.sha256 == vocabulary.sha256
    assert back.made_anew == seeds


def test_what_model_garden_has_no_place_for_is_refused_and_nothing_is_written(tmp_path):
    for changes, message in (
        ({"pooler": "mean"}, "dense pooler, and this model's is mean: --allow_missing pooler"),
        ({"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon of 1e-12. Received: 1e-06"),
        ({"embedding_dim": 48, "project_embeddings": True}, "no projection between embeddings"),
    ):
        with pytest.raises(KzooError, match=message):
            write_model_garden(built(random_model(None, **changes)), str(tmp_path / "out"))
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("converted") / "model"
    write_model_garden(built(random_model(None)), str(folder))
    return folder


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{type: bert_v2, bert_v2: {vocab_size: 99}}", "vocab_size is 99, but the tensors say 517"),
        ("{type: bert_v2, bert_v2: {num_attention_heads: 4}}", "but the tensors say 3"),
        ("{type: bert_v2, bert_v2: {norm_first: true}}", "norm_first must be False"),
        ("{type: bert_v2, bert_v2: {hidden_activation: relu}}", "hidden_activation must be gelu"),
        ("{type: bert_v2, bert_v2: {sparse: 4}}", "unknown field 'sparse'"),
        ("{type: albert, albert: {}}", r"type bert or bert_v2 in it. Received: type='albert'"),
        ("[1]", "no encoder"),
    ],
)
def test_a_configuration_that_does_not_fit_is_refused(converted, tmp_path, text, message):
    config = tmp_path / "encoder.yaml"
    config.write_text(text)
    with pytest.raises(KzooError, match=message):
        open_model_garden(str(converted), config=str(config))


def test_an_experiments_whole_configuration_is_read_too(converted, tmp_path):
    config = tmp_path / "params.yaml"
    fields = {"type": "bert", "bert": {"dropout_rate": 0.3, "hidden_activation": "gelu"}}
    config.write_text(yaml.safe_dump({"task": {"model": {"encoder": fields, "num_classes": 3}}}))
    arguments = open_model_garden(str(converted), config=str(config)).arguments
    assert arguments["dropout"] == 0.3
    assert arguments["activation"] == "gelu_approximate"


def _empty_encoder() -> tf.Module:
    encoder = tf.Module()
    for name in ENCODER_PARTS:
        part = tf.Module()
        part.variable = tf.Variable(0.0)
        setattr(encoder, name, part)
    return encoder


def test_a_checkpoint_without_one_encoder_is_refused(converted, tmp_path):
    tf.train.Checkpoint(other=tf.Variable(1.0)).save(str(tmp_path / "none"))
    with pytest.raises(KzooError, match="none of its objects is a BERT encoder"):
        open_model_garden(str(tmp_path))
    one, other = _empty_encoder(), _empty_encoder()
    prefix = tf.train.Checkpoint(student=one, teacher=other).save(str(tmp_path / "two"))
    with pytest.raises(KzooError, match="2 objects that are BERT encoders"):
        open_model_garden(prefix)


def test_a_tensor_that_belongs_to_nothing_is_named_until_a_mapping_says_why(tmp_path):
    encoder = their_encoder()
    checkpoint = tf.train.Checkpoint(encoder=encoder, adapter=tf.Variable([1.0, 2.0]))
    prefix = checkpoint.save(str(tmp_path / "ckpt"))
    with pytest.raises(KzooError, match=r"unknown: adapter \[2\]"):
        build(open_model_garden(prefix))
    mapping = tmp_path / "mapping.yaml"
    mapping.write_text("adapter: {ignore: of another experiment}\n")
    ours = build(open_model_garden(prefix, mapping=str(mapping)))
    assert ours.accounts.ignored["adapter"] == "of another experiment"
    assert_same_outputs(ours.model, encoder)


def test_a_missing_tensor_is_named(tmp_path):
    encoder = their_encoder()
    encoder.transformer_layers[1]._output_dense._delete_tracking("kernel")
    prefix = tf.train.Checkpoint(encoder=encoder).save(str(tmp_path / "ckpt"))
    with pytest.raises(KzooError, match="missing: encoder/_transformer_layers/1/_output_dense/"):
        build(open_model_garden(prefix))


def test_a_checkpoint_of_tensorflow_1_is_sent_to_its_own_route(tmp_path):
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variable = tf.compat.v1.get_variable("x", initializer=1.0)
        session.run(variable.initializer)
        tf.compat.v1.train.Saver().save(session, str(tmp_path / "model"))
    with pytest.raises(KzooError, match="--from tf1"):
        open_model_garden(str(tmp_path))
