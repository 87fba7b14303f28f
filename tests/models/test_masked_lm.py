"""The model that is pre-trained, as a KerasHub task."""

import keras
import keras_hub
import numpy as np
import pytest
import tensorflow as tf

from kzoo import KzooError
from kzoo.models.masked_lm import RemBertMaskedLM
from tests import reference
from tests.models import shapes


@pytest.fixture(scope="module")
def inputs():
    return reference.random_inputs(517, [9, 4], 9, predictions=3)


@pytest.mark.parametrize("output_embedding_dim", [40, "tied"])
def test_logits_are_those_of_the_vectors_at_the_masked_positions(output_embedding_dim, inputs):
    model = shapes.masked_lm(output_embedding_dim)
    logits = model(inputs)
    assert logits.shape == (2, 3, 517)
    hidden = model.backbone.hidden_states(inputs)[-1].numpy()
    gathered = np.take_along_axis(hidden, inputs["mask_positions"][..., None], axis=1)
    expected = model.head.transform(gathered).numpy() @ model.head.table.numpy().T
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5)


def test_tied_embeddings_share_one_variable():
    tied, untied = shapes.masked_lm("tied"), shapes.masked_lm(16)
    assert tied.head.table is tied.backbone.token_embedding.embeddings
    assert tied.head.table.shape == untied.head.table.shape == (517, 16)
    assert untied.count_params() - tied.count_params() == 517 * 16


def test_variable_paths_do_not_depend_on_what_was_built_before():
    first = [variable.path for variable in shapes.masked_lm().variables]
    assert [variable.path for variable in shapes.masked_lm().variables] == first
    assert len(set(first)) == len(first)
    backbone_paths = {variable.path for variable in shapes.backbone().variables}
    of_the_head = {path.split("/")[0] for path in first if path not in backbone_paths}
    assert of_the_head == {"masked_lm_head"}


def test_every_variable_but_the_pooler_gets_a_gradient(inputs):
    model = shapes.masked_lm(dropout=0.1, attention_dropout=0.1)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(inputs, training=True) ** 2)
    gradients = tape.gradient(loss, [variable.value for variable in model.trainable_variables])
    without = {
        variable.path
        for variable, gradient in zip(model.trainable_variables, gradients, strict=True)
        if gradient is None
    }
    assert without == {"pooler/dense/kernel", "pooler/dense/bias"}


def test_no_loss_is_chosen_in_silence(inputs):
    model = shapes.masked_lm()
    assert not model.compiled
    with pytest.raises(ValueError, match="compile"):
        model.fit(inputs, np.zeros((2, 3), "int32"), verbose=0)


def test_fit_trains_with_the_loss_that_was_chosen(inputs):
    model = shapes.masked_lm(dropout=0.1)
    model.compile(
        optimizer=keras.optimizers.Adam(0.01),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        weighted_metrics=[],
        jit_compile=False,
    )
    labels = np.random.default_rng(0).integers(0, 517, (2, 3))
    history = model.fit(inputs, labels, epochs=10, verbose=0).history["loss"]
    assert history[0] == pytest.approx(np.log(517), rel=0.05)
    assert history[-1] < 3


@pytest.mark.parametrize("output_embedding_dim", [0, -8, 3.5, "tide"])
def test_an_output_embedding_dim_that_is_none_is_refused(output_embedding_dim):
    with pytest.raises(KzooError, match="Received: output_embedding_dim="):
        shapes.masked_lm(output_embedding_dim)


@pytest.mark.parametrize("output_embedding_dim", [40, "tied"])
def test_from_preset_through_the_base_class(output_embedding_dim, inputs, tmp_path):
    model = shapes.masked_lm(output_embedding_dim)
    reference.random_weights_into(model)
    model.save_to_preset(str(tmp_path))
    again = keras_hub.models.MaskedLM.from_preset(str(tmp_path))
    assert type(again) is RemBertMaskedLM
    assert again.output_embedding_dim == output_embedding_dim
    np.testing.assert_array_equal(again(inputs), model(inputs))
