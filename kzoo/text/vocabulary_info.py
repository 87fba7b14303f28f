"""What `vocabulary.json` says about a vocabulary that kzoo has trained."""

import os
from typing import Annotated, Literal

import sentencepiece
from pydantic import Field

from kzoo.corpora.reading import BadTextPolicy
from kzoo.corpora.records import FileInfo, Record, load_record
from kzoo.corpora.table import format_table
from kzoo.text.special_pieces import SPECIAL_PIECES
from kzoo.version import __version__

INFO_FILE = "vocabulary.json"

# The pieces depend on it, so it does not follow the machine.
_NUM_THREADS = 16


class VocabularySettings(Record):
    """What a vocabulary depends on besides the text.

    Attributes:
        size: number of pieces.
        sampling_exponent: languages give sentences to the sample by p ∝ n^α.
        max_sentences: bound of the sample.
        character_coverage: share of the text whose characters become pieces; the rarest of the
            others are unknown.
        text_field: key of the text in JSON lines and Parquet.
        on_bad_text: what was done with text that could not be read.
        seed: of the sample.
        num_threads: of the trainer.
        normalization: the trainer's rules.
    """

    size: Annotated[int, Field(gt=len(SPECIAL_PIECES))]
    sampling_exponent: Annotated[float, Field(ge=0, le=1)]
    max_sentences: Annotated[int, Field(ge=1)]
    character_coverage: Annotated[float, Field(ge=0.98, le=1)]
    text_field: str
    on_bad_text: BadTextPolicy
    seed: int
    num_threads: int = _NUM_THREADS
    normalization: str = "nmt_nfkc"


class LanguageSample(Record):
    """What one language gave: its files, its sentences, and how many were sampled.

    A sentence that was sampled twice counts as two.
    """

    files: list[FileInfo]
    sentences: int
    sampled_sentences: int


class VocabularyInfo(Record):
    """The whole of `vocabulary.json`.

    Attributes:
        schema_version: of this layout.
        settings: what the vocabulary depends on besides the text.
        sha256: of the model.
        languages: what each gave to the sample.
        characters: number of different characters that became pieces.
        covered: share of the sample that they make up.
        lines_lost: lines of the sample that the trainer has left out.
        replaced_lines, skipped_lines: of the text, that could not be read as they were.
        kzoo_version, sentencepiece_version: that made the vocabulary.
    """

    schema_version: Literal[1] = 1
    settings: VocabularySettings
    sha256: str
    languages: dict[str, LanguageSample]
    characters: int
    covered: float
    lines_lost: int
    replaced_lines: int
    skipped_lines: int
    kzoo_version: str = __version__
    sentencepiece_version: str = sentencepiece.__version__

    @classmethod
    def load(cls, folder: str) -> "VocabularyInfo":
        """Reads `vocabulary.json` of a folder."""
        return load_record(cls, os.path.join(folder, INFO_FILE))

    def table(self) -> str:
        """What each language gave to the sample, for people."""
        total = sum(entry.sampled_sentences for entry in self.languages.values())
        rows = [("language", "sentences", "sampled", "share")]
        for language, entry in self.languages.items():
            rows.append(
                (
                    language,
                    f"{entry.sentences:,}",
                    f"{entry.sampled_sentences:,}",
                    f"{entry.sampled_sentences / total:.1%}",
                )
            )
        return format_table(rows, names=1)
