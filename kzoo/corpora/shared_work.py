"""Shards made by workers that share a file system and nothing else, in two steps.

First a worker cuts the text of one language into shards, and leaves each in the folder of the
examples in the making; then workers on any machine encode a shard each. What has to be passed from
the first step to the second is a shard's name: engines may hold all names in memory, as some do.
Either step may be done twice, even at once, and be interrupted at any moment. The folder has

    request.json                       what the examples are made from; see `kzoo.corpora.partial`
    vocabulary/
    making-DIGEST/text/                of the request; and in it
        SPLIT/LANGUAGE/00000.feather   the text of a shard, until the shard is finished
        SPLIT/LANGUAGE/cut.json        how many shards there are; once all are cut
        failure.txt                    why all are to stop
"""

import contextlib
import logging
import os
import socket
from collections.abc import Iterator
from typing import NamedTuple

import pyarrow
import sentencepiece
from pyarrow import feather

from kzoo.corpora import blocks
from kzoo.corpora.dataset_info import Split
from kzoo.corpora.examples import VOCABULARY_FOLDER
from kzoo.corpora.files import written_aside
from kzoo.corpora.partial import REQUEST_FILE, PartialFolder
from kzoo.corpora.prepare import ShardTask, cut_text, make_shard
from kzoo.corpora.records import FileInfo, Record, load_record, save_record
from kzoo.corpora.request import Request
from kzoo.corpora.segments import Segment
from kzoo.errors import KzooError
from kzoo.text.vocabulary import Vocabulary
from kzoo.version import __version__

_TEXT_FOLDER = "text"
_CUT_FILE = "cut.json"
_FAILURE_FILE = "failure.txt"
_TEXT_SUFFIX = ".feather"

_SCHEMA = pyarrow.schema(
    [
        ("path", pyarrow.string()),
        ("first_line", pyarrow.int64()),
        ("continues", pyarrow.bool_()),
        # One value, or those of the rows of a Parquet column.
        ("content", pyarrow.list_(pyarrow.large_binary())),
    ]
)

_LOG = logging.getLogger(__name__)


class Shard(NamedTuple):
    """The name of a shard."""

    split: Split
    language: str
    number: int


class CutInfo(Record):
    """What the cutting of a language's text came to.

    Attributes:
        num_shards: how many shards there are, finished ones included.
        warnings: for the user.
    """

    num_shards: int
    warnings: list[str]


class Stopped(Exception):  # noqa: N818 - nothing has gone wrong here
    """Another worker has failed, or the user does not want to go on."""


