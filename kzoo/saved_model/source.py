"""The preset that is exported, and its models, with no more memory than they take."""

import dataclasses
import os
from pathlib import Path
from typing import Any

from kzoo.errors import KzooError
from kzoo.layers.initializers import left_empty
from kzoo.models.backbone import RemBertBackbone
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.models.preset_files import (
    TASK_WEIGHTS_FILE,
    VOCABULARY_FILE,
    WEIGHTS_FILE,
    read_arguments,
)
from kzoo.models.preset_metadata import read_made_anew
from kzoo.models.weights_file import block_name, encoder_layers, read_weights
from kzoo.text.vocabulary import Vocabulary

UNTRAINED_POOLER = "the pooler was never trained: `pooled_output` is the mean over the tokens"


@dataclasses.dataclass(frozen=True)
class Source:
    """A preset of kzoo.

    Attributes:
        folder: where it is.
        arguments: of its `RemBertBackbone`, as stored.
        output_embedding_dim: E_out or "tied"; None if it has no masked-LM head.
        sentencepiece_model: its vocabulary.
        made_anew: the paths of weights that were never trained.
    """

    folder: Path
    arguments: dict[str, Any]
    output_embedding_dim: int | str | None
    sentencepiece_model: bytes
    made_anew: frozenset[str]

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> "Source":
        """Reads all of a preset but its weights.

        Raises:
            KzooError: if it is no preset of a RemBERT encoder with its tokenizer, or the two do
                not fit each other.
        """
        folder = Path(folder)
        arguments, output_embedding_dim = read_arguments(folder)
        try:
            vocabulary = (folder / VOCABULARY_FILE).read_bytes()
        except OSError as error:
            raise KzooError(
                f"{folder} has no tokenizer: cannot read {VOCABULARY_FILE} ({error.strerror})"
            ) from error
        num_pieces = Vocabulary(vocabulary, os.fspath(folder / VOCABULARY_FILE)).size
        if num_pieces > arguments["vocabulary_size"]:
            raise KzooError(
                f"{folder / VOCABULARY_FILE} has {num_pieces:,} pieces, but the model's input "
                f"table has {arguments['vocabulary_size']:,} rows: is it the vocabulary of this "
                "model?"
            )
        made_anew = frozenset(read_made_anew(folder))
        return cls(folder, arguments, output_embedding_dim, vocabulary, made_anew)

    @property
    def num_layers(self) -> int:
        """How many layers the stored model has."""
        return self.arguments["num_layers"]

    @property
    def max_sequence_length(self) -> int:
        """How many positions the model has."""
        return self.arguments["max_sequence_length"]

    @property
    def pooler_note(self) -> str | None:
        """Why the exported pooler is not the stored one, if it is not."""
        untrained = any(name.startswith("pooler/") for name in self.made_anew)
        return UNTRAINED_POOLER if untrained and self.arguments["pooler"] == "dense" else None

    def check_head(self) -> None:
        """Raises a KzooError unless there is a masked-LM head that has been trained."""
        if self.output_embedding_dim is None:
            raise KzooError(f"{self.folder} has no masked-LM head, so there is none to export")
        untrained = sorted(name for name in self.made_anew if name.startswith("masked_lm_head/"))
        if untrained:
            raise KzooError(
                f"{self.folder}: the masked-LM head was never trained ({', '.join(untrained)}): "
                "its words would be random. Train it first, or export without --masked_lm"
            )

    def exported_arguments(self, keep_layers: int | None, dropout: float | None) -> dict[str, Any]:
        """Arguments of the backbone that is exported.

        Args:
            keep_layers: how many of the lowest layers; None for all.
            dropout: rate in training, hidden and attention; None for the stored rates.

        Raises:
            KzooError: if the model has no so many layers, or for an impossible rate.
        """
        arguments = dict(self.arguments)
        if keep_layers is not None:
            if not 1 <= keep_layers <= self.num_layers:
                raise KzooError(
                    f"the model has {self.num_layers} layers. Received: keep_layers={keep_layers}"
                )
            arguments["num_layers"] = keep_layers
        if dropout is not None:
            if not 0 <= dropout < 1:
                raise KzooError(f"`dropout` must be in [0, 1). Received: dropout={dropout}")
            arguments["dropout"] = arguments["attention_dropout"] = dropout
        if self.pooler_note:
            arguments["pooler"] = "mean"
        return arguments

    def load_backbone(
        self, keep_layers: int | None = None, dropout: float | None = None
    ) -> RemBertBackbone:
        """The encoder in float32, with the stored weights; arguments as `exported_arguments` has.

        Raises:
            KzooError: also if the file of weights is not that of this configuration.
        """
        arguments = self.exported_arguments(keep_layers, dropout)
        with left_empty():
            backbone = RemBertBackbone(**arguments, dtype="float32")
        layers = encoder_layers(backbone)
        left_out = [block_name(index) for index in range(backbone.num_layers, self.num_layers)]
        if self.pooler_note:
            layers.pop("pooler")
            left_out.append("pooler")
        read_weights(self.folder / WEIGHTS_FILE, layers, left_out)
        return backbone

    def load_masked_lm(self, backbone: RemBertBackbone) -> RemBertMaskedLM:
        """The whole model around a backbone that `load_backbone` has loaded.

        Raises:
            KzooError: if there is no head, it was never trained, or its weights do not fit.
        """
        self.check_head()
        with left_empty():
            model = RemBertMaskedLM(backbone, self.output_embedding_dim)
        read_weights(self.folder / TASK_WEIGHTS_FILE, {"masked_lm_head": model.head})
        return model
