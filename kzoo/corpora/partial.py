"""The folder in which examples are being made: what is finished there, and what it is made from.

It stands beside the final folder, which appears whole, by one rename, when all is done:

    request.json                 settings, files and versions that the shards are made from
    making-DIGEST/               of the request, so that a worker that is left over from another
                                 one neither finds nor writes anything here; and in it
        SPLIT/LANGUAGE/00000.npz     what was counted in a shard, once that is finished
        SPLIT/LANGUAGE/00000.arrayrecord
        text/                        what workers share (`kzoo.corpora.shared_work`)
    SPLIT/LANGUAGE/00000-of-00003.arrayrecord    the shards, once all are finished
"""

import contextlib
import dataclasses
import glob
import json
import os
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from typing import BinaryIO

import numpy as np

from kzoo.corpora import examples
from kzoo.corpora.dataset_info import INFO_FILE, DatasetInfo, partial_folder
from kzoo.corpora.encoding import EncodedShard
from kzoo.corpora.files import TEMPORARY_SUFFIX, written_aside
from kzoo.corpora.records import load_record, save_record
from kzoo.corpora.request import Request
from kzoo.errors import KzooError
from kzoo.folders import replace_folder
from kzoo.storage.files import exists
from kzoo.text.vocabulary import Vocabulary

REQUEST_FILE = "request.json"
_MAKING = "making-"
COUNTS_SUFFIX = ".npz"


@dataclasses.dataclass(frozen=True)
class ShardCounts:
    """What a finished shard came to: `EncodedShard` without its records."""

    documents: int
    sentences: int
    windows: int
    tokens: int
    unknown_tokens: int
    replaced_lines: int
    skipped_lines: int
    bad_places: list[str]


def finish_shard(stem: str, shard: EncodedShard) -> None:
    """Writes a shard and then its counts, each aside and renamed.

    Args:
        stem: path of the shard without its suffix, in a folder that is there. (To make it would
            bring back what a worker that others believed dead still writes to.)
        shard: what to write.

    Raises:
        KzooError: the disk is full, or the folder cannot be written for another reason.
    """
    counts = ShardCounts(
        documents=shard.documents,
        sentences=shard.sentences,
        windows=len(shard.records),
        tokens=int(shard.piece_counts.sum()),
        unknown_tokens=shard.unknown_tokens,
        replaced_lines=shard.bad_text.replaced,
        skipped_lines=shard.bad_text.skipped,
        bad_places=shard.bad_text.places,
    )
    pieces = np.flatnonzero(shard.piece_counts)
    try:
        with written_aside(stem + examples.RECORDS_SUFFIX) as path:
            examples.write_records(path, shard.records)
        with written_aside(stem + COUNTS_SUFFIX) as path, open(path, "wb") as stream:
            np.savez(
                stream,
                counts=json.dumps(dataclasses.asdict(counts)),
                pieces=pieces,
                piece_counts=shard.piece_counts[pieces],
            )
    except OSError as error:
        raise KzooError(
            f"cannot write {stem}{examples.RECORDS_SUFFIX}: {error.strerror}"
        ) from error


@dataclasses.dataclass(frozen=True)
class PieceCounts:
    """How often pieces occur: those that do, and their counts; int64 [number of them] each."""

    pieces: np.ndarray
    counts: np.ndarray


