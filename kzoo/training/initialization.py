"""The weights that a run begins with, where it goes on from another model.

Every tensor of that model is taken, changed in a way that is said, or left out for a reason; every
weight of the run comes from there, or is made anew because the configuration allows it.
"""

import collections
import dataclasses
import hashlib
import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from kzoo.config.part_names import MASKED_LM_HEAD
from kzoo.config.schema import Config
from kzoo.corpora.table import format_table
from kzoo.errors import KzooError
from kzoo.interchange.accounting import Accounts, Weights, assign_all
from kzoo.models.by_shape import build_by_shape
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.storage.paths import clean, real_path
from kzoo.text.vocabulary import Vocabulary
from kzoo.training.optimizer import AdamW
from kzoo.training.starting_point import StartingPoint
from kzoo.training.table_changes import TableChanges

_HEAD = f"{MASKED_LM_HEAD}/"
_REPLACED = "replaced/"
_MOMENTS = "optimizer/momentum/", "optimizer/velocity/"

# What the weights mean depends on these, so they are those of the model that they come from.
_SAME = (
    "num_heads",
    "hidden_dim",
    "intermediate_dim",
    "embedding_dim",
    "num_segments",
    "activation",
    "layer_norm_epsilon",
)


@dataclasses.dataclass(frozen=True)
class Beginning:
    """What a run has begun with.

    Attributes:
        record: what its checkpoints and its preset say of it: `path` and `step` of the model,
            `made_anew` (path of a variable → seed), and `updates_before` of the optimizer.
        table: what was taken, changed, made anew and left out, for people.
    """

    record: dict[str, Any]
    table: str


def find(config: Config, model_dir: str) -> StartingPoint | None:
    """The model that a run goes on from, if its configuration names one, once it is known to fit.

    Only files that say what there is are read, so that mistakes are found before any work.

    Raises:
        KzooError: there is no such model, or not all of it fits the configuration: all that is
            wrong is listed.
    """
    settings = config.init_from
    if settings.path is None:
        return None
    path, cache_dir = clean(settings.path), config.runtime.cache_dir
    if real_path(path) == real_path(model_dir):
        raise KzooError(
            f"init_from.path: {path} is the folder of this run itself, which goes on by "
            "itself; for a new run from its model choose another --model_dir"
        )
    start = StartingPoint.open(path, settings.checkpoint, cache_dir)
    problems = [*_missing(start, config), *_differences(start, config)]
    if problems:
        raise KzooError(
            f"init_from.path: {start.name} does not fit the configuration"
            + "".join(f"\n  {problem}" for problem in problems)
        )
    return start


def initialize(
    start: StartingPoint,
    config: Config,
    model: RemBertMaskedLM,
    optimizer: AdamW,
    vocabulary: Vocabulary,
) -> Beginning:
    """Gives a model every one of its weights, and the optimizer its moments if they are kept.

    Args:
        start: what `find` has found.
        config: of the run.
        model: of the configuration; it may have been made `left_empty`.
        optimizer: over the weights that are trained.
        vocabulary: of the run's examples.

    Raises:
        KzooError: the vocabulary of that model is not known, a tensor is missing, unknown or
            damaged, or what is made anew would never be trained.
    """
    changes = TableChanges.between(start, config, vocabulary)
    keeps_moments = config.init_from.optimizer == "kept"
    if keeps_moments:
        _check_moments(start, optimizer)
    made_anew = (MASKED_LM_HEAD,) if _makes_head(start, config) else ()
    weights: Weights = start.model.weights
    if made_anew:
        weights = weights.renamed(lambda name: _REPLACED * name.startswith(_HEAD) + name)
    try:
        accounts = assign_all(
            model,
            changes.apply(weights),
            ignored=_left_out(start, config),
            allow_missing=made_anew,
            seed=config.data.seed,
        )
        if keeps_moments:
            moments: Weights = start.moments
            for prefix in _MOMENTS:
                moments = changes.apply(moments, prefix)
            assign_all(optimizer, moments, ignored={"*": "moments of what is not trained here"})
    except KzooError as error:
        problem = re.sub(r"; --allow_missing \S+ makes it anew", "", str(error))
        raise KzooError(f"init_from.path: {start.name}: {problem}") from error
    _check_all_will_be_trained({**start.model.made_anew, **accounts.made_anew}, model, optimizer)
    record = {
        "path": start.path,
        "step": start.step,
        "made_anew": dict(accounts.made_anew),
        "updates_before": start.updates if keeps_moments else 0,
    }
    return Beginning(record, _table(start, config, changes, accounts, model))


def digest(model: RemBertMaskedLM, optimizer: AdamW, beginning: Beginning) -> int:
    """A number of 56 bits that is the same for equal weights, moments and counts of their updates.

    Args:
        model, optimizer: as `initialize` has left them.
        beginning: what it has returned.
    """
    made = hashlib.sha256(str(beginning.record["updates_before"]).encode())
    for variable in [*model.variables, *optimizer.variables]:
        made.update(variable.path.encode())
        made.update(np.ascontiguousarray(variable.numpy()))
    return int.from_bytes(made.digest()[:7])


def _makes_head(start: StartingPoint, config: Config) -> bool:
    """Whether the head is made anew: it may be, and that model's is not there or is another one."""
    same = start.model.output_embedding_dim == config.model.output_embedding_dim
    return MASKED_LM_HEAD in config.init_from.allow_missing and not (_has_head(start) and same)


def _has_head(start: StartingPoint) -> bool:
    return any(name.startswith(_HEAD) for name in start.model.weights.names())


