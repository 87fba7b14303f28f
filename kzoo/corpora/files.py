"""Which files hold which language."""

import contextlib
import difflib
import fnmatch
import glob
import os
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence

from kzoo.errors import KzooError
from kzoo.storage import remote
from kzoo.storage.paths import clean, is_remote, real_path, refuse_undecodable

LANGUAGE = "{lang}"

TEMPORARY_SUFFIX = ".tmp"

_LANGUAGE_CODE = r"[A-Za-z0-9]+(?:[-_][A-Za-z0-9]+)*"
_SHOWN_NEIGHBOURS = 6

FileSource = str | Sequence[str] | Mapping[str, str | Sequence[str]]
"""Patterns with `{lang}`, or a mapping from a language to its patterns."""


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
    """Finds the files of every language, here or on object storage.

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
            refuse_undecodable(path)
    _refuse_repeats(found)
    return dict(sorted(found.items()))


def _as_list(patterns: str | Sequence[str]) -> list[str]:
    return [clean(path) for path in ([patterns] if isinstance(patterns, str) else patterns)]


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
    if is_remote(pattern):
        return _remote_glob(pattern)
    paths = glob.glob(os.path.expanduser(pattern), recursive=True)
    return sorted(path for path in paths if not os.path.isdir(path))


def _remote_glob(pattern: str) -> list[str]:
    try:
        if "**" in pattern:
            folder = re.split(r"[*?\[]", pattern)[0].rpartition("/")[0]
            paths = [f"{folder}/{name}" for name in remote.list_files(folder)]
        else:
            paths = remote.glob(pattern)
    except OSError as error:
        raise KzooError(f"cannot look for {pattern}: {error.strerror}") from error
    return sorted(filter(re.compile(_expression(pattern)).fullmatch, paths))


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


def _refuse_repeats(found: Mapping[str, Sequence[str]]) -> None:
    seen: dict[str, str] = {}
    for language, paths in found.items():
        for path in paths:
            real = real_path(path)
            if real in seen:
                owners = sorted({seen[real], language})
                where = "twice" if len(owners) == 1 else f"for the languages {' and '.join(owners)}"
                raise KzooError(f"{path} is named {where}; name every file once")
            seen[real] = language


def _neighbours(pattern: str) -> str:
    """What there is where the pattern was looked for, to make a slip of the pen visible."""
    if is_remote(pattern):
        return _remote_neighbours(pattern)
    folder, missing = os.path.expanduser(pattern), ""
    while folder and not os.path.isdir(folder):
        folder, missing = os.path.dirname(folder), os.path.basename(folder)
    shown = folder or "."
    try:
        names = os.listdir(shown)
    except OSError as error:
        return f"the folder {shown} cannot be listed: {error.strerror}"
    return _said(shown, names, missing)


def _remote_neighbours(pattern: str) -> str:
    folder, _, missing = re.split(r"[*?\[{]", pattern)[0].rpartition("/")
    if folder.endswith("/"):
        return "there is no such bucket"
    try:
        return _said(folder, remote.names(folder), missing)
    except OSError as error:
        return f"the folder {folder} cannot be listed: {error.strerror}"


def _said(shown: str, names: list[str], missing: str) -> str:
    if not names:
        return f"the folder {shown} is empty"
    names.sort(key=lambda name: (-difflib.SequenceMatcher(None, name, missing).ratio(), name))
    more = ", …" if len(names) > _SHOWN_NEIGHBOURS else ""
    return f"the folder {shown} holds {', '.join(names[:_SHOWN_NEIGHBOURS])}{more}"
