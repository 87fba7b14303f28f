"""Every stage of the model against stored outputs of Hugging Face's RemBERT."""

import numpy as np
import pytest

from tests import paths, reference

pytestmark = paths.needs_shared

FOLDER = paths.SHARED / "peers" / "hf_tiny_rembert"


@pytest.fixture(scope="module")
def expected():
    return dict(np.load(FOLDER / "reference.npz"))


@pytest.fixture(scope="module")
def model():
    model = reference.hugging_face_model(FOLDER)
    reference.hugging_face_weights_into(model, FOLDER)
    return model


@pytest.fixture(scope="module")
def inputs(expected):
    return {
        "token_ids": expected["input_ids"],
        "padding_mask": expected["attention_mask"],
        "segment_ids": expected["token_type_ids"],
    }


@pytest.fixture(scope="module")
def valid(expected):
    return expected["attention_mask"].astype(bool)


def assert_equal(ours, theirs):
    np.testing.assert_allclose(np.asarray(ours), theirs, rtol=0, atol=1e-5)


def test_embeddings_after_their_layer_norm(model, inputs, expected):
    layer = model.backbone.embeddings
    summed = (
        layer.token_embedding(inputs["token_ids"])
        + layer.segment_embedding(inputs["segment_ids"])
        + layer.position_embedding(np.arange(inputs["token_ids"].shape[1]))
    )
    assert_equal(layer.layer_norm(summed), expected["embeddings_after_layernorm"])


def test_hidden_states_are_one_more_than_the_layers(model, inputs, expected, valid):
    states = model.backbone.hidden_states(inputs)
    assert len(states) == model.backbone.num_layers + 1
    for index, state in enumerate(states):
        assert_equal(np.asarray(state)[valid], expected[f"hidden_state_{index}"][valid])


def test_outputs(model, inputs, expected, valid):
    outputs = model.backbone(inputs)
    sequence_output = np.asarray(outputs["sequence_output"])
    assert_equal(sequence_output[valid], expected["last_hidden_state"][valid])
    assert_equal(outputs["pooled_output"], expected["pooler_output"])


def test_outputs_for_ids_without_mask_and_segments(model, inputs, expected):
    ones = np.ones_like(inputs["token_ids"])
    outputs = model.backbone({**inputs, "padding_mask": ones, "segment_ids": 0 * ones})
    assert_equal(outputs["sequence_output"], expected["last_hidden_state_ids_only"])
    assert_equal(outputs["pooled_output"], expected["pooler_output_ids_only"])


def test_every_stage_of_the_head(model, expected):
    head = model.head
    dense = head.dense(expected["last_hidden_state"])
    assert_equal(dense, expected["head_dense"])
    assert_equal(head.activation(dense), expected["head_act"])
    assert_equal(head.transform(expected["last_hidden_state"]), expected["head_layernorm"])
    assert_equal(head(expected["last_hidden_state"]), expected["mlm_logits"])


def test_logits_at_masked_positions(model, inputs, expected, valid):
    positions = np.tile(np.arange(valid.shape[1], dtype=np.int32), (len(valid), 1))
    logits = np.asarray(model({**inputs, "mask_positions": positions}))
    assert_equal(logits[valid], expected["mlm_logits"][valid])


def test_loss(model, inputs, expected, valid):
    labels = expected["labels"]
    row, position = np.nonzero(labels != -100)
    hidden = np.asarray(model.backbone(inputs)["sequence_output"])[row, position]
    logits = np.asarray(model.head(hidden), np.float64)
    log_probabilities = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    loss = -log_probabilities[np.arange(len(row)), labels[row, position]].mean()
    assert_equal(loss, expected["mlm_loss"])


def test_the_other_gelu_is_told_apart(inputs, expected, valid):
    model = reference.hugging_face_model(FOLDER, activation="gelu_approximate")
    reference.hugging_face_weights_into(model, FOLDER)
    hidden = np.asarray(model.backbone(inputs)["sequence_output"])
    assert np.abs(hidden - expected["last_hidden_state"])[valid].max() > 1e-4
