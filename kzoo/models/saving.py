"""Models on disk, as KerasHub presets."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_hub.tokenizers import Tokenizer

from kzoo.errors import KzooError
from kzoo.folders import restore_folder, written_aside
from kzoo.models.backbone import RemBertBackbone
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.models.preset_files import CONFIG_FILE, TASK_CONFIG_FILE
from kzoo.models.preset_metadata import write_metadata


def save_preset(
    model: RemBertMaskedLM | RemBertBackbone,
    tokenizer: Tokenizer | None,
    folder: str | os.PathLike,
    overwrite: bool = False,
    made_anew: Mapping[str, int] | None = None,
    begun_from: Mapping[str, Any] | None = None,
    step: int | None = None,
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
        made_anew, begun_from, step: what is not as one would think, as `write_metadata` takes it.

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
        write_metadata(aside, made_anew or {}, begun_from, step)


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
