"""The parts of a model that a configuration can name, as in `optimizer.frozen`."""

import re
from collections.abc import Iterable

from kzoo.config.schema import Model

ENCODER, EMBEDDINGS, INPUT_TABLE, PROJECTION = "encoder", "embeddings", "input_table", "projection"
MASKED_LM_HEAD, OUTPUT_TABLE = "masked_lm_head", "output_table"

_LAYERS = re.compile(r"layers_(\d+)_to_(\d+)")


def layer(index: int) -> str:
    """The name of a Transformer layer; the lowest is number 0."""
    return f"layer_{index}"


def unknown(names: Iterable[str], model: Model) -> list[str]:
    """Those of some names that are of no part of a model."""
    return [
        name for name in names if not _simple(name, model) <= {*_top_parts(model), *_tables(model)}
    ]


def in_words(model: Model) -> str:
    """What parts a model has, for messages."""
    layers = [layer(0)]
    if model.num_layers > 1:
        last = model.num_layers - 1
        layers = [f"{layer(0)} to {layer(last)}", f"layers_0_to_{last}"]
    parts = [part for part in _top_parts(model) if not part.startswith("layer_")]
    return ", ".join([ENCODER, *parts, *_tables(model), *layers])


def simple_parts(names: Iterable[str], model: Model) -> set[str]:
    """The same parts with the encoder and ranges of layers taken apart."""
    return {part for name in names for part in _simple(name, model)}


def is_everything(names: Iterable[str], model: Model) -> bool:
    """Whether some parts are the whole model."""
    return simple_parts(names, model) >= {*_top_parts(model)}


def _simple(name: str, model: Model) -> set[str]:
    if name == ENCODER:
        return {part for part in _top_parts(model) if part != MASKED_LM_HEAD}
    if found := _LAYERS.fullmatch(name):
        first, last = map(int, found.groups())
        # A long or an empty range is no part; it is not counted out.
        if first <= last < model.num_layers:
            return {layer(index) for index in range(first, last + 1)}
    return {name}


def _top_parts(model: Model) -> list[str]:
    """The parts that together are the model, from below."""
    layers = [layer(index) for index in range(model.num_layers)]
    is_projected = model.project_embeddings is True or model.embedding_dim != model.hidden_dim
    return [EMBEDDINGS, *([PROJECTION] if is_projected else []), *layers, MASKED_LM_HEAD]


def _tables(model: Model) -> list[str]:
    """The tables that are parts of their own, inside of others."""
    return [INPUT_TABLE] if model.output_embedding_dim == "tied" else [INPUT_TABLE, OUTPUT_TABLE]
