"""Small exports for tests, and what they must compute, without the graph's own code."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.saved_model.masked_lm import MaskedLMModule
from kzoo.saved_model.serving import ServingModule
from kzoo.saved_model.text_graph import TextGraph
from kzoo.text.packing import pack
from kzoo.text.vocabulary import Vocabulary
from tests.models import shapes
from tests.reference import random_weights_into

SEQUENCE_LENGTH = 24
TEXTS = [
    "Am Morgen fährt der Zug.",
    "",
    "सुबह बारिश हो रही थी",
    "The train is late, the train is full, the train is warm, the train is loud and old.",
]
UNUSUAL_TEXTS = [
    "مرحبا بالعالم",
    "🚂 🇩🇪 👩‍👩‍👧",
    '"quoted" and \\ slashed',
    "two\nlines\ttab",
    "x [MASK] y [SEP] </s> <pad> [CLS]",
    "\x00 nothing \x00",
    "\u200b",
    "   ",
]


def random_model(vocabulary: Vocabulary, seed: int = 0, **changes) -> RemBertMaskedLM:
    """A model with random weights for a vocabulary, 40 positions long."""
    model = shapes.masked_lm(vocabulary_size=vocabulary.size, **changes)
    random_weights_into(model, seed)
    return model


@dataclasses.dataclass(frozen=True)
class Served:
    """A model and what a server gets of it.

    Attributes:
        vocabulary: of 600 pieces.
        model: with random weights, 40 positions long.
        serving: folder of a `ServingModule`, the first version.
        masked_lm: folder of a `MaskedLMModule`.
    """

    vocabulary: Vocabulary
    model: RemBertMaskedLM
    serving: Path
    masked_lm: Path


def write_exports(vocabulary: Vocabulary, folder: Path) -> Served:
    """Exports a model with random weights."""
    served = Served(
        vocabulary, random_model(vocabulary), folder / "serving" / "1", folder / "masked_lm"
    )
    text_graph = TextGraph(vocabulary.model)
    ServingModule(served.model.backbone, text_graph, SEQUENCE_LENGTH).save(served.serving)
    MaskedLMModule(served.model, text_graph, SEQUENCE_LENGTH).save(served.masked_lm)
    return served


def packed(
    vocabulary: Vocabulary, texts: Sequence[str], sequence_length: int = SEQUENCE_LENGTH
) -> dict[str, np.ndarray]:
    """A backbone's inputs for texts, padded to the longest of them."""
    rows = [
        pack(
            vocabulary.encode(text),
            cls_id=vocabulary.cls_id,
            sep_id=vocabulary.sep_id,
            sequence_length=sequence_length,
        )[0]
        for text in texts
    ]
    token_ids = np.full((len(rows), max(map(len, rows))), vocabulary.pad_id, np.int32)
    mask = np.zeros_like(token_ids)
    for index, row in enumerate(rows):
        token_ids[index, : len(row)] = row
        mask[index, : len(row)] = 1
    return {"token_ids": token_ids, "padding_mask": mask, "segment_ids": np.zeros_like(mask)}
