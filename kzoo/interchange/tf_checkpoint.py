"""TensorFlow checkpoints, of TensorFlow 1 and of objects, read one tensor at a time."""

import os
import posixpath
from collections.abc import Callable

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import trackable_object_graph_pb2

from kzoo.errors import KzooError
from kzoo.interchange.source_weights import StoredTensor
from kzoo.text.vocabulary import MODEL_FILE, Vocabulary

_OBJECT_GRAPH = "_CHECKPOINTABLE_OBJECT_GRAPH"
# A file that ends too early is an IndexError.
_READER_ERRORS = (tf.errors.OpError, ValueError, RuntimeError, IndexError)
_FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)


class TensorFlowCheckpoint:
    """A checkpoint that is open for reading.

    Args:
        path: the checkpoint's prefix (`model.ckpt-1000`), its `.index` file, or the folder that
            it is in.

    Attributes:
        prefix: what all of its files begin with.
        shapes: name of each tensor → its shape.

    Raises:
        KzooError: there is no checkpoint, or more than one and nothing that says which.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.prefix = _prefix_of(os.fspath(path))
        try:
            self._reader = tf.train.load_checkpoint(self.prefix)
            shapes = self._reader.get_variable_to_shape_map()
            self._dtypes = self._reader.get_variable_to_dtype_map()
        except _READER_ERRORS as error:
            raise KzooError(
                f"{self.prefix}: no checkpoint that TensorFlow reads: {error}"
            ) from None
        self.is_of_objects = _OBJECT_GRAPH in shapes
        self.shapes = {
            name: tuple(shape) for name, shape in sorted(shapes.items()) if name != _OBJECT_GRAPH
        }

    def stored(
        self,
        name: str,
        shape: tuple[int, ...] | None = None,
        change: Callable[[np.ndarray], np.ndarray] | None = None,
    ) -> StoredTensor:
        """A tensor that is read later.

        Args:
            name: of the tensor.
            shape: that it has after `change`; default: as it is.
            change: what is done with it, such as a transposition.
        """

        def load() -> np.ndarray:
            value = self._read(name)
            return value if change is None else change(value)

        return StoredTensor(self.shapes[name] if shape is None else shape, self.prefix, load)

    def vocabulary(self) -> Vocabulary | None:
        """The vocabulary that lies beside the checkpoint, if there is one."""
        path = posixpath.join(posixpath.dirname(self.prefix), MODEL_FILE)
        return Vocabulary.load(path) if posixpath.isfile(path) else None

    def object_graph(self) -> trackable_object_graph_pb2.TrackableObjectGraph:
        """Which object of the program that saved this had which others as its attributes.

        Raises:
            KzooError: it is a checkpoint of TensorFlow 1, which has names alone.
        """
        if not self.is_of_objects:
            raise KzooError(
                f"{self.prefix} is a checkpoint of TensorFlow 1, without the objects that Model "
                "Garden saves; --from tf1 reads it"
            )
        graph = self._get(_OBJECT_GRAPH)
        try:
            return trackable_object_graph_pb2.TrackableObjectGraph.FromString(graph)
        except Exception as error:  # protobuf's DecodeError has moved between versions
            raise KzooError(f"{self.prefix}: its object graph cannot be read: {error}") from None

    def _read(self, name: str) -> np.ndarray:
        dtype = self._dtypes[name]
        if dtype not in _FLOATS:
            raise KzooError(
                f"{self.prefix}: {name} is of type {dtype.name}, which is no weight's; weights are "
                f"{', '.join(known.name for known in _FLOATS)}"
            )
        return self._get(name).astype(np.float32, copy=False)

    def _get(self, name: str):
        try:
            return self._reader.get_tensor(name)
        except _READER_ERRORS as error:
            raise KzooError(f"{self.prefix}: {name} cannot be read: {error}") from None


def _prefix_of(path: str) -> str:
    """What the files of the checkpoint that is meant begin with."""
    if not tf.io.gfile.isdir(path):
        prefix = path.removesuffix(".index")
        if not tf.io.gfile.exists(f"{prefix}.index"):
            raise KzooError(
                f"{path}: no checkpoint is here: there is neither a folder of this name nor "
                f"{posixpath.basename(prefix)}.index"
            )
        return prefix
    names = tf.io.gfile.listdir(path)
    found = sorted(name.removesuffix(".index") for name in names if name.endswith(".index"))
    latest = _latest(path)
    if len(found) > 1 and latest in found:
        found = [latest]
    if not found:
        raise KzooError(f"{path}: there is no checkpoint in this folder: it has no .index file")
    if len(found) > 1:
        raise KzooError(
            f"{path}: more than one checkpoint is in this folder: name one of {', '.join(found)}"
        )
    return posixpath.join(path, found[0])


def _latest(folder: str) -> str | None:
    """The newest checkpoint as the folder's `checkpoint` file has it: a name without a path."""
    # The path in it is that of the computer where it was written, or anything else.
    state = tf.train.get_checkpoint_state(folder)
    return None if state is None else posixpath.basename(state.model_checkpoint_path)
