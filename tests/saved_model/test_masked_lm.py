"""The model with its output table: scores of pieces, and text whose `[MASK]`s are filled."""

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf

from kzoo.layers.masked_lm_head import MaskedLMHead
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.saved_model import signature_names
from kzoo.saved_model.masked_lm import MaskedLMModule
from kzoo.saved_model.text_graph import TextGraph
from tests.saved_model.exports import SEQUENCE_LENGTH, TEXTS, packed, random_model

TWO_MASKS = "The [MASK] is late and [MASK] full"


@pytest.fixture(scope="module")
def loaded(served):
    return tf.saved_model.load(str(served.masked_lm))


def fill(loaded, texts: list, **others) -> dict[str, np.ndarray]:
    signature = loaded.signatures["fill_mask_top_k" if others else "fill_mask"]
    inputs = {name: tf.constant(value, tf.int32) for name, value in others.items()}
    outputs = signature(text=tf.constant(texts, tf.string), **inputs)
    return {name: value.numpy() for name, value in outputs.items()}


def inputs_with_positions(served, dtype=np.int32) -> dict[str, np.ndarray]:
    inputs = packed(served.vocabulary, TEXTS)
    positions = np.array([[1, 2, 3], [0, 1, 0], [4, 1, 1], [5, 9, 7]])
    return {
        "input_word_ids": inputs["token_ids"].astype(dtype),
        "input_mask": inputs["padding_mask"].astype(dtype),
        "input_type_ids": inputs["segment_ids"].astype(dtype),
        "masked_lm_positions": positions.astype(dtype),
    }


