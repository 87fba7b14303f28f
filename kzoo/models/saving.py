"""Models on disk, as KerasHub presets."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from keras_hub.tokenizers import Tokenizer

from kzoo.errors import KzooError
from kzoo.folders import restore_folder, written_aside
from kzoo.models.backbone import RemBertBackbone
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.models.preset_files import CONFIG_FILE, TASK_CONFIG_FILE
from kzoo.models.preset_metadata import write_made_anew


def save_preset(
    model: RemBertMaskedLM | RemBertBackbone,
    tokenizer: Tokenizer | None,
    folder: str | os.PathLike,
    overwrite: bool = False,
    made_anew: Mapping[str, int] | None = None,
) -> None:
    """Writes a KerasHub preset: `config.json`, `model.weights.h5`, `task.weights.h5`, tokenizer.

    The backbone's weights and the head's are in files of their own, so that
    `keras_hub.models.Backbone.from_preset` reads an encoder alone. Its precision is float32,
    whatever the model computes in: `from_preset(…, dtype=…)` chooses another. The preset is written
    beside its place and renamed when it is complete.

    Args:
        model: the model, or an encoder alone.
        tokenizer: its tokenizer, if it has one.
        folder: where the preset goes; parents are made.
        overwrite: whether a preset that is there is replaced.
        made_anew: weights that were never trained, as `write_made_anew` takes them.

    Raises:
        KzooError: if `folder` is there and `overwrite` is not set.
    """
    restore_folder(folder)
    if os.path.lexists(folder) and not overwrite:
        raise KzooError(f"{folder} is there already; pass overwrite to replace it")
    with written_aside(folder) as aside:
        model.save_to_preset(str(aside))
        for name in (CONFIG_FILE, TASK_CONFIG_FILE):
            _say_float32(aside / name)
        if tokenizer is not None:
            tokenizer.save_to_preset(str(aside))
        write_made_anew(aside, made_anew or {})


def _say_float32(file: Path) -> None:
    """Makes a configuration one of float32; KerasHub refuses to read one of mixed precision."""
    if not file.exists():
        return

    def in_float32(value: dict) -> dict:
        if value.get("class_name") == "DTypePolicy":
            value["config"]["name"] = "float32"
        return value

    config = json.loads(file.read_text("utf-8"), object_hook=in_float32)
    file.write_text(json.dumps(config, indent=4), "utf-8")


def load_preset(folder: str | os.PathLike) -> RemBertMaskedLM:
    """Reads a model that `save_preset` has written, with its head.

    Raises:
        KzooError: if `folder` is no preset, or one without a masked-LM head.
    """
    folder = Path(folder)
    if not (folder / CONFIG_FILE).is_file():
        raise KzooError(f"{folder} is no model preset: it has no {CONFIG_FILE}")
    if not (folder / TASK_CONFIG_FILE).is_file():
        raise KzooError(
            f"{folder} holds an encoder without its masked-LM head: it has no {TASK_CONFIG_FILE}"
        )
    return RemBertMaskedLM.from_preset(str(folder))
