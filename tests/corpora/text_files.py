"""Writes the same documents in every format and compression that kzoo reads."""

import functools
import gzip
import json
import lzma
import pathlib
from collections.abc import Sequence

import pyarrow
import zstandard
from pyarrow import parquet

COMPRESS = {
    "": bytes,
    # Without the time, which would tell two processes' tests apart.
    ".gz": functools.partial(gzip.compress, mtime=0),
    ".xz": lzma.compress,
    ".zst": zstandard.ZstdCompressor().compress,
}
NAMES = [f"{form}{suffix}" for form in ("txt", "jsonl", "parquet") for suffix in COMPRESS]


def write_documents(folder: pathlib.Path, name: str, documents: Sequence[Sequence[str]]) -> str:
    """Writes `folder/NAME`, the format and the compression being what the name ends in."""
    path = folder / name
    stored_as = [suffix for suffix in path.suffixes if suffix in COMPRESS]
    compress = COMPRESS[stored_as[0] if stored_as else ""]
    path.write_bytes(compress(_content(path, ["\n".join(lines) for lines in documents])))
    return str(path)


def _content(path: pathlib.Path, texts: list[str]) -> bytes:
    if ".txt" in path.suffixes:
        return "\n\n".join(texts).encode()
    if ".jsonl" in path.suffixes:
        return b"".join(json.dumps({"text": text}).encode() + b"\n" for text in texts)
    stream = pyarrow.BufferOutputStream()
    parquet.write_table(pyarrow.table({"text": texts}), stream)
    return stream.getvalue().to_pybytes()
