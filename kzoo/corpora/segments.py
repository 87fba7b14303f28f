"""Cuts the stream of a file's bytes at the ends of documents, without looking into them.

This is the part of reading that one process does for all: it only searches for line ends, so that
it can feed many workers, which decode and parse (`kzoo.corpora.reading`).

Where a file is cut depends on its content and the size asked for, and on nothing else: neither on
how it is compressed nor on how many bytes a read returns.
"""

import contextlib
import dataclasses
import itertools
import logging
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO

from kzoo.corpora import blocks
from kzoo.corpora.blocks import OnRead, ignore
from kzoo.errors import KzooError
from kzoo.storage import files

# What one language's reader of Parquet holds decoded at a time.
_PARQUET_BATCH_ROWS = 256

_LOG = logging.getLogger(__name__)

_BLANK_LINE = re.compile(rb"\n[ \t\r\f\v]*\n")


@dataclasses.dataclass(frozen=True)
class Segment:
    """Some consecutive documents of one file, as they are stored.

    Attributes:
        path: the file.
        first_line: number of the first line (Parquet: row) of `content`, counted from 1.
        content: bytes of whole lines, or the rows of a Parquet column (None for null).
        continues: the segment begins inside a document that was too long for one segment.
    """

    path: str
    first_line: int
    content: bytes | Sequence[bytes | None]
    continues: bool = False

    @property
    def size_bytes(self) -> int:
        """Bytes of text, by which segments are measured."""
        if isinstance(self.content, bytes):
            return len(self.content)
        return sum(_row_bytes(row) for row in self.content)

    def has_text(self) -> bool:
        """Whether there is anything but white space."""
        if isinstance(self.content, bytes):
            return not self.content.isspace()
        return any(row and not row.isspace() for row in self.content)


def read_segments(
    path: str,
    first_bytes: int,
    segment_bytes: int,
    *,
    text_field: str = "text",
    on_read: OnRead = ignore,
) -> Iterator[Segment]:
    """Reads a file in segments of whole documents.

    A segment ends at the first end of a document at or after its size. A text document that runs
    on for more than another `segment_bytes` is cut at the end of a line.

    Args:
        path: a text file, JSON lines or Parquet, compressed or not.
        first_bytes: size of the first segment.
        segment_bytes: size of the others.
        text_field: the column to read, in Parquet.
        on_read: hears of the progress.

    Yields:
        Segments that are not empty; all but the last have their full size.

    Raises:
        KzooError: the file cannot be read, is truncated, or is not what its name says.
    """
    text_format = blocks.text_format(path)
    if text_format == "parquet":
        yield from _parquet_segments(path, first_bytes, segment_bytes, text_field, on_read)
        return
    lines_are_documents = text_format == "jsonl"
    yield from _text_segments(path, first_bytes, segment_bytes, lines_are_documents, on_read)


def read_shards(
    paths: Sequence[str],
    shard_bytes: int,
    *,
    text_field: str = "text",
    on_read: OnRead = ignore,
    warn: Callable[[str], object] = _LOG.warning,
) -> Iterator[list[Segment]]:
    """Reads the files of one language as one stream, in shards of `shard_bytes` of text.

    Shard k is a function of the content of the files, their order, and `shard_bytes`.

    Args:
        paths: the files.
        shard_bytes: of text in a shard; the last one has what is left.
        text_field: the column to read, in Parquet.
        on_read: hears of the progress.
        warn: hears of files without text.

    Raises:
        KzooError: a file cannot be read, or there is no text in any.
    """
    shard: list[Segment] = []
    filled = 0
    empty = []
    for path in paths:
        has_text = False
        for segment in read_segments(
            path, shard_bytes - filled, shard_bytes, text_field=text_field, on_read=on_read
        ):
            has_text = has_text or segment.has_text()
            shard.append(segment)
            filled += segment.size_bytes
            if filled >= shard_bytes:
                yield shard
                shard, filled = [], 0
        if not has_text:
            empty.append(path)
            warn(f"{path} holds no text, only blanks or nothing at all")
    if len(empty) == len(paths):
        raise KzooError(f"there is no text in {', '.join(paths)}: only blanks, or nothing at all")
    if shard:
        yield shard


