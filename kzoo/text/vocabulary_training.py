"""Trains a vocabulary on the text of many languages."""

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kzoo.corpora.progress import ReadingProgress
from kzoo.corpora.reading import (
    BadText,
    BadTextPolicy,
    Document,
    read_documents,
    warn_of_bad_lines,
)
from kzoo.corpora.records import FileInfo, checked, differences, save_record
from kzoo.errors import KzooError
from kzoo.folders import replace_folder, restore_folder
from kzoo.storage import files as stored
from kzoo.storage.listing import LISTING_FILE
from kzoo.storage.lock_file import sole_maker
from kzoo.storage.paths import folder_name, is_remote
from kzoo.storage.publishing import made_folder
from kzoo.text import sentencepiece_trainer
from kzoo.text.special_pieces import CLS, END, MASK, PAD, SEP, UNKNOWN
from kzoo.text.vocabulary import MODEL_FILE, Vocabulary
from kzoo.text.vocabulary_info import (
    INFO_FILE,
    LanguageSample,
    VocabularyInfo,
    VocabularySettings,
)
from kzoo.text.vocabulary_sample import SampleCounts, copies_per_sentence, write_sample

_MODEL_PREFIX = MODEL_FILE.removesuffix(".model")
_SAMPLE_FILE = "sample.txt"
_OUR_FILES = (_MODEL_PREFIX, _SAMPLE_FILE, INFO_FILE)

_FileInfos = Mapping[str, list[FileInfo]]


def train_vocabulary(
    files: Mapping[str, Sequence[str]],
    size: int,
    output: str | os.PathLike[str],
    *,
    sampling_exponent: float = 0.5,
    max_sentences: int = 1_000_000,
    character_coverage: float = 0.9995,
    text_field: str = "text",
    on_bad_text: BadTextPolicy = "error",
    seed: int = 0,
    overwrite: bool = False,
    cache_dir: str | None = None,
) -> Vocabulary:
    """Trains a SentencePiece unigram model on a smoothed sample of the languages.

    Reads the text twice, to count and to sample it, in constant memory; the trainer holds the
    sample. Ids 0 to 5 are `<pad> </s> <unk> [CLS] [SEP] [MASK]`, which no text can produce.

    Args:
        files: for every language its files, as `kzoo.corpora.files.find_files` gives them.
        size: number of pieces.
        output: the folder to make. It appears when all is done; until then the work is beside it
            or, for object storage, in `cache_dir`.
        sampling_exponent: α; languages give sentences to the sample by p ∝ n^α.
        max_sentences: bound of the sample, all languages together.
        character_coverage: share of the text whose characters become pieces, from 0.98 to 1.
        text_field: key of the text in JSON lines and Parquet.
        on_bad_text: what to do with text that cannot be read: `error`, `replace` or `skip`.
        seed: of the sample.
        overwrite: replace a vocabulary that was made from something else.
        cache_dir: for what goes to object storage; None for the user's cache.

    Returns:
        The vocabulary. If the same one is there already, nothing else is done.

    Raises:
        KzooError: text cannot be read, a language has none, `size` does not fit the text, memory
            ran out, another process makes the same folder, or `output` holds something else.
    """
    settings = checked(
        VocabularySettings,
        size=size,
        sampling_exponent=sampling_exponent,
        max_sentences=max_sentences,
        character_coverage=character_coverage,
        text_field=text_field,
        on_bad_text=on_bad_text,
        seed=seed,
    )
    output = folder_name(output)
    infos = {language: [FileInfo.of(path) for path in paths] for language, paths in files.items()}
    if not _is_there(output, settings, infos, overwrite):
        try:
            with made_folder(output, INFO_FILE, cache_dir) as folder, sole_maker(folder):
                # Another process may have made it while we looked.
                if not _is_there(output, settings, infos, overwrite):
                    _make(folder, settings, infos)
        except OSError as error:
            raise KzooError(f"cannot write {error.filename or output}: {error.strerror}") from error
    return Vocabulary.load(output)


def _is_there(
    output: str, settings: VocabularySettings, infos: _FileInfos, overwrite: bool
) -> bool:
    """Whether the vocabulary that is asked for is in the folder already."""
    if not is_remote(output):
        restore_folder(output)
    if not stored.exists(output):
        return False
    names = stored.names(output) if stored.is_folder(output) else [output]
    if not names:
        return False
    if INFO_FILE not in names:
        if is_remote(output) and {*names} <= {MODEL_FILE, LISTING_FILE}:
            return False  # Its copying there was interrupted.
        raise KzooError(f"{output} holds other things than a vocabulary; choose another output")
    if overwrite:
        return False
    info = VocabularyInfo.load(output)
    changes = differences(settings, info.settings)
    if infos != {language: sample.files for language, sample in info.languages.items()}:
        changes.append("the files of text are others")
    if changes:
        raise KzooError(
            f"{output} holds a vocabulary that was made from something else"
            f" ({'; '.join(changes)}); choose another output, or replace it with --overwrite"
        )
    return True