def _missing(start: StartingPoint, config: Config) -> Iterator[str]:
    """What the run needs and the model does not have."""
    if not _has_head(start) and not _makes_head(start, config):
        arguments = config.model.model_dump(exclude={"preset", "output_embedding_dim"})
        shapes = build_by_shape({**arguments, "num_layers": 1}, config.model.output_embedding_dim)
        names = [v.path for v in shapes.variables if v.path.startswith(_HEAD)]
        yield (
            f"it has no masked-LM head: {', '.join(names)} are missing. "
            f"init_from.allow_missing=[{MASKED_LM_HEAD}] makes them anew, from data.seed"
        )
    if start.vocabulary_sha256 is None:
        yield (
            "it has no vocabulary, so that nobody knows which row is which piece's: python -m "
            "kzoo.convert --from preset --vocabulary FILE makes a preset that has one"
        )
    if config.init_from.optimizer == "kept" and start.moments is None:
        yield "init_from.optimizer: kept needs a checkpoint of a run, since a preset has no moments"
    if config.init_from.optimizer == "kept" and _makes_head(start, config):
        yield "init_from.optimizer: kept does not go with a new head, which has no moments"


def _differences(start: StartingPoint, config: Config) -> Iterator[str]:
    """The arguments of the two models that do not go together."""
    mine, theirs = config.model.model_dump(), start.model.arguments
    for key in _SAME:
        if mine[key] != theirs[key]:
            yield f"model.{key} is {mine[key]}, and {theirs[key]} there: set it to {theirs[key]}"
    if _is_projected(mine) != _is_projected(theirs):
        yield (
            f"model.project_embeddings is {mine['project_embeddings']}, and "
            f"{theirs['project_embeddings']} there: set it to that"
        )
    if mine["num_layers"] > theirs["num_layers"]:
        yield (
            f"model.num_layers is {mine['num_layers']}, and {theirs['num_layers']} there: layers "
            "are not made anew; of fewer, the lowest are taken"
        )
    longer = mine["max_sequence_length"] > theirs["max_sequence_length"]
    if longer and config.init_from.position_table is None:
        yield (
            f"model.max_sequence_length is {mine['max_sequence_length']}, and "
            f"{theirs['max_sequence_length']} there: set it to that, or "
            "init_from.position_table to interpolate or repeat"
        )
    widths = mine["output_embedding_dim"], start.model.output_embedding_dim
    if _has_head(start) and widths[0] != widths[1] and not _makes_head(start, config):
        yield (
            f"model.output_embedding_dim is {widths[0]}, and {widths[1]} there: set it to that, or "
            f"init_from.allow_missing=[{MASKED_LM_HEAD}] to make a new head"
        )


def _is_projected(arguments: Mapping[str, Any]) -> bool:
    is_asked_for = arguments["project_embeddings"] is True
    return is_asked_for or arguments["embedding_dim"] != arguments["hidden_dim"]


def _left_out(start: StartingPoint, config: Config) -> dict[str, str]:
    """Pattern of names → why such a tensor is not used."""
    kept, there = config.model.num_layers, start.model.arguments["num_layers"]
    above = f"layers above the lowest {kept}"
    return {
        **{f"encoder_block_{index}/*": above for index in range(kept, there)},
        "pooler/*": "the pooler, which the masked-LM loss does not train",
        f"{_REPLACED}*": f"the head, with E_out {start.model.output_embedding_dim}",
    }


def _check_moments(start: StartingPoint, optimizer: AdamW) -> None:
    there = set(start.moments.names())
    missing = [variable.path for variable in optimizer.variables if variable.path not in there]
    if missing:
        weights = sorted({path.split("/", 2)[2] for path in missing})
        more = f" and {len(weights) - 3:,} more" if len(weights) > 3 else ""
        raise KzooError(
            f"init_from.optimizer: kept needs the moments of {', '.join(weights[:3])}{more}, which "
            f"{start.name} does not have, since they were frozen there; set it to fresh, or freeze "
            "them here too"
        )


def _check_all_will_be_trained(
    untrained: Mapping[str, int], model: RemBertMaskedLM, optimizer: AdamW
) -> None:
    trained = {variable.path for variable in optimizer.trained}
    there = {variable.path for variable in model.variables}
    never = sorted((there & untrained.keys()) - trained)
    if never:
        raise KzooError(
            f"optimizer.frozen: {', '.join(never)} would stay as they were made, at random, since "
            "they have never been trained; leave them out of it"
        )


def _table(
    start: StartingPoint,
    config: Config,
    changes: TableChanges,
    accounts: Accounts,
    model: RemBertMaskedLM,
) -> str:
    """What has become of every tensor, and where every weight comes from."""
    sizes = {variable.path: math.prod(variable.shape) for variable in model.variables}
    groups: dict[str, list[int]] = collections.defaultdict(list)
    for path in accounts.used.values():
        groups[changes.outcome(path) or "taken as they are"].append(sizes[path])
    for path in accounts.made_anew:
        part = path.partition("/")[0]
        groups[f"made anew from data.seed {config.data.seed}: {part}"].append(sizes[path])
    shapes = start.model.weights
    for name, reason in accounts.ignored.items():
        size = math.prod(shapes.shape(name.removeprefix(_REPLACED)))
        groups[f"left out: {reason}"].append(size)
    rows = [(f"weights from {start.name}", "tensors", "parameters")]
    rows += [(said, f"{len(group):,}", f"{sum(group):,}") for said, group in groups.items()]
    kept = f"kept, with the count of their {start.updates:,} updates"
    moments = kept if config.init_from.optimizer == "kept" else "begin at zero"
    lines = [format_table(rows, names=1), f"moments of the optimizer: {moments}"]
    lines += [f"never trained so far: {path}" for path in start.model.made_anew if path in sizes]
    return "\n".join(lines)
