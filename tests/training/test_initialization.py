"""Weights that a run takes over from another model: what is kept, changed, made anew, refused."""

import dataclasses
import functools
import os

import h5py
import numpy as np
import pytest
import tensorflow as tf

from kzoo import KzooError, RemBertTokenizer, config
from kzoo.interchange.grow_vocabulary import NewPiece, grow_vocabulary
from kzoo.interchange.source_weights import SourceWeights, StoredTensor
from kzoo.layers.initializers import left_empty
from kzoo.models.saving import save_preset
from kzoo.text.vocabulary import MODEL_FILE, Vocabulary
from kzoo.training import initialization
from kzoo.training.build import build_model, build_optimizer
from kzoo.training.checkpoints import Checkpoints
from kzoo.training.starting_point import StartingPoint
from tests import reference
from tests.models import shapes

ROWS = 617
MOMENTS = {"momentum": 2.0, "velocity": 3.0}
HEAD = [
    f"masked_lm_head/{name}"
    for name in (
        "table",
        "bias",
        "dense/kernel",
        "dense/bias",
        "layer_norm/gamma",
        "layer_norm/beta",
    )
]


@pytest.fixture(scope="module")
def vocabulary(vocabulary_folder):
    return Vocabulary.load(vocabulary_folder)


@pytest.fixture(scope="module")
def presets(vocabulary_folder, tmp_path_factory):
    """Writes a preset of a model with random weights, or of its encoder alone; and the model."""
    folder = tmp_path_factory.mktemp("presets")

    def write(
        name: str, output_embedding_dim=40, *, encoder_alone=False, tokenizer=True, **changes
    ):
        model = shapes.masked_lm(output_embedding_dim, vocabulary_size=ROWS, **changes)
        reference.random_weights_into(model)
        path = folder / name
        if not path.exists():
            saved = model.backbone if encoder_alone else model
            words = RemBertTokenizer(str(vocabulary_folder / MODEL_FILE)) if tokenizer else None
            save_preset(saved, words, path)
        return path, model

    return write


def schema(path, *settings: str) -> config.Config:
    return config.load(
        [],
        [f"init_from.path={path}", "data.examples=x", "data.sequence_length=30", *settings],
    )


def begin(path, vocabulary, *settings: str, moments_of=None):
    """The model that a run begins with, its optimizer, and what was done.

    With `moments_of` a model, moments are kept that are its weights times those of `MOMENTS`.
    """
    loaded = schema(path, *settings)
    start = initialization.find(loaded, "runs/none")
    if moments_of is not None:
        loaded = schema(path, *settings, "init_from.optimizer=kept")
        moments = {
            f"optimizer/{slot}/{name}": np.float32(scale) * value
            for slot, scale in MOMENTS.items()
            for name, value in by_path(moments_of).items()
        }
        tensors = (
            (name, StoredTensor(value.shape, "here", functools.partial(np.copy, value)))
            for name, value in moments.items()
        )
        start = dataclasses.replace(start, moments=SourceWeights(tensors))
    with left_empty():
        model = build_model(loaded)
        optimizer = build_optimizer(loaded, model)
    begun = initialization.initialize(start, loaded, model, optimizer, vocabulary)
    return model, optimizer, begun


def by_path(model) -> dict[str, np.ndarray]:
    return {variable.path: variable.numpy() for variable in model.variables}


def assert_same(found: dict, expected: dict, but: tuple[str, ...] = ()) -> None:
    for path, value in found.items():
        if not path.startswith(but):
            np.testing.assert_array_equal(value, expected[path], err_msg=path)


def words(table: str) -> str:
    """A table without what aligns its cells."""
    return " ".join(table.split())


def refused(path, *settings: str) -> str:
    with pytest.raises(KzooError) as raised:
        initialization.find(schema(path, *settings), "runs/none")
    return str(raised.value)