def _make(output: str, settings: VocabularySettings, infos: _FileInfos) -> None:
    folder = output + ".partial"
    _make_empty(folder)
    try:
        _train_in(folder, settings, infos)
        replace_folder(output, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _make_empty(folder: str) -> None:
    """Makes the folder to work in; removes what an interrupted training has left there."""
    if os.path.isdir(folder):
        names = set(os.listdir(folder))
        if strange := sorted(name for name in names if not name.startswith(_OUR_FILES)):
            raise KzooError(f"{folder} is in the way: it holds {strange[0]}; move it")
        shutil.rmtree(folder)
    try:
        os.makedirs(folder)
    except OSError as error:
        raise KzooError(f"cannot make {folder}: {error.strerror}") from error


def _train_in(folder: str, settings: VocabularySettings, infos: _FileInfos) -> None:
    """Trains, and leaves the model and its `vocabulary.json` in the folder."""
    total_bytes = sum(file.size_bytes for group in infos.values() for file in group)
    sample = os.path.join(folder, _SAMPLE_FILE)
    bad_text = BadText(settings.on_bad_text)
    # The text is read twice: to count it, and to sample it.
    with ReadingProgress("vocabulary", 2 * total_bytes) as progress:
        sentences = {
            language: _count_sentences(language, _documents(files, settings, bad_text, progress))
            for language, files in infos.items()
        }
        warn_of_bad_lines(
            "the vocabulary's text", bad_text.replaced + bad_text.skipped, bad_text.places
        )
        counts = _write_sample(sample, settings, infos, sentences, progress)
        report = sentencepiece_trainer.train(folder, _trainer_settings(settings), progress.say)
    os.remove(sample)
    os.remove(os.path.join(folder, _MODEL_PREFIX + ".vocab"))
    info = VocabularyInfo(
        settings=settings,
        sha256=Vocabulary.load(folder).sha256,
        languages={
            language: LanguageSample(
                files=files,
                sentences=sentences[language],
                sampled_sentences=counts[language].sentences,
            )
            for language, files in infos.items()
        },
        characters=report.characters,
        covered=report.covered,
        lines_lost=sum(count.lines for count in counts.values()) - report.sentences,
        replaced_lines=bad_text.replaced,
        skipped_lines=bad_text.skipped,
    )
    save_record(info, os.path.join(folder, INFO_FILE))


def _documents(
    files: Sequence[FileInfo],
    settings: VocabularySettings,
    bad_text: BadText,
    progress: ReadingProgress,
) -> Iterator[Document]:
    """The documents of one language."""
    for file in files:
        for document in read_documents(
            file.path,
            text_field=settings.text_field,
            bad_text=bad_text,
            on_read=progress.read,
        ):
            progress.done(documents=1)
            yield document


def _count_sentences(language: str, documents: Iterator[Document]) -> int:
    count = sum(map(len, documents))
    if not count:
        raise KzooError(f"there is no text in the files of {language!r}")
    return count


def _write_sample(
    path: str,
    settings: VocabularySettings,
    infos: _FileInfos,
    sentences: Mapping[str, int],
    progress: ReadingProgress,
) -> dict[str, SampleCounts]:
    copies = copies_per_sentence(sentences, settings.sampling_exponent, settings.max_sentences)
    with open(path, "wb") as stream:
        return {
            language: write_sample(
                stream,
                language,
                # What is wrong with the text was said when it was counted.
                _documents(files, settings, BadText(settings.on_bad_text), progress),
                copies[language],
                settings.seed,
            )
            for language, files in infos.items()
        }


def _trainer_settings(settings: VocabularySettings) -> dict[str, Any]:
    return {
        "input": [_SAMPLE_FILE],
        "model_prefix": _MODEL_PREFIX,
        "model_type": "unigram",
        "vocab_size": settings.size,
        "character_coverage": settings.character_coverage,
        "normalization_rule_name": settings.normalization,
        "num_threads": settings.num_threads,
        "pad_id": 0,
        "eos_id": 1,
        "unk_id": 2,
        "bos_id": -1,
        "pad_piece": PAD,
        "eos_piece": END,
        "unk_piece": UNKNOWN,
        "control_symbols": [CLS, SEP, MASK],
    }
