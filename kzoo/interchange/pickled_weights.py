"""PyTorch's own files of weights, read without PyTorch and without running what they say.

Such a file is a zip archive: `data.pkl`, a pickle that describes the tensors, and the bytes of each
storage in `data/KEY`. A pickle is a program. This one may do nothing but make dictionaries and
call one function, and that function is ours.
"""

import collections
import dataclasses
import io
import math
import pickle
import zipfile
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from kzoo.errors import KzooError
from kzoo.interchange.safetensors_files import from_bfloat16
from kzoo.interchange.source_weights import StoredTensor

_MAX_PICKLE_BYTES = 100_000_000
_FIRST_BYTES_OF_ZIP = b"PK\x03\x04"


@dataclasses.dataclass(frozen=True)
class _StorageType:
    """A class of PyTorch's, such as `torch.FloatStorage`; `is_weight` where kzoo reads it."""

    name: str
    dtype: str
    is_weight: bool = False


_STORAGE_TYPES = {
    name: _StorageType(name, dtype, is_weight)
    for name, dtype, is_weight in (
        ("FloatStorage", "<f4", True),
        ("HalfStorage", "<f2", True),
        ("BFloat16Storage", "<u2", True),
        ("DoubleStorage", "<f8", False),
        ("LongStorage", "<i8", False),
        ("IntStorage", "<i4", False),
        ("ShortStorage", "<i2", False),
        ("CharStorage", "i1", False),
        ("ByteStorage", "u1", False),
        ("BoolStorage", "?", False),
    )
}


@dataclasses.dataclass(frozen=True)
class _Storage:
    """Numbers of one type in a file of the archive."""

    kind: _StorageType
    key: str
    size: int


