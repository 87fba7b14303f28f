"""The files of a preset, and the arguments of the model that they hold."""

import inspect
import json
import os
from pathlib import Path
from typing import Any

import h5py

from kzoo.errors import KzooError
from kzoo.models.backbone import RemBertBackbone, check_arguments
from kzoo.models.masked_lm import RemBertMaskedLM, check_output_embedding_dim

CONFIG_FILE, TASK_CONFIG_FILE = "config.json", "task.json"
WEIGHTS_FILE, TASK_WEIGHTS_FILE = "model.weights.h5", "task.weights.h5"
VOCABULARY_FILE = os.path.join("assets", "tokenizer", "vocabulary.spm")

# What Keras writes beside the arguments.
_OF_KERAS = ("name", "trainable", "dtype")


def read_arguments(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], int | str | None]:
    """What a preset says of its model.

    Returns:
        Every argument of its `RemBertBackbone` but the dtype; and E_out or "tied", or None if the
        preset has no masked-LM head.

    Raises:
        KzooError: if it is no preset of ours, a key is missing or unknown, or there is no such
            model.
    """
    folder = Path(folder)
    path = folder / CONFIG_FILE
    config = _read(path, RemBertBackbone)
    signature = inspect.signature(RemBertBackbone.__init__).parameters
    known = {
        name: parameter.default
        for name, parameter in signature.items()
        if name not in ("self", "kwargs", *_OF_KERAS)
    }
    required = [name for name, default in known.items() if default is inspect.Parameter.empty]
    given = {name: value for name, value in config.items() if name not in _OF_KERAS}
    missing = [name for name in required if name not in given]
    unknown = [name for name in given if name not in known]
    if missing or unknown:
        told = [f"lacks {', '.join(missing)}"] if missing else []
        told += [f"has the unknown {', '.join(unknown)}"] if unknown else []
        raise KzooError(f"{path} is not of a {RemBertBackbone.__name__}: it {' and '.join(told)}")
    output_embedding_dim = None
    if (folder / TASK_CONFIG_FILE).exists():
        task = _read(folder / TASK_CONFIG_FILE, RemBertMaskedLM)
        if "output_embedding_dim" not in task:
            raise KzooError(f"{folder / TASK_CONFIG_FILE} lacks output_embedding_dim")
        output_embedding_dim = task["output_embedding_dim"]
        if output_embedding_dim is None:
            raise KzooError(f"{folder / TASK_CONFIG_FILE}: output_embedding_dim is not said")
    arguments = {name: given.get(name, default) for name, default in known.items()}
    _check(folder, arguments, output_embedding_dim)
    return arguments, output_embedding_dim


def _check(folder: Path, arguments: dict[str, Any], output_embedding_dim: int | str | None) -> None:
    """Raises a KzooError unless a model of a preset's files can be made, in reasonable time."""
    try:
        check_arguments(**arguments)
        if output_embedding_dim is not None:
            check_output_embedding_dim(output_embedding_dim)
    except KzooError as error:
        raise KzooError(f"{folder}: {error}") from error
    try:
        with h5py.File(folder / WEIGHTS_FILE, "r") as file:
            stored = sum(name.startswith("encoder_block") for name in file["layers"])
    except (OSError, KeyError, TypeError):
        return  # Whoever reads the weights says so.
    if arguments["num_layers"] > stored:
        raise KzooError(
            f"{folder / CONFIG_FILE} says that there are {arguments['num_layers']:,} layers; "
            f"{WEIGHTS_FILE} has {stored:,}"
        )


def _read(path: Path, model_class: type) -> dict[str, Any]:
    """The constructor's arguments in a file of KerasHub's."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except OSError as error:
        raise KzooError(
            f"{path.parent} is no model preset: cannot read {path.name} ({error.strerror})"
        ) from error
    except (ValueError, RecursionError) as error:
        raise KzooError(f"{path} is damaged: {error}") from error
    content = content if isinstance(content, dict) else {}
    registered_name, config = content.get("registered_name"), content.get("config")
    if registered_name != f"kzoo>{model_class.__name__}" or not isinstance(config, dict):
        raise KzooError(
            f"{path}: not of a kzoo {model_class.__name__}. Received: {registered_name}"
        )
    return config
