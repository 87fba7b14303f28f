"""A model that has been found in files of whatever kind, and how it becomes one of ours."""

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from kzoo.errors import KzooError
from kzoo.interchange.accounting import Accounts, Weights, assign_all, check_all, is_meant
from kzoo.layers.initializers import left_empty
from kzoo.models.backbone import RemBertBackbone
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.text.vocabulary import Vocabulary

_HEAD, _POOLER, _TABLE = "masked_lm_head", "pooler", "masked_lm_head/table"


@dataclasses.dataclass(frozen=True)
class SourceModel:
    """A model whose weights have not been read.

    Whether it has a head and a dense pooler, the names of its tensors say.

    Attributes:
        arguments: of `RemBertBackbone`.
        output_embedding_dim: of `RemBertMaskedLM`; None if only the weights can say it.
        weights: where they are read from.
        where: the file that the arguments come from, for messages.
        name_of: from the path of one of our variables to the name of its tensor.
        transpose: whether the source's kernels are [outputs, inputs].
        ignored: pattern of names → why such a tensor is left out.
        vocabulary: the model's, if there is one.
        made_anew: path of a variable that has never been trained → seed, if the source says so.
        notes: what was taken for granted or is not as it was, for people.
    """

    arguments: Mapping[str, Any]
    output_embedding_dim: int | str | None
    weights: Weights
    where: str
    name_of: Callable[[str], str] = str
    transpose: bool = False
    ignored: Mapping[str, str] = dataclasses.field(default_factory=dict)
    vocabulary: Vocabulary | None = None
    made_anew: Mapping[str, int] = dataclasses.field(default_factory=dict)
    notes: Sequence[str] = ()


@dataclasses.dataclass(frozen=True)
class BuiltModel:
    """A model of ours with its weights.

    Attributes:
        model: with its head, or the encoder alone.
        accounts: what has become of every tensor.
        vocabulary: the model's, if there is one.
        made_anew: path of every variable that has never been trained → seed.
        notes: what is not as it was, for people.
    """

    model: RemBertMaskedLM | RemBertBackbone
    accounts: Accounts
    vocabulary: Vocabulary | None
    made_anew: Mapping[str, int]
    notes: Sequence[str]

    @property
    def backbone(self) -> RemBertBackbone:
        """The encoder."""
        return self.model.backbone if isinstance(self.model, RemBertMaskedLM) else self.model


def build(source: SourceModel, allow_missing: Iterable[str] = ()) -> BuiltModel:
    """Makes the model and gives it its weights.

    A head or a dense pooler of which no tensor is there is left out, unless it may be made anew.

    Args:
        source: the model as it was found.
        allow_missing: as for `assign_all`.

    Raises:
        KzooError: the arguments make no model, the vocabulary has more pieces than the tables have
            rows, or not every tensor is accounted for.
    """
    allow_missing = tuple(allow_missing)
    _check_vocabulary(source)
    _check_num_layers(source)
    try:
        source = _without_missing_parts(source, allow_missing)
        with tf.Graph().as_default():
            # No memory yet: a model that does not fit its weights can be of any size.
            by_shape = _make(source)
    except KzooError as error:
        raise KzooError(f"{source.where}: {error}") from error
    how = {
        "transpose": source.transpose,
        "ignored": source.ignored,
        "allow_missing": allow_missing,
    }
    check_all(by_shape, source.weights, source.name_of, **how)
    with left_empty():
        model = _make(source)
    accounts = assign_all(model, source.weights, source.name_of, **how)
    paths = {variable.path for variable in model.variables}
    before = {path: seed for path, seed in source.made_anew.items() if path in paths}
    return BuiltModel(
        model=model,
        accounts=accounts,
        vocabulary=source.vocabulary,
        made_anew={**before, **accounts.made_anew},
        notes=source.notes,
    )


def with_activation(source: SourceModel, activation: str) -> SourceModel:
    """The same model with another activation, whatever its files say.

    Args:
        source: a model.
        activation: "gelu" or "gelu_approximate".
    """
    before = source.arguments["activation"]
    if activation == before:
        return source
    note = f"activation: {activation}, as asked for, and not {before}, which {source.where} says"
    arguments = {**source.arguments, "activation": activation}
    return dataclasses.replace(source, arguments=arguments, notes=[*source.notes, note])


