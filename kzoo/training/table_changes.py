"""What is done to tables whose number of rows is another in the run that goes on from a model."""

import dataclasses
import functools
from collections.abc import Callable

from kzoo.config.schema import Config
from kzoo.interchange.accounting import Weights
from kzoo.interchange.derived_weights import Derived, DerivedWeights
from kzoo.interchange.position_change import change_positions
from kzoo.interchange.vocabulary_change import TABLES_OF_PIECES
from kzoo.interchange.vocabulary_match import MatchedVocabulary, match_vocabulary
from kzoo.text.vocabulary import Vocabulary
from kzoo.training.starting_point import StartingPoint

_POSITIONS = "embeddings/position_embedding/embeddings"


@dataclasses.dataclass(frozen=True)
class TableChanges:
    """From the rows of one model to those of another.

    Attributes:
        pieces: rows of the tables of pieces: before, after.
        vocabulary: what becomes of them; None if nothing does.
        positions: rows of the position table: before, after.
        method: how it gets more rows.
    """

    pieces: tuple[int, int]
    vocabulary: MatchedVocabulary | None
    positions: tuple[int, int]
    method: str | None

    @classmethod
    def between(
        cls, start: StartingPoint, config: Config, vocabulary: Vocabulary
    ) -> "TableChanges":
        """Compares the tables of two models.

        Args:
            start: the model that a run goes on from.
            config: of the run.
            vocabulary: of the run's examples.

        Raises:
            KzooError: the vocabulary of that model is another one, and cannot be found.
        """
        arguments, model = start.model.arguments, config.model
        pieces = arguments["vocabulary_size"], model.vocabulary_size
        matched = None
        if start.vocabulary_sha256 != vocabulary.sha256:
            matched = match_vocabulary(start.vocabulary(), pieces[0], vocabulary, pieces[1])
        elif pieces[0] != pieces[1]:
            matched = match_vocabulary(vocabulary, pieces[0], vocabulary, pieces[1])
        return cls(
            pieces,
            matched,
            (arguments["max_sequence_length"], model.max_sequence_length),
            config.init_from.position_table,
        )

    def apply(self, weights: Weights, prefix: str = "") -> Weights:
        """The same weights with the changed tables.

        Args:
            weights: of the model that the run goes on from, or the moments of its optimizer.
            prefix: what the names of its tensors have before the paths of variables.
        """
        name_of: Callable[[str], str] = prefix.__add__
        if self.vocabulary is not None:
            weights = self.vocabulary.change.apply(weights, name_of, self.pieces[0])
        name, (before, after) = name_of(_POSITIONS), self.positions
        if before != after and name in weights.names():
            make = functools.partial(change_positions, rows=after, method=self.method)
            shape = (after, *weights.shape(name)[1:])
            weights = DerivedWeights(weights, {name: Derived(shape, (name,), make)})
        return weights

    def outcome(self, path: str) -> str | None:
        """What was done to a variable, in words; None if nothing was."""
        before, after = self.positions
        if path == _POSITIONS and before != after:
            how = self.method if after > before else "the first ones"
            return f"changed: positions {before:,} → {after:,}, {how}"
        if path in TABLES_OF_PIECES and self.vocabulary is not None:
            found = self.vocabulary
            counts = (
                f"{found.both:,} pieces kept",
                f"{len(found.new):,} new (mean of what has spelled them)",
                f"{found.without_text:,} that stand for no text (the padding's)",
                f"{found.gone:,} gone",
            )
            shown = [count for count in counts if not count.startswith("0 ")]
            return f"changed: rows {self.pieces[0]:,} → {self.pieces[1]:,}, {', '.join(shown)}"
        return None
