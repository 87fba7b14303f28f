"""From stored bytes to documents: lists of lines of text.

A document is a list of its lines; a line is what lies between two line ends, which are LF and CRLF
and nothing else: U+2028, U+0085, form feeds and lone carriage returns are characters like others.
Blank lines are left out, and so are documents that have no other lines.
"""

import dataclasses
import io
import json
import logging
import re
from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic_core import from_json

from kzoo.corpora import blocks
from kzoo.corpora.blocks import OnRead, ignore
from kzoo.corpora.segments import Segment, read_segments
from kzoo.errors import KzooError

Document = list[str]

BadTextPolicy = Literal["error", "replace", "skip"]

_SEGMENT_BYTES = 1_000_000
_SHOWN_PLACES = 5
_SURROGATE = re.compile("[\ud800-\udfff]")

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass
class BadText:
    """What to do with text that cannot be read, and what was done.

    Attributes:
        policy: `error` stops at the first; `replace` puts U+FFFD in place of bytes that are not
            UTF-8, and stops at anything else; `skip` leaves the line (of JSON lines and Parquet:
            the document) out.
        replaced: number of lines with replaced bytes.
        skipped: number of lines left out.
        places: where the first few were, and what was wrong there.
    """

    policy: BadTextPolicy = "error"
    replaced: int = 0
    skipped: int = 0
    places: list[str] = dataclasses.field(default_factory=list)

    def mend(self, where: str, problem: str) -> bool:
        """Meets bytes that are not UTF-8: True if they are to be replaced, False if skipped."""
        if self.policy != "replace":
            self.skip(where, problem, "replace or --on_bad_text=skip")
            return False
        self.replaced += 1
        self._note(where, problem)
        return True

    def skip(self, where: str, problem: str, remedy: str = "skip") -> None:
        """Meets a line that nothing can be made of."""
        if self.policy != "skip":
            raise KzooError(f"{where}: {problem}; mend it, or use --on_bad_text={remedy}")
        self.skipped += 1
        self._note(where, problem)

    def _note(self, where: str, problem: str) -> None:
        if len(self.places) < _SHOWN_PLACES:
            self.places.append(f"{where}: {problem}")


def warn_of_bad_lines(whose: str, num_lines: int, places: Sequence[str]) -> None:
    """Logs how many lines could not be read as they were, if there are any.

    Args:
        whose: the text that they are in.
        num_lines: replaced and skipped ones.
        places: where the first few are, and what was wrong there, as in `BadText`.
    """
    if num_lines:
        _LOG.warning(
            "%s of %s could not be read: %s",
            "1 line" if num_lines == 1 else f"{num_lines:,} lines",
            whose,
            "; ".join(places[:_SHOWN_PLACES]) + ("; …" if num_lines > _SHOWN_PLACES else ""),
        )


def read_documents(
    path: str,
    *,
    text_field: str = "text",
    bad_text: BadText | None = None,
    on_read: OnRead = ignore,
) -> Iterator[Document]:
    """Reads the documents of one file, in constant memory.

    Args:
        path: `.txt` (a blank line ends a document), `.jsonl` or `.parquet` (a document a row),
            each also with `.gz`, `.xz` or `.zst` behind it.
        text_field: the key or column of the text, in JSON lines and Parquet.
        bad_text: what to do with text that cannot be read, and where it is counted.
        on_read: hears of the progress.

    Raises:
        KzooError: the file or, under `error`, a line cannot be read.
    """
    bad_text = BadText() if bad_text is None else bad_text
    for segment in read_segments(
        path, _SEGMENT_BYTES, _SEGMENT_BYTES, text_field=text_field, on_read=on_read
    ):
        yield from parse(segment, text_field, bad_text)


def parse(segment: Segment, text_field: str, bad_text: BadText) -> Iterator[Document]:
    """Decodes a segment and splits it into documents."""
    text_format = blocks.text_format(segment.path)
    if text_format == "txt":
        return _documents_of_lines(_decoded_lines(segment, bad_text))
    if text_format == "jsonl":
        texts = _json_texts(segment, text_field, bad_text)
    else:
        texts = _row_texts(segment, text_field, bad_text)
    return (lines for text in texts if (lines := _lines(text)))


def _documents_of_lines(lines: Iterator[tuple[int, str]]) -> Iterator[Document]:
    document: Document = []
    for _, line in lines:
        if line and not line.isspace():
            document.append(line)
        elif document:
            yield document
            document = []
    if document:
        yield document


def _lines(text: str) -> Document:
    """The lines of a document that came as one string, without blank ones."""
    if "\r" in text:
        text = text.replace("\r\n", "\n").removesuffix("\r")
    return [line for line in text.split("\n") if line and not line.isspace()]


def _stored_lines(segment: Segment) -> Iterator[tuple[int, bytes]]:
    """The lines of a text segment with their numbers, without their ends."""
    for number, line in enumerate(io.BytesIO(segment.content), segment.first_line):
        yield number, line.removesuffix(b"\n").removesuffix(b"\r")


def _decoded_lines(segment: Segment, bad_text: BadText) -> Iterator[tuple[int, str]]:
    for number, line in _stored_lines(segment):
        try:
            yield number, line.decode()
        except UnicodeDecodeError:
            text = _decode(line, f"{segment.path}, line {number}", bad_text)
            if text is not None:
                yield number, text


def _decode(data: bytes, where: str, bad_text: BadText) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        problem = f"byte 0x{data[error.start]:02x} at {error.start + 1} is not UTF-8"
        return data.decode(errors="replace") if bad_text.mend(where, problem) else None


def _json_texts(segment: Segment, text_field: str, bad_text: BadText) -> Iterator[str]:
    for number, line in _stored_lines(segment):
        try:
            # Faster than `json`, and stricter: what it refuses is looked at again.
            text = from_json(line, cache_strings="keys")[text_field]
        except (ValueError, TypeError, LookupError):
            text = None
        if isinstance(text, str):
            yield text
        else:
            yield from _doubtful_json_text(
                line, text_field, f"{segment.path}, line {number}", bad_text
            )


def _doubtful_json_text(
    line: bytes, text_field: str, where: str, bad_text: BadText
) -> Iterator[str]:
    """The text of a line that is blank, no strict JSON or without a text; or none."""
    decoded = _decode(line, where, bad_text)
    if decoded is None or not decoded or decoded.isspace():
        return
    try:
        record = json.loads(decoded)
    except (ValueError, RecursionError) as error:
        bad_text.skip(where, f"not JSON ({error})")
        return
    text = record.get(text_field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        bad_text.skip(where, _missing_text(record, text_field))
    elif _can_be_encoded(text):
        yield text
    elif bad_text.mend(where, "half of a surrogate pair, which is no character"):
        yield _SURROGATE.sub("\ufffd", text)


def _can_be_encoded(text: str) -> bool:
    """Whether there is no half of a surrogate pair, as JSON's escapes can write it."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _missing_text(record: object, text_field: str) -> str:
    if not isinstance(record, dict):
        return f"expected a JSON object, got {type(record).__name__}"
    if text_field not in record:
        keys = ", ".join(sorted(record)) or "no keys"
        return f"no {text_field!r} (the object has {keys}); --text_field names the key to read"
    return f"{text_field!r} is not a string but {type(record[text_field]).__name__}"


def _row_texts(segment: Segment, text_field: str, bad_text: BadText) -> Iterator[str]:
    for number, row in enumerate(segment.content, segment.first_line):
        where = f"{segment.path}, row {number}"
        if row is None:
            bad_text.skip(where, f"{text_field!r} is null")
        elif (text := _decode(row, where, bad_text)) is not None:
            yield text
