"""The file of `--mapping`: what tensors are whose names say nothing."""

import dataclasses
import difflib
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from kzoo.config import yaml_core
from kzoo.errors import KzooError

_IGNORE = "ignore"


@dataclasses.dataclass(frozen=True)
class TensorMapping:
    """What a user has said of tensors.

    Attributes:
        names: path of a variable → name of its tensor.
        ignored: name of a tensor → why it is left out.
        path: of the file, for messages.
    """

    names: Mapping[str, str] = dataclasses.field(default_factory=dict)
    ignored: Mapping[str, str] = dataclasses.field(default_factory=dict)
    path: str = ""

    def check_names(self, tensors: Collection[str]) -> None:
        """Refuses a name that no tensor has.

        Raises:
            KzooError: there is one.
        """
        for name in (*self.names.values(), *self.ignored):
            if name not in tensors:
                raise KzooError(
                    f"{self.path}: no tensor is called {name!r}{_nearest(name, tensors)}"
                )

    def check_paths(self, variables: Collection[str]) -> None:
        """Refuses a path that no variable has.

        Raises:
            KzooError: there is one.
        """
        for path in self.names:
            if path not in variables:
                raise KzooError(
                    f"{self.path}: the model has no variable {path!r}{_nearest(path, variables)}"
                )


def read_mapping(path: str | os.PathLike[str] | None) -> TensorMapping:
    """Reads a mapping file; without one, nothing is mapped.

    It is YAML, a line a tensor: `NAME: PATH`, the path of our variable, or
    `NAME: {ignore: REASON}`.

    Raises:
        KzooError: the file is not of this form, or two tensors are for one variable.
    """
    if path is None:
        return TensorMapping()
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise KzooError(f"--mapping {path} cannot be read: {error}") from None
    document = yaml_core.parse(text, str(path))
    entries = {} if document.value is None else document.value
    if not isinstance(entries, dict):
        raise KzooError(f"{path}: must be lines of `NAME: PATH`. Received: {entries!r}")
    names, ignored = {}, {}
    for name, meaning in entries.items():
        where = f"{path}:{document.lines.get((str(name),), 1)}"
        reason = _reason(meaning, where)
        if reason is not None:
            ignored[str(name)] = reason
        elif meaning in names:
            raise KzooError(f"{where}: {names[meaning]} and {name} are both for {meaning}")
        else:
            names[meaning] = str(name)
    return TensorMapping(names, ignored, str(path))


def _reason(meaning: Any, where: str) -> str | None:
    """Why a tensor is ignored; None where its meaning is the path of a variable."""
    if isinstance(meaning, str) and meaning:
        return None
    if isinstance(meaning, dict) and list(meaning) == [_IGNORE]:
        reason = meaning[_IGNORE]
        if isinstance(reason, str) and reason:
            return reason
    raise KzooError(
        f"{where}: a tensor is the path of a variable, or {{{_IGNORE}: REASON}}. "
        f"Received: {meaning!r}"
    )


def _nearest(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"; the nearest are {', '.join(near)}" if near else ""
