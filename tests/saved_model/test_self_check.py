"""The check of an export: in TensorFlow alone, and no fault goes unseen."""

import hashlib
import json
import shutil

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from kzoo.saved_model import encoder as encoders
from kzoo.saved_model.encoder import EncoderModule
from kzoo.saved_model.manifest import variable_specs
from kzoo.saved_model.self_check import _is_near
from kzoo.saved_model.tensor_checks import _compared
from tests.models import shapes
from tests.reference import random_weights_into
from tests.saved_model.exports import rewrite_manifest
from tests.training.subprocesses import run_python

# One process for all folders: it is the import of TensorFlow that takes time.
CHECK_ALL = """
import sys
sys.modules["tensorflow_text"] = None
import json, pathlib
from kzoo.saved_model.self_check import check
reports = {folder.name: check(folder) for folder in map(pathlib.Path, sys.argv[1:])}
assert not {"keras_hub", "kzoo.layers", "kzoo.models"} & sys.modules.keys()
print(json.dumps(reports))
"""


def changed_file(folder, backbone):
    data = folder / "encoder" / "variables" / "variables.data-00000-of-00001"
    content = bytearray(data.read_bytes())
    content[100] ^= 1
    data.write_bytes(content)


def missing_file(folder, backbone):
    (folder / "encoder" / "variables" / "variables.index").unlink()


def unlisted_file(folder, backbone):
    (folder / "encoder" / "assets.extra").mkdir()
    (folder / "encoder" / "assets.extra" / "more").touch()


def no_module(folder, backbone):
    shutil.rmtree(folder / "encoder")
    rewrite_manifest(folder)


def weights_of_the_head(folder, backbone):
    module = EncoderModule(backbone)
    module.named_variables["masked_lm_head/bias"] = tf.Variable(tf.zeros(3))
    replace(folder, module)


def other_input_table(folder, backbone):
    table = backbone.token_embedding.embeddings
    before = table.numpy()
    table.assign(before + 1e-3)
    replace(folder, EncoderModule(backbone))
    table.assign(before)


def second_table(folder, backbone):
    module = EncoderModule(backbone)
    module.named_variables["copy"] = tf.Variable(
        tf.zeros(backbone.token_embedding.embeddings.shape)
    )
    replace(folder, module)


def no_gradient(folder, backbone):
    encode = encoders.encode

    def without(*arguments):
        outputs = encode(*arguments)
        return outputs | {"default": tf.stop_gradient(outputs["default"])}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encoders, "encode", without)
        replace(folder, EncoderModule(backbone))


def other_signature(folder, backbone):
    module = EncoderModule(backbone)

    @tf.function(input_signature=module.serving_default.input_signature)
    def signature(*inputs):
        return {"default_bytes": module.serving_default(*inputs)["default"]}

    module.signature = signature
    shutil.rmtree(folder / "encoder")
    tf.saved_model.save(module, str(folder / "encoder"), {"serving_default": signature})
    rewrite_manifest(folder)


def operation_on_files(folder, backbone):
    def edit(function):
        function.node_def.add(name="read", op="ReadFile", input=["name"])

    edit_function(folder, edit)


def unknown_operation(folder, backbone):
    def edit(function):
        function.node_def.add(name="own", op="OperationOfOurOwn")

    edit_function(folder, edit)


def path_inside(folder, backbone):
    def edit(function):
        function.node_def[0].experimental_debug_info.original_node_names.append(str(folder))

    edit_function(folder, edit)


def replace(folder, module):
    shutil.rmtree(folder / "encoder")
    module.save(folder / "encoder")
    rewrite_manifest(folder)


def unknown_operation_where_none_calls(folder, backbone):
    """TensorFlow loads all functions, of which nothing that an encoder does needs this one."""

    def add(graph):
        function = graph.graph_def.library.function.add()
        function.signature.name = "not_called"
        function.node_def.add(name="own", op="OperationOfOurOwn")

    edit_graph(folder, add)


def edit_function(folder, edit):
    """Changes a function that is called; a file has its functions in no certain order."""

    def edit_it(graph):
        called = min(graph.object_graph_def.concrete_functions)
        library = graph.graph_def.library.function
        edit(next(function for function in library if function.signature.name == called))

    edit_graph(folder, edit_it)


def edit_graph(folder, edit):
    path = folder / "encoder" / "saved_model.pb"
    saved = saved_model_pb2.SavedModel.FromString(path.read_bytes())
    edit(saved.meta_graphs[0])
    path.write_bytes(saved.SerializeToString())
    rewrite_manifest(folder)


