"""Text with markers: which pieces stand around them, where they are, and which were cut off."""

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from kzoo import KzooError
from kzoo.saved_model.fill_mask_text import FillMaskText
from kzoo.saved_model.text_graph import TextGraph
from tests.paths import SHARED, needs_shared
from tests.saved_model.text_samples import ops_outside_core, sample_lines, trained_model

# A second message of the same type behind a model changes what it holds: no dummy prefix.
NO_DUMMY_PREFIX = b"\x1a\x02\x18\x00"


class Reference:
    """What the graph does, with SentencePiece itself."""

    def __init__(self, model: bytes):
        self.processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self.bare = sentencepiece.SentencePieceProcessor(model_proto=model + NO_DUMMY_PREFIX)
        self.mask_id = self.processor.piece_to_id("[MASK]")

    def ids(self, text: str) -> list[int]:
        first, *others = text.split("[MASK]")
        ids = self.processor.encode(first)
        for part in others:
            # What the part would begin with inside a text.
            begins_with_space = self.bare.normalize(f"x{part}").startswith("x▁")
            ids.append(self.mask_id)
            ids += (self.processor if begins_with_space else self.bare).encode(part)
        return ids

    def surface(self, ids: list[int]) -> str:
        return "".join(self.processor.id_to_piece(ids))


@pytest.fixture(scope="module")
def model() -> bytes:
    return trained_model("ar", "en", "ko", "zh")


@pytest.fixture(scope="module")
def reference(model) -> Reference:
    return Reference(model)


@pytest.fixture(scope="module")
def fill_mask_text(model) -> FillMaskText:
    return FillMaskText(TextGraph(model))


@pytest.fixture(scope="module")
def tokenize(fill_mask_text):
    """The graph as a function from texts to lists of ids."""
    function = tf.function(
        fill_mask_text.tokenize, input_signature=[tf.TensorSpec([None], tf.string)], autograph=False
    )
    return lambda texts: function(tf.constant(texts, tf.string)).to_list()


@pytest.mark.parametrize(
    ("text", "surface"),
    [
        ("The [MASK] rises.", "▁The[MASK]▁rises."),
        ("The [MASK]rises.", "▁The[MASK]rises."),
        ("The sun [MASK]. The[MASK] is here", "▁The▁sun[MASK].▁The[MASK]▁is▁here"),
        ("[MASK] sun", "[MASK]▁sun"),
        ("[MASK]sun", "[MASK]sun"),
        ("sun[MASK]", "▁sun[MASK]"),
        ("[MASK]", "[MASK]"),
        ("[MASK][MASK] [MASK]", "[MASK][MASK][MASK]"),
        (" [MASK]  ", "[MASK]"),
        ("sun[MASK][MASK] is", "▁sun[MASK][MASK]▁is"),
        ("no marker", "▁no▁marker"),
        ("", ""),
        ("AS [MASK]S", "▁AS[MASK]S"),
        ("我们在[MASK]上的人", "▁我们在[MASK]上的人"),
        ("我们[MASK][MASK]上，人。", "▁我们[MASK][MASK]上,人。"),
        ("[MASK]上的人", "[MASK]上的人"),
        ("我们[MASK]\u3000上", "▁我们[MASK]▁上"),
        ("الشمس [MASK] في", "▁الشمس[MASK]▁في"),
        ("ال[MASK] في", "▁ال[MASK]▁في"),
        ("ال[MASK]في", "▁ال[MASK]في"),
        ("sun [MASK]\r\n\tis", "▁sun[MASK]▁is"),
        ("sun [MASK]\x01 is", "▁sun[MASK]▁is"),
        ("sun [MASK]\x01is", "▁sun[MASK]is"),
        ("sun [MASK]\u200bis", "▁sun[MASK]▁is"),
    ],
)
def test_the_pieces_around_a_marker_are_those_of_its_neighbours(text, surface, tokenize, reference):
    ids = tokenize([text])[0]
    assert reference.surface(ids) == surface
    assert ids == reference.ids(text)
    assert ids.count(reference.mask_id) == text.count("[MASK]")


def test_texts_of_a_batch_have_the_ids_that_each_has_alone(tokenize, reference):
    lines = sample_lines("ar", "en", "ko", "zh")
    random = np.random.default_rng(0)
    texts = []
    for line in lines:
        first, second = np.sort(random.integers(0, len(line), 2))
        texts += [line, f"{line[:first]}[MASK]{line[first + 1 : second]}[MASK]{line[second + 2 :]}"]
    assert tokenize(texts) == [reference.ids(text) for text in texts]


@settings(deadline=None)
@given(
    st.lists(
        st.sampled_from(["[MASK]", " ", "a", "[", "MASK]", "方", "ال", "\n", "😀", "é", "\u0301"]),
        max_size=9,
    ).map("".join)
)
def test_any_mixture_has_the_ids_of_sentencepiece(tokenize, reference, text):
    assert tokenize([text]) == [reference.ids(text)]


def test_bytes_that_are_not_utf8_are_replaced(tokenize, reference):
    assert tokenize([b"a\xff[MASK]\xc3 b"]) == [reference.ids("a\ufffd[MASK]\ufffd b")]


