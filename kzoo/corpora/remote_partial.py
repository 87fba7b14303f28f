"""Examples in the making whose place is on object storage.

Shards are written in a local folder and copied as they are finished, so that few are here at a
time, and another machine can go on where this one was stopped:

    OUTPUT.partial/request.json              as `kzoo.corpora.partial` has it
    OUTPUT.partial/SPLIT/LANGUAGE/00000.*    shards; the counts of one are copied after its records
    OUTPUT.partial/kzoo_files.json           when all are there: what the files of OUTPUT will be
    OUTPUT.partial/dataset.json              written last, and moved to OUTPUT last
"""

import contextlib
import glob
import io
import os
import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import numpy as np

from kzoo.corpora import examples
from kzoo.corpora.dataset_info import INFO_FILE, DatasetInfo, partial_folder
from kzoo.corpora.partial import (
    COUNTS_SUFFIX,
    REQUEST_FILE,
    PartialFolder,
    PieceCounts,
    ShardCounts,
    load_counts,
    shards_of,
)
from kzoo.corpora.records import to_json
from kzoo.corpora.request import Request
from kzoo.errors import KzooError
from kzoo.storage import listing as listings
from kzoo.storage import remote
from kzoo.storage.files import exists, names
from kzoo.storage.listing import LISTING_FILE, Entry, Listing
from kzoo.storage.lock_file import sole_maker
from kzoo.storage.paths import is_remote
from kzoo.storage.publishing import scratch
from kzoo.text.vocabulary import MODEL_FILE, Vocabulary

_OURS = re.compile(
    rf"[^/]+/[^/]+/\d{{5,}}({re.escape(COUNTS_SUFFIX)}|{re.escape(examples.RECORDS_SUFFIX)})"
    rf"|{re.escape(examples.PIECE_COUNTS_FILE)}|{examples.VOCABULARY_FOLDER}/.*|{LISTING_FILE}"
)
_COUNTS_AT_A_TIME = 256


@contextlib.contextmanager
def making(output: str, cache_dir: str | None = None) -> Iterator[PartialFolder]:
    """Yields the folder in which examples are made, alone among the processes of this machine.

    Args:
        output: where they will be.
        cache_dir: below which shards are written that go to object storage.

    Raises:
        KzooError: another process makes the same.
    """
    if is_remote(output):
        with scratch(output, cache_dir) as local:
            yield RemotePartialFolder(output, local)
    else:
        with sole_maker(output):
            yield PartialFolder(output)


def is_being_published(output: str) -> bool:
    """Whether examples are finished, and the moving of them to a URL was interrupted."""
    return (
        is_remote(output)
        and not exists(os.path.join(output, INFO_FILE))
        and exists(os.path.join(partial_folder(output), INFO_FILE))
    )


class _StoredShard(NamedTuple):
    records: Entry
    counts: ShardCounts
    pieces: PieceCounts