def with_output_width(source: SourceModel, output_embedding_dim: int) -> SourceModel:
    """The same model, with a width for the output table that is to be made anew.

    Args:
        source: a model that does not say how wide its output table is.
        output_embedding_dim: the width.

    Raises:
        KzooError: the model does say it.
    """
    table = source.name_of(_TABLE)
    if source.output_embedding_dim is not None or table in source.weights.names():
        raise KzooError(
            "--output_embedding_dim is for an output table that is made anew, and of which nothing "
            f"else says how wide it is; {source.where} or the weights say it"
        )
    return dataclasses.replace(source, output_embedding_dim=output_embedding_dim)


def _make(source: SourceModel) -> RemBertMaskedLM | RemBertBackbone:
    backbone = RemBertBackbone(**source.arguments)
    if source.output_embedding_dim is None:
        return backbone
    return RemBertMaskedLM(backbone, source.output_embedding_dim)


def _without_missing_parts(source: SourceModel, allow_missing: Sequence[str]) -> SourceModel:
    """Decides whether there is a pooler and a head, by the tensors that are there."""
    there = set(source.weights.names())
    arguments, notes = dict(source.arguments), list(source.notes)
    width, table = source.output_embedding_dim, source.name_of(_TABLE)
    if width is None and table in there:
        width = source.weights.shape(table)[-1]
    head, pooler = _names_of_parts(source, width)
    if _is_allowed(pooler, allow_missing):
        arguments["pooler"] = "dense"
    elif arguments.get("pooler", "dense") == "dense" and not there & set(pooler.values()):
        arguments["pooler"] = "mean"
        notes.append(
            f"no pooler ({', '.join(pooler.values())}): pooled_output is the mean over the tokens. "
            f"--allow_missing {_POOLER} makes a new one"
        )
    if not there & set(head.values()) and not _is_allowed(head, allow_missing):
        width = None
        notes.append(
            f"no masked-LM head ({', '.join(head.values())}): an encoder alone, which cannot go on "
            f"with pre-training. --allow_missing {_HEAD} makes a new one"
        )
    elif width is None:
        raise KzooError(
            f"nothing says how wide the output table is, which --allow_missing {_HEAD} makes; "
            "--output_embedding_dim does"
        )
    return dataclasses.replace(source, arguments=arguments, output_embedding_dim=width, notes=notes)


def _names_of_parts(
    source: SourceModel, width: int | str | None
) -> tuple[dict[str, str], dict[str, str]]:
    """The variables of the head and of a dense pooler: path → name of the tensor."""
    # Neither has to do with the number of layers.
    arguments = {**source.arguments, "pooler": "dense", "num_layers": 1}
    with tf.Graph().as_default():
        model = RemBertMaskedLM(RemBertBackbone(**arguments), width or 1)
    paths = [variable.path for variable in model.variables]
    head, pooler = (
        {path: source.name_of(path) for path in paths if path.startswith(f"{part}/")}
        for part in (_HEAD, _POOLER)
    )
    return head, pooler


def _is_allowed(part: Mapping[str, str], allow_missing: Sequence[str]) -> bool:
    """Whether any variable of a part may be made anew."""
    return any(
        is_meant(allowed, path, name) for path, name in part.items() for allowed in allow_missing
    )


def _check_vocabulary(source: SourceModel) -> None:
    vocabulary, rows = source.vocabulary, source.arguments["vocabulary_size"]
    if vocabulary is not None and vocabulary.size > rows:
        raise KzooError(
            f"{vocabulary.source} has {vocabulary.size:,} pieces, but the tables of the model have "
            f"{rows:,} rows ({source.where}): they are of two different models"
        )


def _check_num_layers(source: SourceModel) -> None:
    """A layer has its tensors: what says that there are more layers than tensors is wrong."""
    layers, tensors = source.arguments["num_layers"], len(source.weights.names())
    if layers > tensors:
        raise KzooError(
            f"{source.where} says that there are {layers:,} layers; there are only {tensors:,} "
            "tensors"
        )