@pytest.mark.parametrize("output_embedding_dim", [40, "tied"])
def test_every_weight_is_taken_and_the_arguments_too(presets, vocabulary, output_embedding_dim):
    path, source = presets(
        f"whole_{output_embedding_dim}",
        output_embedding_dim,
        activation="gelu_approximate",
        project_embeddings=True,
    )
    model, _, begun = begin(path, vocabulary)
    assert model.output_embedding_dim == output_embedding_dim
    assert model.backbone.activation == "gelu_approximate"
    assert model.backbone.pooler == "mean"
    assert_same(by_path(model), by_path(source))
    assert f"weights from the preset {path}" in begun.table
    assert "left out: the pooler, which the masked-LM loss does not train 2 2,352" in words(
        begun.table
    )
    assert begun.record == {"path": str(path), "step": None, "made_anew": {}, "updates_before": 0}


def test_the_lowest_layers_are_taken_where_fewer_are_asked_for(presets, vocabulary):
    path, source = presets("plain")
    model, _, begun = begin(path, vocabulary, "model.num_layers=2")
    assert len(model.backbone.encoder_blocks) == 2
    assert_same(by_path(model), by_path(source))
    assert "left out: layers above the lowest 2" in begun.table
    assert "model.num_layers is 4, and 3 there: layers are not made anew" in refused(
        path, "model.num_layers=4"
    )


@pytest.mark.parametrize(("rows", "method"), [(60, "repeat"), (79, "interpolate"), (31, "repeat")])
def test_the_position_table_gets_its_length(presets, vocabulary, rows, method):
    path, source = presets("plain")
    settings = [f"model.max_sequence_length={rows}", f"init_from.position_table={method}"]
    model, _, begun = begin(path, vocabulary, *settings)
    name = "embeddings/position_embedding/embeddings"
    assert_same(by_path(model), by_path(source), but=(name,))
    old, new = by_path(source)[name], by_path(model)[name]
    assert new.shape == (rows, 16)
    step = 2 if method == "interpolate" else 1
    np.testing.assert_array_equal(new[::step][:40], old[: len(new[::step])][:40])
    if rows > 40:
        assert f"changed: positions 40 → {rows}, {method}" in begun.table
        assert "set it to that, or init_from.position_table to interpolate or repeat" in refused(
            path, settings[0]
        )
    else:
        assert "changed: positions 40 → 31, the first ones" in begun.table


@pytest.mark.parametrize("output_embedding_dim", [40, "tied"])
def test_tables_follow_the_pieces_each_at_its_width(presets, vocabulary, output_embedding_dim):
    """CASES C01: input table, output table and bias grow together; old pieces feel nothing."""
    path, source = presets(f"plain_{output_embedding_dim}", output_embedding_dim)
    words = [NewPiece(text, "here") for text in ("▁trainee", "inging", "▁日本")]
    growth = grow_vocabulary(vocabulary, words, 600)
    spelled = [
        [vocabulary.processor.piece_to_id(piece) for piece in spelling]
        for spelling in growth.spellings
    ]
    assert all(len(spelling) > 1 for spelling in spelled[:2])
    model, optimizer, begun = begin(
        path, growth.vocabulary, "model.vocabulary_size=603", moments_of=source
    )
    old, new = by_path(source), by_path(model)
    tables = ["embeddings/token_embedding/embeddings", *HEAD[:2]]
    tables = tables if output_embedding_dim == 40 else [tables[0], tables[2]]
    moments = by_path(optimizer)
    for name in tables:
        found = (new[name], *(moments[f"optimizer/{slot}/{name}"] for slot in MOMENTS))
        for table, scale in zip(found, (1, *MOMENTS.values()), strict=True):
            expected = np.float32(scale) * old[name]
            assert table.shape == (603, *expected.shape[1:])
            np.testing.assert_array_equal(table[:600], expected[:600])
            for row, spelling in enumerate(spelled, start=600):
                np.testing.assert_allclose(table[row], expected[spelling].mean(0), atol=1e-6)
    assert_same(new, old, but=tuple(tables))
    said = "changed: rows 617 → 603, 600 pieces kept, 3 new (mean of what has spelled them)"
    assert said in begun.table
    inputs = reference.random_inputs(600, [24, 1, 10], 24, predictions=4)
    expected = source(inputs)[..., :600]
    np.testing.assert_allclose(model(inputs)[..., :600], expected, atol=1e-5, rtol=0)


