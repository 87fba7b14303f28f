"""What a preset says about itself beyond what KerasHub reads: `kzoo.json`."""

import json
import os
from collections.abc import Mapping
from typing import Any

from kzoo.errors import KzooError
from kzoo.storage import files

METADATA_FILE = "kzoo.json"
_MADE_ANEW = "made_anew"
_STEP = "step"


def write_metadata(
    folder: str | os.PathLike,
    made_anew: Mapping[str, int],
    begun_from: Mapping[str, Any] | None = None,
    step: int | None = None,
) -> None:
    """Says which weights of a preset have never been trained, and which training it comes from.

    Where there is nothing to say, no file is written.

    Args:
        folder: of the preset.
        made_anew: path of a variable → seed that its values came from. Nobody should take what
            such weights compute for an answer.
        begun_from: of a model whose training went on from another: the `path` and `step` of that
            one, and its weights that were `made_anew` then, and have been trained since.
        step: updates that its run had made.
    """
    if made_anew or begun_from or step is not None:
        content: dict[str, Any] = {_MADE_ANEW: dict(made_anew)}
        if begun_from:
            content["begun_from"] = dict(begun_from)
        if step is not None:
            content[_STEP] = step
        with open(os.path.join(folder, METADATA_FILE), "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
            file.write("\n")


def read_made_anew(folder: str | os.PathLike) -> dict[str, int]:
    """The weights of a preset that have never been trained, as `write_metadata` takes them.

    Returns:
        An empty dictionary where there is no `kzoo.json`.

    Raises:
        KzooError: the file cannot be read, or is not what it should be.
    """
    content = _read(folder)
    if content is None:
        return {}
    made_anew = content.get(_MADE_ANEW)
    if not isinstance(made_anew, dict) or not all(
        isinstance(seed, int) for seed in made_anew.values()
    ):
        path = os.path.join(folder, METADATA_FILE)
        raise KzooError(f"{path} must map {_MADE_ANEW!r} to seeds by paths of variables")
    return made_anew


def read_step(folder: str | os.PathLike) -> int | None:
    """After how many updates of its run a preset was written; None if it does not say.

    Args:
        folder: of the preset, here or on object storage.

    Raises:
        KzooError: the file cannot be read, or is not what it should be.
    """
    step = (_read(folder) or {}).get(_STEP)
    if step is not None and type(step) is not int:
        path = os.path.join(folder, METADATA_FILE)
        raise KzooError(f"{path} must have a whole number as {_STEP!r}")
    return step


def _read(folder: str | os.PathLike) -> dict[str, Any] | None:
    path = os.path.join(folder, METADATA_FILE)
    if not files.exists(path):
        return None
    try:
        with files.open_stored(path) as file:
            content = json.load(file)
    except OSError as error:
        raise KzooError(f"cannot read {path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise KzooError(f"{path} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise KzooError(f"{path} must map {_MADE_ANEW!r} to seeds by paths of variables")
    return content
