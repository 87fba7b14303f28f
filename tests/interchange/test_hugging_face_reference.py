"""What has been imported computes what Hugging Face's RemBERT does: every stored array."""

import numpy as np
import pytest
import tensorflow as tf

from kzoo.interchange.hugging_face_import import open_hugging_face
from kzoo.interchange.source_model import build
from kzoo.saved_model.encoder import EncoderModule
from tests.paths import SHARED, needs_shared

pytestmark = needs_shared

FOLDER = SHARED / "peers" / "hf_tiny_rembert"


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    return dict(np.load(FOLDER / "reference.npz"))


@pytest.fixture(scope="module")
def model():
    return build(open_hugging_face(str(FOLDER))).model


@pytest.fixture(scope="module")
def inputs(expected) -> dict[str, np.ndarray]:
    return {
        "token_ids": expected["input_ids"],
        "padding_mask": expected["attention_mask"],
        "segment_ids": expected["token_type_ids"],
    }


@pytest.fixture(scope="module")
def computed(model, inputs, expected) -> dict[str, np.ndarray]:
    """Our array for each of theirs but the probabilities of attention, which no layer returns."""
    backbone, head = model.backbone, model.head
    embeddings = backbone.embeddings
    length = expected["input_ids"].shape[1]
    summed = (
        embeddings.token_embedding(inputs["token_ids"])
        + embeddings.segment_embedding(inputs["segment_ids"])
        + embeddings.position_embedding(np.arange(length))
    )
    states = backbone.hidden_states(inputs)
    outputs = backbone(inputs)
    ones = np.ones_like(inputs["token_ids"])
    ids_only = backbone({**inputs, "padding_mask": ones, "segment_ids": 0 * ones})
    dense = head.dense(states[-1])
    found = {
        "embeddings_after_layernorm": embeddings.layer_norm(summed),
        **{f"hidden_state_{index}": state for index, state in enumerate(states)},
        "last_hidden_state": outputs["sequence_output"],
        "pooler_output": outputs["pooled_output"],
        "head_dense": dense,
        "head_act": head.activation(dense),
        "head_layernorm": head.transform(states[-1]),
        "mlm_logits": head(states[-1]),
        "last_hidden_state_ids_only": ids_only["sequence_output"],
        "pooler_output_ids_only": ids_only["pooled_output"],
    }
    found = {name: np.asarray(value) for name, value in found.items()}
    labels = expected["labels"]
    row, position = np.nonzero(labels != -100)
    logits = found["mlm_logits"][row, position].astype(np.float64)
    scores = logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))
    found["mlm_loss"] = -scores[np.arange(len(row)), labels[row, position]].mean()
    return found


def largest_difference(name: str, ours: np.ndarray, expected: dict[str, np.ndarray]) -> float:
    """At valid positions, where an array has positions."""
    difference = np.abs(ours.astype(np.float64) - expected[name])
    if difference.ndim == 3 and not name.endswith("ids_only"):
        difference = difference[expected["attention_mask"].astype(bool)]
    return float(difference.max())


def test_every_array_is_compared(computed, expected):
    inputs = {"input_ids", "attention_mask", "token_type_ids", "labels"}
    attentions = {name for name in expected if name.startswith("attention_")} - inputs
    assert computed.keys() == expected.keys() - inputs - attentions


def test_every_array_is_theirs(computed, expected):
    differences = {
        name: largest_difference(name, ours, expected) for name, ours in computed.items()
    }
    print(*(f"{name:28}{value:.1e}" for name, value in differences.items()), sep="\n")
    assert max(differences.values()) <= 1e-5


def test_an_exported_encoder_gives_the_same(model, inputs, expected, tmp_path):
    EncoderModule(model.backbone).save(str(tmp_path / "encoder"))
    encoder = tf.saved_model.load(str(tmp_path / "encoder"))
    names = ("input_word_ids", "input_mask", "input_type_ids")
    given = {
        name: tf.constant(value, tf.int32)
        for name, value in zip(names, inputs.values(), strict=True)
    }
    outputs = encoder(given)
    found = {
        "last_hidden_state": outputs["sequence_output"],
        "pooler_output": outputs["pooled_output"],
    }
    for index, state in enumerate(outputs["encoder_outputs"], 1):
        found[f"hidden_state_{index}"] = state
    differences = {
        name: largest_difference(name, np.asarray(value), expected) for name, value in found.items()
    }
    print(*(f"export: {name:28}{value:.1e}" for name, value in differences.items()), sep="\n")
    assert max(differences.values()) <= 1e-5


@pytest.mark.parametrize("form", ["encoder_only", "sharded"])
def test_the_other_forms_of_the_same_model_have_the_same_weights(form, model):
    built = build(open_hugging_face(str(FOLDER / form)))
    ours = {variable.path: variable for variable in model.variables}
    # A `RemBertForMaskedLM` has no pooler of its own.
    lacking = {"encoder_only": "masked_lm_head/", "sharded": "pooler/"}[form]
    expected = {path for path in ours if not path.startswith(lacking)}
    assert {variable.path for variable in built.model.variables} == expected
    for variable in built.model.variables:
        np.testing.assert_array_equal(variable.numpy(), ours[variable.path].numpy())
