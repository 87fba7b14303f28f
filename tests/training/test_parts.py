"""Parts of a model: their names, what is frozen, and the rate at which each part learns."""

import numpy as np
import pytest
import tensorflow as tf

from kzoo import KzooError, config
from kzoo.config import part_names
from kzoo.training import parts
from kzoo.training.optimizer import AdamW, decayed_variables
from kzoo.training.step import TrainingStep, trainable_weights
from tests.models import shapes
from tests.training import small_steps


def schema(*settings: str, **changes) -> config.Config:
    arguments = {**shapes.ARGUMENTS, "output_embedding_dim": 40, **changes}
    model = [f"model.{key}={value}" for key, value in arguments.items()]
    return config.load([], [*model, "data.examples=x", "data.sequence_length=30", *settings])


def frozen_paths(model, *names: str, **changes) -> set[str]:
    simple = part_names.simple_parts(names, schema(**changes).model)
    trained = parts.trained_variables(model, trainable_weights(model), simple)
    return {v.path for v in trainable_weights(model)} - {v.path for v in trained}


EMBEDDINGS = {
    "embeddings/token_embedding/embeddings",
    "embeddings/position_embedding/embeddings",
    "embeddings/segment_embedding/embeddings",
    "embeddings/layer_norm/gamma",
    "embeddings/layer_norm/beta",
}
PROJECTION = {"embeddings/projection/kernel", "embeddings/projection/bias"}
TABLE = {"masked_lm_head/table", "masked_lm_head/bias"}


def test_every_part_has_its_weights_and_no_others():
    model = shapes.masked_lm(pooler="dense")
    trainable = {variable.path for variable in trainable_weights(model)}
    head = {path for path in trainable if path.startswith("masked_lm_head/")}
    blocks = [
        {path for path in trainable if path.startswith(f"encoder_block_{index}/")}
        for index in range(3)
    ]
    assert [len(block) for block in blocks] == [16] * 3
    assert frozen_paths(model, "embeddings") == EMBEDDINGS
    assert frozen_paths(model, "input_table") == {"embeddings/token_embedding/embeddings"}
    assert frozen_paths(model, "projection") == PROJECTION
    assert frozen_paths(model, "layer_1") == blocks[1]
    assert frozen_paths(model, "layers_0_to_1") == blocks[0] | blocks[1]
    assert frozen_paths(model, "layers_2_to_2", "layer_2") == blocks[2]
    assert frozen_paths(model, "output_table") == TABLE
    assert frozen_paths(model, "masked_lm_head") == head > TABLE
    assert frozen_paths(model, "encoder") == trainable - head
    assert frozen_paths(model) == set()


def test_a_tied_table_is_the_embeddings():
    model = shapes.masked_lm("tied")
    frozen = frozen_paths(model, "masked_lm_head", output_embedding_dim="tied")
    assert len(frozen) == 5
    assert "embeddings/token_embedding/embeddings" not in frozen


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("layer_3", {}),
        ("layers_1_to_3", {}),
        ("layers_2_to_1", {}),
        ("layers_0_to_99999999999", {}),
        ("layer_01", {}),
        ("pooler", {}),
        ("encoder_block_0", {}),
        ("projection", {"embedding_dim": 48}),
        ("output_table", {"output_embedding_dim": "tied"}),
    ],
)
def test_a_part_that_there_is_not_is_refused_and_those_that_there_are_named(name, changes):
    with pytest.raises(KzooError) as raised:
        schema(f"optimizer.frozen=[embeddings, {name}]", **changes)
    message = str(raised.value)
    assert f"optimizer.frozen: no part of this model is {name!r}; there are encoder, " in message
    assert "layer_0 to layer_2, layers_0_to_2" in message
    assert ("projection" in message.partition("there are")[2]) == (name != "projection")
    assert ("output_table" in message.partition("there are")[2]) == (name != "output_table")


@pytest.mark.parametrize(
    "frozen",
    [
        "[encoder, masked_lm_head]",
        "[embeddings, projection, layers_0_to_2, masked_lm_head]",
        "[layers_1_to_2, layers_0_to_1, layer_1, embeddings, projection, masked_lm_head]",
    ],
)
def test_to_freeze_all_is_refused(frozen):
    with pytest.raises(KzooError, match=r"optimizer\.frozen: leaves nothing to train"):
        schema(f"optimizer.frozen={frozen}")


@pytest.mark.parametrize(
    "frozen",
    [
        "[]",
        "[masked_lm_head]",
        "[encoder]",
        "[input_table, projection, layers_0_to_2, masked_lm_head]",
        "[embeddings, layers_0_to_2, masked_lm_head]",
        "[embeddings, projection, layer_0, layer_2, masked_lm_head]",
        "[encoder, output_table]",
    ],
)
def test_whatever_leaves_something_to_train_is_taken(frozen):
    loaded = schema(f"optimizer.frozen={frozen}")
    assert len(loaded.optimizer.frozen) == len(frozen.strip("[]").split(",")) - (frozen == "[]")


def test_layers_are_not_counted_out_to_check_a_name():
    loaded = schema("optimizer.frozen=[layers_5_to_1000000000000]", num_layers=2**40)
    assert loaded.optimizer.frozen == ["layers_5_to_1000000000000"]


def test_rates_fall_from_the_head_to_the_embeddings():
    model = shapes.masked_lm("tied", pooler="dense")
    trained = trainable_weights(model)
    factors = parts.rate_factors(model, trained, 0.5)
    by_path = dict(zip([variable.path for variable in trained], factors, strict=True))
    expected = {
        "embeddings": 0.5**4,
        "encoder_block_0": 0.5**3,
        "encoder_block_1": 0.5**2,
        "encoder_block_2": 0.5,
        "masked_lm_head": 1.0,
    }
    assert {path: expected[path.partition("/")[0]] for path in by_path} == by_path
    assert set(parts.rate_factors(model, trained, 1.0)) == {1.0}


@pytest.mark.parametrize(
    "names",
    [("encoder",), ("embeddings", "layers_0_to_1"), ("output_table",), ("masked_lm_head",)],
    ids=lambda names: "_".join(names),
)
def test_what_is_frozen_keeps_its_bits_and_the_rest_learns(names):
    changes = {"num_layers": 2, "vocabulary_size": small_steps.VOCABULARY_SIZE}
    model = small_steps.model(num_layers=2, pooler="mean")
    frozen = frozen_paths(model, *names, **changes)
    simple = part_names.simple_parts(names, schema(**changes).model)
    trained = parts.trained_variables(model, trainable_weights(model), simple)
    optimizer = AdamW(trained, decayed_variables(model), weight_decay=0.1)
    before = small_steps.values(model.variables)
    step = TrainingStep(model, optimizer, tf.distribute.get_strategy())
    for number in range(2):
        step([small_steps.batch((5, 5, 5, 5), seed=number)], number, small_steps.RATE)
    still = {
        variable.path
        for variable, value in zip(model.variables, before, strict=True)
        if np.array_equal(variable.numpy(), value)
    }
    assert still == frozen
    slots = {variable.path.split("/", 2)[2] for variable in optimizer.variables}
    assert slots == {variable.path for variable in model.variables} - frozen
