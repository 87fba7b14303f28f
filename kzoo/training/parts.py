"""Which weights belong to which part of a model: what is frozen, and at what rate a part learns."""

import math
from collections.abc import Sequence

import keras

from kzoo.config import part_names
from kzoo.config.schema import Config
from kzoo.models.masked_lm import RemBertMaskedLM


def trained_variables(
    model: RemBertMaskedLM, variables: Sequence[keras.Variable], frozen: set[str]
) -> list[keras.Variable]:
    """Those of some variables that are trained.

    Args:
        model: whose variables they are.
        variables: what the loss reaches.
        frozen: parts that are not trained, as `part_names.simple_parts` gives them.
    """
    parts = _parts(model)
    return [variable for variable in variables if not parts[id(variable)] & frozen]


def num_untouched_layers(model: RemBertMaskedLM, trained: Sequence[keras.Variable]) -> int:
    """How many of the lowest layers no gradient passes through, as nothing up to them is trained.

    Args:
        model: whose variables they are.
        trained: what is trained; not nothing.
    """
    parts, depths = _parts(model), _depths(model.backbone.num_layers)
    lowest = min(
        depths[part] for variable in trained for part in parts[id(variable)] & depths.keys()
    )
    return max(0, lowest - 1)


def rate_factors(
    model: RemBertMaskedLM, variables: Sequence[keras.Variable], layer_decay: float
) -> list[float]:
    """What the learning rate of each variable is multiplied by.

    As in BEiT (arXiv 2106.08254): d^(L + 1 - depth), where the embeddings are at depth 0, layer i
    of L, counted from 0, at i + 1 and the head at L + 1. ELECTRA (arXiv 2003.10555) has one more
    factor d between the head and the last layer. A tied table is at the depth of the embeddings.

    Args:
        model: whose variables they are.
        variables: what is trained.
        layer_decay: d, in (0, 1].
    """
    parts, depths = _parts(model), _depths(model.backbone.num_layers)
    top = depths[part_names.MASKED_LM_HEAD]
    return [
        layer_decay ** (top - next(depths[part] for part in parts[id(variable)] if part in depths))
        for variable in variables
    ]


def describe_training(
    model: RemBertMaskedLM, trained: Sequence[keras.Variable], config: Config
) -> list[str]:
    """Says what is frozen and how the rate falls towards the embeddings, where either is so."""
    lines = []
    settings = config.optimizer
    if settings.frozen:
        count = sum(math.prod(variable.shape) for variable in trained)
        lines.append(
            f"trained: {count:,} of {model.count_params():,} parameters; frozen are "
            f"{', '.join(settings.frozen)}"
        )
    if settings.layer_decay != 1:
        lowest, top = 0, config.model.num_layers
        layers = [
            f"layer {index} {settings.layer_decay ** (top - index):.3g}"
            for index in dict.fromkeys((top - 1, lowest))
        ]
        lines.append(
            f"learning rate, times optimizer.layer_decay {settings.layer_decay} a layer: head 1, "
            f"{', … '.join(layers)}, embeddings {settings.layer_decay ** (top + 1):.3g}"
        )
    return lines


def _depths(num_layers: int) -> dict[str, int]:
    layers = {part_names.layer(index): index + 1 for index in range(num_layers)}
    return {
        part_names.EMBEDDINGS: 0,
        part_names.PROJECTION: 0,
        **layers,
        part_names.MASKED_LM_HEAD: num_layers + 1,
    }


def _parts(model: RemBertMaskedLM) -> dict[int, set[str]]:
    """Id of a variable → the parts that it belongs to; a pooler's belong to none."""
    embeddings, head = model.backbone.embeddings, model.head
    members = {
        # A tied table is the embeddings', and not the head's.
        part_names.EMBEDDINGS: [
            *embeddings.token_embedding.variables,
            *embeddings.position_embedding.variables,
            *embeddings.segment_embedding.variables,
            *embeddings.layer_norm.variables,
        ],
        part_names.INPUT_TABLE: embeddings.token_embedding.variables,
        part_names.PROJECTION: embeddings.projection.variables if embeddings.projection else [],
        part_names.MASKED_LM_HEAD: [*head.dense.variables, *head.layer_norm.variables, head.bias],
    }
    if head.tied_embedding is None:
        members[part_names.MASKED_LM_HEAD].append(head.table)
        members[part_names.OUTPUT_TABLE] = [head.table, head.bias]
    for index, block in enumerate(model.backbone.encoder_blocks):
        members[part_names.layer(index)] = block.variables
    parts: dict[int, set[str]] = {}
    for part, variables in members.items():
        for variable in variables:
            parts.setdefault(id(variable), set()).add(part)
    return parts
