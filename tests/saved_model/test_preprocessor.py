"""The preprocessor as TensorFlow Hub's users know it: by Keras, in pipelines, and saved again."""

import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_hub as hub
import tf_keras

from kzoo import KzooError
from kzoo.saved_model.preprocessor import PreprocessorModule
from kzoo.saved_model.text_graph import TextGraph
from kzoo.text.packing import pack
from kzoo.text.vocabulary import Vocabulary
from tests.paths import REPOSITORY
from tests.saved_model.text_samples import BAD_BYTES, ODD_TEXTS, ops_outside_core, trained_model
from tests.training.subprocesses import run_python

LENGTH = 16
NAMES = {"input_word_ids", "input_mask", "input_type_ids"}
FIRST = ["The sun rises early in the east, and sets late in the west.", "Yes.", "北京"]
SECOND = ["It is a long day.", "", "上海是一座城市"]


@pytest.fixture(scope="module")
def model() -> bytes:
    return trained_model("ar", "en", "ko", "zh")


@pytest.fixture(scope="module")
def vocabulary(model) -> Vocabulary:
    return Vocabulary(model)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    """A preprocessor whose vocabulary's file and first folder are gone."""
    folder = tmp_path_factory.mktemp("made_here") / "preprocessor"
    PreprocessorModule(TextGraph(model), LENGTH).save(folder)
    moved = tmp_path_factory.mktemp("moved_there") / "preprocessor"
    shutil.move(folder, moved)
    return moved


@pytest.fixture(scope="module")
def preprocessor(saved):
    return tf.saved_model.load(str(saved))


def expected_ids(vocabulary, texts, length=LENGTH):
    """`[CLS] a [SEP]` or `[CLS] a [SEP] b [SEP]`, padded; a row of `texts` is one or two texts."""
    rows = [
        pack(
            *(vocabulary.encode(text) for text in row),
            cls_id=vocabulary.cls_id,
            sep_id=vocabulary.sep_id,
            sequence_length=length,
        )[0].tolist()
        for row in texts
    ]
    return [row + [vocabulary.pad_id] * (length - len(row)) for row in rows]


def check(inputs, vocabulary, texts, length=LENGTH):
    """`inputs` are the encoder's, for rows of one or two texts."""
    assert set(inputs) == NAMES
    for array in inputs.values():
        assert array.dtype in (tf.int32, np.int32)
        assert tuple(array.shape) == (len(texts), length)
    inputs = {name: np.asarray(array) for name, array in inputs.items()}
    assert inputs["input_word_ids"].tolist() == expected_ids(vocabulary, texts, length)
    assert vocabulary.pad_id not in inputs["input_word_ids"][inputs["input_mask"] == 1]
    num_segments = len(texts[0])
    assert inputs["input_type_ids"].max() == num_segments - 1
    assert not inputs["input_type_ids"][inputs["input_mask"] == 0].any()


def single(texts):
    return [(text,) for text in texts]


def pairs():
    return list(zip(FIRST, SECOND, strict=True))


def test_it_is_called_with_texts(preprocessor, vocabulary):
    check(preprocessor(tf.constant(FIRST)), vocabulary, single(FIRST))
    check(preprocessor(FIRST), vocabulary, single(FIRST))


def test_odd_texts_are_packed_as_outside(preprocessor, vocabulary):
    texts = [*ODD_TEXTS, *BAD_BYTES]
    decoded = [*ODD_TEXTS, *(data.decode(errors="replace") for data in BAD_BYTES)]
    check(preprocessor(tf.constant(texts)), vocabulary, single(decoded))


def test_no_texts_give_no_rows(preprocessor):
    inputs = preprocessor(tf.constant([], tf.string))
    assert {name: tuple(array.shape) for name, array in inputs.items()} == dict.fromkeys(
        NAMES, (0, LENGTH)
    )


def test_the_signature_takes_text(preprocessor, vocabulary):
    signature = preprocessor.signatures["serving_default"]
    assert [*preprocessor.signatures] == ["serving_default"]
    assert [*signature.structured_input_signature[1]] == ["text"]
    assert {tuple(spec.shape) for spec in signature.structured_outputs.values()} == {(None, LENGTH)}
    check(signature(text=tf.constant(FIRST)), vocabulary, single(FIRST))


