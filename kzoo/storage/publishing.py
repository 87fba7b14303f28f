"""Folders that are made here and belong elsewhere.

On object storage no rename brings a folder to its place at once. So one file, which whoever reads
the folder asks for first, is removed first and written last: a folder without it is not complete.
"""

import contextlib
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Sequence

from tqdm import tqdm

from kzoo.errors import KzooError
from kzoo.storage import listing as listings
from kzoo.storage import lock_file, remote
from kzoo.storage.listing import LISTING_FILE, Entry, Listing
from kzoo.storage.paths import cache_folder, is_remote

# What a server waits for in a folder.
_LATE = "saved_model.pb"


@contextlib.contextmanager
def made_folder(output: str, last: str, cache_dir: str | None = None) -> Iterator[str]:
    """Yields the folder to make, and brings it to its place.

    Args:
        output: where it goes. A local one is yielded as it is, and is the caller's matter.
        last: the file in it that says that it is complete.
        cache_dir: below which a remote one is made, before it is copied; None for
            `default_cache_dir`.

    Yields:
        The local folder: `output`, or one that is not there yet. If it is not there at the end
        either, nothing is copied.

    Raises:
        KzooError: another process of this machine makes the same, or it cannot be written.
    """
    if not is_remote(output):
        yield output
        return
    with scratch(output, cache_dir) as folder:
        local = os.path.join(folder, os.path.basename(output))
        yield local
        if os.path.isdir(local):
            publish_folder(local, output, last)


@contextlib.contextmanager
def scratch(output: str, cache_dir: str | None = None) -> Iterator[str]:
    """Yields an empty local folder, in which one process of this machine makes what goes to a URL.

    Raises:
        KzooError: another process has it, or it cannot be made.
    """
    digest = hashlib.sha256(output.encode()).hexdigest()[:12]
    folder = os.path.join(cache_folder(cache_dir), f"making-{digest}")
    try:
        with lock_file.sole_maker(folder):
            # Of a process that was killed.
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder)
            try:
                yield folder
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except OSError as error:
        where = error.filename or folder
        raise KzooError(
            f"cannot write {where}: {error.strerror}"
            + (
                ""
                if is_remote(str(where))
                else f", on the way to {output}; runtime.cache_dir or"
                " --cache_dir names another folder for it"
            )
        ) from error


def publish_folder(
    local: str, output: str, last: str, *, replaced: Callable[[str], bool] = lambda name: True
) -> None:
    """Copies a folder to a URL, where it takes the place of what is there.

    Args:
        local: the folder.
        output: the URL.
        last: the file in it that says that it is complete: removed first, written last.
        replaced: which files at the URL make way, by their paths in it, if there are none of the
            same name in `local`; by default all.

    Raises:
        OSError: a file cannot be read or written. The URL then has no complete folder, but for
            errors before anything was changed there.
    """
    names = [name for name in local_files(local) if name not in (last, LISTING_FILE)]
    there = remote.list_files(output)
    others = [name for name in there if name not in (*names, last, LISTING_FILE)]
    removed = {name for name in others if replaced(name)}
    listing = {name: entry for name, entry in _old_listing(output).items() if name in others}
    for name in (last, LISTING_FILE):
        remote.remove(os.path.join(output, name))
    for late in (False, True):
        group = [name for name in names if (os.path.basename(name) == _LATE) == late]
        listing |= _copy_all(local, output, group)
    remote.at_once(lambda name: remote.remove(os.path.join(output, name)), removed)
    with open(os.path.join(local, last), "rb") as stream:
        content = stream.read()
    listing[last] = Entry.of(content)
    listing = {name: entry for name, entry in listing.items() if name not in removed}
    remote.write_bytes(os.path.join(output, LISTING_FILE), listings.to_json(listing))
    remote.write_bytes(os.path.join(output, last), content)


def publish_file(local: str, output: str) -> None:
    """Copies a file to a URL, where it appears whole.

    Raises:
        OSError: it cannot be read or written; what was there is still there.
    """
    remote.copy_to(local, output + ".partial")
    remote.move(output + ".partial", output)


def local_files(folder: str) -> list[str]:
    """All files below a local folder, by their paths in it, sorted."""
    return sorted(
        os.path.relpath(os.path.join(parent, name), folder)
        for parent, _, names in os.walk(folder)
        for name in names
    )


def _old_listing(output: str) -> Listing:
    path = os.path.join(output, LISTING_FILE)
    try:
        return listings.from_json(remote.read_bytes(path), path)
    except (FileNotFoundError, KzooError):
        return {}


def _copy_all(local: str, output: str, names: Sequence[str]) -> Listing:
    sizes = [os.path.getsize(os.path.join(local, name)) for name in names]
    with tqdm(
        total=sum(sizes), desc=f"copying to {output}", unit="B", unit_scale=True, disable=None
    ) as bar:

        def copy_one(name: str) -> Entry:
            path = os.path.join(output, name)
            return Entry(*remote.copy_to(os.path.join(local, name), path, bar.update))

        return dict(zip(names, remote.at_once(copy_one, names), strict=True))