FAULTS = {
    changed_file: "variables.data-00000-of-00001 has changed since it was written",
    missing_file: "encoder/variables/variables.index, which MANIFEST.json lists, is missing",
    unlisted_file: "encoder/assets.extra/more is not listed in MANIFEST.json",
    no_module: "encoder: saved_model.pb cannot be read",
    weights_of_the_head: "encoder: has weights of the masked-LM head",
    other_input_table: "encoder: its table of input embeddings is not the source's",
    second_table: "encoder: has other tables of 517 rows than the input table",
    no_gradient: "encoder: a training step does not reach pooler/dense/kernel",
    other_signature: "encoder: serving_default: TensorFlow Serving would take default_bytes",
    operation_on_files: "its graph has the operation ReadFile",
    unknown_operation: "has the operation OperationOfOurOwn, which is not an operation of",
    unknown_operation_where_none_calls: "operations that TensorFlow does not know: OperationOfOur",
    path_inside: "encoder: names the folder in which it is",
}


@pytest.fixture(scope="module")
def reports(exported, tmp_path_factory):
    """Of an export without fault, of a small one without fault, and of one for each fault."""
    folder = tmp_path_factory.mktemp("exports")
    backbone = shapes.backbone(num_layers=1)
    random_weights_into(backbone)
    sound = folder / "sound"
    EncoderModule(backbone).save(sound / "encoder")
    manifest = json.loads((exported.folder / "MANIFEST.json").read_text())
    manifest["encoder"]["config"]["vocabulary_size"] = backbone.vocabulary_size
    manifest["encoder"]["kept"] = variable_specs(backbone.variables)
    manifest["encoder"]["input_table"]["sha256"] = sha256(backbone.token_embedding.embeddings)
    for name in ("preprocessor", "masked_lm"):
        del manifest[name]
    (sound / "MANIFEST.json").write_text(json.dumps(manifest | {"serving": {}}))
    rewrite_manifest(sound)
    for fault in FAULTS:
        fault(shutil.copytree(sound, folder / fault.__name__), backbone)
    folders = [exported.folder, *sorted(folder.iterdir())]
    return json.loads(run_python(CHECK_ALL, *folders).stdout)


def sha256(variable):
    return hashlib.sha256(variable.numpy().tobytes()).hexdigest()


def test_what_is_sound_has_no_problems(reports):
    assert reports["sound"]["problems"] == []
    [row] = reports["sound"]["modules"]
    assert row["outside_core"] == []
    assert row["signatures"] == ["serving_default"]
    assert row["tensors"] == 5 + 2 + 16 + 2
    assert row["bytes"] == 4 * row["parameters"]


def test_modules_for_text_are_not_run_without_their_operations(reports):
    report = reports["export"]
    assert report["problems"] == []
    rows = {row["module"]: row for row in report["modules"]}
    assert rows.keys() == {"encoder", "preprocessor", "masked_lm", "serving/1"}
    assert "note" not in rows.pop("encoder")
    for row in rows.values():
        assert row["note"] == "not run: tensorflow_text is not installed"
        assert row["outside_core"] == ["SentencepieceOp", "SentencepieceTokenizeOp"]


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_seen(reports, fault):
    problems = reports[fault.__name__]["problems"]
    assert any(FAULTS[fault] in problem for problem in problems), problems


@pytest.mark.parametrize("fault", [changed_file, missing_file, unlisted_file])
def test_what_somebody_has_changed_is_not_run(reports, fault):
    [row] = reports[fault.__name__]["modules"]
    assert row["note"].startswith("not run: its files")
    assert row["signatures"] == []


def test_ids_must_be_equal_and_vectors_near():
    ids = np.array([200_000, 3], np.int32)
    assert _is_near(_compared(ids, ids), is_narrow=False)
    assert not _is_near(_compared(ids + 1, ids), is_narrow=False)
    vectors = np.array([[4.0, -8.0]], np.float32)
    assert _is_near(_compared(vectors + 2e-5, vectors), is_narrow=False)
    assert not _is_near(_compared(vectors + 2e-3, vectors), is_narrow=False)
    assert _is_near(_compared(vectors + 0.2, vectors), is_narrow=True)
    assert not _is_near(_compared(vectors[:, ::-1], vectors), is_narrow=True)
    for wrong in (vectors * np.nan, vectors[:, :1]):
        for is_narrow in (True, False):
            assert not _is_near(_compared(wrong, vectors), is_narrow)