def test_more_rows_than_pieces_are_no_new_vocabulary(presets, vocabulary):
    path, source = presets("plain")
    model, _, begun = begin(path, vocabulary, "model.vocabulary_size=620")
    table = by_path(model)["masked_lm_head/table"]
    np.testing.assert_array_equal(table[:617], by_path(source)["masked_lm_head/table"])
    np.testing.assert_array_equal(table[617:], table[[vocabulary.pad_id] * 3])
    assert "617 → 620, 600 pieces kept, 3 that stand for no text" in begun.table


def test_a_missing_head_is_named_and_made_anew_only_when_allowed(presets, vocabulary):
    path, source = presets("encoder", encoder_alone=True)
    message = refused(path, "model.output_embedding_dim=24")
    assert f"it has no masked-LM head: {', '.join(HEAD)} are missing" in message
    assert "init_from.allow_missing=[masked_lm_head]" in message
    # Without the width, which nothing says then.
    with pytest.raises(KzooError, match=r"model\.output_embedding_dim: missing"):
        schema(path)

    settings = ["model.output_embedding_dim=24", "init_from.allow_missing=[masked_lm_head]"]
    model, _, begun = begin(path, vocabulary, *settings)
    weights = by_path(model)
    assert_same(weights, by_path(source), but=("masked_lm_head/",))
    assert sorted(begun.record["made_anew"]) == sorted(HEAD)
    assert "made anew from data.seed 0: masked_lm_head 6 " in words(begun.table)
    assert weights["masked_lm_head/table"].std() == pytest.approx(0.0176, abs=0.001)
    np.testing.assert_array_equal(weights["masked_lm_head/layer_norm/gamma"], np.ones(24))

    again, other = (
        by_path(begin(path, vocabulary, *settings, f"data.seed={seed}")[0]) for seed in (0, 1)
    )
    assert_same(again, weights)
    assert not np.array_equal(other["masked_lm_head/table"], weights["masked_lm_head/table"])


@pytest.mark.parametrize(("there", "here"), [(40, 24), ("tied", 24), (40, "tied")])
def test_a_head_of_another_width_is_replaced_only_when_allowed(presets, vocabulary, there, here):
    path, source = presets(f"plain_{there}", there)
    width = f"model.output_embedding_dim={here}"
    assert f"model.output_embedding_dim is {here}, and {there} there" in refused(path, width)
    model, _, begun = begin(path, vocabulary, width, "init_from.allow_missing=[masked_lm_head]")
    assert_same(by_path(model), by_path(source), but=("masked_lm_head/",))
    assert len(begun.record["made_anew"]) == (5 if here == "tied" else 6)
    assert f"left out: the head, with E_out {there}" in begun.table


def test_a_head_that_is_there_is_taken_though_it_might_be_missing(presets, vocabulary):
    path, source = presets("plain")
    model, _, begun = begin(path, vocabulary, "init_from.allow_missing=[masked_lm_head]")
    assert_same(by_path(model), by_path(source))
    assert begun.record["made_anew"] == {}


def test_all_arguments_that_do_not_fit_are_listed_at_once(presets):
    path, _ = presets("plain")
    message = refused(
        path,
        *("model.hidden_dim=50", "model.num_heads=5", "model.intermediate_dim=81"),
        *("model.embedding_dim=17", "model.num_segments=3", "model.activation=gelu_approximate"),
        *("model.layer_norm_epsilon=1e-6", "model.output_embedding_dim=41"),
    )
    for line in (
        f"init_from.path: the preset {path} does not fit the configuration",
        "model.num_heads is 5, and 3 there: set it to 3",
        "model.hidden_dim is 50, and 48 there: set it to 48",
        "model.intermediate_dim is 81, and 80 there",
        "model.embedding_dim is 17, and 16 there",
        "model.num_segments is 3, and 2 there",
        "model.activation is gelu_approximate, and gelu there",
        "model.layer_norm_epsilon is 1e-06, and 1e-12 there",
        "model.output_embedding_dim is 41, and 40 there",
    ):
        assert line in message
    assert message.count("\n") == 8


