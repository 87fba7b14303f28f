"""The bytes of a text file, whatever it is compressed with, in blocks of bounded size."""

import lzma
import re
import zlib
from collections.abc import Callable, Iterator

import zstandard

from kzoo.errors import KzooError
from kzoo.storage import files

FORMATS = ("txt", "jsonl", "parquet")
COMPRESSIONS = ("gz", "xz", "zst")

# Small, because what a compressed block grows to is not bounded by anything else.
_COMPRESSED_BLOCK_BYTES = 16_384
_PLAIN_BLOCK_BYTES = 262_144

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_NOT_TEXT = (
    (b"\x1f\x8b", "gzip data", "give it a name that ends in .gz"),
    (b"\xfd7zXZ\x00", "xz data", "give it a name that ends in .xz"),
    (b"\x28\xb5\x2f\xfd", "Zstandard data", "give it a name that ends in .zst"),
    (b"BZh91AY&SY", "bzip2 data", "decompress it with `bunzip2`"),
    (b"PK\x03\x04", "a ZIP archive", "extract its files"),
    (b"PAR1\x15", "a Parquet table", "give it a name that ends in .parquet"),
    (b"\xff\xfe", "UTF-16 text", "convert it with `iconv -f UTF-16 -t UTF-8`"),
    (b"\xfe\xff", "UTF-16 text", "convert it with `iconv -f UTF-16 -t UTF-8`"),
)
_SNIFFED_BYTES = 4096


OnRead = Callable[[int], object]
"""Called with the number of stored bytes whenever some have been read; for progress bars."""


def ignore(count: int) -> None:
    """The `OnRead` of those who do not want to know."""


def text_format(path: str) -> str:
    """`txt`, `jsonl` or `parquet`, from the file's name.

    Raises:
        KzooError: the name ends in none of them.
    """
    return _format_and_compression(path)[0]


def read_blocks(path: str, on_read: OnRead = ignore) -> Iterator[bytes]:
    """Reads and decompresses a file.

    Args:
        path: its name says how it is compressed, if it is.
        on_read: hears of the progress.

    Yields:
        Its content; of a text file without a byte order mark.

    Raises:
        KzooError: the file cannot be read, is truncated, or is not what its name says.
    """
    text, compression = _format_and_compression(path)
    with files.open_binary(path) as stream:
        stored = _stored_blocks(
            path, stream, _COMPRESSED_BLOCK_BYTES if compression else _PLAIN_BLOCK_BYTES, on_read
        )
        blocks = _decompressed(path, stored, compression) if compression else stored
        yield from blocks if text == "parquet" else _text_only(path, blocks)


def _format_and_compression(path: str) -> tuple[str, str]:
    match = re.search(
        rf"\.({'|'.join(FORMATS)})(?:\.({'|'.join(COMPRESSIONS)}))?$", path, re.IGNORECASE
    )
    if not match:
        raise KzooError(
            f"cannot tell what {path} holds: its name must end in"
            f" .{', .'.join(FORMATS)}, or one of them followed by .{', .'.join(COMPRESSIONS)}"
        )
    return match[1].lower(), (match[2] or "").lower()


def _stored_blocks(path, stream, block_bytes, on_read) -> Iterator[bytes]:
    try:
        while block := stream.read(block_bytes):
            on_read(len(block))
            yield block
    except OSError as error:
        raise KzooError(f"cannot read {path}: {error.strerror}") from error


def _decompressed(path: str, stored: Iterator[bytes], compression: str) -> Iterator[bytes]:
    """Decompresses one or more members (streams, frames) that follow each other."""
    decoder = None
    try:
        for block in stored:
            while block:
                # Zeros between members and after the last one are padding.
                if decoder is None and not (block := block.lstrip(b"\0")):
                    break
                decoder = decoder or _decoder(compression)
                content = decoder.decompress(block)
                if content:
                    yield content
                block = decoder.unused_data if decoder.eof else b""
                decoder = None if decoder.eof else decoder
    except (zlib.error, lzma.LZMAError, zstandard.ZstdError) as error:
        raise KzooError(
            f"{path} is not valid .{compression} data, or is damaged ({error}); name it after what"
            " it holds, or fetch it again"
        ) from error
    if decoder is not None:
        raise KzooError(f"{path} ends in the middle of its .{compression} data; fetch it again")


def _decoder(compression: str):
    if compression == "gz":
        return zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    if compression == "xz":
        return lzma.LZMADecompressor()
    return zstandard.ZstdDecompressor().decompressobj()


def _text_only(path: str, blocks: Iterator[bytes]) -> Iterator[bytes]:
    """Refuses what is visibly no UTF-8 text, and drops a byte order mark."""
    start = b""
    for block in blocks:
        start += block
        if len(start) >= _SNIFFED_BYTES:
            break
    for magic, what, remedy in _NOT_TEXT:
        if start.startswith(magic):
            raise KzooError(f"{path} holds {what}, not UTF-8 text; {remedy}")
    sniffed = start[:_SNIFFED_BYTES]
    # UTF-16 without a mark: every other byte of ASCII text is zero.
    if max(sniffed[0::2].count(0), sniffed[1::2].count(0)) * 4 > len(sniffed) > 1:
        raise KzooError(
            f"{path} holds UTF-16 text or binary data, not UTF-8 text; convert it with"
            " `iconv -f UTF-16 -t UTF-8`"
        )
    yield start.removeprefix(_BYTE_ORDER_MARK)
    yield from blocks
