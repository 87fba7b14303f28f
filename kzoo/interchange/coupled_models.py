"""BERT and XLM-R, whose one table serves input and output, as models with a table for each.

A `BertForMaskedLM` or `XLMRobertaForMaskedLM` of Hugging Face becomes a RemBERT with tables as wide
as its layers and no projection: the same function, but its output table is free to go its own way.
What is here gives such a model's tensors the names that a `RemBertForMaskedLM` has.
"""

import collections
import dataclasses
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from kzoo.errors import KzooError
from kzoo.interchange.accounting import Weights
from kzoo.interchange.coupled_config import (
    BERT,
    XLM_ROBERTA,
    arguments_of,
    first_position,
    is_tied,
)
from kzoo.interchange.derived_weights import Derived, DerivedWeights
from kzoo.interchange.hugging_face_files import CONFIG_FILE

_TABLE, _BIAS = "cls.predictions.decoder.weight", "cls.predictions.decoder.bias"
_TRANSFORM = "cls.predictions.dense.weight"
_WORDS = "rembert.embeddings.word_embeddings.weight"
_POSITIONS = "rembert.embeddings.position_embeddings.weight"
_SEGMENTS = "rembert.embeddings.token_type_embeddings.weight"

# kzoo's packing numbers two segments.
_MIN_SEGMENTS = 2

_PREFIXES = {BERT: "bert.", XLM_ROBERTA: "roberta."}

# Beginnings of names: theirs, without the prefix, and RemBERT's. The first that fits counts.
_BODY = (
    ("embeddings.word_embeddings.", "rembert.embeddings.word_embeddings."),
    ("embeddings.position_embeddings.", "rembert.embeddings.position_embeddings."),
    ("embeddings.token_type_embeddings.", "rembert.embeddings.token_type_embeddings."),
    ("embeddings.LayerNorm.", "rembert.embeddings.LayerNorm."),
    ("encoder.layer.", "rembert.encoder.layer."),
    ("pooler.", "rembert.pooler."),
)
_HEADS = {
    BERT: (
        ("cls.predictions.transform.", "cls.predictions."),
        ("cls.predictions.decoder.", "cls.predictions.decoder."),
        ("cls.predictions.bias", _BIAS),
    ),
    XLM_ROBERTA: (
        ("lm_head.dense.", "cls.predictions.dense."),
        ("lm_head.layer_norm.", "cls.predictions.LayerNorm."),
        ("lm_head.decoder.", "cls.predictions.decoder."),
        ("lm_head.bias", _BIAS),
    ),
}
# TensorFlow's names, which Hugging Face's oldest files of BERT still have.
_LAYER_NORM = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))


@dataclasses.dataclass(frozen=True)
class DecoupledModel:
    """A coupled model, ready to be imported as one with a table for input and one for output.

    Attributes:
        arguments: of `RemBertBackbone`, but for `pooler`.
        output_embedding_dim: of `RemBertMaskedLM`.
        weights: under the names of a `RemBertForMaskedLM`; what has none keeps its own.
        notes: what is not as it was, for people.
    """

    arguments: dict[str, Any]
    output_embedding_dim: int
    weights: DerivedWeights
    notes: list[str]


def decouple(
    config: Mapping[str, Any], weights: Weights, family: str, folder: str
) -> DecoupledModel:
    """Makes a coupled model's weights those of an untied one.

    Args:
        config: its `config.json`.
        weights: a source of its weights.
        family: "bert" or "xlm_roberta".
        folder: where both come from, for messages.

    Raises:
        KzooError: the configuration is not that of such a model, or two tensors have one name.
    """
    path = os.path.join(folder, CONFIG_FILE)
    arguments = arguments_of(config, family, path)
    sources = _sources_by_name(weights, family)
    derived = {
        name: Derived(tuple(weights.shape(group[0])), group, _equal_tensors(weights, group))
        for name, group in sources.items()
    }
    notes = []
    if family == XLM_ROBERTA:
        offset = first_position(config, path)
        arguments["max_sequence_length"] -= offset
        _choose_rows(derived, _POSITIONS, lambda table: table[offset:], -offset)
        notes.append(
            f"positions begin at {offset} in XLM-R: the first {offset} rows of its position table "
            f"are left out, and {arguments['max_sequence_length']} positions stay"
        )
    if arguments["num_segments"] < _MIN_SEGMENTS:
        more = _MIN_SEGMENTS - arguments["num_segments"]
        arguments["num_segments"] = _MIN_SEGMENTS
        _choose_rows(derived, _SEGMENTS, lambda table: np.repeat(table, 1 + more, axis=0), more)
        notes.append("its one segment is there twice, for a first and a second text")
    # Without a head there is no output table either.
    if is_tied(config) and {_TRANSFORM, _WORDS} <= derived.keys():
        group = (*sources[_WORDS], *sources.get(_TABLE, ()))
        derived[_TABLE] = Derived(derived[_WORDS].shape, group, _equal_tensors(weights, group))
        notes.append("the output table is a copy of the input table, and not tied to it any more")
    return DecoupledModel(
        arguments=arguments,
        output_embedding_dim=arguments["hidden_dim"],
        weights=DerivedWeights(weights, derived),
        notes=notes,
    )


def _sources_by_name(weights: Weights, family: str) -> dict[str, tuple[str, ...]]:
    """RemBERT's name → the tensors that have this meaning."""
    found = collections.defaultdict(list)
    for name in weights.names():
        if rembert_name := _rembert_name(name, family):
            found[rembert_name].append(name)
    # Two names of the tied output are one tensor; anything else that is there twice is a mistake.
    doubled = [names for name, names in found.items() if len(names) > 1 and name != _BIAS]
    if doubled:
        raise KzooError(
            "tensors that mean the same: " + "; ".join(" and ".join(names) for names in doubled)
        )
    return {name: tuple(names) for name, names in found.items()}


def _rembert_name(name: str, family: str) -> str | None:
    """What RemBERT calls a tensor of BERT or XLM-R; None where it has no such tensor."""
    name = name.removeprefix(_PREFIXES[family])
    for theirs, ours in (*_BODY, *_HEADS[family]):
        if name.startswith(theirs):
            name = ours + name.removeprefix(theirs)
            break
    else:
        return None
    for old, new in _LAYER_NORM:
        name = name.replace(old, new)
    return name


def _equal_tensors(weights: Weights, names: tuple[str, ...]) -> Callable[..., np.ndarray]:
    """A function that returns the first of some tensors, having seen that all are equal."""

    def first(tensor: np.ndarray, *others: np.ndarray) -> np.ndarray:
        for name, other in zip(names[1:], others, strict=True):
            if not np.array_equal(tensor, other):
                raise KzooError(
                    f"{weights.source(name)}: {name} differs from {names[0]}, though config.json "
                    "ties them; set tie_word_embeddings to false there to keep both"
                )
        return tensor

    return first


def _choose_rows(
    derived: dict[str, Derived],
    name: str,
    choose: Callable[[np.ndarray], np.ndarray],
    more_rows: int,
) -> None:
    """Lets `choose` follow on how a table is made, if it is there."""
    if name in derived:
        before = derived[name]
        derived[name] = Derived(
            shape=(before.shape[0] + more_rows, *before.shape[1:]),
            sources=before.sources,
            make=lambda *tensors: choose(before.make(*tensors)),
        )
