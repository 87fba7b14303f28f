"""What a conversion has done, for people."""

import collections
import math
from collections.abc import Iterable, Mapping

from kzoo.corpora.table import format_table
from kzoo.interchange.source_model import BuiltModel
from kzoo.models.masked_lm import RemBertMaskedLM

_SHAPE = (
    ("V", "vocabulary_size"),
    ("L", "num_layers"),
    ("H", "hidden_dim"),
    ("heads", "num_heads"),
    ("E_in", "embedding_dim"),
    ("positions", "max_sequence_length"),
    ("activation", "activation"),
    ("pooler", "pooler"),
)


def report(built: BuiltModel, notes: Iterable[str] = ()) -> str:
    """Counts tensors and parameters, and says what is not as it was.

    Args:
        built: the model.
        notes: what was found out when it was written.
    """
    shape = ", ".join(f"{sign} {getattr(built.backbone, name)}" for sign, name in _SHAPE)
    if isinstance(built.model, RemBertMaskedLM):
        shape += f", E_out {built.model.output_embedding_dim}"
    parts = [shape, _counts(built)]
    lines = [f"- {note}" for note in (*built.notes, *_made_anew(built.made_anew), *notes)]
    return "\n\n".join([*parts, *(["\n".join(lines)] if lines else [])])


def _counts(built: BuiltModel) -> str:
    sizes = {variable.path: math.prod(variable.shape) for variable in built.model.variables}
    used = sum(sizes[path] for path in built.accounts.used.values())
    rows = [("", "tensors", "parameters")]
    rows.append(("used", f"{len(built.accounts.used):,}", f"{used:,}"))
    anew = built.accounts.made_anew
    if anew:
        rows.append(("made anew", f"{len(anew):,}", f"{sum(sizes[path] for path in anew):,}"))
    reasons = collections.Counter(built.accounts.ignored.values())
    rows += [(f"ignored: {reason}", f"{count:,}", "") for reason, count in reasons.items()]
    backbone = sum(math.prod(variable.shape) for variable in built.backbone.variables)
    rows.append(("encoder", f"{len(built.backbone.variables):,}", f"{backbone:,}"))
    if isinstance(built.model, RemBertMaskedLM):
        rows.append(("encoder and head", f"{len(sizes):,}", f"{sum(sizes.values()):,}"))
    return format_table(rows, names=1)


def _made_anew(made_anew: Mapping[str, int]) -> Iterable[str]:
    for path, seed in made_anew.items():
        yield f"never trained: {path} (seed {seed})"