def test_a_projection_that_only_one_of_them_has_is_refused(presets):
    path, _ = presets("unprojected", embedding_dim=48)
    message = refused(path, "model.project_embeddings=true")
    assert "model.project_embeddings is True, and auto there" in message


def test_what_a_preset_does_not_have_is_said(presets, tmp_path):
    path, _ = presets("plain")
    message = refused(path, "init_from.optimizer=kept")
    assert "kept needs a checkpoint of a run" in message
    assert "has no checkpoints, of which one is best" in refused(path, "init_from.checkpoint=best")
    without, _ = presets("wordless", tokenizer=False)
    assert "it has no vocabulary" in refused(without)
    model = [f"model.{key}={value}" for key, value in shapes.ARGUMENTS.items()]
    with pytest.raises(KzooError, match=r"is no model preset: cannot read config\.json"):
        schema(tmp_path / "nothing", *model, "model.output_embedding_dim=40")


def test_the_best_of_a_run_that_another_process_has_measured_is_named(tmp_path):
    def run(folder):
        Checkpoints(folder / "checkpoints").save(1, [tf.Variable(1.0, name="a")], {})
        (folder / "config.yaml").touch()

    run(tmp_path)
    with pytest.raises(KzooError, match=r"trainer\.validation_interval was null"):
        StartingPoint.open(str(tmp_path), "best")
    run(tmp_path / "eval" / "best")
    with pytest.raises(KzooError, match=f"set init_from.path to {tmp_path}/eval/best"):
        StartingPoint.open(f"file://{tmp_path}", "best")


def test_a_damaged_preset_is_refused_with_the_tensor(presets, vocabulary):
    path, _ = presets("damaged")
    with h5py.File(path / "task.weights.h5", "r+") as file:
        del file["layers/masked_lm_head/dense/vars/1"]
    with pytest.raises(KzooError) as raised:
        begin(path, vocabulary)
    assert "missing: masked_lm_head/dense/bias [40]" in str(raised.value)
    assert "--allow_missing" not in str(raised.value)


def test_what_is_made_anew_may_not_be_frozen(presets, vocabulary):
    path, _ = presets("encoder", encoder_alone=True)
    settings = ["model.output_embedding_dim=24", "init_from.allow_missing=[masked_lm_head]"]
    with pytest.raises(KzooError) as raised:
        begin(path, vocabulary, *settings, "optimizer.frozen=[output_table]")
    assert "masked_lm_head/bias, masked_lm_head/table would stay as they were made" in str(
        raised.value
    )
    begin(path, vocabulary, *settings, "optimizer.frozen=[encoder]")


def test_a_run_does_not_go_on_from_itself(presets):
    path, _ = presets("plain")
    with pytest.raises(KzooError, match="is the folder of this run itself"):
        initialization.find(schema(path), os.path.join(path, "..", path.name))


def test_settings_without_a_path_have_no_effect_and_say_so():
    model = [f"model.{key}={value}" for key, value in shapes.ARGUMENTS.items()]
    given = [*model, "model.output_embedding_dim=40", "data.examples=x", "data.sequence_length=30"]
    assert initialization.find(config.load([], given), "runs/none") is None
    for setting in (
        "optimizer=kept",
        "checkpoint=best",
        "allow_missing=[masked_lm_head]",
        "position_table=repeat",
    ):
        with pytest.raises(KzooError, match=r"has no effect without init_from\.path"):
            config.load([], [*given, f"init_from.{setting}"])
