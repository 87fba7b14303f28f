"""Turns the text of many languages into example files, in bounded memory.

By default on all cores of this machine: one process reads and cuts the text into shards; the others
encode and write them. A shard depends on its text and the settings alone, so that neither the
number of workers, nor an interruption, nor another engine (`kzoo.corpora.beam`) leaves a trace in
the result.
"""

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import numpy as np
import sentencepiece

from kzoo.corpora import blocks
from kzoo.corpora.dataset_info import (
    INFO_FILE,
    SCHEMA_VERSION,
    DatasetInfo,
    DatasetSettings,
    LanguageInfo,
    Split,
)
from kzoo.corpora.encoding import encode_shard
from kzoo.corpora.examples import token_dtype
from kzoo.corpora.partial import PartialFolder, ShardCounts, finish_shard
from kzoo.corpora.pool import available_cores, run_in_order
from kzoo.corpora.progress import ReadingProgress
from kzoo.corpora.reading import BadTextPolicy, warn_of_bad_lines
from kzoo.corpora.records import FileInfo, checked
from kzoo.corpora.remote_partial import is_being_published, making
from kzoo.corpora.request import FilesByLanguage, Request
from kzoo.corpora.segments import Segment, read_shards
from kzoo.errors import KzooError
from kzoo.folders import restore_folder
from kzoo.storage import files
from kzoo.storage.fetching import fetch_file
from kzoo.storage.paths import folder_name, is_remote, real_path
from kzoo.text.vocabulary import Vocabulary
from kzoo.version import __version__

SHARD_BYTES = 8_000_000
"""Of text in a shard, by default: with two shards a worker in memory, little beside the rest."""


Engine = Callable[[PartialFolder, Request, Vocabulary], Mapping[tuple[Split, str], int]]
"""Makes the shards that a folder lacks, and returns how many there are by split and language."""


class ShardTask(NamedTuple):
    """A shard to be made: where it goes, without suffix, and its text."""

    stem: str
    segments: list[Segment]


class ShardReport(NamedTuple):
    """What a finished shard came to, for the progress display."""

    documents: int
    text_bytes: int


def prepare(
    train_files: FilesByLanguage,
    held_out_files: FilesByLanguage | None,
    vocabulary: str | os.PathLike[str],
    sequence_length: int,
    output: str | os.PathLike[str],
    *,
    workers: int | None = None,
    text_field: str = "text",
    on_bad_text: BadTextPolicy = "error",
    shard_bytes: int = SHARD_BYTES,
    overwrite: bool = False,
    engine: Engine | None = None,
    cache_dir: str | None = None,
) -> DatasetInfo:
    """Makes a folder of examples, or finishes one that was begun; see `kzoo.corpora.examples`.

    Args:
        train_files: for every language its files, as `kzoo.corpora.files.find_files` gives them.
        held_out_files: likewise, for some or all of these languages; None for no such split.
        vocabulary: a folder written by `python -m kzoo.vocabulary`, or a SentencePiece `.model`.
        sequence_length: of the longest window with its `[CLS]` and `[SEP]`.
        output: the folder to make, here or on object storage. It appears when all is done; until
            then the work is beside it.
        workers: number of processes that encode, without an `engine`; None for one a core.
        text_field: key of the text in JSON lines and Parquet.
        on_bad_text: what to do with text that cannot be read: `error`, `replace` or `skip`.
        shard_bytes: of text in a shard. Larger shards are fewer files and more memory.
        overwrite: replace examples that were made from something else.
        engine: what makes the shards; None for processes of this machine.
        cache_dir: for copies of what is remote, and for shards on the way there; None for the
            user's cache.

    Returns:
        What is in the folder. If the same examples are there already, nothing else is done.

    Raises:
        KzooError: text cannot be read, a language has none, the disk is full, a worker died,
            another process makes the same folder, or `output` holds something else.
    """
    output = folder_name(output)
    workers = available_cores() if workers is None else workers
    if workers < 1:
        raise KzooError(f"workers must be at least 1, got {workers}")
    if engine is not None and is_remote(output):
        raise KzooError(
            f"{output}: with --runner, workers write to a file system that all of them share; name"
            " a folder there and copy it, or leave --runner out"
        )
    engine = engine or functools.partial(_make_shards, workers=workers)
    check_before_work(train_files, held_out_files, output)
    paths: dict[Split, FilesByLanguage] = {"train": train_files}
    if held_out_files:
        paths["held_out"] = held_out_files
    loaded = Vocabulary.load(vocabulary)
    # Workers read it too, and import no TensorFlow.
    loaded = Vocabulary.load(fetch_file(loaded.source, cache_dir))
    settings = checked(
        DatasetSettings,
        sequence_length=sequence_length,
        text_field=text_field,
        on_bad_text=on_bad_text,
        shard_bytes=shard_bytes,
    )
    request = Request.of(paths, settings, loaded.sha256)
    try:
        if info := _find_complete(output, request, overwrite):
            return info
        with making(output, cache_dir) as folder:
            info = _find_complete(output, request, overwrite)
            return info or _prepare(folder, request, loaded, engine, overwrite)
    except OSError as error:
        raise KzooError(f"cannot write {error.filename or output}: {error.strerror}") from error


