"""What one checkpoint is on disk: values under their variables' paths, and the state of the run.

    variables.index, variables.data-00000-of-00001    a TensorFlow checkpoint; its keys are the
                                                      exact `variable.path`s, and nothing else
    state.json                                        written last: the step, the caller's state,
                                                      every tensor's shape and dtype, file sizes

`tf.train.load_checkpoint(folder + "/variables")` reads it. `tf.train.Checkpoint` does not write
it: that walks the attributes of objects, and silently leaves out what it does not find there.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kzoo.errors import KzooError
from kzoo.storage import files
from kzoo.storage.paths import is_remote
from kzoo.storage.remote import reason

FORMAT_VERSION = 1
STATE_FILE = "state.json"
PREFIX = "variables"
OPTIMIZER_PREFIX = "optimizer/"
"""What the names of an optimizer's tensors begin with."""

# How many tensors an error message names before it only counts them.
_NAMED_TENSORS = 3

Variable = keras.Variable | tf.Variable

# What reading what is damaged ends in. All other errors say that it could not be read now.
_OF_DAMAGE = (
    tf.errors.DataLossError,
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.OutOfRangeError,
)


class BrokenCheckpointError(Exception):
    """A checkpoint that cannot be used; the message says which file, and why."""


class IncompleteCheckpointError(BrokenCheckpointError):
    """A folder without `state.json`: its writing was never finished."""


def by_path(variables: Sequence[Variable]) -> dict[str, tf.Variable]:
    """The TensorFlow variables under the names that they have on disk.

    Args:
        variables: `keras.Variable`s, named by their `path`, or `tf.Variable`s, named by their
            `name` without the `:0`. Mirrored variables count as one.

    Raises:
        KzooError: if two variables have one name.
    """
    named: dict[str, tf.Variable] = {}
    repeated = []
    for variable in variables:
        is_keras = isinstance(variable, keras.Variable)
        name = variable.path if is_keras else variable.name.removesuffix(":0")
        if name in named:
            repeated.append(name)
        named[name] = variable.value if is_keras else variable
    if repeated:
        raise KzooError(
            f"{_some(repeated)} belong to more than one variable, so a checkpoint cannot tell "
            "them apart; give every layer a name of its own"
        )
    return named


def size_bytes(variables: Mapping[str, tf.Variable]) -> int:
    """The disk space that a checkpoint of these variables takes, with a little to spare."""
    values = sum(
        variable.shape.num_elements() * variable.dtype.size for variable in variables.values()
    )
    return values + 1024 * len(variables) + 2**20


def snapshot(variables: Mapping[str, tf.Variable]) -> dict[str, tf.Tensor]:
    """The values of variables as they are now, in the memory of the host, whatever comes later.

    Reading a variable shares its memory, and an update then copies what is shared: on the host,
    nothing is copied before that. From a GPU, all values come to the host here.
    """
    with tf.device("CPU:0"):
        return {name: tf.identity(variable.read_value()) for name, variable in variables.items()}


def write(
    folder: str, values: Mapping[str, tf.Tensor], step: int, state: Mapping[str, Any]
) -> None:
    """Writes a checkpoint into `folder`, which is made; it is complete when this returns.

    Raises:
        OSError, tf.errors.OpError: if the files cannot be written.
    """
    tf.io.gfile.makedirs(folder)
    with tf.device("CPU:0"):
        tf.raw_ops.SaveV2(
            prefix=os.path.join(folder, PREFIX),
            tensor_names=list(values),
            shape_and_slices=[""] * len(values),
            tensors=list(values.values()),
        )
    names = sorted(tf.io.gfile.listdir(folder))
    content = {
        "format_version": FORMAT_VERSION,
        "step": step,
        "state": dict(state),
        "files": {name: tf.io.gfile.stat(os.path.join(folder, name)).length for name in names},
        "tensors": {
            name: {"shape": value.shape.as_list(), "dtype": value.dtype.name}
            for name, value in values.items()
        },
    }
    for name in names:
        sync(os.path.join(folder, name))
    write_json(os.path.join(folder, STATE_FILE), {"sha256": _digest(content), **content})
    sync(folder)