class SharedWork:
    """One preparation, as each of its workers sees it; and the process that has launched them.

    Attributes:
        folder: the examples in the making.
        request: what they are made from.
        vocabulary: what encodes.
    """

    def __init__(self, folder: PartialFolder, request: Request, vocabulary: Vocabulary):
        self.folder = folder
        self.request = request
        self.vocabulary = vocabulary
        self._text_folder = os.path.join(folder.making, _TEXT_FOLDER)
        self._failure_path = os.path.join(self._text_folder, _FAILURE_FILE)

    @classmethod
    def begin(cls, folder: PartialFolder, request: Request, vocabulary: Vocabulary) -> "SharedWork":
        """Lays out what workers need, for the process that launches them.

        Args:
            folder: claimed for the request.
            request, vocabulary: what the examples are made from.
        """
        work = cls(folder, request, vocabulary)
        for split, language in work.languages():
            os.makedirs(os.path.join(work._text_folder, split, language), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            os.remove(work._failure_path)
        vocabulary.save(os.path.join(folder.folder, VOCABULARY_FOLDER))
        return work

    @classmethod
    def join(cls, output: str, digest: str) -> "SharedWork":
        """Finds the work that another process has laid out.

        Args:
            output: where the examples will be, as that process named it.
            digest: of the request that the work is of.

        Raises:
            KzooError: this machine does not see the folder, other examples are made there now, or
                it has other versions of kzoo or SentencePiece, which would give other examples.
        """
        folder = PartialFolder(output)
        path = os.path.join(folder.folder, REQUEST_FILE)
        if not os.path.exists(path):
            raise KzooError(
                f"a worker on {socket.gethostname()} does not find {os.path.abspath(path)}; all"
                " workers and the process that launches them must see --output at the same path:"
                " name it by an absolute one, on a file system that they share"
            )
        request = load_record(Request, path)
        if request.digest() != digest:
            raise KzooError(
                f"{folder.folder} is now that of another preparation; this worker, on"
                f" {socket.gethostname()}, is left over from an earlier one, whose job can be"
                " cancelled"
            )
        folder.enter(request)
        here = {"kzoo": __version__, "sentencepiece": sentencepiece.__version__}
        if request.versions != here:
            raise KzooError(
                f"a worker on {socket.gethostname()} has {_listed(here)}, the process that"
                f" launched it {_listed(request.versions)}; install the same everywhere"
            )
        vocabulary = Vocabulary.load(os.path.join(folder.folder, VOCABULARY_FOLDER))
        return cls(folder, request, vocabulary)

    def languages(self) -> list[tuple[Split, str]]:
        """What the first step is done for, each by itself: splits and languages."""
        return [
            (split, language) for split, group in self.request.files.items() for language in group
        ]

    def cut(self, split: Split, language: str) -> Iterator[Shard]:
        """The first step: leaves the text of all shards of a language that are not finished.

        Yields:
            Their names; in the end or as they are cut.

        Raises:
            KzooError: the text cannot be read here, or not be written; all workers then stop.
            Stopped: another one has failed.
        """
        with self._failing_for_all():
            if not self._is_cut(split, language):
                self._check_text(split, language)
                warnings: list[str] = []
                number = -1
                shards = cut_text(self.request, split, language, warn=warnings.append)
                for number, segments in enumerate(shards):
                    self._stop_if_told()
                    shard = Shard(split, language, number)
                    if not self._is_finished(shard) and not os.path.exists(self._text_path(shard)):
                        _write_text(self._text_path(shard), segments)
                info = CutInfo(num_shards=number + 1, warnings=warnings)
                save_record(info, self._cut_path(split, language))
        for shard in self._shards(split, language):
            if not self._is_finished(shard):
                yield shard

    def make(self, shard: Shard) -> None:
        """The second step: encodes and writes a shard, unless that has been done.

        Raises:
            KzooError: its text cannot be read, or the disk is full; all workers then stop.
            Stopped: another one has failed.
        """
        with self._failing_for_all():
            self._stop_if_told()
            path = self._text_path(shard)
            if not self._is_finished(shard):
                try:
                    segments = _read_text(path)
                except FileNotFoundError:
                    # Finished by another one, just now?
                    if self._is_finished(shard):
                        return
                    raise
                task = ShardTask(self.folder.stem(*shard), segments)
                make_shard(self.vocabulary, self.request.settings, task)
            with contextlib.suppress(FileNotFoundError):
                os.remove(path)

    def stop(self, why: str) -> None:
        """Tells all workers to stop after what they are doing; the first one to say so is heard."""
        # On a disk that is full, the file stays empty.
        with contextlib.suppress(OSError), open(self._failure_path, "x", encoding="utf-8") as file:
            file.write(why)

    def failure(self) -> str | None:
        """Why all are to stop; None if they are not, empty if there was no room to say it."""
        try:
            with open(self._failure_path, encoding="utf-8") as file:
                return file.read()
        except FileNotFoundError:
            return None

    def num_finished(self) -> int:
        """How many shards are finished so far."""
        return sum(self.folder.num_finished(*of) for of in self.languages())

    def num_shards(self) -> dict[tuple[Split, str], int]:
        """How many shards there are by split and language, once all are finished.

        Raises:
            KzooError: some are not.
        """
        num_shards = {}
        for split, language in self.languages():
            info = self._cut_info(split, language)
            if info is None or not all(map(self._is_finished, self._shards(split, language))):
                raise KzooError(
                    f"the work ended, but shards of {language!r} ({split}) are missing in"
                    f" {self.folder.folder}: workers did not finish, or write to another file"
                    " system than this process sees. Run the same command again"
                )
            for warning in info.warnings:
                _LOG.warning("%s", warning)
            num_shards[split, language] = info.num_shards
        return num_shards

    @contextlib.contextmanager
    def _failing_for_all(self) -> Iterator[None]:
        """Lets all workers stop when this one fails, and makes what it says one message."""
        try:
            yield
        except KzooError as error:
            self.stop(str(error))
            raise
        except OSError as error:
            message = (
                f"cannot read or write {error.filename or self.folder.folder}: "
                f"{error.strerror or error}"
            )
            self.stop(message)
            raise KzooError(message) from error

    def _stop_if_told(self) -> None:
        if os.path.exists(self._failure_path):
            raise Stopped

    def _check_text(self, split: Split, language: str) -> None:
        """Refuses a machine that has not the text that the launching process has found."""
        for info in self.request.files[split][language]:
            try:
                is_same = FileInfo.of(info.path) == info
            except KzooError:
                is_same = False
            if not is_same:
                raise KzooError(
                    f"a worker on {socket.gethostname()} does not find {info.path} with its"
                    f" {info.size_bytes:,} bytes; all workers must see the text at the same paths:"
                    " name it by absolute ones, on a file system that they share"
                )

    def _shards(self, split: Split, language: str) -> list[Shard]:
        info = self._cut_info(split, language)
        return [Shard(split, language, number) for number in range(info.num_shards if info else 0)]

    def _is_cut(self, split: Split, language: str) -> bool:
        """Whether all shards have been cut, and each is finished or has its text there."""
        return self._cut_info(split, language) is not None and all(
            self._is_finished(shard) or os.path.exists(self._text_path(shard))
            for shard in self._shards(split, language)
        )

    def _cut_info(self, split: Split, language: str) -> CutInfo | None:
        path = self._cut_path(split, language)
        return load_record(CutInfo, path) if os.path.exists(path) else None

    def _is_finished(self, shard: Shard) -> bool:
        return self.folder.is_finished(*shard)

    def _cut_path(self, split: Split, language: str) -> str:
        return os.path.join(self._text_folder, split, language, _CUT_FILE)

    def _text_path(self, shard: Shard) -> str:
        name = f"{shard.number:05d}{_TEXT_SUFFIX}"
        return os.path.join(self._text_folder, shard.split, shard.language, name)


def _write_text(path: str, segments: list[Segment]) -> None:
    rows = [
        {
            "path": segment.path,
            "first_line": segment.first_line,
            "continues": segment.continues,
            "content": [segment.content] if _is_bytes(segment) else segment.content,
        }
        for segment in segments
    ]
    table = pyarrow.Table.from_pylist(rows, _SCHEMA)
    with written_aside(path) as aside, open(aside, "wb") as stream:
        feather.write_feather(table, stream, compression="zstd")


def _read_text(path: str) -> list[Segment]:
    try:
        with open(path, "rb") as stream:
            rows = feather.read_table(stream).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        # What the system refuses has a number; of damaged data, Arrow raises errors without.
        if getattr(error, "errno", None) is not None:
            raise
        raise KzooError(
            f"{path} is damaged, as after a power cut ({error}); remove it, and the same command"
            " makes it again"
        ) from error
    return [
        Segment(
            row["path"],
            row["first_line"],
            row["content"] if blocks.text_format(row["path"]) == "parquet" else row["content"][0],
            row["continues"],
        )
        for row in rows
    ]


def _is_bytes(segment: Segment) -> bool:
    return isinstance(segment.content, bytes)


def _listed(versions: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())
