"""A narrower input table: equal where nothing is lost, and honest about what is."""

import numpy as np
import pytest

from kzoo import KzooError
from kzoo.interchange.accounting import assign_all
from kzoo.interchange.factorize import factorize, factorize_model
from kzoo.interchange.hugging_face_names import hugging_face_name
from tests import reference
from tests.interchange.arrays import source_of, weights_of
from tests.models import shapes

WIDTH, NARROW, HIDDEN = 40, 12, 30
# As large as XLM-R's, and not small against the rows below.
EPSILON = 1e-1


@pytest.fixture
def random():
    return np.random.default_rng(0)


def layer_norm(values: np.ndarray) -> np.ndarray:
    centred = values - values.mean(-1, keepdims=True)
    return centred / np.sqrt(values.var(-1, keepdims=True) + EPSILON)


def sums(tables, random):
    """A function that sums rows of tables, at the same places whatever the tables."""
    places = [random.integers(0, len(table), 200) for table in tables]
    return lambda tables: sum(table[rows] for table, rows in zip(tables, places, strict=True))


def narrow_tables(random, rank: int) -> list[np.ndarray]:
    """Tables whose rows, less their mean over the width, lie in `rank` directions."""
    directions = random.normal(size=(rank, WIDTH))
    directions -= directions.mean(axis=1, keepdims=True)
    return [
        (
            random.normal(size=(rows, rank)) @ directions
            + random.normal(size=rank) @ directions
            + random.normal(size=(rows, 1))
        ).astype(np.float32)
        for rows in (9000, 20, 2)
    ]


@pytest.mark.parametrize("projected", [False, True])
def test_nothing_changes_where_nothing_is_lost(random, projected):
    tables = narrow_tables(random, NARROW - 1)
    gamma, beta = 1 + 0.3 * random.normal(size=WIDTH), random.normal(size=WIDTH)
    projection = None
    if projected:
        projection = random.normal(size=(WIDTH, HIDDEN)), random.normal(size=HIDDEN)
    new = factorize(tables, gamma, beta, NARROW, projection)
    summed = sums(tables, random)
    before = layer_norm(summed(tables)) * gamma + beta
    if projected:
        before = before @ projection[0] + projection[1]
    narrowed = [new.narrow(table) for table in tables]
    assert [table.shape for table in narrowed] == [(len(table), NARROW) for table in tables]
    after = layer_norm(summed(narrowed)) @ new.kernel + new.bias
    assert new.kernel.dtype == new.bias.dtype == narrowed[0].dtype == np.float32
    np.testing.assert_allclose(after, before, atol=1e-4)
    assert new.energy_kept == pytest.approx(1)


def test_the_energy_kept_is_that_of_what_layer_norm_sees(random):
    tables = narrow_tables(random, 30)
    new = factorize(tables, np.ones(WIDTH), np.zeros(WIDTH), NARROW)
    # Every combination of rows, one of each table.
    means = [table.mean(axis=0) for table in tables]
    moments = sum(np.cov(table.T, bias=True) for table in tables)
    moments += np.outer(sum(means), sum(means))
    centring = np.eye(WIDTH) - 1 / WIDTH
    energies = np.linalg.eigvalsh(centring @ moments @ centring)[::-1]
    assert new.energy_kept == pytest.approx(energies[: NARROW - 1].sum() / energies.sum())
    assert 0.3 < new.energy_kept < 0.95


def test_the_directions_kept_are_the_best(random):
    """No other directions leave less of the sums outside: those of the singular vectors do best."""
    table = narrow_tables(random, 30)[0]
    nothing = np.zeros((1, WIDTH), np.float32)
    new = factorize([table, nothing, nothing], np.ones(WIDTH), np.zeros(WIDTH), NARROW)
    back = new.narrow(table) @ new.kernel
    centred = table - table.mean(axis=1, keepdims=True)
    lost = ((centred - back) ** 2).sum() / (centred**2).sum()
    singular_values = np.linalg.svd(centred, compute_uv=False)
    best = (singular_values[NARROW - 1 :] ** 2).sum() / (singular_values**2).sum()
    assert lost == pytest.approx(best, rel=1e-4)
    assert 1 - new.energy_kept == pytest.approx(best, rel=1e-4)


