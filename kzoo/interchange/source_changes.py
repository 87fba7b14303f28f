"""What a conversion can change in a model on its way: its vocabulary, and its input table's width.

Each function takes a source and returns another; nothing is read before the model is built, but for
what a narrower table is computed from.
"""

import dataclasses
import gc
import math
from collections.abc import Sequence

from kzoo.corpora.files import find_files
from kzoo.corpora.reading import BadTextPolicy
from kzoo.errors import KzooError
from kzoo.interchange.accounting import Weights
from kzoo.interchange.factorize import factorize_model
from kzoo.interchange.grow_vocabulary import GrownVocabulary, grow_vocabulary, read_pieces
from kzoo.interchange.masked_loss import masked_loss
from kzoo.interchange.source_model import BuiltModel, SourceModel, build
from kzoo.interchange.trim_vocabulary import count_pieces, trim_vocabulary
from kzoo.interchange.vocabulary_change import VocabularyChange
from kzoo.models.masked_lm import TIED
from kzoo.text.vocabulary import Vocabulary

_SHOWN_PIECES = 5
_BYTES_A_VALUE = 4


def add_pieces(source: SourceModel, path: str) -> SourceModel:
    """The model with new pieces.

    Args:
        source: the model.
        path: a file of pieces, one a line.

    Raises:
        KzooError: the model has no vocabulary or none that can grow, or a piece is none that text
            can give.
    """
    vocabulary = _vocabulary_of(source, "--add_pieces")
    num_rows = source.arguments["vocabulary_size"]
    grown = grow_vocabulary(vocabulary, read_pieces(path), num_rows)
    if not grown.added:
        raise KzooError(f"all pieces in {path} are in {vocabulary.source} already")
    notes = [
        f"{_count(grown.added, 'new piece')}: V {num_rows:,} → {grown.change.size:,}; each begins "
        f"as the mean of what has spelled it until now ({_spellings(grown)})"
    ]
    if grown.already_there:
        notes.append(f"there already, or there twice: {_some(grown.already_there)}")
    if grown.only_inside:
        notes.append(
            "no text gives these alone, since they do not begin with ▁, only longer words do: "
            + _some(grown.only_inside)
        )
    return _with_rows(source, grown.change, grown.vocabulary, notes)


def keep_pieces(
    source: SourceModel,
    patterns: Sequence[str],
    *,
    text_field: str = "text",
    on_bad_text: BadTextPolicy = "error",
) -> SourceModel:
    """The model without the pieces that a corpus does not use.

    Args:
        source: the model.
        patterns: of the corpus' files, with `{lang}` in them.
        text_field: key of the text in JSON lines and Parquet.
        on_bad_text: what to do with text that cannot be read: `error`, `replace` or `skip`.

    Raises:
        KzooError: the model has no vocabulary or none that can be trimmed, or text cannot be read.
    """
    vocabulary = _vocabulary_of(source, "--keep_pieces_from")
    num_rows = source.arguments["vocabulary_size"]
    use = count_pieces(
        find_files(patterns), vocabulary, text_field=text_field, on_bad_text=on_bad_text
    )
    trimmed = trim_vocabulary(vocabulary, use.counts, num_rows)
    changed = _with_rows(source, trimmed.change, trimmed.vocabulary, [])
    saved_bytes = _size_bytes(source.weights) - _size_bytes(changed.weights)
    note = (
        f"{trimmed.vocabulary.size:,} of {num_rows:,} pieces kept: {int((use.counts > 0).sum()):,} "
        f"that the corpus uses ({use.documents:,} documents), and those that are always there; "
        f"{saved_bytes / 1e6:,.1f} MB saved"
    )
    return dataclasses.replace(changed, notes=[*changed.notes, note])


def narrow_input_table(source: SourceModel, embedding_dim: int) -> SourceModel:
    """The model with a narrower input table: a start for training, and not the same model.

    Args:
        source: the model.
        embedding_dim: the new width.

    Raises:
        KzooError: the width is none that the table can be made to.
    """
    new = factorize_model(
        source.arguments,
        source.output_embedding_dim,
        source.weights,
        embedding_dim,
        source.name_of,
        transpose=source.transpose,
    )
    notes = [
        f"input table: E_in {source.arguments['embedding_dim']:,} → {embedding_dim:,}, with "
        f"{new.energy_kept:.1%} of the energy of the embeddings; a start for training and not the "
        "same model: it needs further pre-training"
    ]
    if source.output_embedding_dim == TIED:
        notes.append("the output table is the old input table, and not tied any more")
    return dataclasses.replace(
        source,
        arguments=new.arguments,
        output_embedding_dim=new.output_embedding_dim,
        weights=new.weights,
        notes=[*source.notes, *notes],
    )


def build_narrow(
    source: SourceModel,
    embedding_dim: int,
    allow_missing: Sequence[str] = (),
    text: str | None = None,
    text_field: str = "text",
) -> BuiltModel:
    """Builds the model with a narrower input table, and says what that has cost.

    Args:
        source: the model.
        embedding_dim: the new width.
        allow_missing: as for `build`.
        text: a file on which the masked-LM loss is measured before and after; None for not at all.
        text_field: key of the text in JSON lines and Parquet.

    Raises:
        KzooError: the width is none that the table can be made to; the model cannot be built; or
            it has no head or vocabulary, and is to be measured.
    """
    narrow = narrow_input_table(source, embedding_dim)
    if text is None:
        return build(narrow, allow_missing)
    before = masked_loss(build(source, allow_missing), text, text_field)
    # Keras' models are only freed so, and there is no room for two large ones.
    gc.collect()
    built = build(narrow, allow_missing)
    after = masked_loss(built, text, text_field)
    note = (
        f"masked-LM loss on {text} ({before.targets:,} pieces in {before.windows:,} windows): "
        f"{before.nats:.3f} nats before, {after.nats:.3f} after"
    )
    return dataclasses.replace(built, notes=[*built.notes, note])


def _vocabulary_of(source: SourceModel, flag: str) -> Vocabulary:
    vocabulary = source.vocabulary
    if vocabulary is None:
        raise KzooError(
            f"{flag} needs the model's vocabulary, and there is none; --vocabulary names one"
        )
    num_rows = source.arguments["vocabulary_size"]
    if vocabulary.size > num_rows:
        raise KzooError(
            f"{vocabulary.source} has {vocabulary.size:,} pieces, but {source.where} has tables of "
            f"{num_rows:,} rows: they are of two different models"
        )
    return vocabulary


def _with_rows(
    source: SourceModel, change: VocabularyChange, vocabulary: Vocabulary, notes: Sequence[str]
) -> SourceModel:
    return dataclasses.replace(
        source,
        arguments={**source.arguments, "vocabulary_size": change.size},
        weights=change.apply(source.weights, source.name_of, source.arguments["vocabulary_size"]),
        vocabulary=vocabulary,
        notes=[*source.notes, *notes],
    )


def _size_bytes(weights: Weights) -> int:
    return _BYTES_A_VALUE * sum(math.prod(weights.shape(name)) for name in weights.names())


def _spellings(grown: GrownVocabulary) -> str:
    pairs = zip(grown.added, grown.spellings, strict=True)
    return _some([f"{piece}: {' '.join(spelling)}" for piece, spelling in pairs])


def _count(things: Sequence[str], what: str) -> str:
    return f"{len(things):,} {what}{'' if len(things) == 1 else 's'}"


def _some(texts: Sequence[str]) -> str:
    more = len(texts) - _SHOWN_PIECES
    return "; ".join(texts[:_SHOWN_PIECES]) + (f"; and {more:,} more" if more > 0 else "")
