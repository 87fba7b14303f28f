"""Models of several shapes against a forward pass written in NumPy."""

import numpy as np
import pytest

from tests import reference
from tests.models import shapes
from tests.models.numpy_rembert import NumPyRemBert


@pytest.mark.parametrize(
    ("output_embedding_dim", "changes"),
    [
        (40, {}),
        (40, {"pooler": "mean", "activation": "gelu_approximate"}),
        (40, {"pooler": "first_token", "embedding_dim": 48}),
        (40, {"embedding_dim": 48, "project_embeddings": True}),
        ("tied", {"num_segments": 3, "layer_norm_epsilon": 1e-3}),
    ],
)
def test_every_output_equals_numpys(output_embedding_dim, changes):
    model = shapes.masked_lm(output_embedding_dim, **changes)
    reference.random_weights_into(model)
    inputs = reference.random_inputs(517, [13, 1, 7, 4], 13, predictions=5)
    inputs["padding_mask"][2, 3] = 0  # a hole inside of a sequence
    mask = inputs["padding_mask"]
    numpy = NumPyRemBert(model)

    expected = numpy.hidden_states(inputs["token_ids"], mask, inputs["segment_ids"])
    states = model.backbone.hidden_states(inputs)
    assert len(states) == len(expected) == 4
    for ours, theirs in zip(states, expected, strict=True):
        np.testing.assert_allclose(np.asarray(ours), theirs, rtol=0, atol=1e-5)

    outputs = model.backbone({key: inputs[key] for key in model.backbone.input})
    np.testing.assert_array_equal(outputs["sequence_output"], states[-1])
    pooled = numpy.pool(expected[-1], mask)
    np.testing.assert_allclose(outputs["pooled_output"], pooled, rtol=0, atol=1e-5)
    logits = numpy.logits(expected[-1], inputs["mask_positions"])
    np.testing.assert_allclose(model(inputs), logits, rtol=0, atol=1e-5)


def test_a_sequence_that_is_all_padding_attends_to_all_equally():
    model = shapes.masked_lm()
    reference.random_weights_into(model)
    inputs = reference.random_inputs(517, [0, 6], 6)
    expected = NumPyRemBert(model).hidden_states(
        inputs["token_ids"], inputs["padding_mask"], inputs["segment_ids"]
    )
    outputs = model.backbone(inputs)
    np.testing.assert_allclose(outputs["sequence_output"], expected[-1], rtol=0, atol=1e-5)