@pytest.mark.parametrize("embedding_dim", [1, WIDTH, WIDTH + 1])
def test_widths_that_make_no_sense_are_refused(random, embedding_dim):
    with pytest.raises(KzooError, match=f"from 2 to 39 wide.*embedding_dim={embedding_dim}"):
        factorize(narrow_tables(random, 3), np.ones(WIDTH), np.zeros(WIDTH), embedding_dim)


def low_rank(model) -> None:
    """Gives the input tables rows that lie in few directions."""
    embeddings = model.backbone.embeddings
    directions = np.random.default_rng(1).normal(0, 0.1, (5, model.backbone.embedding_dim))
    for layer in ("token_embedding", "position_embedding", "segment_embedding"):
        table = getattr(embeddings, layer).embeddings
        coefficients = np.random.default_rng(2).normal(size=(table.shape[0], 5))
        table.assign(coefficients @ directions)


def factorized(model, embedding_dim: int, naming=str):
    """The model with a narrower table, its weights read under the names of some format."""
    arguments = {
        **shapes.ARGUMENTS,
        "embedding_dim": model.backbone.embedding_dim,
        "num_segments": 2,
    }
    transpose = naming is not str
    weights = weights_of(model)
    if transpose:
        weights = source_of(
            {
                naming(path): array.T if path.endswith("/kernel") else array
                for path, array in ((path, weights.read(path)) for path in weights.names())
            }
        )
    new = factorize_model(
        arguments, model.output_embedding_dim, weights, embedding_dim, naming, transpose=transpose
    )
    narrow = shapes.masked_lm(new.output_embedding_dim, **new.arguments)
    assign_all(narrow, new.weights, naming, transpose=transpose)
    return narrow, new.energy_kept


@pytest.mark.parametrize("naming", [str, hugging_face_name])
@pytest.mark.parametrize(("wide", "output"), [(48, 40), (48, "tied"), (16, 40)])
def test_a_model_whose_table_holds_little_is_the_same_with_a_narrow_one(wide, output, naming):
    model = shapes.masked_lm(output, embedding_dim=wide)
    reference.random_weights_into(model)
    low_rank(model)
    narrow, energy_kept = factorized(model, 8, naming)
    assert narrow.backbone.embedding_dim == 8
    assert narrow.output_embedding_dim == (wide if output == "tied" else output)
    assert energy_kept == pytest.approx(1)
    inputs = reference.random_inputs(517, [24, 1, 10], 24, predictions=4)
    np.testing.assert_allclose(narrow(inputs), model(inputs), atol=1e-4, rtol=0)


def test_a_table_as_wide_as_the_layers_keeps_its_projection():
    model = shapes.masked_lm(embedding_dim=60)
    reference.random_weights_into(model)
    low_rank(model)
    narrow, _ = factorized(model, 48)
    assert narrow.backbone.embeddings.projection is not None
    inputs = reference.random_inputs(517, [24, 1], 24, predictions=4)
    np.testing.assert_allclose(narrow(inputs), model(inputs), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("path", "array", "message"),
    [
        ("embeddings/layer_norm/beta", None, "without embeddings/layer_norm/beta"),
        ("embeddings/layer_norm/beta", np.zeros(15), r"is \(15,\), and should be \(16,\)"),
        (
            "embeddings/projection/bias",
            np.full(48, np.nan),
            "bias holds values that are not finite",
        ),
    ],
)
def test_embeddings_that_cannot_be_narrowed_are_named(path, array, message):
    arrays = {variable.path: variable.numpy() for variable in shapes.masked_lm().variables}
    arrays[path] = array
    weights = source_of({path: array for path, array in arrays.items() if array is not None})
    with pytest.raises(KzooError, match=message):
        factorize_model(
            {**shapes.ARGUMENTS, "num_segments": 2}, 40, weights, 8, str, transpose=False
        )