def test_tokenize_gives_ragged_pieces(preprocessor, vocabulary):
    pieces = preprocessor.tokenize(tf.constant(FIRST))
    assert isinstance(pieces, tf.RaggedTensor)
    assert pieces.dtype == tf.int32
    assert pieces.shape.as_list() == [3, None]
    assert pieces.to_list() == [vocabulary.encode(text).tolist() for text in FIRST]


def test_special_pieces_are_told(preprocessor, vocabulary):
    told = preprocessor.tokenize.get_special_tokens_dict()
    assert {value.dtype for value in told.values()} == {tf.int32}
    assert {name: int(value) for name, value in told.items()} == {
        "vocab_size": vocabulary.size,
        "padding_id": vocabulary.pad_id,
        "start_of_sequence_id": vocabulary.cls_id,
        "end_of_segment_id": vocabulary.sep_id,
        "mask_id": vocabulary.mask_id,
    }


@pytest.mark.parametrize(
    "length",
    [
        5,
        LENGTH,
        64,
        np.int64(7),
        tf.constant(11),
        tf.constant(11, tf.int64),
    ],
)
def test_pairs_are_packed_to_any_length(preprocessor, vocabulary, length):
    segments = [preprocessor.tokenize(tf.constant(texts)) for texts in (FIRST, SECOND)]
    packed = preprocessor.bert_pack_inputs(segments, seq_length=length)
    check(packed, vocabulary, pairs(), int(length))
    check(
        preprocessor.bert_pack_inputs(segments[:1], length), vocabulary, single(FIRST), int(length)
    )


def test_the_length_of_the_export_is_the_default(preprocessor, vocabulary):
    segments = [preprocessor.tokenize(tf.constant(texts)) for texts in (FIRST, SECOND)]
    check(preprocessor.bert_pack_inputs(segments), vocabulary, pairs())
    check(preprocessor.bert_pack_inputs(segments[1:]), vocabulary, single(SECOND))


@pytest.mark.parametrize("words_in", [(0,), (1,), (0, 1)])
def test_pieces_in_words_are_joined(preprocessor, words_in):
    words = [
        tf.ragged.constant(rows, tf.int32, ragged_rank=2, row_splits_dtype=tf.int64)
        for rows in ([[[7, 8], [], [9]], []], [[[6]], [[10, 11], [12]]])
    ]
    joined = [segment.merge_dims(1, 2) for segment in words]
    assert joined[0].to_list() == [[7, 8, 9], []]
    mixed = [words[i] if i in words_in else joined[i] for i in (0, 1)]
    for arguments in ({}, {"seq_length": 12}):
        expected = preprocessor.bert_pack_inputs(joined, **arguments)
        packed = preprocessor.bert_pack_inputs(mixed, **arguments)
        for name in NAMES:
            np.testing.assert_array_equal(packed[name], expected[name])


@pytest.mark.parametrize("length", [-1, 0, 2])
def test_a_length_without_room_for_the_special_pieces_is_named(preprocessor, length):
    segments = [preprocessor.tokenize(tf.constant(texts)) for texts in (FIRST, SECOND)]
    message = rf"(?s)a sequence of 2 segment.* at least 3 ids.*{length}"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        preprocessor.bert_pack_inputs(segments, seq_length=length)


def test_a_default_length_that_is_too_short_is_refused(model):
    with pytest.raises(KzooError, match=r"Received: sequence_length=2$"):
        PreprocessorModule(TextGraph(model), 2)


def hub_model(preprocessor, length: int) -> tf_keras.Model:
    """Pairs of texts to inputs of another length, as TensorFlow Hub's guides build it."""
    texts = [tf_keras.layers.Input(shape=(), dtype=tf.string, name=name) for name in ("a", "b")]
    tokenize = hub.KerasLayer(preprocessor.tokenize)
    pack_inputs = hub.KerasLayer(
        preprocessor.bert_pack_inputs, arguments={"seq_length": length}, name="packer"
    )
    return tf_keras.Model(texts, pack_inputs([tokenize(text) for text in texts]))


