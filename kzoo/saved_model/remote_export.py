"""Exports to object storage: made in a local folder, then copied, the manifest last."""

import contextlib
import os
from collections.abc import Iterator

from kzoo.saved_model.export import ExportOptions
from kzoo.saved_model.manifest import (
    ARCHIVES,
    EDITABLE_FILES,
    MANIFEST_FILE,
    MODULE_FOLDERS,
    refuse_to_replace,
)
from kzoo.storage import remote
from kzoo.storage.files import exists
from kzoo.storage.paths import is_remote
from kzoo.storage.publishing import publish_folder, scratch


@contextlib.contextmanager
def export_folder(
    output: str, options: ExportOptions, cache_dir: str | None = None
) -> Iterator[str]:
    """Yields the folder to export to, and brings what was made to its place.

    Args:
        output: where it goes. A local folder is yielded as it is.
        options: what is exported.
        cache_dir: below which the folder is made; None for the user's cache.

    Raises:
        KzooError: another process of this machine exports to the same URL, or it cannot be written.
    """
    if not is_remote(output):
        yield output
        return
    if not (options.overwrite or options.serving_only):
        parts = (*MODULE_FOLDERS, *ARCHIVES, MANIFEST_FILE)
        there = [name for name in parts if exists(os.path.join(output, name))]
        refuse_to_replace(output, there)
    with scratch(output, cache_dir) as folder:
        _sketch(output, folder)
        yield folder
        of_export = () if options.serving_only else (*MODULE_FOLDERS, *ARCHIVES)
        publish_folder(
            folder, output, MANIFEST_FILE, replaced=lambda name: name.split("/")[0] in of_export
        )


def _sketch(output: str, folder: str) -> None:
    """Makes what an export looks at before it replaces it: names, settings and the manifest."""
    for name in MODULE_FOLDERS:
        if remote.is_folder(os.path.join(output, name)):
            os.makedirs(os.path.join(folder, name))
    serving = os.path.join(output, "serving")
    for name in remote.names(serving) if remote.is_folder(serving) else []:
        if name.isdecimal():
            os.makedirs(os.path.join(folder, "serving", name))
    for name in (MANIFEST_FILE, *EDITABLE_FILES):
        with contextlib.suppress(FileNotFoundError):
            content = remote.read_bytes(os.path.join(output, name))
            with open(os.path.join(folder, name), "wb") as file:
                file.write(content)
