"""Tables of three widths take a new vocabulary together, and old pieces feel nothing of it."""

import numpy as np
import pytest

from kzoo import KzooError
from kzoo.interchange.accounting import assign_all
from kzoo.interchange.vocabulary_change import VocabularyChange
from tests import reference
from tests.interchange.arrays import weights_of
from tests.models import shapes

GROWN = VocabularyChange(
    np.array([*range(517), 0, 0, 0]),
    {517: np.array([3, 5]), 518: np.array([7]), 519: np.array([100, 200, 300])},
)


def changed(model, change: VocabularyChange, output_embedding_dim: int | str = 40):
    weights = change.apply(weights_of(model), str, 517)
    new = shapes.masked_lm(output_embedding_dim, vocabulary_size=change.size)
    assign_all(new, weights)
    return new


@pytest.fixture
def model(request):
    model = shapes.masked_lm(getattr(request, "param", 40))
    reference.random_weights_into(model)
    return model


def test_three_new_pieces_give_each_table_three_rows(model):
    grown = changed(model, GROWN)
    pairs = [
        (grown.backbone.token_embedding.embeddings, model.backbone.token_embedding.embeddings),
        (grown.head.table, model.head.table),
        (grown.head.bias, model.head.bias),
    ]
    assert [tuple(new.shape) for new, _ in pairs] == [(520, 16), (520, 40), (520,)]
    for new, old in pairs:
        np.testing.assert_array_equal(new.numpy()[:517], old.numpy())
        np.testing.assert_allclose(new.numpy()[517], old.numpy()[[3, 5]].mean(0), atol=1e-7)
        np.testing.assert_array_equal(new.numpy()[518], old.numpy()[7])


@pytest.mark.parametrize("model", [40, "tied"], indirect=True)
def test_logits_of_old_pieces_do_not_change(model):
    grown = changed(model, GROWN, model.output_embedding_dim)
    inputs = reference.random_inputs(517, [24, 1, 10], 24, predictions=4)
    np.testing.assert_allclose(grown(inputs)[..., :517], model(inputs), atol=1e-5, rtol=0)


def test_an_encoder_alone_grows_too(model):
    weights = GROWN.apply(weights_of(model.backbone), str, 517)
    assert weights.shape("embeddings/token_embedding/embeddings") == (520, 16)
    assert set(weights.names()) == {variable.path for variable in model.backbone.variables}


def test_fewer_pieces_give_the_same_outputs_under_new_ids(model):
    kept = np.sort(np.random.default_rng(1).permutation(517)[:200])
    trimmed = changed(model, VocabularyChange(kept))
    inputs = reference.random_inputs(200, [24, 1, 10], 24, predictions=4)
    before = {**inputs, "token_ids": kept[inputs["token_ids"]].astype(np.int32)}
    logits = model(before).numpy()
    np.testing.assert_allclose(trimmed(inputs), logits[..., kept], atol=1e-6, rtol=0)
    for batch in (inputs, before):
        del batch["mask_positions"]
    for output, expected in model.backbone(before).items():
        np.testing.assert_allclose(trimmed.backbone(inputs)[output], expected, atol=1e-6, rtol=0)


def test_a_table_of_another_size_is_named(model):
    with pytest.raises(KzooError, match=r"embeddings has 517 rows; .* a vocabulary of 500"):
        GROWN.apply(weights_of(model), str, 500)


def test_a_row_that_is_not_there_is_an_error():
    with pytest.raises(IndexError, match="no row 516 in a table of 500"):
        GROWN.rows(np.zeros((500, 3), np.float32))