def _text_segments(path, first_bytes, segment_bytes, lines_are_documents, on_read):
    find_end = _end_of_line if lines_are_documents else _end_of_document
    data = bytearray()
    line, last_line = 1, b""
    wanted = look_at = first_bytes
    for block in itertools.chain(blocks.read_blocks(path, on_read), [None]):
        if block is None:
            look_at = wanted
        else:
            data += block
        while len(data) >= look_at:
            end = find_end(data, wanted, segment_bytes)
            if not end:
                # Looking again after every block would make one endless line quadratic.
                look_at = len(data) * 5 // 4 + 1
                break
            content = bytes(memoryview(data)[:end])
            yield Segment(path, line, content, _continues(last_line, content))
            line += content.count(b"\n")
            if not lines_are_documents:
                last_line = content[content.rfind(b"\n", 0, end - 1) + 1 :]
            del data[:end], content
            wanted = look_at = segment_bytes
    if data:
        yield Segment(path, line, bytes(data), _continues(last_line, data))


def _continues(last_line: bytes, content: bytes | bytearray) -> bool:
    """Whether no blank line divides the content from the line before it."""
    end = content.find(b"\n")
    first_line = content if end < 0 else content[:end]
    return bool(last_line.strip() and first_line.strip())


def _end_of_line(data: bytearray, wanted: int, patience: int) -> int:
    """Where the first line that reaches `wanted` bytes ends; 0: not yet."""
    return data.find(b"\n", wanted - 1) + 1


def _end_of_document(data: bytearray, wanted: int, patience: int) -> int:
    """Where to end a segment of `wanted` bytes of text; 0: not yet.

    That is the first blank line, if there is one within `patience` bytes, else the first line end.
    """
    blank = _BLANK_LINE.search(data, wanted - 1)
    if blank and blank.end() <= wanted + patience:
        return blank.end()
    return data.find(b"\n", wanted - 1) + 1 if len(data) >= wanted + patience else 0


def _parquet_segments(path, first_bytes, segment_bytes, text_field, on_read) -> Iterator[Segment]:
    wanted, first_row = first_bytes, 1
    rows: list[bytes | None] = []
    filled = 0
    for row in _parquet_rows(path, text_field, on_read):
        rows.append(row)
        filled += _row_bytes(row)
        if filled >= wanted:
            yield Segment(path, first_row, rows)
            first_row += len(rows)
            rows, filled, wanted = [], 0, segment_bytes
    if rows:
        yield Segment(path, first_row, rows)


def _row_bytes(row: bytes | None) -> int:
    return 1 + len(row or b"")


def _parquet_rows(path, text_field, on_read) -> Iterator[bytes | None]:
    import pyarrow
    from pyarrow import parquet

    with _seekable(path, on_read) as stream:
        try:
            table = parquet.ParquetFile(stream)
            _check_column(path, table.schema_arrow, text_field)
            for batch in table.iter_batches(_PARQUET_BATCH_ROWS, columns=[text_field]):
                column = batch.column(0)
                if pyarrow.types.is_dictionary(column.type):
                    column = column.dictionary_decode()
                # As bytes, so that what is no UTF-8 meets the same policy as in text files.
                yield from column.cast(pyarrow.large_binary()).to_pylist()
        except (pyarrow.ArrowException, OSError) as error:
            raise KzooError(f"{path} is not a Parquet table, or is damaged ({error})") from error


@contextlib.contextmanager
def _seekable(path: str, on_read: OnRead) -> Iterator[BinaryIO]:
    """The file itself, or what it decompresses to: Parquet is read from its end."""
    if path.lower().endswith(".parquet"):
        with files.open_binary(path) as stream:
            on_read(files.stat(path).size_bytes)
            yield stream
        return
    with tempfile.TemporaryFile() as stream:
        for block in blocks.read_blocks(path, on_read):
            stream.write(block)
        stream.seek(0)
        yield stream


def _check_column(path: str, schema, text_field: str) -> None:
    import pyarrow

    if text_field not in schema.names:
        raise KzooError(
            f"{path} has no column {text_field!r}, only {', '.join(schema.names)};"
            " --text_field names the one to read"
        )
    column_type = schema.field(text_field).type
    if pyarrow.types.is_dictionary(column_type):
        column_type = column_type.value_type
    if not (pyarrow.types.is_string(column_type) or pyarrow.types.is_large_string(column_type)):
        raise KzooError(f"the column {text_field!r} of {path} holds {column_type}, not strings")
