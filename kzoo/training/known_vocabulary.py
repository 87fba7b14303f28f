"""The vocabulary with which a run's examples are made, where its model already has one."""

import functools
import logging
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kzoo.config.schema import Config
from kzoo.errors import KzooError
from kzoo.models.preset_files import VOCABULARY_FILE
from kzoo.storage import files
from kzoo.storage.paths import clean, folder_name
from kzoo.text.vocabulary import MODEL_FILE, Vocabulary
from kzoo.training import checkpoint_files
from kzoo.training.checkpoint_files import BrokenCheckpointError
from kzoo.training.checkpoints import Checkpoints
from kzoo.training.run_folder import PRESET_FOLDER
from kzoo.training.starting_point import StartingPoint

_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class KnownVocabulary:
    """What is known of a vocabulary before there are examples.

    Attributes:
        find: returns it, or None where it is not to be found.
        sha256: of the only one with which the run's checkpoints can go on; None without any.
        owner: whose it is, for messages.
    """

    find: Callable[[], Vocabulary | None]
    sha256: str | None
    owner: str

    @classmethod
    def of_start(cls, start: StartingPoint) -> "KnownVocabulary":
        """That of the model with which a run begins: its rows can follow those of another one."""
        return cls(start.vocabulary, None, start.name)

    @classmethod
    def of_run(
        cls, config: Config, model_dir: str, checkpoints: Checkpoints
    ) -> "KnownVocabulary | None":
        """That of a run which has begun; None if no checkpoint says which one it was.

        Args:
            config: of the run.
            model_dir: its folder.
            checkpoints: in it.
        """
        for step in reversed(checkpoints.steps()):
            try:
                _, state = checkpoint_files.contents(checkpoints.path(step))
            except BrokenCheckpointError:
                # Whoever restores it says so.
                continue
            digest = state.get("vocabulary_sha256")
            if digest is not None:
                owner = f"the run in {model_dir}"
                find = functools.partial(_matching, config, model_dir, digest)
                return cls(find, digest, owner)
        return None

    def check(self, vocabulary: Vocabulary) -> None:
        """Refuses a vocabulary with which the checkpoints' ids would mean other pieces.

        Raises:
            KzooError: it is such a one.
        """
        if self.sha256 not in (None, vocabulary.sha256):
            raise KzooError(
                f"{self.owner} was trained with another vocabulary than {vocabulary.source}, with "
                "which its examples would be made anew: its ids would mean other pieces. Set "
                "corpus.vocabulary to the one that the run began with, or choose another model_dir"
            )


def _matching(config: Config, model_dir: str, digest: str) -> Vocabulary | None:
    for vocabulary in _candidates(config, model_dir):
        if vocabulary.sha256 == digest:
            return vocabulary
    return None


def _candidates(config: Config, model_dir: str) -> Iterator[Vocabulary]:
    """The vocabularies that may be a run's, as far as they are still there."""
    trained = folder_name(config.data.examples) + ".vocabulary"
    for path in (
        os.path.join(clean(model_dir), PRESET_FOLDER, VOCABULARY_FILE),
        os.path.join(trained, MODEL_FILE),
    ):
        if files.exists(path):
            yield Vocabulary.load(path)
    settings = config.init_from
    if settings.path is not None:
        try:
            yield StartingPoint.open(
                clean(settings.path), settings.checkpoint, config.runtime.cache_dir
            ).vocabulary()
        except KzooError as error:
            # A run does not need any more what it has begun with.
            _LOG.warning("the vocabulary of init_from.path is not taken: %s", error)