@dataclasses.dataclass(frozen=True)
class _Tensor:
    """A view of a storage; offset and strides count numbers."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def open_pickled(path: str) -> list[tuple[str, StoredTensor]]:
    """Reads the description of the tensors in a `pytorch_model.bin`.

    Args:
        path: of the file.

    Returns:
        Name and tensor of each, in the order of the file.

    Raises:
        KzooError: the file cannot be read, is in PyTorch's old format, asks for anything else than
            tensors, or does not hold what it describes.
    """
    try:
        with open(path, "rb") as file:
            is_zip = file.read(4) == _FIRST_BYTES_OF_ZIP
    except OSError as error:
        raise KzooError(f"cannot read {path}: {error.strerror}") from error
    if not is_zip:
        raise KzooError(
            f"{path} is not in the format that PyTorch has written since version 1.6, or was cut "
            "off. Load it with PyTorch and save it again, best as model.safetensors"
        )
    try:
        with zipfile.ZipFile(path) as archive:
            return _tensors_of(archive, path)
    except (zipfile.BadZipFile, OSError, RuntimeError, EOFError) as error:
        raise KzooError(f"{path} is damaged, or was cut off: {error}") from error


def _tensors_of(archive: zipfile.ZipFile, path: str) -> list[tuple[str, StoredTensor]]:
    descriptions = [name for name in archive.namelist() if name.endswith("/data.pkl")]
    if len(descriptions) != 1:
        raise KzooError(f"{path} is no file of PyTorch's: it has {len(descriptions)} data.pkl")
    prefix = descriptions[0].removesuffix("data.pkl")
    _check_byte_order(archive, prefix, path)
    if archive.getinfo(descriptions[0]).file_size > _MAX_PICKLE_BYTES:
        raise KzooError(f"{path}: {descriptions[0]} is too long for a description of weights")
    state = _unpickle(archive.read(descriptions[0]), path)
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise KzooError(f"{path} does not hold a dictionary from names to tensors")
    no_tensors = [name for name, value in state.items() if not isinstance(value, _Tensor)]
    if no_tensors:
        raise KzooError(
            f"{path} holds more than tensors: {', '.join(no_tensors[:5])}. Save the model's "
            "state_dict() alone"
        )
    return [(name, _stored(archive, prefix, path, name, tensor)) for name, tensor in state.items()]


def _check_byte_order(archive: zipfile.ZipFile, prefix: str, path: str) -> None:
    name = f"{prefix}byteorder"
    if name in archive.namelist() and archive.getinfo(name).file_size < 100:
        order = archive.read(name)
        if order != b"little":
            raise KzooError(f"{path} was written with the byte order {order!r}; kzoo reads little")


class _Unpickler(pickle.Unpickler):
    """Gives dictionaries and descriptions of tensors, and refuses everything else."""

    def __init__(self, data: bytes, path: str):
        super().__init__(io.BytesIO(data), encoding="utf-8")
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return collections.OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if module == "torch" and name in _STORAGE_TYPES:
            return _STORAGE_TYPES[name]
        raise KzooError(
            f"{self._path} asks for {module}.{name}, which is no tensor and could run anything. "
            "kzoo reads weights only: have its author save them as model.safetensors"
        )

    def persistent_load(self, pid: Any) -> _Storage:
        kind_of_object, kind, key, _, size = pid
        is_storage = kind_of_object == "storage" and isinstance(kind, _StorageType)
        if not (is_storage and isinstance(key, str) and _is_size(size)):
            raise ValueError(f"no storage: {pid!r}")
        return _Storage(kind, key, size)


def _unpickle(data: bytes, path: str) -> Any:
    try:
        return _Unpickler(data, path).load()
    except KzooError:
        raise
    except Exception as error:
        # A pickle that lies can fail in any way.
        raise KzooError(f"{path} is no file of PyTorch's weights: {error}") from error


def _rebuild_tensor(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _Tensor:
    """What stands in the place of `torch._utils._rebuild_tensor_v2`."""
    sizes = isinstance(shape, tuple) and isinstance(strides, tuple)
    if not (sizes and isinstance(storage, _Storage) and len(shape) == len(strides)):
        raise ValueError("no tensor")
    if not all(map(_is_size, (offset, *shape, *strides))):
        raise ValueError(f"no shape and strides: {shape}, {strides}")
    tensor = _Tensor(storage, offset, shape, strides)
    last = _last_number(tensor)
    if last >= storage.size:
        raise ValueError(f"a tensor reaches to number {last:,} of {storage.size:,}")
    if math.prod(shape) > storage.size:
        raise ValueError(f"a tensor of shape {shape} repeats its {storage.size:,} numbers")
    return tensor


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _stored(
    archive: zipfile.ZipFile, prefix: str, path: str, name: str, tensor: _Tensor
) -> StoredTensor:
    kind, member = tensor.storage.kind, f"{prefix}data/{tensor.storage.key}"
    size_bytes = tensor.storage.size * np.dtype(kind.dtype).itemsize
    found = archive.getinfo(member).file_size if member in archive.namelist() else None
    if found != size_bytes:
        raise KzooError(
            f"{path}: {name} needs {size_bytes:,} bytes in {member}, which "
            + ("is not there" if found is None else f"has {found:,}")
        )
    return StoredTensor(tensor.shape, path, _loader(path, name, member, tensor))


def _loader(path: str, name: str, member: str, tensor: _Tensor) -> Callable[[], np.ndarray]:
    kind = tensor.storage.kind

    def load() -> np.ndarray:
        if not kind.is_weight:
            raise KzooError(f"{path}: {name} is stored as {kind.name}, which is no weight's")
        # Only what lies between its first and its last number: some files have one storage for all.
        numbers = np.empty(_last_number(tensor) - tensor.offset + 1, kind.dtype)
        try:
            with zipfile.ZipFile(path) as archive, archive.open(member) as file:
                file.seek(tensor.offset * numbers.itemsize)
                _read_into(file, numbers)
        except (zipfile.BadZipFile, OSError, RuntimeError, EOFError) as error:
            raise KzooError(f"{path} is damaged: {error}") from error
        values = _view(numbers, tensor.shape, tensor.strides)
        if kind.dtype == "<u2":
            return from_bfloat16(values)
        return values.astype(np.float32, copy=False)

    return load


def _read_into(file: io.BufferedIOBase, numbers: np.ndarray) -> None:
    buffer = memoryview(numbers.view(np.uint8))
    while buffer:
        count = file.readinto(buffer[: 2**24])
        if not count:
            raise EOFError("a storage ends too early")
        buffer = buffer[count:]


def _last_number(tensor: _Tensor) -> int:
    """The number of the storage that is the tensor's last; one before its first if it has none."""
    if not math.prod(tensor.shape):
        return tensor.offset - 1
    steps = zip(tensor.shape, tensor.strides, strict=True)
    return tensor.offset + sum((size - 1) * stride for size, stride in steps)


def _view(numbers: np.ndarray, shape: Sequence[int], strides: Sequence[int]) -> np.ndarray:
    """A tensor in its numbers: bounds have been checked when it was described."""
    in_bytes = [stride * numbers.itemsize for stride in strides]
    return np.asarray(np.lib.stride_tricks.as_strided(numbers, shape, in_bytes), order="C")
