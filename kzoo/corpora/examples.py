"""Example files: the token ids of every window, by split, language and index.

A folder of examples holds

    dataset.json                                what is in it; written last
    train/LANGUAGE/00000-of-00003.arrayrecord   one record a window
    held_out/LANGUAGE/…                         if held-out text was given
    piece_counts.npz                            how often each piece occurs in each language
    vocabulary/                                 a copy of the vocabulary

A record is the ids of one window, without `[CLS]` and `[SEP]`, as little-endian unsigned integers
of 16 bits, or of 32 where the vocabulary has more than 65,536 pieces.
"""

import bisect
import collections
import itertools
import os
import threading
import zipfile
from collections.abc import Sequence

import numpy as np
from array_record.python import array_record_module

from kzoo.corpora.dataset_info import INFO_FILE, DatasetInfo, LanguageInfo, Split
from kzoo.errors import KzooError
from kzoo.storage.fetching import fetch_folder
from kzoo.text.vocabulary import Vocabulary

PIECE_COUNTS_FILE = "piece_counts.npz"
VOCABULARY_FOLDER = "vocabulary"
RECORDS_SUFFIX = ".arrayrecord"

# Groups of 16 windows, in Snappy, take two thirds of the space of groups of one, ArrayRecord's
# usual advice, and are read four times as fast in random order: each group is a chunk with a header
# of its own. Zstandard saves another fifth, but takes twice the time to write and a third more to
# read.
_WRITER_OPTIONS = "group_size:16,snappy"
_READER_OPTIONS = "readahead_buffer_size:0,max_parallelism:0"
_READER_BUFFER_BYTES = 32_768

# Below the usual limit of 1,024 open files, with room for whatever else the process does.
_MAX_OPEN_SHARDS = 512


def token_dtype(vocabulary_size: int) -> str:
    """The type in which records store token ids."""
    return "<u2" if vocabulary_size <= 1 << 16 else "<u4"


def shard_path(folder: str, split: str, language: str, shard: int, num_shards: int) -> str:
    """Where a shard of a complete dataset is."""
    return os.path.join(folder, split, language, f"{shard:05d}-of-{num_shards:05d}{RECORDS_SUFFIX}")


def write_records(path: str, records: Sequence[bytes]) -> None:
    """Writes a shard.

    Raises:
        KzooError: the disk is full, or the file cannot be written for another reason.
    """
    try:
        writer = array_record_module.ArrayRecordWriter(path, _WRITER_OPTIONS)
        for record in records:
            writer.write(record)
        writer.close()
    except (OSError, RuntimeError, ValueError) as error:
        # The rest says where in the library.
        reason = str(error).split(";")[0]
        raise KzooError(f"cannot write {path}: {reason}") from error