def make_shard(vocabulary: Vocabulary, settings: DatasetSettings, task: ShardTask) -> ShardReport:
    """Encodes and writes one shard: what a worker does, whatever engine runs it.

    Args:
        vocabulary: what encodes.
        settings: what the examples depend on besides the text and the vocabulary.
        task: the shard.
    """
    shard = encode_shard(
        task.segments,
        vocabulary,
        sequence_length=settings.sequence_length,
        text_field=settings.text_field,
        on_bad_text=settings.on_bad_text,
    )
    finish_shard(task.stem, shard)
    return ShardReport(shard.documents, sum(segment.size_bytes for segment in task.segments))


def _make_shard(vocabulary: str, settings: DatasetSettings, task: ShardTask) -> ShardReport:
    """`make_shard` in a process of the pool, which gets the vocabulary by its path."""
    return make_shard(_load_once(vocabulary), settings, task)


_load_once = functools.cache(Vocabulary.load)


def cut_text(request: Request, split: Split, language: str, **hooks) -> Iterator[list[Segment]]:
    """Reads the text of one language, shard by shard; `hooks` are those of `read_shards`."""
    return read_shards(
        [info.path for info in request.files[split][language]],
        request.settings.shard_bytes,
        text_field=request.settings.text_field,
        **hooks,
    )


def check_before_work(
    train_files: FilesByLanguage, held_out_files: FilesByLanguage | None, output: str
) -> None:
    """Refuses what could only fail, or mislead, after hours of work.

    Args:
        train_files, held_out_files, output: as `prepare` takes them.

    Raises:
        KzooError: a file is of no known kind or in both splits, held-out text is of a language
            that is not trained, or other things than examples are in `output`.
    """
    owners: dict[str, Split] = {}
    for split, languages in (("train", train_files), ("held_out", held_out_files or {})):
        for group in languages.values():
            for path in group:
                blocks.text_format(path)
                if owners.setdefault(real_path(path), split) != split:
                    raise KzooError(f"{path} is both in the training and in the held-out text")
    unknown = sorted(set(held_out_files or ()) - set(train_files))
    if unknown:
        raise KzooError(
            f"there is held-out text but no training text in: {', '.join(unknown)}; held-out text"
            " measures languages that are trained"
        )
    is_ours = files.exists(os.path.join(output, INFO_FILE)) or is_being_published(output)
    if not is_ours and not _is_free(output):
        raise KzooError(f"{output} holds other things than examples; choose another output")


def _is_free(output: str) -> bool:
    return not files.exists(output) or (files.is_folder(output) and not files.names(output))