class PartialFolder:
    """Examples in the making.

    Attributes:
        output: the folder that they will be in.
        folder: the one that they are in until then.
        making: the one in it that is for what is not finished; once a request is known.
    """

    def __init__(self, output: str):
        self.output = output
        self.folder = partial_folder(output)
        self.making = self.folder

    def enter(self, request: Request) -> None:
        """Goes into a folder that was claimed for the request, by this process or another."""
        self.making = self._path(_making(request))

    def claim(self, request: Request, overwrite: bool) -> None:
        """Makes the folder, or goes on in the one that an interrupted preparation left.

        Args:
            request: what the examples are made from.
            overwrite: start afresh where the folder was made from something else.

        Raises:
            KzooError: it was made from something else, or is none of ours.
        """
        self.enter(request)
        if os.path.isdir(self.folder):
            changes = self._changes(request)
            if not changes:
                return
            if not overwrite:
                raise KzooError(self.begun_with_something_else(changes))
            shutil.rmtree(self.folder)
        # Aside, so that no folder of ours is ever without its request.
        new = self.folder + ".new"
        shutil.rmtree(new, ignore_errors=True)
        os.makedirs(new)
        for split, languages in request.files.items():
            for language in languages:
                os.makedirs(os.path.join(new, _making(request), split, language))
        save_record(request, os.path.join(new, REQUEST_FILE))
        os.rename(new, self.folder)

    def info(self) -> DatasetInfo | None:
        """What `dataset.json` says, if everything is finished but the move into place."""
        return DatasetInfo.load(self.folder) if exists(self._path(INFO_FILE)) else None

    def stem(self, split: str, language: str, shard: int) -> str:
        """Path of a shard, without a suffix."""
        return os.path.join(self.making, split, language, f"{shard:05d}")

    def is_finished(self, split: str, language: str, shard: int) -> bool:
        """Whether a shard is complete on disk."""
        return os.path.exists(self.stem(split, language, shard) + COUNTS_SUFFIX)

    def store_finished(self) -> None:
        """Brings finished shards to where they belong; here they are written there."""

    def num_finished(self, split: str, language: str) -> int:
        """How many shards of a language are complete on disk."""
        names = os.listdir(os.path.join(self.making, split, language))
        return sum(name.endswith(COUNTS_SUFFIX) for name in names)

    def counts(
        self, split: str, language: str, num_shards: int
    ) -> Iterator[tuple[ShardCounts, PieceCounts]]:
        """What was counted in each shard of a language, in order."""
        for shard in range(num_shards):
            path = self.stem(split, language, shard) + COUNTS_SUFFIX
            with open(path, "rb") as stream:
                yield load_counts(stream, path)

    def complete(
        self, info: DatasetInfo, piece_counts: Mapping[str, np.ndarray], vocabulary: Vocabulary
    ) -> None:
        """Gives the shards their names and writes what stands beside them, `dataset.json` last.

        Args:
            info: of the dataset.
            piece_counts: for each language, int64 [vocabulary_size].
            vocabulary: to be copied.
        """
        for split, language, shard, num_shards in shards_of(info):
            named = examples.shard_path(self.folder, split, language, shard, num_shards)
            # An earlier attempt may have come past here.
            if not os.path.exists(named):
                os.makedirs(os.path.dirname(named), exist_ok=True)
                os.rename(self.stem(split, language, shard) + examples.RECORDS_SUFFIX, named)
        with (
            written_aside(self._path(examples.PIECE_COUNTS_FILE)) as path,
            open(path, "wb") as file,
        ):
            np.savez_compressed(file, **piece_counts)
        vocabulary.save(self._path(examples.VOCABULARY_FOLDER))
        save_record(info, self._path(INFO_FILE))

    def publish(self, info: DatasetInfo) -> None:
        """Removes what only the making needed, and moves the folder into place."""
        for name in glob.glob(_MAKING + "*", root_dir=self.folder):
            shutil.rmtree(self._path(name))
        # Of workers that were killed.
        for name in glob.glob("**/*" + TEMPORARY_SUFFIX, root_dir=self.folder, recursive=True):
            _remove(self._path(name))
        _remove(self._path(REQUEST_FILE))
        replace_folder(self.output, self.folder)

    def begun_with_something_else(self, changes: list[str]) -> str:
        """What to say if the folder was made from something else."""
        return (
            f"{self.folder} was begun with something else ({'; '.join(changes)}); finish it"
            " with the same command as before, or start afresh with --overwrite"
        )

    def _changes(self, request: Request) -> list[str]:
        """What the folder was made from that is not in the request."""
        path = self._path(REQUEST_FILE)
        if exists(path):
            return request.differences_from(load_record(Request, path))
        if info := self.info():
            return request.differences_from_dataset(info)
        raise KzooError(f"{self.folder} is in the way and was not made by kzoo; move it")

    def _path(self, *parts: str) -> str:
        return os.path.join(self.folder, *parts)


def _making(request: Request) -> str:
    return _MAKING + request.digest()


def load_counts(stream: BinaryIO, path: str) -> tuple[ShardCounts, PieceCounts]:
    """Reads what was counted in a shard.

    Args:
        stream: the content of its file.
        path: of that file, for messages.

    Raises:
        KzooError: it is damaged.
    """
    try:
        with np.load(stream) as stored:
            counts = ShardCounts(**json.loads(stored["counts"].item()))
            return counts, PieceCounts(stored["pieces"], stored["piece_counts"])
    except (ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise KzooError(
            f"{path} is damaged, as after a power cut ({error}); remove it, and the same command"
            " makes that shard again"
        ) from error


def shards_of(info: DatasetInfo) -> Iterator[tuple[str, str, int, int]]:
    """Split, language and number of every shard, and how many the language has in the split."""
    for split, languages in info.splits.items():
        for language, entry in languages.items():
            for shard in range(len(entry.shard_windows)):
                yield split, language, shard, len(entry.shard_windows)


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.remove(path)
