"""Copies of remote files and folders in a local cache, for libraries that read local files only.

    CACHE/mini-0123456789ab/         a copy of gs://bucket/data/mini
    CACHE/mini-0123456789ab.json     sizes and sha256 of what has been copied whole, and its URL
    CACHE/mini-0123456789ab.lock     held by the process that is copying

A file is copied under another name and renamed when its size and sha256 are right. It is copied
again whenever they are not those of the remote one, so neither an interrupted copy nor a damaged
one is ever used.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from tqdm import tqdm

from kzoo.errors import KzooError
from kzoo.storage import listing as listings
from kzoo.storage import lock_file, remote
from kzoo.storage.listing import LISTING_FILE, Entry, Listing
from kzoo.storage.paths import cache_folder, clean, is_remote

_PARTIAL_SUFFIX = ".partial"
_HASHED_BLOCK_BYTES = 8 << 20

Chosen = Callable[[str], bool]
"""Which files of a folder are meant, by their paths in it."""


class _Wanted(NamedTuple):
    """A remote file: what is known of it, and its sha256 if a listing says it."""

    size_bytes: int
    sha256: str | None
    modified_ns: int


def fetch_folder(
    folder: str,
    cache_dir: str | None = None,
    *,
    last: str | None = None,
    chosen: Chosen | None = None,
) -> str:
    """A local folder with what a folder holds.

    Args:
        folder: where it is. A local one is returned as it is.
        cache_dir: where the copy of a remote one is kept; None for `default_cache_dir`.
        last: the file that says that a remote folder is complete.
        chosen: which files are needed; None for all. What is not chosen may be in the copy, as it
            once was.

    Returns:
        The local folder.

    Raises:
        KzooError: the folder is not there or not complete, a file in it is not what the folder's
            listing says, or the copy cannot be written.
    """
    folder = clean(folder)
    if not is_remote(folder):
        return folder
    folder = folder.rstrip("/")
    with _user_errors(folder):
        if last is not None and not remote.exists(os.path.join(folder, last)):
            raise KzooError(_why_incomplete(folder, last))
        wanted = _wanted(folder, chosen)
        if not wanted:
            raise KzooError(f"there is nothing at {folder}")
        return _copied(folder, wanted, cache_dir, is_whole=chosen is None)


def fetch_file(path: str, cache_dir: str | None = None) -> str:
    """A local file with the content of a file; see `fetch_folder`."""
    path = clean(path)
    if not is_remote(path):
        return path
    folder, _, name = path.rpartition("/")
    with _user_errors(path):
        wanted = _listed(folder) or {}
        if name not in wanted:
            stat = remote.stat(path)
            wanted[name] = _Wanted(stat.size_bytes, None, stat.modified_ns)
        wanted = {name: wanted[name]}
        return os.path.join(_copied(folder, wanted, cache_dir, is_whole=False), name)


def fetch(path: str, cache_dir: str | None = None) -> str:
    """A local copy of what is at a path, be it a file or a folder; see `fetch_folder`."""
    path = clean(path)
    if not is_remote(path):
        return path
    with _user_errors(path):
        is_folder = remote.is_folder(path)
    return fetch_folder(path, cache_dir) if is_folder else fetch_file(path, cache_dir)


def _why_incomplete(folder: str, last: str) -> str:
    if not remote.is_folder(folder):
        return f"there is no folder {folder}"
    return (
        f"{folder} has no {last}: it is something else, or it was never written to its end; then"
        " the command that makes it has to be run again"
    )


def _wanted(folder: str, chosen: Chosen | None) -> dict[str, _Wanted]:
    """The remote files that are meant, from the folder's listing or, if it has none, a look."""
    wanted = _listed(folder)
    if wanted is None:
        wanted = {
            name: _Wanted(stat.size_bytes, None, stat.modified_ns)
            for name, stat in remote.list_files(folder).items()
        }
    for name in wanted:
        if not listings.is_inside(name):
            raise KzooError(f"{folder} has a file {name!r}, which is no name of a file here")
    return {name: known for name, known in wanted.items() if chosen is None or chosen(name)}


def _listed(folder: str) -> dict[str, _Wanted] | None:
    """The files that the folder's listing names; None if it has no listing."""
    path = os.path.join(folder, LISTING_FILE)
    try:
        listing = listings.from_json(remote.read_bytes(path), path)
    except FileNotFoundError:
        return None
    return {name: _Wanted(entry.size_bytes, entry.sha256, 0) for name, entry in listing.items()}