class ExampleFiles:
    """Random access to the windows of a complete folder of examples.

    Can be pickled and used from many threads; files are opened when they are first read.

    Attributes:
        folder: where the examples are.
        info: what `dataset.json` says.
    """

    def __init__(self, folder: str, info: DatasetInfo):
        self.folder = folder
        self.info = info
        self._ends = {
            (split, language): list(itertools.accumulate(entry.shard_windows))
            for split, languages in info.splits.items()
            for language, entry in languages.items()
        }
        self._readers: collections.OrderedDict = collections.OrderedDict()
        self._lock = threading.Lock()

    @classmethod
    def open(cls, folder: str | os.PathLike[str], cache_dir: str | None = None) -> "ExampleFiles":
        """Opens a folder written by `python -m kzoo.prepare`.

        Args:
            folder: where it is; of a remote one, a local copy is read.
            cache_dir: where that copy is kept; None for the user's cache.

        Raises:
            KzooError: there is none, or it is not complete.
        """
        folder = fetch_folder(os.fspath(folder), cache_dir, last=INFO_FILE)
        return cls(folder, DatasetInfo.load(folder))

    def __reduce__(self):
        return ExampleFiles, (self.folder, self.info)

    def languages(self, split: Split) -> list[str]:
        """The languages of a split, sorted; none if there is no such split."""
        return sorted(self.info.splits.get(split, {}))

    def num_windows(self, split: Split, language: str) -> int:
        """Number of windows, which `read` knows by their indices."""
        return self._language(split, language).windows

    def sentences(self, split: Split, language: str) -> int:
        """Number of sentences (lines that are not blank), by which languages are weighted."""
        return self._language(split, language).sentences

    def vocabulary(self) -> Vocabulary:
        """The vocabulary that the ids belong to.

        Raises:
            KzooError: its copy in the folder is missing or is another one.
        """
        vocabulary = Vocabulary.load(os.path.join(self.folder, VOCABULARY_FOLDER))
        if vocabulary.sha256 != self.info.vocabulary_sha256:
            raise KzooError(
                f"{vocabulary.source} is not the vocabulary that the examples in {self.folder} were"
                " made with: its sha256 differs from the one in dataset.json"
            )
        return vocabulary

    def piece_counts(self) -> dict[str, np.ndarray]:
        """How often each piece occurs in the training text: for each language, int64 [V]."""
        path = os.path.join(self.folder, PIECE_COUNTS_FILE)
        try:
            with np.load(path, allow_pickle=False) as counts:
                return {language: counts[language] for language in counts.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise KzooError(f"cannot read {path}: {error}; prepare the examples again") from error

    def read(self, split: Split, language: str, index: int) -> np.ndarray:
        """Reads one window.

        Args:
            split: `train` or `held_out`.
            language: one of `languages(split)`.
            index: from 0 to `num_windows(split, language) - 1`.

        Returns:
            Its token ids, without `[CLS]` and `[SEP]`: int32 [number of pieces].

        Raises:
            KzooError: there is no such window, or its file is missing or damaged.
        """
        return self.read_many(split, language, [index])[0]

    def read_many(self, split: Split, language: str, indices: Sequence[int]) -> list[np.ndarray]:
        """Reads several windows of one language, in the given order; see `read`."""
        num_windows = self.num_windows(split, language)
        ends = self._ends[split, language]
        by_shard = collections.defaultdict(list)
        for position, index in enumerate(map(int, indices)):
            if not 0 <= index < num_windows:
                raise KzooError(
                    f"{self.folder} has {num_windows} windows of {language!r} in {split!r}; there"
                    f" is no window {index}"
                )
            shard = bisect.bisect_right(ends, index)
            by_shard[shard].append((position, index - (ends[shard - 1] if shard else 0)))
        windows: list = [None] * len(indices)
        for shard, places in by_shard.items():
            path = shard_path(self.folder, split, language, shard, len(ends))
            reader = self._reader(path, ends[shard] - (ends[shard - 1] if shard else 0))
            records = _read_records(path, reader, [record for _, record in places])
            for (position, record), data in zip(places, records, strict=True):
                windows[position] = self._token_ids(data, path, record)
        return windows

    def _language(self, split: Split, language: str) -> LanguageInfo:
        try:
            return self.info.splits[split][language]
        except KeyError:
            raise KzooError(
                f"{self.folder} has no {split!r} examples of {language!r}, only of:"
                f" {', '.join(self.languages(split)) or 'no language'}"
            ) from None

    def _reader(self, path: str, num_records: int):
        """An open reader (threads may share it); the least recently used one is let go."""
        with self._lock:
            reader = self._readers.pop(path, None) or _open_shard(path, num_records)
            self._readers[path] = reader
            if len(self._readers) > _MAX_OPEN_SHARDS:
                # Not closed here, since another thread may be reading: it closes with its last use.
                self._readers.popitem(last=False)
            return reader

    def _token_ids(self, data: bytes, path: str, record: int) -> np.ndarray:
        dtype = np.dtype(self.info.token_dtype)
        if not data or len(data) % dtype.itemsize:
            raise KzooError(
                f"window {record} of {path} has {len(data)} bytes, which are no ids of"
                f" {dtype.itemsize} bytes each; the file is damaged: prepare the examples again"
            )
        token_ids = np.frombuffer(data, dtype)
        limit = self.info.settings.sequence_length - 2
        if token_ids.size > limit:
            raise KzooError(
                f"window {record} of {path} has {token_ids.size} pieces, more than {limit}; the"
                " file is damaged: prepare the examples again"
            )
        if token_ids.max() >= self.info.vocabulary_size:
            raise KzooError(
                f"window {record} of {path} has the token id {token_ids.max()}, but the vocabulary"
                f" has {self.info.vocabulary_size} pieces; prepare the examples again"
            )
        return token_ids.astype(np.int32)


def _open_shard(path: str, num_records: int):
    if not os.path.isfile(path):
        raise KzooError(f"{path} is missing; prepare the examples again")
    try:
        reader = array_record_module.ArrayRecordReader(
            path, _READER_OPTIONS, file_reader_buffer_size=_READER_BUFFER_BYTES
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise KzooError(f"cannot read {path}, which may be damaged: {error}") from error
    # A file that cannot be understood opens without an error and has no records.
    if reader.num_records() != num_records:
        raise KzooError(
            f"{path} has {reader.num_records()} windows, not {num_records} as dataset.json says; it"
            " is damaged: prepare the examples again"
        )
    return reader


def _read_records(path: str, reader, records: list[int]) -> list[bytes]:
    try:
        return reader.read(records)
    except (OSError, RuntimeError, ValueError) as error:
        raise KzooError(f"cannot read {path}, which may be damaged: {error}") from error