def _find_complete(output: str, request: Request, overwrite: bool) -> DatasetInfo | None:
    """The examples that are there already; None if they are to be made."""
    if not is_remote(output):
        restore_folder(output)
    if overwrite or _is_free(output) or is_being_published(output):
        return None
    info = DatasetInfo.load(output)
    changes = request.differences_from_dataset(info)
    if changes:
        raise KzooError(
            f"{output} holds examples that were made from something else ({'; '.join(changes)});"
            " choose another output, or replace them with --overwrite"
        )
    return info


def _prepare(
    folder: PartialFolder, request: Request, vocabulary: Vocabulary, engine: Engine, overwrite: bool
) -> DatasetInfo:
    info = folder.info()
    if info is None or request.differences_from_dataset(info):
        folder.claim(request, overwrite)
        num_shards = engine(folder, request, vocabulary)
        info = _complete(folder, request, vocabulary, num_shards)
    folder.publish(info)
    return info


def _make_shards(
    folder: PartialFolder, request: Request, vocabulary: Vocabulary, workers: int
) -> dict[tuple[Split, str], int]:
    """The engine for one machine: a pool of processes, which this one reads and cuts text for."""
    num_shards: dict[tuple[Split, str], int] = {}
    with ReadingProgress("prepare", request.total_bytes()) as progress:

        def tasks() -> Iterator[ShardTask]:
            for split, languages in request.files.items():
                for language in languages:
                    number = -1
                    shards = cut_text(request, split, language, on_read=progress.read)
                    for number, segments in enumerate(shards):
                        if not folder.is_finished(split, language, number):
                            yield ShardTask(folder.stem(split, language, number), segments)
                    num_shards[split, language] = number + 1

        make = functools.partial(_make_shard, vocabulary.source, request.settings)
        for report in run_in_order(make, tasks(), workers):
            folder.store_finished()
            progress.done(report.documents, report.text_bytes)
    return num_shards


def _complete(
    folder: PartialFolder,
    request: Request,
    vocabulary: Vocabulary,
    num_shards: Mapping[tuple[Split, str], int],
) -> DatasetInfo:
    """Adds up what was counted in all shards, and completes the folder with it."""
    splits: dict[Split, dict[str, LanguageInfo]] = {}
    piece_counts: dict[str, np.ndarray] = {}
    for split, languages in request.files.items():
        splits[split] = {}
        for language, infos in languages.items():
            total = np.zeros(vocabulary.size, np.int64)
            shards = []
            for counts, pieces in folder.counts(split, language, num_shards[split, language]):
                shards.append(counts)
                total[pieces.pieces] += pieces.counts
            splits[split][language] = _language_info(split, language, infos, shards)
            if split == "train":
                piece_counts[language] = total
    info = DatasetInfo(
        schema_version=SCHEMA_VERSION,
        settings=request.settings,
        vocabulary_sha256=vocabulary.sha256,
        vocabulary_size=vocabulary.size,
        token_dtype=token_dtype(vocabulary.size),
        splits=splits,
        kzoo_version=__version__,
        sentencepiece_version=sentencepiece.__version__,
    )
    folder.complete(info, piece_counts, vocabulary)
    return info


def _language_info(
    split: Split, language: str, files: list[FileInfo], shards: list[ShardCounts]
) -> LanguageInfo:
    info = LanguageInfo(
        files=files,
        documents=sum(counts.documents for counts in shards),
        sentences=sum(counts.sentences for counts in shards),
        windows=sum(counts.windows for counts in shards),
        tokens=sum(counts.tokens for counts in shards),
        unknown_tokens=sum(counts.unknown_tokens for counts in shards),
        replaced_lines=sum(counts.replaced_lines for counts in shards),
        skipped_lines=sum(counts.skipped_lines for counts in shards),
        shard_windows=[counts.windows for counts in shards],
    )
    places = [place for counts in shards for place in counts.bad_places]
    warn_of_bad_lines(f"{language} ({split})", info.replaced_lines + info.skipped_lines, places)
    if not info.windows:
        raise KzooError(
            f"nothing is left of the {split!r} text of {language!r}"
            f" ({', '.join(file.path for file in files)}): {info.documents} documents,"
            f" {info.skipped_lines} lines skipped; mend it, or leave the language out"
        )
    return info
