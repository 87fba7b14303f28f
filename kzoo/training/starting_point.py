"""The model that a run goes on from: another run's, or a preset's; not read yet."""

import dataclasses
import functools
import logging
import os
from collections.abc import Mapping

import numpy as np

from kzoo.config import loader
from kzoo.config.model_on_disk import RUN_FILE, is_run
from kzoo.config.schema import Config
from kzoo.corpora.examples import VOCABULARY_FOLDER
from kzoo.errors import KzooError
from kzoo.interchange.preset_source import open_preset
from kzoo.interchange.source_model import SourceModel
from kzoo.interchange.source_weights import SourceWeights, StoredTensor
from kzoo.models.preset_files import CONFIG_FILE, VOCABULARY_FILE
from kzoo.storage import files
from kzoo.storage.fetching import fetch_folder
from kzoo.storage.paths import clean
from kzoo.text.vocabulary import MODEL_FILE, Vocabulary
from kzoo.training import checkpoint_files
from kzoo.training.checkpoint_files import OPTIMIZER_PREFIX, BrokenCheckpointError
from kzoo.training.checkpoints import Checkpoints
from kzoo.training.run_folder import BEST_FOLDER, CHECKPOINT_FOLDER, EVAL_FOLDER, PRESET_FOLDER

_LOG = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True)
class StartingPoint:
    """A model on disk, with what a run needs to go on from it.

    Attributes:
        model: its arguments, weights and vocabulary; nothing has been read of the weights.
        name: what it is, for messages and tables.
        path: its folder, as it was given.
        vocabulary_sha256: of the vocabulary that it was trained with, if that is known.
        step: of the run's checkpoint; None for a preset.
        moments: the optimizer's slots under their paths; None for a preset.
        updates: how many updates the moments have had.
    """

    model: SourceModel
    name: str
    path: str
    vocabulary_sha256: str | None
    step: int | None = None
    moments: SourceWeights | None = None
    updates: int = 0

    @classmethod
    def open(
        cls, path: str, checkpoint: str = "newest", cache_dir: str | None = None
    ) -> "StartingPoint":
        """Finds a model.

        Args:
            path: the folder of a run or of a preset, here or on object storage.
            checkpoint: "newest" or "best", of a run.
            cache_dir: for a copy of a preset that is remote; None for the user's cache.

        Raises:
            KzooError: it is neither, or cannot be used.
        """
        path = clean(path)
        if is_run(path):
            checkpoints = Checkpoints(os.path.join(path, CHECKPOINT_FOLDER))
            if checkpoints.steps():
                return _of_checkpoint(path, checkpoints, checkpoint)
            if not files.exists(os.path.join(path, PRESET_FOLDER, CONFIG_FILE)):
                raise KzooError(f"the run in {path} has neither a checkpoint nor a preset yet")
        if checkpoint != "newest":
            raise KzooError(
                f"init_from.checkpoint: {path} has no checkpoints, of which one is best"
            )
        folder = os.path.join(path, PRESET_FOLDER) if is_run(path) else path
        model = open_preset(fetch_folder(folder, cache_dir, last=CONFIG_FILE))
        digest = model.vocabulary.sha256 if model.vocabulary else None
        return cls(model, f"the preset {folder}", path, digest)

    def vocabulary(self) -> Vocabulary:
        """The vocabulary that the model was trained with.

        Raises:
            KzooError: it cannot be found.
        """
        if self.model.vocabulary is None:
            raise KzooError(
                f"init_from.path: the vocabulary of {self.name} is neither in its preset nor with "
                "its examples any more, so that nobody knows which row is which piece's"
            )
        return self.model.vocabulary


def _of_checkpoint(path: str, checkpoints: Checkpoints, which: str) -> StartingPoint:
    folder, shapes, state = _chosen(path, checkpoints, which)
    config = loader.load([os.path.join(path, RUN_FILE)])

    def tensors(prefix: str, but: tuple[str, ...] = ()) -> SourceWeights:
        return SourceWeights(
            (name, StoredTensor(shape, folder, functools.partial(_read, folder, name)))
            for name, shape in shapes.items()
            if name.startswith(prefix) and not name.startswith(but)
        )

    digest = state["vocabulary_sha256"]
    model = SourceModel(
        arguments=config.model.model_dump(exclude={"preset", "output_embedding_dim"}),
        output_embedding_dim=config.model.output_embedding_dim,
        weights=tensors("", but=(OPTIMIZER_PREFIX, "loss_scale/")),
        where=os.path.join(path, RUN_FILE),
        vocabulary=_vocabulary_of_run(path, config, digest),
    )
    return StartingPoint(
        model=model,
        name=f"the checkpoint of step {state['step']:,} of {path}",
        path=path,
        vocabulary_sha256=digest,
        step=state["step"],
        moments=tensors(OPTIMIZER_PREFIX),
        updates=state["step"] + (state.get("begun_from") or {}).get("updates_before", 0),
    )


def _chosen(
    path: str, checkpoints: Checkpoints, which: str
) -> tuple[str, Mapping[str, tuple[int, ...]], dict]:
    """The folder, the shapes and the state of the best checkpoint, or of the newest whole one."""
    if which == "best":
        best = checkpoints.best()
        if best is None:
            followed = os.path.join(path, EVAL_FOLDER, BEST_FOLDER)
            if is_run(followed):
                raise KzooError(
                    f"init_from.checkpoint: the run in {path} has not measured its checkpoints "
                    "itself; the best that --mode=eval_loop has found is a run of its own: set "
                    f"init_from.path to {followed}, and leave init_from.checkpoint out"
                )
            raise KzooError(
                f"init_from.checkpoint: none of the run in {path} is known to be the best: it had "
                "no held-out text, trainer.validation_interval was null or trainer.keep_best "
                "false. Take the newest"
            )
        steps = [best.step]
    else:
        steps = checkpoints.steps()[::-1]
    for step in steps:
        folder = checkpoints.path(step)
        try:
            return folder, *checkpoint_files.contents(folder)
        except BrokenCheckpointError as error:
            _LOG.warning("the checkpoint %s is passed over: %s", folder, error)
    raise KzooError(
        f"init_from.path: none of the checkpoints of {path} can be used; the warnings above say why"
    )


def _read(folder: str, name: str) -> np.ndarray:
    try:
        return checkpoint_files.read_float32(folder, name)
    except BrokenCheckpointError as error:
        raise KzooError(f"the checkpoint {folder} cannot be used: {error}") from error


def _vocabulary_of_run(path: str, config: Config, digest: str) -> Vocabulary | None:
    """The vocabulary of a run, from its preset or from its examples, which may both be gone."""
    for file in (
        os.path.join(path, PRESET_FOLDER, VOCABULARY_FILE),
        os.path.join(clean(config.data.examples), VOCABULARY_FOLDER, MODEL_FILE),
    ):
        if files.exists(file):
            vocabulary = Vocabulary.load(file)
            if vocabulary.sha256 == digest:
                return vocabulary
    return None
