"""Weights out of KerasHub's files, one tensor at a time."""

import shutil

import h5py
import numpy as np
import pytest

from kzoo import KzooError
from kzoo.layers.initializers import left_empty
from kzoo.models.backbone import RemBertBackbone
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.models.saving import save_preset
from kzoo.models.weights_file import block_name, encoder_layers, names_in_file, read_weights
from tests.models import shapes
from tests.reference import random_weights_into


@pytest.fixture(scope="module", params=[40, "tied"])
def model(request):
    model = shapes.masked_lm(request.param)
    random_weights_into(model)
    return model


@pytest.fixture(scope="module")
def preset(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "preset"
    save_preset(model, None, folder)
    return folder


@pytest.fixture
def encoder_file(preset, tmp_path):
    return shutil.copy(preset / "model.weights.h5", tmp_path)


def empty(model) -> RemBertMaskedLM:
    with left_empty():
        backbone = RemBertBackbone(**shapes.ARGUMENTS)
        return RemBertMaskedLM(backbone, model.output_embedding_dim)


def assert_same(found, expected):
    assert found.variables
    for variable, wanted in zip(found.variables, expected.variables, strict=True):
        np.testing.assert_array_equal(variable.numpy(), wanted.numpy(), variable.path)


def test_encoder_and_head_are_those_that_were_saved(model, preset):
    found = empty(model)
    read_weights(preset / "model.weights.h5", encoder_layers(found.backbone))
    read_weights(preset / "task.weights.h5", {"masked_lm_head": found.head})
    assert_same(found, model)


def test_every_name_in_the_file_is_that_of_a_variable(model, preset):
    with h5py.File(preset / "model.weights.h5") as file:
        names = names_in_file(encoder_layers(model.backbone))
        assert names.keys() == {variable.path for variable in model.backbone.variables}
        for variable in model.backbone.variables:
            np.testing.assert_array_equal(file[names[variable.path]], variable.numpy())


def test_layers_that_are_left_out_are_not_missed(model, preset):
    lower = shapes.backbone(num_layers=2)
    read_weights(preset / "model.weights.h5", encoder_layers(lower), [block_name(2)])
    assert_same(lower.encoder_blocks[1], model.backbone.encoder_blocks[1])
    with pytest.raises(KzooError, match=r"no place for.*layers/encoder_block_2/"):
        read_weights(preset / "model.weights.h5", encoder_layers(lower))


def test_what_is_missing_is_named_and_nothing_is_assigned(model, encoder_file):
    name = names_in_file(encoder_layers(model.backbone))["pooler/dense/bias"]
    with h5py.File(encoder_file, "a") as file:
        del file[name]
    found = shapes.backbone()
    before = [variable.numpy() for variable in found.variables]
    with pytest.raises(KzooError, match=f"{name}, which holds pooler/dense/bias, is missing"):
        read_weights(encoder_file, encoder_layers(found))
    for variable, value in zip(found.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


def test_another_shape_is_named(encoder_file):
    larger = shapes.backbone(vocabulary_size=600)
    with pytest.raises(KzooError, match=r"\(517, 16\).*token_embedding.*\(600, 16\)"):
        read_weights(encoder_file, encoder_layers(larger))


def in_another_file(file, name, shape):
    secret = f"{file.filename}.secret"
    np.ones(shape, "f4").tofile(secret)
    file.create_dataset(name, shape, "f4", external=[(secret, 0, h5py.h5f.UNLIMITED)])


def virtual(file, name, shape):
    layout = h5py.VirtualLayout(shape, "f4")
    layout[:] = h5py.VirtualSource("other.h5", "a", shape)
    file.create_virtual_dataset(name, layout)


def text(file, name, shape):
    file.create_dataset(name, shape, h5py.string_dtype())


def complex_numbers(file, name, shape):
    file.create_dataset(name, shape, "c8")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (in_another_file, "is not in this file but in another"),
        (virtual, "is not in this file but in another"),
        (text, "holds no numbers. Received: object"),
        (complex_numbers, "holds no numbers. Received: complex64"),
    ],
)
def test_what_is_no_tensor_of_this_file_is_not_read(write, message, model, encoder_file):
    layers = encoder_layers(shapes.backbone())
    name = names_in_file(layers)["pooler/dense/bias"]
    with h5py.File(encoder_file, "a") as file:
        shape = file[name].shape
        del file[name]
        write(file, name, shape)
    with pytest.raises(KzooError, match=rf"model\.weights\.h5: {name} {message}"):
        read_weights(encoder_file, layers)


@pytest.mark.parametrize("content", [b"", b"no HDF5"])
def test_what_is_no_file_of_weights_is_a_clear_error(tmp_path, content):
    path = tmp_path / "model.weights.h5"
    path.write_bytes(content)
    with pytest.raises(KzooError, match="cannot be read as a file of weights"):
        read_weights(path, encoder_layers(shapes.backbone()))


def test_a_file_that_cannot_be_opened_is_said_in_the_systems_words(tmp_path):
    (tmp_path / "folder").mkdir()
    for name, reason in (("none.h5", "No such file or directory"), ("folder", "Is a directory")):
        with pytest.raises(KzooError) as error:
            read_weights(tmp_path / name, {}, [])
        assert str(error.value) == f"cannot read {tmp_path / name}: {reason}"