def expected_outputs(
    model: RemBertMaskedLM, inputs: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    backbone_inputs = {
        "token_ids": inputs["input_word_ids"],
        "padding_mask": inputs["input_mask"],
        "segment_ids": inputs["input_type_ids"],
    }
    logits = model({**backbone_inputs, "mask_positions": inputs["masked_lm_positions"]})
    return {"mlm_logits": logits, **model.backbone(backbone_inputs)}


def expected_ids(served, text: str) -> list[int]:
    """The ids of a text whose markers stand between spaces."""
    vocabulary = served.vocabulary
    parts = [vocabulary.encode(part.strip()).tolist() for part in text.split("[MASK]")]
    ids = [vocabulary.cls_id, *parts[0]]
    for part in parts[1:]:
        ids += [vocabulary.mask_id, *part]
    return [*ids, vocabulary.sep_id]


def expected_filling(served, text: str, top_k: int) -> list[list[tuple[str, float]]]:
    """For each marker, the likeliest pieces and their probabilities."""
    ids = np.array([expected_ids(served, text)], np.int32)
    positions = np.flatnonzero(ids[0] == served.vocabulary.mask_id)
    inputs = {
        "token_ids": ids,
        "padding_mask": np.ones_like(ids),
        "segment_ids": np.zeros_like(ids),
        "mask_positions": positions[np.newaxis].astype(np.int32),
    }
    probabilities = tf.nn.softmax(served.model(inputs)[0]).numpy()
    processor: sentencepiece.SentencePieceProcessor = served.vocabulary.processor
    return [
        [(processor.id_to_piece(int(id_)), row[id_]) for id_ in np.argsort(-row)[:top_k]]
        for row in probabilities
    ]


def assert_filling(outputs: dict[str, np.ndarray], row: int, expected: list) -> None:
    assert outputs["num_masks"][row] == len(expected)
    for mask, candidates in enumerate(expected):
        pieces = [piece.decode() for piece in outputs["pieces"][row, mask]][: len(candidates)]
        assert pieces == [piece for piece, _ in candidates]
        np.testing.assert_allclose(
            outputs["probabilities"][row, mask][: len(candidates)],
            [probability for _, probability in candidates],
            rtol=1e-4,
        )


def test_signatures_have_the_documented_names(loaded):
    found = {
        name: (
            set(signature.structured_input_signature[1]),
            set(signature.structured_outputs),
        )
        for name, signature in loaded.signatures.items()
    }
    assert found == {
        name: (set(inputs), set(outputs))
        for name, (inputs, outputs) in signature_names.MASKED_LM.items()
    }


def test_scores_are_the_model_s(loaded, served):
    inputs = inputs_with_positions(served)
    expected = expected_outputs(served.model, inputs)
    outputs = loaded.signatures["serving_default"](
        **{name: tf.constant(value) for name, value in inputs.items()}
    )
    assert outputs["mlm_logits"].shape == (4, 3, 600)
    for name in ("mlm_logits", "sequence_output", "pooled_output"):
        assert outputs[name].dtype == tf.float32
        np.testing.assert_allclose(outputs[name], expected[name], atol=1e-5)


@pytest.mark.parametrize("dtype", [np.int32, np.int64])
def test_the_loaded_object_is_called_as_tf_hub_s_mlm(dtype, loaded, served):
    inputs = inputs_with_positions(served, dtype)
    expected = expected_outputs(served.model, inputs)
    outputs = loaded({name: tf.constant(value) for name, value in inputs.items()})
    np.testing.assert_allclose(outputs["mlm_logits"], expected["mlm_logits"], atol=1e-5)
    np.testing.assert_allclose(outputs["default"], expected["pooled_output"], atol=1e-5)
    assert len(outputs["encoder_outputs"]) == 3
    np.testing.assert_allclose(
        outputs["encoder_outputs"][-1], expected["sequence_output"], atol=1e-5
    )


def test_variables_are_stored_once_under_their_paths(served):
    stored = {
        name
        for name, _ in tf.train.list_variables(str(served.masked_lm / "variables" / "variables"))
    }
    stored.remove("_CHECKPOINTABLE_OBJECT_GRAPH")
    assert {
        name.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE").replace(".S", "/") for name in stored
    } == {f"named_variables/{variable.path}" for variable in served.model.variables}


def test_every_variable_of_the_model_can_be_trained_further(loaded, served):
    shapes = sorted(list(variable.shape) for variable in served.model.variables)
    assert sorted(variable.shape.as_list() for variable in loaded.variables) == shapes
    assert len(loaded.trainable_variables) == len(shapes)
    inputs = {name: tf.constant(value) for name, value in inputs_with_positions(served).items()}
    with tf.GradientTape() as tape:
        outputs = loaded(inputs, training=True)
        loss = tf.reduce_sum(outputs["mlm_logits"] ** 2) + tf.reduce_sum(outputs["pooled_output"])
    gradients = tape.gradient(loss, loaded.trainable_variables)
    assert all(gradient is not None for gradient in gradients)


def test_dropout_is_active_in_training_alone(served, tmp_path):
    model = random_model(served.vocabulary, dropout=0.5)
    MaskedLMModule(model, TextGraph(served.vocabulary.model), SEQUENCE_LENGTH).save(tmp_path / "m")
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    inputs = {name: tf.constant(value) for name, value in inputs_with_positions(served).items()}

    def logits(training: bool) -> np.ndarray:
        return loaded(inputs, training=training)["mlm_logits"].numpy()

    assert np.abs(logits(True) - logits(True)).max() > 0.1
    np.testing.assert_array_equal(logits(False), logits(False))


def test_masks_are_filled_with_the_likeliest_pieces(loaded, served):
    outputs = fill(loaded, [TWO_MASKS])
    assert_filling(outputs, 0, expected_filling(served, TWO_MASKS, 5))
    ids = expected_ids(served, TWO_MASKS)
    positions = np.flatnonzero(np.array(ids) == served.vocabulary.mask_id)
    np.testing.assert_array_equal(outputs["mask_positions"], [positions])
    assert outputs["pieces"].shape == outputs["probabilities"].shape == (1, 2, 5)


def test_rows_may_have_fewer_masks_than_others(loaded, served):
    texts = ["no mask", TWO_MASKS, "one [MASK] here", "[MASK]"]
    outputs = fill(loaded, texts)
    assert outputs["num_masks"].tolist() == [0, 2, 1, 1]
    for row, text in enumerate(texts):
        assert_filling(outputs, row, expected_filling(served, text, 5))
        unused = slice(outputs["num_masks"][row], None)
        assert set(outputs["pieces"][row, unused].ravel()) <= {b""}
        assert not outputs["probabilities"][row, unused].any()


def test_each_row_has_its_own_number_of_candidates(loaded, served):
    texts = ["one [MASK] here", TWO_MASKS]
    outputs = fill(loaded, texts, top_k=[2, 7])
    assert outputs["pieces"].shape == (2, 2, 7)
    assert_filling(outputs, 0, expected_filling(served, texts[0], 2))
    assert_filling(outputs, 1, expected_filling(served, texts[1], 7))
    assert set(outputs["pieces"][0, 0, 2:]) == {b""}
    assert not outputs["probabilities"][0, 0, 2:].any()


def test_no_more_candidates_are_given_than_there_are_pieces(loaded):
    outputs = fill(loaded, ["[MASK]"], top_k=[10_000])
    assert outputs["pieces"].shape == (1, 1, 600)
    np.testing.assert_allclose(outputs["probabilities"].sum(), 1, rtol=1e-5)


def test_less_than_one_candidate_gives_none(loaded):
    outputs = fill(loaded, ["[MASK]", "[MASK]"], top_k=[0, -3])
    assert set(outputs["pieces"].ravel()) <= {b""}
    assert outputs["num_masks"].tolist() == [1, 1]


def test_a_batch_without_rows_or_without_masks_is_filled_with_nothing(loaded):
    for texts in ([], ["", "no mask"]):
        for others in ({}, {"top_k": [3] * len(texts)}):
            outputs = fill(loaded, texts, **others)
            assert {len(value) for value in outputs.values()} == {len(texts)}
            assert outputs["pieces"].shape[:2] == (len(texts), 0)
            assert not outputs["num_masks"].any()


def test_a_mask_beyond_the_end_of_the_row_is_counted(loaded):
    outputs = fill(loaded, ["[MASK] " + "the train " * 40 + "[MASK]", "[MASK]"])
    assert outputs["num_masks"].tolist() == [1, 1]
    assert outputs["num_masks_cut_off"].tolist() == [1, 0]


def test_bytes_that_are_not_utf_8_do_no_harm(loaded):
    outputs = fill(loaded, [b"caf\xe9 [MASK] \xff"])
    assert outputs["num_masks"].tolist() == [1]


def test_only_masked_positions_go_through_the_head(served, monkeypatch):
    shapes = []
    transform = MaskedLMHead.transform

    def recorded(self, hidden):
        shapes.append(hidden.shape)
        return transform(self, hidden)

    monkeypatch.setattr(MaskedLMHead, "transform", recorded)
    text_graph = TextGraph(served.vocabulary.model)
    module = MaskedLMModule(served.model, text_graph, SEQUENCE_LENGTH)
    shapes.clear()
    outputs = module.fill_mask(tf.constant(["one [MASK] here", TWO_MASKS]))
    assert outputs["num_masks"].numpy().tolist() == [1, 2]
    # Vectors in one list, not in rows of which the shorter are filled up.
    assert [shape.as_list() for shape in shapes] == [[None, 48]]


def test_a_tied_table_is_stored_once(served, tmp_path):
    model = random_model(served.vocabulary, output_embedding_dim="tied")
    MaskedLMModule(model, TextGraph(served.vocabulary.model), SEQUENCE_LENGTH).save(tmp_path / "m")
    loaded = tf.saved_model.load(str(tmp_path / "m"))
    tables = [variable for variable in loaded.variables if variable.shape.as_list() == [600, 16]]
    assert len(tables) == 1
    inputs = inputs_with_positions(served)
    outputs = loaded({name: tf.constant(value) for name, value in inputs.items()})
    expected = expected_outputs(model, inputs)
    np.testing.assert_allclose(outputs["mlm_logits"], expected["mlm_logits"], atol=1e-5)
