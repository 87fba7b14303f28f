"""The files of a Hugging Face folder that hold its weights."""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

from kzoo.errors import KzooError
from kzoo.interchange.pickled_weights import open_pickled
from kzoo.interchange.safetensors_files import open_safetensors, parse_index
from kzoo.interchange.source_weights import SourceWeights, StoredTensor

CONFIG_FILE = "config.json"
SAFETENSORS_FILE = "model.safetensors"
SAFETENSORS_INDEX = "model.safetensors.index.json"
_Opener = Callable[[str], list[tuple[str, StoredTensor]]]

# In the order in which Hugging Face looks for them: the file, its opener, what shards end in.
_FILES: tuple[tuple[str, _Opener, str | None], ...] = (
    (SAFETENSORS_FILE, open_safetensors, None),
    (SAFETENSORS_INDEX, open_safetensors, ".safetensors"),
    ("pytorch_model.bin", open_pickled, None),
    ("pytorch_model.bin.index.json", open_pickled, ".bin"),
)


def open_weights(folder: str) -> SourceWeights:
    """The weights of a Hugging Face folder, from the first of the files that it can have.

    Raises:
        KzooError: there are none, or a file is not what it says.
    """
    for name, opener, suffix in _FILES:
        path = os.path.join(folder, name)
        if os.path.isfile(path):
            if suffix is None:
                return SourceWeights(opener(path))
            return SourceWeights(_sharded(path, opener, suffix))
    known = ", ".join(name for name, _, _ in _FILES)
    raise KzooError(f"{folder} holds no weights: none of {known} is there")


def read_json(path: str) -> Any:
    """The content of a JSON file.

    Raises:
        KzooError: it cannot be read, or is no JSON.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except OSError as error:
        raise KzooError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise KzooError(f"{path} is no JSON: {error}") from error


def read_config(folder: str) -> dict[str, Any]:
    """The `config.json` of a Hugging Face folder.

    Raises:
        KzooError: it cannot be read, or is no JSON object.
    """
    path = os.path.join(folder, CONFIG_FILE)
    config = read_json(path)
    if not isinstance(config, dict):
        raise KzooError(f"{path} must hold a JSON object")
    return config


def _sharded(index: str, opener: _Opener, suffix: str) -> Iterator[tuple[str, StoredTensor]]:
    """The tensors of all shards; index and shards must say the same."""
    weight_map = dict(parse_index(read_json(index), index, suffix))
    folder = os.path.dirname(index)
    for shard in dict.fromkeys(weight_map.values()):
        path = os.path.join(folder, shard)
        there = opener(path)
        names = {name for name, _ in there}
        lacking = [name for name, file in weight_map.items() if file == shard and name not in names]
        if lacking:
            raise KzooError(f"{index} says that {shard} holds {', '.join(lacking)}; it does not")
        unlisted = [name for name in names if name not in weight_map]
        if unlisted:
            raise KzooError(f"{path} holds {', '.join(sorted(unlisted))}, which {index} lacks")
        yield from there
