"""What a preset says about itself beyond what KerasHub reads: `kzoo.json`."""

import json
import os
from collections.abc import Mapping

from kzoo.errors import KzooError

METADATA_FILE = "kzoo.json"
_MADE_ANEW = "made_anew"


def write_made_anew(folder: str | os.PathLike, made_anew: Mapping[str, int]) -> None:
    """Says which weights of a preset have never been trained.

    Args:
        folder: of the preset.
        made_anew: path of a variable → seed that its values came from. An empty mapping writes
            no file.
    """
    if made_anew:
        with open(os.path.join(folder, METADATA_FILE), "w", encoding="utf-8") as file:
            json.dump({_MADE_ANEW: dict(made_anew)}, file, indent=1)
            file.write("\n")


def read_made_anew(folder: str | os.PathLike) -> dict[str, int]:
    """The weights of a preset that have never been trained, as `write_made_anew` takes them.

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
