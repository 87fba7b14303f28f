"""What a configuration is put together from: YAML files and `--set section.key=value`."""

from dataclasses import dataclass
from typing import Any

from kzoo.config import wording, yaml_core
from kzoo.errors import KzooError
from kzoo.storage.files import open_stored
from kzoo.storage.paths import clean


@dataclass(frozen=True)
class Source:
    """One file or one `--set`.

    Attributes:
        name: the file's path, or `--set …` as it was typed.
        value: what it holds: section → keys and values, if all is well.
        lines: path of keys → line; None for a `--set`.
    """

    name: str
    value: dict[Any, Any]
    lines: dict[tuple[str, ...], int] | None = None

    @property
    def is_file(self) -> bool:
        return self.lines is not None

    def place(self, *path: str) -> str:
        """Where a key stands, as messages say it: `FILE:LINE`, or the `--set` itself."""
        line = self.lines.get(path) if self.is_file else None
        return f"{self.name}:{line}" if line else self.name


def read_file(path: str) -> Source:
    """Reads one YAML file, here or on object storage.

    Raises:
        KzooError: it cannot be opened, is not UTF-8 or not YAML, or holds nothing.
    """
    path = clean(path)
    try:
        with open_stored(path) as file:
            data = file.read()
    except FileNotFoundError:
        raise KzooError(f"no such configuration file: {path}") from None
    except IsADirectoryError:
        raise KzooError(f"{path} is a folder; name a YAML file in it") from None
    except OSError as error:
        raise KzooError(f"cannot read {path}: {error.strerror}") from None
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"the byte 0x{data[error.start]:02x} is not UTF-8; save the file as UTF-8"
        raise KzooError(f"{path}:{line}: {problem}") from None
    document = yaml_core.parse(text, path)
    if document.value is None:
        raise KzooError(f"{path} is empty; configs/README.md lists what it can hold")
    if not isinstance(document.value, dict):
        raise KzooError(f"{path}: expected sections, {wording.received(document.value)}")
    return Source(path, document.value, document.lines)


def parse_override(text: str) -> Source:
    """Reads `section.key=value` as a file that holds this one key.

    Raises:
        KzooError: there is no `=`, no full key before it, or no YAML after it.
    """
    name = f"--set {text}"
    key, equals, value = text.partition("=")
    section, dot, word = key.strip().partition(".")
    if not (equals and section and dot and word):
        raise KzooError(f"{name}: expected section.key=value, as in --set data.seed=1")
    return Source(name, {section: {word: yaml_core.parse(value, name).value}})