def restore(
    folder: str, variables: Sequence[Variable], *, allow_unused: bool = False
) -> dict[str, Any]:
    """Assigns a checkpoint's values to the variables, on every replica of mirrored ones.

    Every tensor is read twice, one at a time: first to check its CRC, then to assign it. So no
    variable changes unless all can, and the memory needed beyond the variables is that of the
    largest tensor. The first reading costs what a sequential read of the file does; the second
    mostly finds it in the page cache.

    Args:
        folder: the checkpoint.
        variables: see `by_path`.
        allow_unused: whether the checkpoint may hold tensors beyond the variables', as when a
            model is restored without its optimizer.

    Returns:
        The state that was saved, and its `step`.

    Raises:
        BrokenCheckpointError: if a file is missing, cut short or damaged.
        KzooError: if the checkpoint is of another model (other names, shapes or dtypes), or it
            cannot be read now.
    """
    named = by_path(variables)
    content = _read_state(folder)
    _check_tensors(folder, content["tensors"], named, allow_unused)
    for name, variable in named.items():
        _read_tensor(folder, name, variable.dtype)
    for name, variable in named.items():
        variable.assign(_read_tensor(folder, name, variable.dtype), read_value=False)
    return {**content["state"], "step": content["step"]}


def contents(folder: str) -> tuple[dict[str, tuple[int, ...]], dict[str, Any]]:
    """What a checkpoint says that it holds; its files' lengths are checked, and nothing is read.

    Returns:
        The shape of every tensor; and the state that was saved, with its `step`.

    Raises:
        BrokenCheckpointError: if a file is missing, cut short or damaged.
    """
    content = _read_state(folder)
    shapes = {name: tuple(tensor["shape"]) for name, tensor in content["tensors"].items()}
    return shapes, {**content["state"], "step": content["step"]}


def read_float32(folder: str, name: str) -> np.ndarray:
    """One float32 tensor of a checkpoint, its CRC checked.

    Raises:
        BrokenCheckpointError: if it cannot be read.
    """
    return _read_tensor(folder, name, tf.float32).numpy()


def is_complete(folder: str) -> bool:
    """Whether the writing of the checkpoint was finished; its files are not checked.

    Raises:
        KzooError: the storage cannot be asked.
    """
    return files.exists(os.path.join(folder, STATE_FILE))


def remove(folder: str) -> None:
    """Removes a checkpoint or what there is of it, such that no kill leaves half a complete one.

    `state.json` goes first: a folder without it is not complete.
    """
    if files.exists(folder):
        if is_complete(folder):
            tf.io.gfile.remove(os.path.join(folder, STATE_FILE))
        tf.io.gfile.rmtree(folder)


def sync(path: str) -> None:
    """Returns when a local file or folder has reached the disk."""
    if is_remote(path):
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: str, content: Mapping[str, Any]) -> None:
    """Writes a small JSON file that has reached the disk when this returns."""
    with tf.io.gfile.GFile(path, "w") as file:
        file.write(json.dumps(content, allow_nan=False) + "\n")
    sync(path)


def check_free_space(folder: str, needed_bytes: int, what: str = "a checkpoint") -> None:
    """Raises `KzooError` if a local folder's disk has no room for `needed_bytes`.

    Args:
        folder: an existing folder; nothing is checked on object storage.
        needed_bytes: how much room it takes.
        what: what is to be written, for the message.
    """
    if is_remote(folder):
        return
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise KzooError(
            f"no room for {what} in {folder}: it needs {needed_bytes / 1e6:,.1f} MB and "
            f"{free_bytes / 1e6:,.1f} MB are free. The checkpoints that are there stay as they "
            "are: free some space, or keep fewer of them, and start the run again"
        )


