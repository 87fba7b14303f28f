"""safetensors files: read as their own library reads them, and not believed when they lie."""

import json
import struct

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from kzoo import KzooError
from kzoo.interchange.safetensors_files import open_safetensors, write_safetensors
from kzoo.interchange.source_weights import SourceWeights


@pytest.fixture
def arrays() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {"matrix": (5, 3), "vector": (7,), "scalar": (), "empty": (0, 4)}
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_every_type_of_weights_becomes_float32(arrays, dtype, tmp_path):
    arrays = {name: array.astype(dtype) for name, array in arrays.items()}
    save_file(arrays, tmp_path / "a.safetensors")
    weights = SourceWeights(open_safetensors(str(tmp_path / "a.safetensors")))
    assert sorted(weights.names()) == sorted(arrays)
    for name, array in arrays.items():
        assert weights.shape(name) == array.shape
        assert weights.read(name).dtype == np.float32
        assert weights.read(name).shape == array.shape
        np.testing.assert_array_equal(weights.read(name), array.astype(np.float32))


def test_special_values_of_bfloat16_survive(tmp_path):
    values = np.array([np.inf, -np.inf, np.nan, 1e-40, -0.0], ml_dtypes.bfloat16)
    save_file({"a": values}, tmp_path / "a.safetensors")
    [(_, tensor)] = open_safetensors(str(tmp_path / "a.safetensors"))
    np.testing.assert_array_equal(tensor.load(), values.astype(np.float32))


def test_integers_are_no_weights_but_may_be_there(tmp_path):
    save_file({"ids": np.arange(4)}, tmp_path / "a.safetensors")
    [(name, tensor)] = open_safetensors(str(tmp_path / "a.safetensors"))
    assert (name, tensor.shape) == ("ids", (4,))
    with pytest.raises(KzooError, match=r"ids is of type I64; weights are F32, F16, BF16"):
        tensor.load()


def test_what_is_written_the_library_reads(arrays, tmp_path):
    path = tmp_path / "a.safetensors"
    transposed = {**arrays, "matrix": arrays["matrix"].T}
    write_safetensors(
        str(path),
        [(name, array.shape, lambda array=array: array) for name, array in transposed.items()],
    )
    loaded = load_file(path)
    assert loaded.keys() == arrays.keys()
    for name, array in transposed.items():
        np.testing.assert_array_equal(loaded[name], array)


def entry(begin: int, end: int, shape=(2,), dtype="F32") -> dict:
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


LIES = {
    "overlap": ({"a": entry(0, 8), "b": entry(4, 12)}, 12, "b begins at byte 4 and so overlaps"),
    "gap": ({"a": entry(0, 8), "b": entry(12, 20)}, 20, "b begins at byte 12 .* leaves a gap to"),
    "beyond the end": ({"a": entry(0, 8)}, 4, "was cut off"),
    "far beyond the end": ({"a": entry(2**40, 2**40 + 8)}, 8, "leaves a gap to what is before it"),
    "bytes of no tensor": ({"a": entry(0, 8)}, 12, "has bytes that belong to no tensor"),
    "size": ({"a": entry(0, 12)}, 12, r"a of shape \[2\] in F32 has 8 bytes, but .* gives it 12"),
    "backwards": ({"a": entry(8, 0)}, 8, "gives it -8"),
    "huge shape": ({"a": entry(0, 8, (2**62, 2**62))}, 8, "but the header gives it 8"),
    "negative": ({"a": entry(-8, 0)}, 8, "numbers from 0 on"),
    "no number": ({"a": entry(0, 8, ("2",))}, 8, "numbers from 0 on"),
    "type": ({"a": entry(0, 8, dtype="Q4")}, 8, "of a type that kzoo does not know: 'Q4'"),
    "type that is no name": ({"a": {**entry(0, 8), "dtype": ["F32"]}}, 8, r"Received: \['F32'\]"),
    "no entry": ({"a": 3}, 8, "a has no dtype, shape and data_offsets"),
    "no object": ([], 0, "no JSON object"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_header_that_lies_is_refused(lie, tmp_path):
    header, data_bytes, message = LIES[lie]
    text = json.dumps(header).encode()
    path = tmp_path / "a.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(data_bytes))
    with pytest.raises(KzooError, match=rf"a\.safetensors.*{message}"):
        open_safetensors(str(path))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no safetensors file, or was cut off: it has 0 bytes"),
        (b"\x08\x00", "no safetensors file, or was cut off: it has 2 bytes"),
        (struct.pack("<Q", 2**63), "its header alone is to have 9,223,372,036,854,775,808"),
        (struct.pack("<Q", 2) + b"{", "its header alone is to have 2"),
        (struct.pack("<Q", 3) + b"{x}", "its header is no JSON"),
        (struct.pack("<Q", 2) + b"\xff\xff", "its header is no JSON"),
        (struct.pack("<Q", 200_000) + b"[" * 200_000, "its header is no JSON"),
        (struct.pack("<Q", 15) + b'{"a":1, "a": 2}', "'a' is there twice"),
    ],
)
def test_what_is_no_such_file_is_refused(content, message, tmp_path):
    path = tmp_path / "a.safetensors"
    path.write_bytes(content)
    with pytest.raises(KzooError, match=message):
        open_safetensors(str(path))


def test_a_header_longer_than_the_format_allows_is_not_read(tmp_path):
    path = tmp_path / "a.safetensors"
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", 150_000_000))
        file.truncate(200_000_000)
    with pytest.raises(KzooError, match=r"150,000,000 bytes is longer than the format allows"):
        open_safetensors(str(path))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(KzooError, match=r"cannot read .*nothing\.safetensors: No such file"):
        open_safetensors(str(tmp_path / "nothing.safetensors"))


def test_a_file_that_shrinks_after_it_was_opened_is_noticed(tmp_path):
    path = tmp_path / "a.safetensors"
    save_file({"a": np.ones(100, np.float32)}, path)
    [(_, tensor)] = open_safetensors(str(path))
    with open(path, "r+b") as file:
        file.truncate(200)
    with pytest.raises(KzooError, match="was cut off while it was read"):
        tensor.load()
