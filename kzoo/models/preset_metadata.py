"""What a preset says about itself beyond what KerasHub reads: `kzoo.json`."""

import json
import os
from collections.abc import Mapping
from typing import Any

from kzoo.errors import KzooError

METADATA_FILE = "kzoo.json"
_MADE_ANEW = "made_anew"


def write_metadata(
    folder: str | os.PathLike,
    made_anew: Mapping[str, int],
    begun_from: Mapping[str, Any] | None = None,
) -> None:
    """Says which weights of a preset have never been trained, and which model it comes from.

    Where there is neither, no file is written.

    Args:
        folder: of the preset.
        made_anew: path of a variable → seed that its values came from. Nobody should take what
            such weights compute for an answer.
        begun_from: of a model whose training went on from another: the `path` and `step` of that
            one, and its weights that were `made_anew` then, and have been trained since.
    """
    if made_anew or begun_from:
        content: dict[str, Any] = {_MADE_ANEW: dict(made_anew)}
        if begun_from:
            content["begun_from"] = dict(begun_from)
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
    path = os.path.join(folder, METADATA_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise KzooError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise KzooError(f"{path} is no JSON: {error}") from error
    made_anew = content.get(_MADE_ANEW) if isinstance(content, dict) else None
    if not isinstance(made_anew, dict) or not all(
        isinstance(seed, int) for seed in made_anew.values()
    ):
        raise KzooError(f"{path} must map {_MADE_ANEW!r} to seeds by paths of variables")
    return made_anew
