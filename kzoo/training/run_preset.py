"""The preset of a run, whether or not the run has finished."""

import os

from kzoo.config import loader
from kzoo.corpora.dataset_info import INFO_FILE
from kzoo.corpora.examples import RECORDS_SUFFIX, VOCABULARY_FOLDER, ExampleFiles
from kzoo.errors import KzooError
from kzoo.layers.initializers import left_empty
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.models.preset_files import CONFIG_FILE as PRESET_CONFIG_FILE
from kzoo.models.preset_metadata import read_step
from kzoo.models.saving import save_preset
from kzoo.storage import files
from kzoo.storage.fetching import fetch_folder
from kzoo.storage.publishing import made_folder
from kzoo.storage.remote import reason
from kzoo.text.tokenizer import RemBertTokenizer
from kzoo.text.vocabulary import MODEL_FILE
from kzoo.training import checkpoint_files
from kzoo.training.build import build_model
from kzoo.training.checkpoints import Checkpoints
from kzoo.training.run_folder import CHECKPOINT_FOLDER, CONFIG_FILE, PRESET_FOLDER


def write_preset_of_run(
    model_dir: str | os.PathLike[str], cache_dir: str | None = None
) -> tuple[str, int | None]:
    """The preset of a run; of one that has not finished, made of its newest checkpoint.

    Args:
        model_dir: the folder of the run, here or on object storage.
        cache_dir: for copies of what is remote; None for the user's cache.

    Returns:
        The preset's folder, in `model_dir`, and the step of an unfinished run's checkpoint; None
        for a run that has finished.

    Raises:
        KzooError: if the run has no checkpoint that can be used, or its examples are gone.
    """
    preset = os.path.join(model_dir, PRESET_FOLDER)
    config = loader.load([os.path.join(model_dir, CONFIG_FILE)])
    checkpoints = Checkpoints(os.path.join(model_dir, CHECKPOINT_FOLDER))
    steps = checkpoints.steps()
    if not steps and files.exists(os.path.join(preset, PRESET_CONFIG_FILE)):
        return preset, None
    if not steps:
        raise KzooError(
            f"{model_dir} has neither a checkpoint nor a preset yet: let the run go on until its "
            f"first checkpoint (every {config.trainer.checkpoint_interval:,} steps)"
        )
    has_finished = steps[-1] >= config.trainer.train_steps
    # A kill may come between the last checkpoint and the preset, and there may be an older preset,
    # made when the run had not finished.
    if has_finished and read_step(preset) == steps[-1]:
        return preset, None
    # Of the examples, only the vocabulary is needed.
    examples = ExampleFiles.open(
        fetch_folder(config.data.examples, cache_dir, last=INFO_FILE, chosen=_is_no_shard)
    )
    with left_empty():
        model = build_model(config)
    # The optimizer's moments stay on disk.
    state = checkpoints.restore_latest(model.variables, allow_unused=True)
    if state["vocabulary_sha256"] != examples.info.vocabulary_sha256:
        raise KzooError(
            f"the examples in {examples.folder} were made with another vocabulary than the run in "
            f"{model_dir} was trained with: its ids would mean other pieces"
        )
    write_preset(model, examples, preset, state["step"], state.get("begun_from"), cache_dir)
    return preset, None if state["step"] >= config.trainer.train_steps else state["step"]


def _is_no_shard(name: str) -> bool:
    return not name.endswith(RECORDS_SUFFIX)


def write_preset(
    model: RemBertMaskedLM,
    examples: ExampleFiles,
    folder: str,
    step: int,
    begun_from: dict | None,
    cache_dir: str | None = None,
) -> None:
    """Writes the run's preset, in the place of an older one.

    Args:
        model: the run's.
        examples: whose vocabulary it was trained with.
        folder: of the preset.
        step: updates that the run has made.
        begun_from: what it says of the model that the run has begun from, if it was one.
        cache_dir: where a preset that goes to object storage is written first.
    """
    vocabulary = os.path.join(examples.folder, VOCABULARY_FOLDER, MODEL_FILE)
    try:
        # HDF5 meets a full disk with a flood of tracebacks, so it is not left to find it.
        weights = checkpoint_files.size_bytes(checkpoint_files.by_path(model.variables))
        needed_bytes = weights + os.path.getsize(vocabulary)
        with made_folder(folder, PRESET_CONFIG_FILE, cache_dir) as made:
            checkpoint_files.check_free_space(os.path.dirname(made), needed_bytes, "the preset")
            tokenizer = RemBertTokenizer(vocabulary)
            save_preset(model, tokenizer, made, overwrite=True, begun_from=begun_from, step=step)
    except OSError as error:
        raise KzooError(
            f"cannot write {folder}: {reason(error)}. The last checkpoint is "
            "whole: mend that, and the same command writes the preset from it"
        ) from error
