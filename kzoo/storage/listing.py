"""`kzoo_files.json`: what the files of a folder must be, wherever it is copied to."""

import hashlib
import json
from typing import NamedTuple

from kzoo.errors import KzooError

LISTING_FILE = "kzoo_files.json"
_FORMAT_VERSION = 1


class Entry(NamedTuple):
    """A file of a folder.

    Attributes:
        size_bytes: its size.
        sha256: of its content, in hexadecimal.
        modified_ns: when the storage says that it was changed; 0 if that is not known or says
            nothing, as in a listing that stands beside the files.
    """

    size_bytes: int
    sha256: str
    modified_ns: int = 0

    @classmethod
    def of(cls, content: bytes) -> "Entry":
        """What there is to say of a small file."""
        return cls(len(content), hashlib.sha256(content).hexdigest())


Listing = dict[str, Entry]
"""The files by their paths in the folder."""


def to_json(listing: Listing) -> bytes:
    """A listing as it is stored."""
    content = {
        "format_version": _FORMAT_VERSION,
        "files": {name: entry._asdict() for name, entry in sorted(listing.items())},
    }
    return (json.dumps(content, indent=1) + "\n").encode()


def from_json(data: bytes, path: str) -> Listing:
    """The inverse of `to_json`.

    Raises:
        KzooError: it is none, or names files outside of its folder.
    """
    try:
        content = json.loads(data)
        if content["format_version"] != _FORMAT_VERSION:
            raise KzooError(
                f"{path} has format version {content['format_version']}, and this version of kzoo"
                f" reads {_FORMAT_VERSION}"
            )
        listing = {
            name: Entry(int(entry["size_bytes"]), str(entry["sha256"]), int(entry["modified_ns"]))
            for name, entry in content["files"].items()
        }
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise KzooError(
            f"{path} is damaged ({type(error).__name__}: {error}); put the folder there again"
        ) from error
    for name in listing:
        if not is_inside(name):
            raise KzooError(f"{path} names {name!r}, which is outside of its folder")
    return listing


def is_inside(name: str) -> bool:
    """Whether a path stays in the folder that it is relative to."""
    return not name.startswith("/") and ".." not in name.split("/") and "\0" not in name
