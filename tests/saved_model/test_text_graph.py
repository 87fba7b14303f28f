"""Text inside graphs: the ids of preparation, and the rows of packing."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from kzoo import KzooError
from kzoo.corpora.encoding import encode_shard
from kzoo.corpora.reading import read_documents
from kzoo.corpora.segments import Segment
from kzoo.saved_model.text_graph import TextGraph
from kzoo.text.packing import pack
from kzoo.text.vocabulary import Vocabulary
from tests.paths import SHARED, needs_shared
from tests.saved_model.text_samples import (
    BAD_BYTES,
    ODD_TEXTS,
    sample_lines,
    trained_model,
)

LANGUAGES = ("ar", "en", "ko", "zh")


@pytest.fixture(scope="module")
def model() -> bytes:
    return trained_model(*LANGUAGES)


@pytest.fixture(scope="module")
def vocabulary(model) -> Vocabulary:
    return Vocabulary(model)


@pytest.fixture(scope="module")
def text_graph(model) -> TextGraph:
    return TextGraph(model)


@pytest.fixture(scope="module")
def tokenize(text_graph):
    """The graph as a function from texts to lists of ids."""
    function = tf.function(
        text_graph.tokenize, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False
    )
    return lambda texts: function(tf.constant(texts, tf.string)).to_list()


def ids_of(vocabulary: Vocabulary, texts: list[str]) -> list[list[int]]:
    return [vocabulary.encode(text).tolist() for text in texts]


def test_ids_of_the_special_pieces_are_python_numbers(text_graph, vocabulary):
    for name in ("pad_id", "cls_id", "sep_id", "mask_id", "unk_id"):
        assert getattr(text_graph, name) == getattr(vocabulary, name)
        assert type(getattr(text_graph, name)) is int
    assert text_graph.vocabulary_size == vocabulary.size == 2000


def test_what_is_no_vocabulary_is_refused():
    with pytest.raises(KzooError, match="is not a SentencePiece model"):
        TextGraph(b"nothing")


@pytest.mark.parametrize("text", ODD_TEXTS)
def test_an_odd_text_has_the_ids_of_preparation(text, tokenize, vocabulary):
    assert tokenize([text]) == ids_of(vocabulary, [text])


def test_texts_of_a_batch_have_the_ids_that_each_has_alone(tokenize, vocabulary):
    texts = [*ODD_TEXTS, *sample_lines(*LANGUAGES)]
    assert tokenize(texts) == ids_of(vocabulary, texts)


def test_no_text_gives_a_special_piece(tokenize, text_graph):
    text = "x [MASK] [SEP] </s> <pad> [CLS]"
    controls = {text_graph.pad_id, text_graph.cls_id, text_graph.sep_id, text_graph.mask_id}
    ids = tokenize([text, text.replace(" ", "")])
    assert min(map(len, ids)) > 5
    assert not controls & set(itertools.chain(*ids))


def test_300_kilobytes_without_a_space_have_the_ids_of_preparation(tokenize, vocabulary):
    text = "".join("".join(sample_lines("zh", "en")).split())
    text *= 300_000 // len(text.encode()) + 1
    in_graph, expected = tokenize([text, "a"]), ids_of(vocabulary, [text, "a"])
    assert len(in_graph[0]) == len(expected[0]) > 100_000
    # Beyond, rounding decides between segmentations that are about equally likely.
    assert in_graph[0][:100_000] == expected[0][:100_000]
    assert in_graph[1] == expected[1]


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_text_has_the_ids_of_preparation(tokenize, vocabulary, text):
    assert tokenize([text]) == ids_of(vocabulary, [text])


@pytest.mark.parametrize("data", BAD_BYTES)
def test_bytes_that_are_not_utf8_have_the_ids_of_preparation(data, tokenize, vocabulary):
    shard = encode_shard(
        [Segment("a.txt", 1, data)], vocabulary, sequence_length=64, on_bad_text="replace"
    )
    assert shard.bad_text.replaced == 1
    pieces = np.frombuffer(b"".join(shard.records), "<u2").tolist()
    assert tokenize([data]) == [pieces]


@settings(deadline=None)
@given(st.binary(max_size=20))
def test_any_bytes_have_the_ids_of_their_replacement(tokenize, vocabulary, data):
    assert tokenize([data]) == ids_of(vocabulary, [data.decode(errors="replace")])


def test_no_texts_have_no_ids(tokenize):
    assert tokenize([]) == []


class TwoVocabularies(tf.Module):
    def __init__(self, *models):
        super().__init__()
        self.text_graphs = [TextGraph(model) for model in models]

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def __call__(self, texts):
        return [text_graph.tokenize(texts) for text_graph in self.text_graphs]


def test_two_vocabularies_in_one_saved_model_do_not_meet(model, vocabulary, tmp_path):
    other_model = trained_model("de", size=600)
    module = TwoVocabularies(model, other_model)
    tf.saved_model.save(module, str(tmp_path))
    lines = sample_lines("en")[:5]
    expected = [ids_of(vocabulary, lines), ids_of(Vocabulary(other_model), lines)]
    for function in (module, tf.saved_model.load(str(tmp_path))):
        assert [ids.to_list() for ids in function(tf.constant(lines))] == expected
    assert expected[0] != expected[1]


@needs_shared
@pytest.mark.parametrize("name", ["control_symbols.model", "byte_fallback.model"])
def test_every_line_of_the_held_out_corpus_has_the_ids_of_preparation(name):
    model = (SHARED / "peers" / "sentencepiece" / name).read_bytes()
    files = sorted((SHARED / "data" / "corpus").glob("dev-*.jsonl.gz"))
    lines = [line for file in files for text in read_documents(str(file)) for line in text]
    assert len(lines) > 1000
    text_graph, vocabulary = TextGraph(model), Vocabulary(model)
    in_graph = text_graph.tokenize(tf.constant(lines)).to_list()
    expected = ids_of(vocabulary, lines)
    assert [
        line for line, *ids in zip(lines, in_graph, expected, strict=True) if ids[0] != ids[1]
    ] == []
    odd = [*ODD_TEXTS, *(data.decode(errors="replace") for data in BAD_BYTES)]
    in_graph = text_graph.tokenize(tf.constant([*ODD_TEXTS, *BAD_BYTES])).to_list()
    assert in_graph == ids_of(vocabulary, odd)


def ragged(ids: list[list[int]]) -> tf.RaggedTensor:
    return tf.ragged.constant(ids, tf.int32, ragged_rank=1, row_splits_dtype=tf.int64)


def packed_in_graph(text_graph, segments, sequence_length, pad_to_length=True):
    segments = [ragged(segment) for segment in segments]
    packed = text_graph.pack(segments, sequence_length, pad_to_length)
    assert [*packed] == ["input_word_ids", "input_mask", "input_type_ids"]
    assert {array.dtype for array in packed.values()} == {tf.int32}
    return [array.numpy().tolist() for array in packed.values()]


def packed_outside(text_graph, segments, sequence_length, pad_to_length=True):
    """Rows of `kzoo.text.packing.pack`, padded."""
    ids = {"cls_id": text_graph.cls_id, "sep_id": text_graph.sep_id}
    rows = [
        pack(*row, **ids, sequence_length=sequence_length) for row in zip(*segments, strict=True)
    ]
    smallest = len(segments) + 1
    longest = max([smallest, *(len(token_ids) for token_ids, _ in rows)])
    length = sequence_length if pad_to_length else longest

    def padded(array, value):
        return [*array.tolist(), *[value] * (length - len(array))]

    return [
        [padded(token_ids, text_graph.pad_id) for token_ids, _ in rows],
        [padded(np.ones_like(token_ids), 0) for token_ids, _ in rows],
        [padded(segment_ids, 0) for _, segment_ids in rows],
    ]


pieces = st.lists(st.integers(6, 1999), max_size=8)


@settings(deadline=None)
@given(
    st.lists(st.tuples(pieces, pieces), max_size=4),
    st.sampled_from([1, 2]),
    st.integers(3, 20),
    st.booleans(),
    st.booleans(),
)
def test_rows_are_those_of_packing_outside(
    text_graph, rows, num_segments, sequence_length, pad_to_length, as_tensor
):
    segments = [[row[number] for row in rows] for number in range(num_segments)]
    length = tf.constant(sequence_length) if as_tensor else sequence_length
    in_graph = packed_in_graph(text_graph, segments, length, pad_to_length)
    assert in_graph == packed_outside(text_graph, segments, sequence_length, pad_to_length)


def test_lengths_that_a_graph_is_traced_with_are_static(text_graph):
    @tf.function(input_signature=[tf.RaggedTensorSpec([None, None], tf.int32, 1)])
    def packed(segment):
        return text_graph.pack([segment], 9)

    shapes = {
        tuple(spec.shape) for spec in packed.get_concrete_function().structured_outputs.values()
    }
    assert shapes == {(None, 9)}


def test_a_batch_without_rows_is_packed(text_graph):
    for pad_to_length, length in ((True, 9), (False, 3)):
        packed = text_graph.pack([ragged([]), ragged([])], 9, pad_to_length)
        assert {tuple(array.shape) for array in packed.values()} == {(0, length)}


@pytest.mark.parametrize("num_segments", [1, 2])
def test_a_length_without_room_for_the_special_pieces_is_refused(text_graph, num_segments):
    segments = [ragged([[7]])] * num_segments
    num_special = num_segments + 1
    message = f"at least {num_special} ids"
    with pytest.raises(KzooError, match=f"{message}.*Received: sequence_length={num_segments}"):
        text_graph.pack(segments, num_segments)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){message}.*{num_segments}"):
        text_graph.pack(segments, tf.constant(num_segments))
    packed = text_graph.pack(segments, num_special)
    assert packed["input_word_ids"].numpy().tolist() == [
        [text_graph.cls_id, *[text_graph.sep_id] * num_segments]
    ]


def test_segments_of_different_batches_are_refused(text_graph):
    with pytest.raises(tf.errors.InvalidArgumentError, match="both segments need the same batch"):
        text_graph.pack([ragged([[7], [8]]), ragged([[9]])], 12)


@pytest.mark.parametrize("num_segments", [0, 3])
def test_other_numbers_of_segments_are_refused(text_graph, num_segments):
    with pytest.raises(KzooError, match=f"Received: {num_segments} of them"):
        text_graph.pack([ragged([[7]])] * num_segments, 12)