def _copied(
    folder: str, wanted: dict[str, _Wanted], cache_dir: str | None, *, is_whole: bool
) -> str:
    """Brings the copy up to date, and returns its path."""
    cache_dir = cache_folder(cache_dir)
    digest = hashlib.sha256(folder.encode()).hexdigest()[:12]
    copy = os.path.join(cache_dir, f"{os.path.basename(folder) or 'bucket'}-{digest}")
    try:
        os.makedirs(copy, exist_ok=True)
        busy = f"another process is copying {folder} to {copy}"
        with lock_file.waiting(copy + ".lock", busy), _recorded(copy) as known:
            missing = {
                name: file
                for name, file in wanted.items()
                if not _is_copied(os.path.join(copy, name), file, known.get(name))
            }
            _check_room(copy, sum(file.size_bytes for file in missing.values()), folder)
            _copy_all(folder, copy, missing, known)
            if is_whole:
                _remove_others(copy, wanted, known)
    except OSError as error:
        if error.filename is None or is_remote(str(error.filename)):
            raise
        raise KzooError(
            f"cannot copy {folder} to {error.filename}: {error.strerror}; set runtime.cache_dir or"
            " --cache_dir to a folder that has room and can be written"
        ) from error
    return copy


@contextlib.contextmanager
def _recorded(copy: str) -> Iterator[Listing]:
    """What has been copied whole; what was added is recorded, whatever ends the block."""
    path = copy + ".json"
    known: Listing = {}
    with contextlib.suppress(OSError, KzooError), open(path, "rb") as stream:
        known = listings.from_json(stream.read(), path)
    before = dict(known)
    try:
        yield known
    finally:
        if known != before:
            with open(path + _PARTIAL_SUFFIX, "wb") as stream:
                stream.write(listings.to_json(known))
            os.replace(path + _PARTIAL_SUFFIX, path)


def _is_copied(path: str, wanted: _Wanted, known: Entry | None) -> bool:
    """Whether a copy is that of the remote file, to the last bit.

    Where no listing says the sha256, it is the one at the time of copying, and the remote file must
    be as old as it was then; where its age is not known, it has to be read again.
    """
    sha256 = wanted.sha256
    if sha256 is None:
        is_same = known is not None and known.modified_ns == wanted.modified_ns != 0
        if not is_same:
            return False
        sha256 = known.sha256
    try:
        return os.path.getsize(path) == wanted.size_bytes and _sha256(path) == sha256
    except OSError:
        return False


def _sha256(path: str) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(_HASHED_BLOCK_BYTES):
            digest.update(block)
    return digest.hexdigest()


def _check_room(copy: str, needed_bytes: int, folder: str) -> None:
    free_bytes = shutil.disk_usage(copy).free
    if free_bytes < needed_bytes:
        raise KzooError(
            f"no room for a copy of {folder} in {copy}: it needs {needed_bytes / 1e6:,.1f} MB and"
            f" {free_bytes / 1e6:,.1f} MB are free. Free some space, or set runtime.cache_dir or"
            " --cache_dir to a folder that has room"
        )


def _copy_all(folder: str, copy: str, missing: dict[str, _Wanted], known: Listing) -> None:
    total_bytes = sum(file.size_bytes for file in missing.values())
    if not missing:
        return
    with tqdm(
        total=total_bytes, desc=f"copying {folder}", unit="B", unit_scale=True, disable=None
    ) as bar:

        def copy_one(name: str) -> None:
            known.pop(name, None)
            known[name] = _copy_file(
                os.path.join(folder, name), os.path.join(copy, name), missing[name], bar.update
            )

        remote.at_once(copy_one, missing)


def _copy_file(path: str, local: str, wanted: _Wanted, on_read: Callable[[int], object]) -> Entry:
    partial = local + _PARTIAL_SUFFIX
    os.makedirs(os.path.dirname(local), exist_ok=True)
    try:
        size_bytes, sha256 = remote.copy_from(path, partial, on_read)
        if size_bytes != wanted.size_bytes:
            raise KzooError(
                f"{path} has {size_bytes:,} bytes instead of {wanted.size_bytes:,}: it was cut"
                " short, or is being written; make it or put it there again"
            )
        if sha256 != (wanted.sha256 or sha256):
            raise KzooError(
                f"{path} is damaged, or was changed by hand: its sha256 is not the one in"
                f" {LISTING_FILE}; make it or put it there again"
            )
        os.replace(partial, local)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.remove(partial)
    return Entry(size_bytes, sha256, wanted.modified_ns)


def _remove_others(copy: str, wanted: Iterable[str], known: Listing) -> None:
    """Removes what the remote folder has no more, and what killed processes have left."""
    kept = set(wanted)
    for parent, _, names in os.walk(copy, topdown=False):
        for name in names:
            path = os.path.join(parent, name)
            if os.path.relpath(path, copy) not in kept:
                os.remove(path)
        if not os.listdir(parent):
            os.rmdir(parent)
    for name in known.keys() - kept:
        del known[name]


@contextlib.contextmanager
def _user_errors(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KzooError(f"cannot read {error.filename or path}: {error.strerror}") from error
