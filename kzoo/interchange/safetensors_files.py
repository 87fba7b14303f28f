"""Files in the safetensors format: read a tensor at a time, and written without copies.

A file is eight bytes (the length of the header, little-endian), the header (JSON: name → dtype,
shape and data_offsets), and the tensors' bytes without gaps. Nothing in it is code. The header is
not believed: what it says has to fit the file.
"""

import json
import math
import os
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import numpy as np

from kzoo.errors import KzooError
from kzoo.interchange.source_weights import StoredTensor

# As the format's own reader has it.
_MAX_HEADER_BYTES = 100_000_000
_METADATA = "__metadata__"

# What numbers of a type are stored as. The second group can be there, but not be a weight.
_WEIGHT_TYPES = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": np.dtype("<u2")}
_OTHER_BYTES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "I16": 2,
    "U16": 2,
    "I32": 4,
    "U32": 4,
    "I64": 8,
    "U64": 8,
    "F64": 8,
}


def open_safetensors(path: str) -> list[tuple[str, StoredTensor]]:
    """Reads the header of a file.

    Args:
        path: of a `.safetensors` file.

    Returns:
        Name and tensor of each, in the order of their bytes.

    Raises:
        KzooError: the file cannot be read, or its header does not describe it.
    """
    try:
        with open(path, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            header, data_start = _read_header(file, size, path)
    except OSError as error:
        raise KzooError(f"cannot read {path}: {error.strerror}") from error
    entries = {name: _entry(name, value, path) for name, value in header.items()}
    ordered = sorted(entries.items(), key=lambda item: item[1][2:])
    _check_offsets(ordered, size - data_start, path)
    return [
        (name, StoredTensor(shape, path, _loader(path, name, kind, shape, data_start + begin)))
        for name, (kind, shape, begin, _) in ordered
    ]


def write_safetensors(
    path: str, tensors: Sequence[tuple[str, tuple[int, ...], Callable[[], np.ndarray]]]
) -> None:
    """Writes float32 tensors.

    Args:
        path: of the file.
        tensors: name and shape of each, and what gives its values when their turn comes.
    """
    # Hugging Face wants to know which library's tensors these are.
    header: dict[str, Any] = {_METADATA: {"format": "pt"}}
    end = 0
    for name, shape, _ in tensors:
        begin, end = end, end + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, shape, values in tensors:
            value = np.asarray(values(), "<f4", order="C")
            if value.shape != tuple(shape):
                raise ValueError(f"{name} should be {shape}. Received: {value.shape}")
            file.write(value.reshape(-1).view(np.uint8))


def _read_header(file: BinaryIO, size: int, path: str) -> tuple[dict[str, Any], int]:
    """The entries of the tensors, and where the data begin."""
    length_bytes = file.read(8)
    length = struct.unpack("<Q", length_bytes)[0] if len(length_bytes) == 8 else None
    if length is None or length > size - 8:
        raise KzooError(
            f"{path} is no safetensors file, or was cut off: it has {size:,} bytes"
            + ("" if length is None else f", and its header alone is to have {length:,}")
        )
    if length > _MAX_HEADER_BYTES:
        raise KzooError(
            f"{path}: a header of {length:,} bytes is longer than the format allows "
            f"({_MAX_HEADER_BYTES:,})"
        )
    try:
        header = json.loads(file.read(length), object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise KzooError(f"{path} is no safetensors file: its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise KzooError(f"{path} is no safetensors file: its header is no JSON object")
    header.pop(_METADATA, None)
    return header, 8 + length


def _without_repeats(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"{key!r} is there twice")
        result[key] = value
    return result


def _entry(name: str, value: Any, path: str) -> tuple[str, tuple[int, ...], int, int]:
    """Type, shape, first and last byte of a tensor, once they fit each other."""
    try:
        kind, shape, (begin, end) = value["dtype"], value["shape"], value["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise KzooError(
            f"{path}: {name} has no dtype, shape and data_offsets in the header. Received: {value}"
        ) from None
    if not (isinstance(shape, list) and all(map(_is_size, [*shape, begin, end]))):
        raise KzooError(
            f"{path}: shape and data_offsets of {name} are to be lists of numbers from 0 on. "
            f"Received: shape={shape}, data_offsets={[begin, end]}"
        )
    if not isinstance(kind, str):
        raise KzooError(f"{path}: the dtype of {name} is to be a name. Received: {kind!r}")
    if kind in _WEIGHT_TYPES:
        item_bytes = _WEIGHT_TYPES[kind].itemsize
    elif kind in _OTHER_BYTES:
        item_bytes = _OTHER_BYTES[kind]
    else:
        raise KzooError(f"{path}: {name} is of a type that kzoo does not know: {kind!r}")
    if end - begin != item_bytes * math.prod(shape):
        raise KzooError(
            f"{path}: {name} of shape {shape} in {kind} has {item_bytes * math.prod(shape):,} "
            f"bytes, but the header gives it {end - begin:,} (data_offsets {[begin, end]})"
        )
    return kind, tuple(shape), begin, end


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _check_offsets(
    ordered: Sequence[tuple[str, tuple[str, tuple[int, ...], int, int]]], data_bytes: int, path: str
) -> None:
    """Tensors follow each other without gap or overlap, from the first byte to the last."""
    previous, expected = "the header", 0
    for name, (_, _, begin, end) in ordered:
        if begin != expected:
            relation = "overlaps" if begin < expected else "leaves a gap to"
            raise KzooError(
                f"{path}: {name} begins at byte {begin:,} and so {relation} what is before it, "
                f"{previous}, which ends at {expected:,}"
            )
        previous, expected = name, end
    if expected != data_bytes:
        trouble = "was cut off" if expected > data_bytes else "has bytes that belong to no tensor"
        raise KzooError(
            f"{path} {trouble}: its tensors have {expected:,} bytes, and behind the header there "
            f"are {data_bytes:,}"
        )


def _loader(
    path: str, name: str, kind: str, shape: tuple[int, ...], position: int
) -> Callable[[], np.ndarray]:
    def load() -> np.ndarray:
        if kind not in _WEIGHT_TYPES:
            raise KzooError(
                f"{path}: {name} is of type {kind}; weights are {', '.join(_WEIGHT_TYPES)}"
            )
        stored = read_array(path, _WEIGHT_TYPES[kind], shape, position)
        return from_bfloat16(stored) if kind == "BF16" else stored.astype(np.float32, copy=False)

    return load


def read_array(path: str, dtype: np.dtype, shape: tuple[int, ...], position: int) -> np.ndarray:
    """Reads numbers that begin at a byte of a file, into memory of their own.

    A mapped file would count twice in the memory of the process for as long as the array lives.

    Raises:
        KzooError: the file cannot be read, or ends before they do.
    """
    try:
        with open(path, "rb") as file:
            values = np.fromfile(file, dtype, math.prod(shape), offset=position)
    except OSError as error:
        raise KzooError(f"cannot read {path}: {error.strerror}") from error
    if len(values) != math.prod(shape):
        raise KzooError(f"{path} was cut off while it was read")
    return values.reshape(shape)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """The float32 numbers that bfloat16 numbers, given as uint16, are the upper halves of."""
    wide = bits.astype("<u4")
    wide <<= 16
    return wide.view("<f4")


def parse_index(content: Any, path: str, suffix: str) -> Mapping[str, str]:
    """Name of a tensor → name of the shard that has it, of an index file.

    Args:
        content: what the JSON file holds.
        path: of the file, for messages.
        suffix: what names of shards end in.

    Raises:
        KzooError: it is no index, or names a file that is not beside it.
    """
    weight_map = content.get("weight_map") if isinstance(content, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise KzooError(f"{path} has no weight_map from tensors to files")
    for name, shard in weight_map.items():
        plain = isinstance(shard, str) and shard == os.path.basename(shard)
        plain = plain and not {"\\", "\0"} & set(shard)
        if not plain or not shard.endswith(suffix):
            raise KzooError(
                f"{path}: the file of {name} must be a plain name that ends in {suffix}, of a "
                f"file beside the index. Received: {shard!r}"
            )
    return weight_map