class RemotePartialFolder(PartialFolder):
    """A `PartialFolder` on object storage."""

    def __init__(self, output: str, local: str):
        """
        Args:
            output: the URL of the examples.
            local: an empty folder for shards that are being written.
        """
        super().__init__(output)
        self._local = local
        self._finished: set[str] = set()
        self._records: dict[str, Entry] = {}

    def claim(self, request: Request, overwrite: bool) -> None:
        if remote.is_folder(self.folder):
            changes = self._changes(request)
            if changes and not overwrite:
                raise KzooError(self.begun_with_something_else(changes))
            if changes:
                remote.remove_folder(self.folder)
        remote.write_bytes(self._path(REQUEST_FILE), to_json(request).encode())
        for split, languages in request.files.items():
            for language in languages:
                os.makedirs(os.path.join(self._local, split, language))
                folder = self._path(split, language)
                self._finished |= {
                    os.path.join(split, language, name)
                    for name in names(folder)
                    if name.endswith(COUNTS_SUFFIX)
                }

    def stem(self, split: str, language: str, shard: int) -> str:
        return os.path.join(self._local, _stem(split, language, shard))

    def is_finished(self, split: str, language: str, shard: int) -> bool:
        return _stem(split, language, shard) + COUNTS_SUFFIX in self._finished

    def store_finished(self) -> None:
        names = glob.glob(f"*/*/*{COUNTS_SUFFIX}", root_dir=self._local)
        remote.at_once(self._store, names)
        self._finished.update(names)

    def _store(self, name: str) -> None:
        """Copies a shard, then its counts with the size and sha256 of its records."""
        counts = os.path.join(self._local, name)
        records = counts.removesuffix(COUNTS_SUFFIX) + examples.RECORDS_SUFFIX
        stored = self._path(name.removesuffix(COUNTS_SUFFIX) + examples.RECORDS_SUFFIX)
        size_bytes, sha256 = remote.copy_to(records, stored)
        with np.load(counts) as found:
            content = {**found, "size_bytes": size_bytes, "sha256": sha256}
        data = io.BytesIO()
        np.savez(data, **content)
        remote.write_bytes(self._path(name), data.getvalue())
        os.remove(records)
        os.remove(counts)

    def counts(
        self, split: str, language: str, num_shards: int
    ) -> Iterator[tuple[ShardCounts, PieceCounts]]:
        self.store_finished()
        stems = [_stem(split, language, shard) for shard in range(num_shards)]
        for start in range(0, num_shards, _COUNTS_AT_A_TIME):
            some = stems[start : start + _COUNTS_AT_A_TIME]
            for stem, shard in zip(some, remote.at_once(self._load, some), strict=True):
                self._records[stem] = shard.records
                yield shard.counts, shard.pieces

    def _load(self, stem: str) -> _StoredShard:
        path = self._path(stem + COUNTS_SUFFIX)
        data = io.BytesIO(remote.read_bytes(path))
        counts, pieces = load_counts(data, path)
        data.seek(0)
        with np.load(data) as stored:
            entry = Entry(int(stored["size_bytes"]), stored["sha256"].item())
        return _StoredShard(entry, counts, pieces)

    def complete(
        self, info: DatasetInfo, piece_counts: Mapping[str, np.ndarray], vocabulary: Vocabulary
    ) -> None:
        data = io.BytesIO()
        np.savez_compressed(data, **piece_counts)
        others = {
            examples.PIECE_COUNTS_FILE: data.getvalue(),
            os.path.join(examples.VOCABULARY_FOLDER, MODEL_FILE): vocabulary.model,
        }
        for name, content in others.items():
            remote.write_bytes(self._path(name), content)
        about = to_json(info).encode()
        listing = {name: Entry.of(content) for name, content in others.items()}
        listing[INFO_FILE] = Entry.of(about)
        for stem, name in _moves(info).items():
            listing[name] = self._records[stem.removesuffix(examples.RECORDS_SUFFIX)]
        remote.write_bytes(self._path(LISTING_FILE), listings.to_json(listing))
        remote.write_bytes(self._path(INFO_FILE), about)

    def publish(self, info: DatasetInfo) -> None:
        for name in (INFO_FILE, LISTING_FILE):
            remote.remove(os.path.join(self.output, name))
        data = remote.read_bytes(self._path(LISTING_FILE))
        listing = listings.from_json(data, self._path(LISTING_FILE))
        self._move(info, listing)
        there = remote.list_files(self.output)
        self._check_moved(listing, there)
        others = there.keys() - listing.keys()
        remote.at_once(lambda name: remote.remove(os.path.join(self.output, name)), others)
        remote.write_bytes(os.path.join(self.output, LISTING_FILE), data)
        about = remote.read_bytes(self._path(INFO_FILE))
        remote.write_bytes(os.path.join(self.output, INFO_FILE), about)
        remote.remove_folder(self.folder)

    def _move(self, info: DatasetInfo, listing: Listing) -> None:
        """Moves what an earlier attempt has not moved yet."""
        there = remote.list_files(self.folder)
        moves = {name: name for name in listing if name != INFO_FILE} | _moves(info)

        def move(name: str) -> None:
            remote.move(self._path(name), os.path.join(self.output, moves[name]))

        remote.at_once(move, [name for name in moves if name in there])

    def _check_moved(self, listing: Listing, there: Mapping[str, remote.Stat]) -> None:
        """Refuses to go on, and so to remove what is here, before all has arrived."""
        missing = [
            name
            for name, entry in listing.items()
            if name != INFO_FILE
            and (name not in there or there[name].size_bytes != entry.size_bytes)
        ]
        if missing:
            raise KzooError(
                f"{len(missing)} files have not arrived whole in {self.output}, such as"
                f" {missing[0]}; nothing was removed. Run the same command again"
            )

    def _changes(self, request: Request) -> list[str]:
        is_marked = remote.exists(self._path(REQUEST_FILE)) or self.info() is not None
        if not is_marked and all(map(_OURS.fullmatch, remote.list_files(self.folder))):
            # What a removal has left that was interrupted.
            return ["its request.json is gone"]
        return super()._changes(request)


def _stem(split: str, language: str, shard: int) -> str:
    return os.path.join(split, language, f"{shard:05d}")


def _moves(info: DatasetInfo) -> dict[str, str]:
    """Where the records of every shard are until all are there, and where they go."""
    return {
        _stem(split, language, shard) + examples.RECORDS_SUFFIX: examples.shard_path(
            "", split, language, shard, num_shards
        )
        for split, language, shard, num_shards in shards_of(info)
    }