def test_hub_keras_layer_takes_the_whole(saved, preprocessor, vocabulary):
    for handle in (str(saved), preprocessor):
        text = tf_keras.layers.Input(shape=(), dtype=tf.string)
        outputs = hub.KerasLayer(handle)(text)
        assert {tuple(output.shape) for output in outputs.values()} == {(None, LENGTH)}
        keras_model = tf_keras.Model(text, outputs)
        check(keras_model.predict(tf.constant(FIRST), verbose=0), vocabulary, single(FIRST))


def test_hub_keras_layer_takes_the_halves(preprocessor, vocabulary):
    keras_model = hub_model(preprocessor, 24)
    check(keras_model([tf.constant(FIRST), tf.constant(SECOND)]), vocabulary, pairs(), 24)


def test_it_maps_over_a_dataset(preprocessor, vocabulary):
    dataset = tf.data.Dataset.from_tensor_slices(FIRST).batch(2).map(preprocessor)
    assert {tuple(spec.shape) for spec in dataset.element_spec.values()} == {(None, LENGTH)}
    check(next(iter(dataset)), vocabulary, single(FIRST[:2]))

    def packed(first, second):
        segments = [preprocessor.tokenize(first), preprocessor.tokenize(second)]
        return preprocessor.bert_pack_inputs(segments, seq_length=9)

    dataset = tf.data.Dataset.from_tensor_slices((FIRST, SECOND)).batch(3).map(packed)
    check(next(iter(dataset)), vocabulary, pairs(), 9)


class Shorter(tf.Module):
    """What a user makes of a loaded preprocessor."""

    def __init__(self, preprocessor, length):
        super().__init__()
        self.preprocessor = preprocessor
        self.length = length

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def __call__(self, text):
        pieces = self.preprocessor.tokenize(text)
        return self.preprocessor.bert_pack_inputs([pieces], seq_length=self.length)


def test_saved_again_with_another_length_it_needs_nothing_of_the_first(saved, tmp_path, vocabulary):
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(saved, first)
    tf.saved_model.save(Shorter(tf.saved_model.load(str(first)), 8), str(second))
    shutil.rmtree(first)
    again = tf.saved_model.load(str(second))
    check(again(tf.constant(FIRST)), vocabulary, single(FIRST), 8)
    # The preprocessor within it is whole, and can be changed again.
    check(Shorter(again.preprocessor, 12)(tf.constant(FIRST)), vocabulary, single(FIRST), 12)


def test_a_keras_model_of_its_halves_is_saved_and_needs_nothing_of_it(saved, tmp_path, vocabulary):
    first, second = tmp_path / "first", tmp_path / "second"
    shutil.copytree(saved, first)
    hub_model(hub.load(str(first)), 24).save(second, save_format="tf")
    shutil.rmtree(first)
    inputs = [tf.constant(FIRST), tf.constant(SECOND)]
    check(tf_keras.models.load_model(second)(inputs), vocabulary, pairs(), 24)
    check(hub.load(str(second))(inputs), vocabulary, pairs(), 24)


FRESH_PROCESS = """
import json, sys
import tensorflow as tf
import tensorflow_text
preprocessor = tf.saved_model.load(sys.argv[1])
pieces = preprocessor.tokenize(tf.constant(["The sun rises."]))
packed = preprocessor.bert_pack_inputs([pieces, pieces], seq_length=31)
assert "kzoo" not in sys.modules and "sentencepiece" not in sys.modules
print(json.dumps(packed["input_word_ids"].numpy().tolist()))
"""


def test_a_process_without_kzoo_gives_the_same_ids(saved, vocabulary):
    text = "The sun rises."
    loaded = json.loads(run_python(FRESH_PROCESS, saved).stdout)
    assert loaded == expected_ids(vocabulary, [(text, text)], 31)


def test_two_operations_are_not_of_core_tensorflow(saved):
    assert ops_outside_core(saved) == ["SentencepieceOp", "SentencepieceTokenizeOp"]


def test_the_vocabulary_is_in_the_graph_and_no_path_is(saved, model):
    stored = [path.read_bytes() for path in saved.rglob("*") if path.is_file()]
    # TensorFlow writes what makes a resource twice: for its own loader and for sessions.
    assert sum(content.count(model) for content in stored) == 2
    assert sum(map(len, stored)) < 2 * len(model) + 800_000
    assert not any((saved / "assets").iterdir())
    for place in (str(REPOSITORY).encode(), b"made_here"):
        assert not any(place in content for content in stored)
