"""Graphs out of files that are shared: computing is allowed, and nothing else."""

import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

from kzoo import KzooError
from kzoo.saved_model.encoder import EncoderModule
from kzoo.saved_model.graph_safety import check_graph
from tests.models import shapes


def graph_of(module, folder) -> bytes:
    tf.saved_model.save(module, str(folder))
    return (folder / "saved_model.pb").read_bytes()


def module_that(function) -> tf.Module:
    """A module whose call runs a function of a tensor in a function of its own."""
    module = tf.Module()
    module.inner = tf.function(function, autograph=False)
    module.__call__ = tf.function(
        autograph=False,
        func=lambda x: tf.cond(tf.reduce_all(x > 0), lambda: module.inner(x), lambda: x),
        input_signature=[tf.TensorSpec([None])],
    )
    return module


def and_then(operation, x):
    with tf.control_dependencies([operation]):
        return tf.identity(x)


@pytest.mark.parametrize("dropout", [0.0, 0.1])
@pytest.mark.parametrize("pooler", ["dense", None])
def test_an_encoder_is_allowed(tmp_path, dropout, pooler):
    backbone = shapes.backbone(
        num_layers=1, dropout=dropout, attention_dropout=dropout, pooler=pooler
    )
    EncoderModule(backbone).save(tmp_path / "encoder")
    check_graph((tmp_path / "encoder" / "saved_model.pb").read_bytes(), "here")


def test_an_encoder_that_was_loaded_and_saved_again_is_allowed(tmp_path):
    EncoderModule(shapes.backbone(num_layers=1, dropout=0.1)).save(tmp_path / "encoder")
    loaded = tf.saved_model.load(str(tmp_path / "encoder"))
    check_graph(graph_of(loaded, tmp_path / "again"), "here")


@pytest.mark.parametrize(
    ("operation", "does"),
    [
        ("WriteFile", lambda x: and_then(tf.io.write_file("harm", "harm"), x)),
        ("ReadFile", lambda x: x + tf.cast(tf.strings.length(tf.io.read_file("secret")), x.dtype)),
        ("EagerPyFunc", lambda x: tf.py_function(lambda y: y, [x], tf.float32)),
        ("(StringFormat|PrintV2)", lambda x: and_then(tf.print(x, output_stream="file://harm"), x)),
    ],
)
def test_what_does_more_than_compute_is_refused_however_deep_it_is(tmp_path, operation, does):
    graph = graph_of(module_that(does), tmp_path / "module")
    with pytest.raises(KzooError, match=rf"^here: its graph has the operation (\w*){operation}"):
        check_graph(graph, "here")


def test_what_runs_on_loading_is_refused(tmp_path):
    """A lookup table reads a file as soon as its module is loaded."""
    (tmp_path / "words.txt").write_text("a\nb\n")
    initializer = tf.lookup.TextFileInitializer(
        str(tmp_path / "words.txt"),
        tf.string,
        tf.lookup.TextFileIndex.WHOLE_LINE,
        tf.int64,
        tf.lookup.TextFileIndex.LINE_NUMBER,
    )
    module = module_that(lambda x: 2 * x)
    module.table = tf.lookup.StaticHashTable(initializer, -1)
    with pytest.raises(KzooError, match="here: its graph has the operation"):
        check_graph(graph_of(module, tmp_path / "module"), "here")


def test_other_files_are_clear_errors(tmp_path):
    with pytest.raises(KzooError, match=r"^here: saved_model\.pb is damaged"):
        check_graph(b"\xff\xff no graph", "here")
    graph = saved_model_pb2.SavedModel()
    graph.ParseFromString(graph_of(module_that(lambda x: x), tmp_path / "module"))
    graph.meta_graphs[0].ClearField("object_graph_def")
    with pytest.raises(KzooError, match=r"^here: this SavedModel was not written by TensorFlow 2"):
        check_graph(graph.SerializeToString(), "here")
