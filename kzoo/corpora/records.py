"""The JSON files that kzoo writes beside its data, and how they are read back and checked."""

from typing import TypeVar

import pydantic

from kzoo.corpora.files import written_aside
from kzoo.errors import KzooError
from kzoo.storage.files import open_binary, stat


class Record(pydantic.BaseModel):
    """A part of a JSON file of ours: exactly these keys, and no change once it is made."""

    model_config = pydantic.ConfigDict(extra="forbid", frozen=True)


AnyRecord = TypeVar("AnyRecord", bound=Record)


class FileInfo(Record):
    """A file of the corpus: where it was and how many bytes it had, compressed if it was."""

    path: str
    size_bytes: int

    @classmethod
    def of(cls, path: str) -> "FileInfo":
        """Looks a file up."""
        return cls(path=path, size_bytes=stat(path).size_bytes)


def checked(kind: type[AnyRecord], **values: object) -> AnyRecord:
    """Makes a record of what a user has asked for.

    Raises:
        KzooError: a value is of the wrong type, or out of its bounds.
    """
    try:
        return kind(**values)
    except pydantic.ValidationError as error:
        problem = error.errors()[0]
        raise KzooError(
            f"{problem['loc'][0]}: {problem['msg'].lower()}, got {problem['input']!r}"
        ) from error


def differences(now: Record, before: Record) -> list[str]:
    """The values that are not the same in two records of a kind, in words; empty if all are."""
    old = before.model_dump()
    return [
        f"{name} is {value!r}, was {old[name]!r}"
        for name, value in now.model_dump().items()
        if value != old[name]
    ]


def load_record(kind: type[AnyRecord], path: str) -> AnyRecord:
    """Reads a JSON file that kzoo wrote.

    Raises:
        KzooError: it cannot be read, or is not what it should be.
    """
    try:
        with open_binary(path) as stream:
            return kind.model_validate_json(stream.read())
    except OSError as error:
        raise KzooError(f"cannot read {path}: {error.strerror}") from error
    except pydantic.ValidationError as error:
        problem = error.errors()[0]
        key = ".".join(str(part) for part in problem["loc"])
        raise KzooError(
            f"{path} was not written by this version of kzoo, or is damaged"
            f" ({key or 'JSON'}: {problem['msg']}); make it again"
        ) from error


def to_json(record: Record) -> str:
    """A record as `load_record` reads it."""
    return record.model_dump_json(indent=1) + "\n"


def save_record(record: Record, path: str) -> None:
    """Writes a record as JSON, aside and renamed."""
    with written_aside(path) as temporary, open(temporary, "w", encoding="utf-8") as stream:
        stream.write(to_json(record))