def _read_state(folder: str) -> dict[str, Any]:
    """The content of `state.json`, after a check that it and the files it lists are whole."""
    path = os.path.join(folder, STATE_FILE)
    if not files.exists(path):
        raise IncompleteCheckpointError(f"{path} is missing, so its writing was never finished")
    try:
        with _damage(path), tf.io.gfile.GFile(path) as file:
            content = json.loads(file.read())
        digest = content.pop("sha256")
    except (ValueError, KeyError, AttributeError) as error:
        raise BrokenCheckpointError(f"{path} is damaged: {error}") from error
    if digest != _digest(content):
        raise BrokenCheckpointError(f"{path} is damaged: its content does not match its sha256")
    if content["format_version"] != FORMAT_VERSION:
        raise KzooError(
            f"{path} has format version {content['format_version']}, and this version of kzoo "
            f"reads {FORMAT_VERSION}"
        )
    for name, expected in content["files"].items():
        path = os.path.join(folder, name)
        if not files.exists(path):
            raise BrokenCheckpointError(f"{path} is missing")
        found = files.stat(path).size_bytes
        if found != expected:
            raise BrokenCheckpointError(f"{path} has {found} bytes instead of {expected}")
    return content


def _check_tensors(
    folder: str,
    stored: Mapping[str, Mapping[str, Any]],
    variables: Mapping[str, tf.Variable],
    allow_unused: bool,
) -> None:
    missing = [name for name in variables if name not in stored]
    unexpected = [] if allow_unused else [name for name in stored if name not in variables]
    different = []
    for name in variables.keys() & stored.keys():
        here = f"{variables[name].dtype.name}{variables[name].shape.as_list()}"
        there = f"{stored[name]['dtype']}{stored[name]['shape']}"
        if here != there:
            different.append(f"{name} (checkpoint {there}, model {here})")
    problems = [
        f"{what}: {_some(names)}"
        for what, names in (
            ("missing in the checkpoint", missing),
            ("unknown to the model", unexpected),
            ("of another shape or dtype", sorted(different)),
        )
        if names
    ]
    if problems:
        advice = "Go on with the configuration that it was made with, or choose another folder"
        wrong = [*missing, *unexpected, *different]
        if all(name.startswith(OPTIMIZER_PREFIX) for name in wrong):
            advice += (
                ". To freeze or thaw parts, begin a new run in another folder from this one's "
                "weights (init_from.path)"
            )
        raise KzooError(
            f"the checkpoint {folder} is of another model or optimizer; tensors "
            f"{'; '.join(problems)}. {advice}"
        )


def _read_tensor(folder: str, name: str, dtype: tf.DType) -> tf.Tensor:
    """One value, its CRC checked."""
    prefix = os.path.join(folder, PREFIX)
    with _damage(prefix, f"tensor {name}"), tf.device("CPU:0"):
        return tf.raw_ops.RestoreV2(
            prefix=prefix, tensor_names=[name], shape_and_slices=[""], dtypes=[dtype]
        )[0]


@contextlib.contextmanager
def _damage(path: str, what: str | None = None) -> Iterator[None]:
    """Tells what is damaged from what cannot be read now, which would be lost if passed over."""
    try:
        yield
    except _OF_DAMAGE as error:
        raise BrokenCheckpointError(f"{what or f'{path} is damaged'}: {reason(error)}") from error
    except tf.errors.OpError as error:
        raise KzooError(
            f"cannot read {path}: {reason(error)}. If that does not pass, move the checkpoint away"
        ) from error


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _some(names: Sequence[str]) -> str:
    """The first few names, and how many more there are."""
    more = len(names) - _NAMED_TENSORS
    return ", ".join(names[:_NAMED_TENSORS]) + (f" and {more} more" if more > 0 else "")
