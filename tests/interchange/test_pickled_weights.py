"""PyTorch's files of weights, read without PyTorch; what is more than weights is refused."""

import collections
import os
import pickle
import zipfile

import ml_dtypes
import numpy as np
import pytest

from kzoo import KzooError
from kzoo.interchange.pickled_weights import open_pickled
from kzoo.interchange.source_weights import SourceWeights
from tests.interchange.hugging_face_folders import write_pickled

ARRAYS = {
    "matrix": np.arange(6, dtype=np.float32).reshape(2, 3),
    "vector": np.linspace(0, 1, 5, dtype=np.float32),
    "scalar": np.float32(3.5).reshape(()),
    "empty": np.zeros((0, 4), np.float32),
}


@pytest.mark.parametrize("dtype", [np.float32, np.float16, ml_dtypes.bfloat16])
def test_every_type_of_weights_becomes_float32(dtype, tmp_path):
    arrays = {name: array.astype(dtype) for name, array in ARRAYS.items()}
    write_pickled(tmp_path / "model.bin", arrays)
    weights = SourceWeights(open_pickled(str(tmp_path / "model.bin")))
    assert weights.names() == list(arrays)
    for name, array in arrays.items():
        assert weights.shape(name) == array.shape
        assert weights.read(name).dtype == np.float32
        assert weights.read(name).shape == array.shape
        np.testing.assert_array_equal(weights.read(name), array.astype(np.float32))


def test_strides_are_followed(tmp_path):
    # The bytes are those of the matrix; the description is that of its transposition.
    turned = np.asfortranarray(ARRAYS["matrix"].T)
    write_pickled(tmp_path / "model.bin", {"a": turned}, data_0=ARRAYS["matrix"].tobytes())
    [(_, tensor)] = open_pickled(str(tmp_path / "model.bin"))
    np.testing.assert_array_equal(tensor.load(), turned)


def test_integers_are_no_weights_but_may_be_there(tmp_path):
    write_pickled(tmp_path / "model.bin", {"ids": np.arange(4)})
    [(_, tensor)] = open_pickled(str(tmp_path / "model.bin"))
    assert tensor.shape == (4,)
    with pytest.raises(KzooError, match="ids is stored as LongStorage, which is no weight's"):
        tensor.load()


class Runs:
    """Its pickle makes a folder when it is read."""

    def __init__(self, path):
        self._path = str(path)

    def __reduce__(self):
        return os.mkdir, (self._path,)


def refused(path, **changes: bytes) -> str:
    """What is said about a file whose parts are others than they should be."""
    write_pickled(path, {"matrix": ARRAYS["matrix"]}, **changes)
    with pytest.raises(KzooError, match=r"model\.bin") as caught:
        open_pickled(str(path))
    return str(caught.value)


def test_a_pickle_that_would_run_something_is_refused_and_runs_nothing(tmp_path):
    program = pickle.dumps({"a": Runs(tmp_path / "made")}, protocol=2)
    message = refused(tmp_path / "model.bin", data_pkl=program)
    assert f"asks for {os.mkdir.__module__}.mkdir" in message
    assert "model.safetensors" in message
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("name", ["builtins eval", "torch load", "torch._utils _rebuild_parameter"])
def test_anything_but_tensors_is_refused(name, tmp_path):
    program = b"\x80\x02c" + name.replace(" ", "\n").encode() + b"\n."
    assert f"asks for {name.replace(' ', '.')}" in refused(tmp_path / "model.bin", data_pkl=program)


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (b"", "no file of PyTorch's weights"),
        (b"\x80\x02}", "no file of PyTorch's weights"),
        (b"\x80\x02]u.", "no file of PyTorch's weights"),
        (pickle.dumps([1]), "a dictionary from names to tensors"),
        (pickle.dumps({1: 2}), "a dictionary from names to tensors"),
        (pickle.dumps(collections.OrderedDict(epoch=3)), "more than tensors: epoch"),
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n(K\x01K\x00))tR.", "no tensor"),
        (b"\x80\x02K\x07Q.", "no file of PyTorch's weights"),
    ],
)
def test_a_description_that_is_none_is_refused(program, message, tmp_path):
    assert message in refused(tmp_path / "model.bin", data_pkl=program)


def test_a_description_of_more_than_there_is_is_refused(tmp_path):
    message = refused(tmp_path / "model.bin", data_0=b"\0" * 20)
    assert "matrix needs 24 bytes in archive/data/0, which has 20" in message
    path = tmp_path / "longer.model.bin"
    write_pickled(path, {"matrix": ARRAYS["matrix"]})
    with zipfile.ZipFile(path) as archive:
        program = archive.read("archive/data.pkl")
    # Three rows instead of two, of the same storage.
    longer = program.replace(b"J\2\0\0\0J\3\0\0\0t", b"J\3\0\0\0J\3\0\0\0t")
    assert longer != program
    assert "reaches to number 8 of 6" in refused(path, data_pkl=longer)


def test_the_other_byte_order_is_refused(tmp_path):
    write_pickled(tmp_path / "model.bin", ARRAYS)
    assert "byte order b'big'" in refused(tmp_path / "model.bin", byteorder=b"big")


def test_the_old_format_is_refused_with_advice(tmp_path):
    path = tmp_path / "model.bin"
    path.write_bytes(pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2) + b"more")
    with pytest.raises(KzooError, match=r"since version 1\.6.*save it again"):
        open_pickled(str(path))


def test_a_file_that_was_cut_off_is_refused(tmp_path):
    path = tmp_path / "model.bin"
    write_pickled(path, ARRAYS)
    path.write_bytes(path.read_bytes()[:-200])
    with pytest.raises(KzooError, match=r"model\.bin is damaged, or was cut off"):
        open_pickled(str(path))


@pytest.mark.peers
def test_files_of_pytorch_itself(tmp_path):
    torch = pytest.importorskip("torch")
    base = torch.arange(24, dtype=torch.float32).reshape(4, 6)
    state = collections.OrderedDict(
        whole=base,
        # Views of the same storage.
        columns=base.T,
        part=base[1:3, 2:5],
        half=base.half(),
        brain=(base / 3).bfloat16(),
        position_ids=torch.arange(5),
        scalar=torch.tensor(2.5),
    )
    # As `Module.state_dict` has it.
    state._metadata = {"": {"version": 1}}
    torch.save(state, tmp_path / "model.bin")
    weights = SourceWeights(open_pickled(str(tmp_path / "model.bin")))
    assert weights.names() == list(state)
    for name, tensor in state.items():
        assert weights.shape(name) == tuple(tensor.shape)
        if name != "position_ids":
            np.testing.assert_array_equal(weights.read(name), tensor.float().numpy())
