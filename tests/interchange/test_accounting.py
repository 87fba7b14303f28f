"""Every tensor and every variable is accounted for, or nothing is taken over."""

import numpy as np
import pytest

from kzoo import KzooError
from kzoo.interchange import accounting
from kzoo.interchange.accounting import all_finite, assign_all, check_all
from kzoo.interchange.source_weights import SourceWeights, StoredTensor
from kzoo.layers.initializers import left_empty
from tests import reference
from tests.interchange.arrays import source_of
from tests.models import shapes


@pytest.fixture(scope="module")
def arrays() -> dict[str, np.ndarray]:
    model = shapes.masked_lm()
    reference.random_weights_into(model)
    return {variable.path: variable.numpy() for variable in model.variables}


@pytest.fixture
def model():
    return shapes.masked_lm()


def assert_has(model, arrays):
    for variable in model.variables:
        np.testing.assert_array_equal(variable.numpy(), arrays[variable.path], variable.path)


@pytest.mark.parametrize("block_values", [2**22, 100])
def test_every_variable_gets_its_tensor(arrays, block_values, monkeypatch):
    monkeypatch.setattr(accounting, "_BLOCK_VALUES", block_values)
    with left_empty():
        model = shapes.masked_lm()
    accounts = assign_all(model, source_of(arrays))
    assert_has(model, arrays)
    assert accounts.used == {path: path for path in arrays}
    assert accounts.ignored == accounts.made_anew == {}


def test_kernels_can_be_transposed_and_named_otherwise(model, arrays):
    theirs = {
        f"x.{path}": array.T if path.endswith("/kernel") else array
        for path, array in arrays.items()
    }
    accounts = assign_all(model, source_of(theirs), lambda path: f"x.{path}", transpose=True)
    assert_has(model, arrays)
    assert accounts.used["x.pooler/dense/bias"] == "pooler/dense/bias"


def test_all_that_is_wrong_is_listed_before_anything_is_read(model, arrays):
    def never():
        raise AssertionError("a tensor was read")

    wrong = dict(arrays)
    del wrong["pooler/dense/bias"], wrong["masked_lm_head/table"]
    wrong["optimizer/momentum"] = np.zeros((2, 3))
    wrong["masked_lm_head/bias"] = np.zeros(500)
    weights = SourceWeights(
        (name, StoredTensor(array.shape, "w.bin", never)) for name, array in wrong.items()
    )
    with pytest.raises(KzooError) as caught:
        assign_all(model, weights, allow_missing=["masked_lm_heads"])
    heading, *problems = str(caught.value).split("\n")
    assert heading == "5 things are wrong with the weights:"
    assert sorted(problems) == [
        "missing: masked_lm_head/table [517, 40]; --allow_missing masked_lm_head/table makes it "
        "anew",
        "missing: pooler/dense/bias [48]; --allow_missing pooler/dense/bias makes it anew",
        "no variable has the name 'masked_lm_heads' that may be missing",
        "unknown: optimizer/momentum [2, 3], in w.bin",
        "wrong shape: masked_lm_head/bias in w.bin is [500], and should be [517]",
    ]
    with pytest.raises(KzooError, match="5 things"):
        check_all(model, weights, allow_missing=["masked_lm_heads"])


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_named(model, arrays, value):
    wrong = {path: array.copy() for path, array in arrays.items()}
    wrong["pooler/dense/bias"][-1] = value
    wrong["embeddings/token_embedding/embeddings"][5, 3] = value
    with pytest.raises(KzooError) as caught:
        assign_all(model, source_of(wrong))
    assert "weights.safetensors: pooler/dense/bias holds values that are not" in str(caught.value)
    assert "embeddings/token_embedding/embeddings holds values that are" in str(caught.value)


def test_the_last_value_of_a_large_array_counts_too():
    values = np.zeros(accounting._BLOCK_VALUES + 3, np.float32)
    assert all_finite(values)
    values[-1] = np.inf
    assert not all_finite(values)
    assert all_finite(np.zeros((0, 3)))


def test_a_reason_is_needed_to_leave_a_tensor_out(model, arrays):
    more = {**arrays, "classifier/bias": np.zeros(2), "classifier/kernel": np.full(2, np.nan)}
    accounts = assign_all(model, source_of(more), ignored={"classifier/*": "a task's head"})
    assert accounts.ignored == {
        "classifier/bias": "a task's head",
        "classifier/kernel": "a task's head",
    }
    # What a variable needs is never left out.
    accounts = assign_all(model, source_of(arrays), ignored={"*": "anything"})
    assert len(accounts.used) == len(model.variables)
    assert not accounts.ignored


@pytest.mark.parametrize(
    "allowed", ["masked_lm_head", "masked_lm_head/table", "masked_lm_head/dense"]
)
def test_what_may_be_missing_is_made_anew_and_always_the_same(arrays, allowed):
    lacking = {path: array for path, array in arrays.items() if not path.startswith(allowed)}
    anew = arrays.keys() - lacking.keys()
    made = []
    for _ in range(2):
        model = shapes.masked_lm()
        accounts = assign_all(model, source_of(lacking), allow_missing=[allowed])
        assert accounts.made_anew.keys() == anew
        assert not anew & set(accounts.used)
        made.append({v.path: v.numpy() for v in model.variables if v.path in anew})
    for path, value in made[0].items():
        np.testing.assert_array_equal(value, made[1][path])
        if path.endswith(("/kernel", "/table")):
            assert value.std() == pytest.approx(0.02 * 0.88, rel=0.1)
        else:
            assert set(value.tolist()) == {1.0 if path.endswith("gamma") else 0.0}


def test_two_matrices_that_are_made_anew_differ(arrays):
    model = shapes.masked_lm()
    kept = {path: array for path, array in arrays.items() if "encoder_block" not in path}
    blocks = [f"encoder_block_{index}" for index in range(3)]
    assign_all(model, source_of(kept), allow_missing=blocks)
    kernels = [v.numpy() for v in model.variables if v.path.endswith("query/kernel")]
    assert len(kernels) == 3
    assert len({kernel.tobytes() for kernel in kernels}) == 3


def test_two_tensors_of_one_name_are_refused():
    tensors = [("a", StoredTensor((1,), f"{number}.bin", None)) for number in (1, 2)]
    with pytest.raises(KzooError, match=r"there twice: a \(in 1\.bin and 2\.bin\)"):
        SourceWeights(tensors)
