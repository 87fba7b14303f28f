"""The parts of a model that a configuration can name, as in `optimizer.frozen`."""

import re
from collections.abc import Iterable, Iterator

from kzoo.config.schema import Model

ENCODER, EMBEDDINGS, INPUT_TABLE, PROJECTION = "encoder", "embeddings", "input_table", "projection"
MASKED_LM_HEAD, OUTPUT_TABLE = "masked_lm_head", "output_table"

_LAYER = re.compile(r"layer_(0|[1-9]\d{0,17})")
_LAYERS = re.compile(r"layers_(0|[1-9]\d{0,17})_to_(0|[1-9]\d{0,17})")


def layer(index: int) -> str:
    """The name of a Transformer layer; the lowest is number 0."""
    return f"layer_{index}"


def unknown(names: Iterable[str], model: Model) -> list[str]:
    """Those of some names that are of no part of a model."""
    known = {ENCODER, *_others(model)}
    return [name for name in names if name not in known and _layers(name, model) is None]


def in_words(model: Model) -> str:
    """What parts a model has, for messages."""
    last = model.num_layers - 1
    several = f" to {layer(last)}, layers_0_to_{last}" if last else ""
    return ", ".join([ENCODER, *_others(model), f"{layer(0)}{several}"])


def is_everything(names: Iterable[str], model: Model) -> bool:
    """Whether some parts, all of which are known, are the whole model."""
    given = set(names)
    if ENCODER in given:
        return MASKED_LM_HEAD in given
    top = set(_others(model)) - {INPUT_TABLE, OUTPUT_TABLE}
    return top <= given and _num_layers(given, model) == model.num_layers


def simple_parts(names: Iterable[str], model: Model) -> set[str]:
    """The same parts with the encoder and ranges of layers taken apart.

    Args:
        names: parts that the model has.
        model: one that has been built, since its layers are counted out.
    """
    parts = set()
    for name in names:
        if name == ENCODER:
            parts |= set(_others(model)) - {MASKED_LM_HEAD, OUTPUT_TABLE}
        layers = _layers(name, model)
        parts |= {name} if layers is None else {layer(index) for index in layers}
    return parts - {ENCODER}


def _others(model: Model) -> Iterator[str]:
    """The parts that are no layers, from below; the tables are within others."""
    yield EMBEDDINGS
    yield INPUT_TABLE
    if model.project_embeddings is True or model.embedding_dim != model.hidden_dim:
        yield PROJECTION
    yield MASKED_LM_HEAD
    if model.output_embedding_dim != "tied":
        yield OUTPUT_TABLE


def _layers(name: str, model: Model) -> range | None:
    """The layers that a name stands for; None if it is of no layers that there are."""
    if name == ENCODER:
        return range(model.num_layers)
    if found := _LAYER.fullmatch(name):
        first = last = int(found[1])
    elif found := _LAYERS.fullmatch(name):
        first, last = int(found[1]), int(found[2])
    else:
        return None
    return range(first, last + 1) if first <= last < model.num_layers else None


def _num_layers(names: Iterable[str], model: Model) -> int:
    """How many layers some parts are, each counted once; there may be more than one could list."""
    count = end = 0
    ranges = [layers for name in names if (layers := _layers(name, model)) is not None]
    for layers in sorted(ranges, key=lambda layers: layers.start):
        count += max(0, layers.stop - max(end, layers.start))
        end = max(end, layers.stop)
    return count
