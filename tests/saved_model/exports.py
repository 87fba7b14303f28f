"""Small exports for tests, and what they must compute, without the graph's own code."""

import contextlib
import dataclasses
import io
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import keras
import numpy as np

from kzoo import command, export
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.models.saving import save_preset
from kzoo.saved_model import manifest as manifests
from kzoo.saved_model.masked_lm import MaskedLMModule
from kzoo.saved_model.serving import ServingModule
from kzoo.saved_model.text_graph import TextGraph
from kzoo.text.packing import pack
from kzoo.text.tokenizer import RemBertTokenizer
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


@dataclasses.dataclass(frozen=True)
class Exported:
    """A preset, and what `python -m kzoo.export` makes of it.

    Attributes:
        vocabulary: of 600 pieces.
        preset: with random weights that were trained in bfloat16, 40 positions long.
        folder: its export, with everything that there can be, and dropout.
        printed: by the command.
    """

    vocabulary: Vocabulary
    preset: Path
    folder: Path
    printed: str


@dataclasses.dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    output: str
    errors: str


def run_export(*arguments: object) -> Ended:
    """Runs the command in this process."""
    for name in export.FLAGS:
        export.FLAGS[name].unparse()
    output, errors = io.StringIO(), io.StringIO()
    # The command hides the GPU from itself.
    with (
        mock.patch.dict("os.environ"),
        contextlib.redirect_stdout(output),
        contextlib.redirect_stderr(errors),
    ):
        status = command.run(export.main, export.FLAGS, export.__doc__, list(map(str, arguments)))
    return Ended(status, output.getvalue(), errors.getvalue())


def write_preset(vocabulary_folder: Path, folder: Path, **changes) -> None:
    """Writes a preset of a model with random weights."""
    vocabulary = Vocabulary.load(vocabulary_folder)
    policy = keras.DTypePolicy("mixed_bfloat16")
    model = random_model(vocabulary, dtype=policy, **changes)
    file = folder.parent / f"{folder.name}.spm"
    file.write_bytes(vocabulary.model)
    save_preset(model, RemBertTokenizer(str(file)), folder)
    # Everything must be inside of the export.
    file.unlink()


def write_whole_export(vocabulary_folder: Path, folder: Path) -> Exported:
    """Exports a preset with the command."""
    write_preset(vocabulary_folder, folder / "preset")
    flags = ("--masked_lm", "--archive", "--dropout=0.5")
    ended = run_export(f"--model={folder / 'preset'}", f"--output={folder / 'export'}", *flags)
    assert ended.status == 0, ended.errors
    vocabulary = Vocabulary.load(vocabulary_folder)
    return Exported(vocabulary, folder / "preset", folder / "export", ended.output)


def state(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, and what is in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def rewrite_manifest(folder: Path, **changes: Any) -> None:
    """Changes a manifest, and makes it list the files that are there."""
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    manifest |= {"files": manifests.describe_files(folder), **changes}
    (folder / "MANIFEST.json").write_text(json.dumps(manifest))
