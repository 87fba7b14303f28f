"""The example files that a configuration names, made on first use."""

import logging
import os
import sys
from collections.abc import Mapping, Sequence

from kzoo.config.checks import check_sequence_length, check_vocabulary
from kzoo.config.schema import Config
from kzoo.corpora.dataset_info import INFO_FILE
from kzoo.corpora.examples import ExampleFiles
from kzoo.corpora.files import find_files
from kzoo.corpora.prepare import check_before_work, prepare
from kzoo.errors import KzooError
from kzoo.storage.files import exists
from kzoo.storage.paths import folder_name
from kzoo.text.vocabulary import Vocabulary
from kzoo.text.vocabulary_training import train_vocabulary
from kzoo.training.known_vocabulary import KnownVocabulary

# What the commands of the two steps call by a flag, as a configuration says it.
_SAID_BY_FLAGS = {
    "--on_bad_text": "--set corpus.on_bad_text",
    "--text_field": "corpus.text_field",
    "--size=": "--set corpus.vocabulary_size=",
    "--max_sentences": "corpus.vocabulary_sentences",
    "a lower --character_coverage": "a corpus.vocabulary that python -m kzoo.vocabulary trained"
    " with a lower --character_coverage",
    "with --overwrite": "by removing it first",
}

_LOG = logging.getLogger(__name__)


def ready_examples(config: Config, known: KnownVocabulary | None = None) -> ExampleFiles:
    """Opens `data.examples`; if they are not there yet, makes them from `corpus`.

    A vocabulary that has to be trained is kept at `data.examples` + `.vocabulary`.

    Args:
        config: of the run.
        known: the vocabulary of the model that the run goes on from, which is taken where the
            configuration names none.

    Raises:
        KzooError: there are neither examples nor text, or they do not fit the configuration; or
            they would be made with another vocabulary than the run's.
    """
    folder, cache_dir = folder_name(config.data.examples), config.runtime.cache_dir
    if exists(os.path.join(folder, INFO_FILE)):
        examples = ExampleFiles.open(folder, cache_dir)
        _warn_of_other_text(config, examples)
    else:
        try:
            _make(config, known)
        except KzooError as error:
            raise KzooError(_in_keys(str(error))) from error
        examples = ExampleFiles.open(folder, cache_dir)
    check_sequence_length(config, examples.info.settings.sequence_length, folder)
    vocabulary = examples.vocabulary()
    check_vocabulary(config, vocabulary.size, vocabulary.source)
    return examples


def _warn_of_other_text(config: Config, examples: ExampleFiles) -> None:
    """Says so if the corpus has changed since: the run goes on with the examples that are there."""
    sources = {"train": config.corpus.train_files, "held_out": config.corpus.held_out_files}
    for split, source in sources.items():
        try:
            files = find_files(source) if source else {}
        except KzooError:
            # Once the examples are made, the text need not be there.
            continue
        languages = examples.info.splits.get(split, {})
        made_from = {name: [file.path for file in info.files] for name, info in languages.items()}
        if files and files != made_from:
            _LOG.warning(
                "the examples in %s were made from other files than corpus.%s_files names; they "
                "are used as they are. For others, set data.examples to a new folder",
                examples.folder,
                split,
            )


def _in_keys(message: str) -> str:
    """A message of the two steps' commands, with keys in the place of flags."""
    for flag, key in _SAID_BY_FLAGS.items():
        message = message.replace(flag, key)
    return message


def _make(config: Config, known: KnownVocabulary | None) -> None:
    corpus, folder = config.corpus, folder_name(config.data.examples)
    if corpus.train_files is None:
        raise KzooError(
            f"there are no examples in {folder} (data.examples), and corpus.train_files, from "
            "which they could be made, is not set. Set it, or run:\n"
            "  python -m kzoo.vocabulary --input 'TEXT-{lang}.txt' "
            f"--size {corpus.vocabulary_size} --output VOCABULARY\n"
            "  python -m kzoo.prepare --input 'TEXT-{lang}.txt' --vocabulary VOCABULARY "
            f"--sequence_length {config.data.sequence_length} --output {folder}"
        )
    train_files = find_files(corpus.train_files)
    held_out_files = find_files(corpus.held_out_files) if corpus.held_out_files else None
    check_before_work(train_files, held_out_files, folder)
    reading = {"text_field": corpus.text_field, "on_bad_text": corpus.on_bad_text}
    vocabulary = _vocabulary(config, train_files, known, reading)
    if known is not None:
        known.check(vocabulary)
    check_vocabulary(config, vocabulary.size, vocabulary.source)
    info = prepare(
        train_files,
        held_out_files,
        vocabulary.source,
        config.data.sequence_length,
        folder,
        cache_dir=config.runtime.cache_dir,
        **reading,
    )
    print(info.table(), file=sys.stderr)


def _vocabulary(
    config: Config,
    train_files: Mapping[str, Sequence[str]],
    known: KnownVocabulary | None,
    reading: Mapping[str, str],
) -> Vocabulary:
    """The vocabulary that is named, or that of the model, or one that is trained."""
    corpus = config.corpus
    if corpus.vocabulary is not None:
        return Vocabulary.load(corpus.vocabulary)
    found = known.find() if known is not None else None
    if found is not None:
        return found
    # The same text gives the same one again.
    return train_vocabulary(
        train_files,
        corpus.vocabulary_size,
        folder_name(config.data.examples) + ".vocabulary",
        sampling_exponent=corpus.vocabulary_sampling_exponent,
        max_sentences=corpus.vocabulary_sentences,
        seed=config.data.seed,
        cache_dir=config.runtime.cache_dir,
        **reading,
    )
