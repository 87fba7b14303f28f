"""Which paths are local and which are not, and where copies of the others are kept.

A path with `://` is one of object storage, and goes through `tf.io.gfile`; but `file://` is only
another way to write a local one.
"""

import os
import re
import sys
import tempfile

from kzoo.errors import KzooError

_LOCAL_SCHEME = "file://"
_BUCKET = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]+/*")
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://[^/]+(/.*)?")


def is_remote(path: str | os.PathLike[str]) -> bool:
    """Whether a path names object storage, where renames are copies and nothing is synced."""
    path = os.fspath(path)
    return "://" in path and not path.startswith(_LOCAL_SCHEME)


def clean(path: str | os.PathLike[str]) -> str:
    """A path as the rest of the code takes it: without `file://`, which any path may begin with.

    Raises:
        KzooError: it is a URL without a scheme or a bucket, or a `file://` of another machine.
    """
    path = os.fspath(path)
    if path.startswith(_LOCAL_SCHEME):
        local = path.removeprefix(_LOCAL_SCHEME)
        if not local.startswith("/"):
            raise KzooError(f"{path}: behind file:// comes a path from the root: file:///data/mini")
        return local
    if is_remote(path) and not _URL.fullmatch(path):
        raise KzooError(f"{path!r} is no URL; expected one such as gs://bucket/folder")
    return path


def folder_name(path: str | os.PathLike[str]) -> str:
    """The name of a folder to write, `clean` and without a slash at its end.

    Raises:
        KzooError: it names no folder of its own, as a bucket does not, beside which nothing can be
            written; or its name is one that libraries cannot take.
    """
    path = clean(path)
    if _BUCKET.fullmatch(path):
        raise KzooError(f"expected a folder in the bucket; received {path}: name one below it")
    if not path.rstrip("/"):
        raise KzooError(f"expected the name of a folder, received {path!r}; name one")
    refuse_undecodable(path)
    return path.rstrip("/")


def local_folder(path: str | os.PathLike[str], what: str) -> str:
    """A folder that must be of this machine, `clean`.

    Args:
        path: its name.
        what: what names it, for the message.

    Raises:
        KzooError: it is on object storage.
    """
    path = clean(path)
    if is_remote(path):
        raise KzooError(f"{what}: expected a folder of this machine; received {path}")
    return path


def real_path(path: str) -> str:
    """What is the same for two names of one file."""
    return path if is_remote(path) else os.path.realpath(path)


def refuse_undecodable(path: str) -> None:
    """Refuses a name that neither JSON files nor the libraries that write files can hold.

    Raises:
        KzooError: it is one.
    """
    try:
        path.encode()
    except UnicodeEncodeError as error:
        name = os.fsencode(path).decode(errors="replace")
        raise KzooError(
            f"the name {name} is not {sys.getfilesystemencoding()}, in which file names are read"
            " here; rename it or, if it is UTF-8, set PYTHONUTF8=1"
        ) from error


def cache_folder(cache_dir: str | None) -> str:
    """Where copies of remote files are kept: `cache_dir`, or without it `default_cache_dir`.

    Raises:
        KzooError: it is not on this machine.
    """
    return local_folder(cache_dir or default_cache_dir(), "runtime.cache_dir or --cache_dir")


def default_cache_dir() -> str:
    """Where copies of remote files are kept if nothing else is said: `kzoo` in the user's cache.

    That is a disk, unlike many a `/tmp`, and it outlives the process, so that what is large is
    copied once.
    """
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    if not os.path.isabs(cache):  # There is no home.
        cache = os.path.join(tempfile.gettempdir(), f"user-{os.getuid()}")
    return os.path.join(cache, "kzoo")
