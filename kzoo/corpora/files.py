"""Which files hold which language, and the one place that opens them."""

import contextlib
import difflib
import fnmatch
import glob
import os
import re
import stat
import sys
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import BinaryIO

from kzoo.errors import KzooError

LANGUAGE = "{lang}"

TEMPORARY_SUFFIX = ".tmp"

_LANGUAGE_CODE = r"[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*"
_SHOWN_NEIGHBOURS = 6

FileSource = str | Sequence[str] | Mapping[str, str | Sequence[str]]
"""Patterns with `{lang}`, or a mapping from a language to its patterns."""


def open_binary(path: str) -> BinaryIO:
    """Opens a file of a corpus for reading bytes."""
    try:
        return open(path, "rb")
    except OSError as error:
        raise KzooError(f"cannot read {path}: {error.strerror}") from error


def size_bytes(path: str) -> int:
    """The size of a file of a corpus, as it is stored (compressed, if it is).

    Raises:
        KzooError: it cannot be read, or is a pipe or a device, which would be waited for.
    """
    try:
        found = os.stat(path)
    except OSError as error:
        raise KzooError(f"cannot read {path}: {error.strerror}") from error
    if not stat.S_ISREG(found.st_mode):
        raise KzooError(
            f"cannot read {path}: it is a pipe or a device, and text is read more than once; write"
            " what it gives to a file"
        )
    return found.st_size


def local_path(path: str | os.PathLike[str]) -> str:
    """A folder to write to, without a slash at its end.

    Raises:
        KzooError: it is a URL, of which the file system would silently make a local folder; or it
            names no folder of its own; or its name is one that libraries cannot take.
    """
    path = os.fspath(path)
    if not path.rstrip("/"):
        raise KzooError(f"expected the name of a folder, received {path!r}; name one")
    _refuse_undecodable(path)
    if "://" in path:
        raise KzooError(f"{path} is not a local path; write to a local folder, and copy it there")
    return path.rstrip("/")


@contextlib.contextmanager
def written_aside(path: str) -> Iterator[str]:
    """Yields a path to write to, which takes the place of `path` if all goes well."""
    # No process id: processes on several machines, which have the same ids, may write one path.
    temporary = f"{path}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}"
    try:
        yield temporary
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise


def find_files(source: FileSource) -> dict[str, list[str]]:
    """Finds the files of every language.

    Args:
        source: a pattern, or several, such as `corpus/train-{lang}.jsonl.gz`: `{lang}` stands for
            a language code, `*`, `?`, `[…]` and `**` are globs (before a `{lang}`, a `*` takes
            all that it can). Or a mapping from a language to its pattern or patterns, which have
            no `{lang}`.

    Returns:
        For every language, sorted, its files: in the order of the patterns, sorted within one.

    Raises:
        KzooError: a pattern matches nothing or lacks its `{lang}`, or a file is named twice.
    """
    found: dict[str, list[str]] = {}
    if isinstance(source, Mapping):
        for language, patterns in source.items():
            found[language] = []
            for pattern in _as_list(patterns):
                found[language].extend(_files_of(language, pattern))
    else:
        for pattern in _as_list(source):
            for language, path in _languages_and_files(pattern):
                found.setdefault(language, []).append(path)
    if not any(found.values()):
        raise KzooError(f"no files of text were named: got {source!r}")
    for paths in found.values():
        for path in paths:
            _refuse_undecodable(path)
    _refuse_repeats(found)
    return dict(sorted(found.items()))


def _as_list(patterns: str | Sequence[str]) -> list[str]:
    return [patterns] if isinstance(patterns, str) else list(patterns)


def _files_of(language: str, pattern: str) -> list[str]:
    if LANGUAGE in pattern:
        raise KzooError(
            f"the files of language {language!r} are given by {pattern!r}, which contains"
            f" {LANGUAGE}: in a mapping the key says the language"
        )
    paths = _glob(pattern)
    if not paths:
        raise KzooError(
            f"no file of language {language!r} matches {pattern!r}; {_neighbours(pattern)}"
        )
    return paths


def _languages_and_files(pattern: str) -> Iterator[tuple[str, str]]:
    if LANGUAGE not in pattern:
        raise KzooError(
            f"the pattern {pattern!r} must contain {LANGUAGE} where the language code stands in"
            " the path, such as 'corpus/train-{lang}.jsonl.gz'"
        )
    expression = re.compile(_expression(pattern))
    matches = [(expression.fullmatch(path), path) for path in _glob(pattern.replace(LANGUAGE, "*"))]
    pairs = [(match["lang"], path) for match, path in matches if match]
    if not pairs:
        raise KzooError(f"no file matches {pattern!r}; {_neighbours(pattern)}")
    yield from pairs


def _glob(pattern: str) -> list[str]:
    paths = glob.glob(os.path.expanduser(pattern), recursive=True)
    return sorted(path for path in paths if not os.path.isdir(path))


def _expression(pattern: str) -> str:
    """The regular expression of a glob with `{lang}`; a second `{lang}` repeats the first."""
    translations = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    # As in `fnmatch`, a `]` at the start of a `[…]` belongs to it: `?+` gives nothing back.
    expressions = r"\{lang\}|\*\*/|\*\*|\*|\?|\[!?+\]?+[^\]]*+\]|."
    tokens = re.findall(expressions, os.path.expanduser(pattern))
    expression = ""
    named = False
    for token in tokens:
        if token == LANGUAGE:
            expression += "(?P=lang)" if named else f"(?P<lang>{_LANGUAGE_CODE})"
            named = True
        elif len(token) > 2 and token.startswith("["):
            expression += fnmatch.translate(token).removesuffix(r"\Z")
        else:
            expression += translations.get(token, re.escape(token))
    return expression


def _refuse_undecodable(path: str) -> None:
    """Refuses a name that neither JSON files nor the libraries that write files can hold."""
    try:
        path.encode()
    except UnicodeEncodeError as error:
        name = os.fsencode(path).decode(errors="replace")
        raise KzooError(
            f"the name {name} is not {sys.getfilesystemencoding()}, in which file names are read"
            " here; rename it or, if it is UTF-8, set PYTHONUTF8=1"
        ) from error


def _refuse_repeats(found: Mapping[str, Sequence[str]]) -> None:
    seen: dict[str, str] = {}
    for language, paths in found.items():
        for path in paths:
            real = os.path.realpath(path)
            if real in seen:
                owners = sorted({seen[real], language})
                where = "twice" if len(owners) == 1 else f"for the languages {' and '.join(owners)}"
                raise KzooError(f"{path} is named {where}; name every file once")
            seen[real] = language


def _neighbours(pattern: str) -> str:
    """What there is where the pattern was looked for, to make a slip of the pen visible."""
    folder, missing = os.path.expanduser(pattern), ""
    while folder and not os.path.isdir(folder):
        folder, missing = os.path.dirname(folder), os.path.basename(folder)
    shown = folder or "."
    try:
        names = os.listdir(shown)
    except OSError as error:
        return f"the folder {shown} cannot be listed: {error.strerror}"
    if not names:
        return f"the folder {shown} is empty"
    names.sort(key=lambda name: (-difflib.SequenceMatcher(None, name, missing).ratio(), name))
    more = ", …" if len(names) > _SHOWN_NEIGHBOURS else ""
    return f"the folder {shown} holds {', '.join(names[:_SHOWN_NEIGHBOURS])}{more}"