@needs_shared
@pytest.mark.parametrize("name", ["control_symbols.model", "byte_fallback.model"])
def test_vocabularies_of_others_are_used_as_sentencepiece_does(name):
    model = (SHARED / "peers" / "sentencepiece" / name).read_bytes()
    texts = ["a[MASK]b [MASK] c", "北京是[MASK]国的首都", "😀[MASK]😀 [MASK] 😀"]
    in_graph = FillMaskText(TextGraph(model)).tokenize(tf.constant(texts)).to_list()
    reference = Reference(model)
    assert in_graph == [reference.ids(text) for text in texts]


@pytest.mark.parametrize(
    ("rules", "surface"),
    [
        # No dummy prefix: a space after a marker is still a space.
        (b"\x18\x00", "The[MASK]▁sun[MASK]s"),
        # Spaces are kept as they are.
        (b"\x20\x00", "▁The▁[MASK]▁sun[MASK]s"),
        (b"\x18\x00\x20\x00", "The▁[MASK]▁sun[MASK]s"),
    ],
)
def test_models_that_treat_spaces_otherwise_keep_those_after_markers(model, rules, surface):
    model += b"\x1a" + bytes([len(rules)]) + rules
    ids = FillMaskText(TextGraph(model)).tokenize(tf.constant(["The [MASK] sun[MASK]s"]))
    assert Reference(model).surface(ids.to_list()[0]) == surface


def packed(fill_mask_text, texts, *arguments):
    result = fill_mask_text.pack(tf.constant(texts, tf.string), *arguments)
    assert {array.dtype for array in result.values()} == {tf.int32}
    return {name: array.numpy().tolist() for name, array in result.items()}


def test_positions_are_those_of_the_markers(fill_mask_text, reference):
    texts = ["The [MASK] rises in the [MASK][MASK].", "no marker", "[MASK]", ""]
    result = packed(fill_mask_text, texts, 64)
    expected = [
        [position for position, token_id in enumerate(row) if token_id == reference.mask_id]
        for row in result["input_word_ids"]
    ]
    assert result["num_masks"] == [3, 0, 1, 0] == [len(row) for row in expected]
    assert result["mask_positions"] == [row + [0] * (3 - len(row)) for row in expected]
    assert result["mask_positions"][2] == [1, 0, 0]
    assert result["num_masks_cut_off"] == [0, 0, 0, 0]


def test_rows_are_those_of_packing(fill_mask_text, model):
    text_graph = TextGraph(model)
    texts = ["The [MASK] rises in the [MASK][MASK].", "", "ال[MASK]"]
    pieces = fill_mask_text.tokenize(tf.constant(texts))
    for arguments in ((64,), (64, True), (5,), (tf.constant(5), True)):
        pad_to_length = arguments[1] if len(arguments) > 1 else False
        expected = text_graph.pack([pieces], arguments[0], pad_to_length)
        result = packed(fill_mask_text, texts, *arguments)
        for name, array in expected.items():
            assert result[name] == array.numpy().tolist()


def test_markers_that_are_cut_off_are_counted(fill_mask_text, reference):
    texts = ["[MASK][MASK][MASK][MASK][MASK]", "[MASK]", "The sun rises in the [MASK]."]
    assert len(reference.ids(texts[2])) > 4
    result = packed(fill_mask_text, texts, 5)
    assert result["num_masks"] == [3, 1, 0]
    assert result["num_masks_cut_off"] == [2, 0, 1]
    assert result["mask_positions"] == [[1, 2, 3], [1, 0, 0], [0, 0, 0]]


def test_batches_without_markers_and_without_texts_are_packed(fill_mask_text):
    result = fill_mask_text.pack(tf.constant(["sun", ""]), 8)
    assert result["mask_positions"].shape == (2, 0)
    result = fill_mask_text.pack(tf.constant([], tf.string), 8)
    assert result["mask_positions"].shape == (0, 0)
    assert result["num_masks"].shape == result["num_masks_cut_off"].shape == (0,)
    assert result["input_word_ids"].shape[0] == 0


def test_a_length_without_room_for_the_special_pieces_is_refused(fill_mask_text):
    with pytest.raises(KzooError, match=r"Received: sequence_length=1$"):
        fill_mask_text.pack(tf.constant(["sun"]), 1)


class Module(tf.Module):
    def __init__(self, fill_mask_text):
        super().__init__()
        self.fill_mask_text = fill_mask_text

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string)])
    def __call__(self, texts):
        return self.fill_mask_text.pack(texts, 16)


def test_it_is_saved_with_two_operations_that_are_not_of_core_tensorflow(fill_mask_text, tmp_path):
    folder = tmp_path / "module"
    tf.saved_model.save(Module(fill_mask_text), str(folder))
    assert ops_outside_core(folder) == ["SentencepieceOp", "SentencepieceTokenizeOp"]
    texts = tf.constant(["The [MASK] rises.", "我们在[MASK]上的人"])
    loaded, here = tf.saved_model.load(str(folder))(texts), fill_mask_text.pack(texts, 16)
    assert set(loaded) == set(here)
    for name, array in here.items():
        np.testing.assert_array_equal(loaded[name], array)
