"""The arguments of a model that is there already: of a run, or of a preset's folder."""

import os
from typing import Any

from kzoo.config import sources
from kzoo.errors import KzooError
from kzoo.storage import files
from kzoo.storage.fetching import fetch_folder
from kzoo.storage.paths import clean

RUN_FILE = "config.yaml"
"""What makes a folder that of a run."""


def is_run(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder is that of a run."""
    return files.exists(os.path.join(clean(folder), RUN_FILE))


def read_arguments(folder: str, cache_dir: str | None = None) -> dict[str, Any]:
    """The arguments of the section `model` that a model on disk has.

    A preset of an encoder alone has no `output_embedding_dim`.

    Args:
        folder: of a run or a preset, here or on object storage.
        cache_dir: for a copy of a preset that is remote; None for the user's cache.

    Raises:
        KzooError: it is neither a run nor a preset.
    """
    folder = clean(folder)
    if is_run(folder):
        path = os.path.join(folder, RUN_FILE)
        arguments = sources.read_file(path).value.get("model")
        if not isinstance(arguments, dict):
            raise KzooError(f"{path} has no section model")
        return {key: value for key, value in arguments.items() if key != "preset"}
    # It brings TensorFlow along, which costs seconds: only where it is needed.
    from kzoo.models import preset_files

    local = fetch_folder(folder, cache_dir, last=preset_files.CONFIG_FILE)
    arguments, output_embedding_dim = preset_files.read_arguments(local)
    if output_embedding_dim is None:
        return arguments
    return {**arguments, "output_embedding_dim": output_embedding_dim}
