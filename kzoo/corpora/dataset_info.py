"""What `dataset.json` says about a folder of examples."""

import os
from typing import Annotated, Literal

from pydantic import Field

from kzoo.corpora.reading import BadTextPolicy
from kzoo.corpora.records import FileInfo, Record, load_record
from kzoo.corpora.table import format_table
from kzoo.errors import KzooError
from kzoo.storage.files import exists

SCHEMA_VERSION = 1
INFO_FILE = "dataset.json"

Split = Literal["train", "held_out"]


class LanguageInfo(Record):
    """What the text of one language in one split came to.

    Attributes:
        files: what was read, in this order.
        documents, sentences: of text; a sentence is a line that is not blank.
        windows: examples.
        tokens: pieces in all windows, `unknown_tokens` of them unknown.
        replaced_lines, skipped_lines: that could not be read as they were.
        shard_windows: number of windows in each shard, in order.
    """

    files: list[FileInfo]
    documents: int
    sentences: int
    windows: int
    tokens: int
    unknown_tokens: int
    replaced_lines: int
    skipped_lines: int
    shard_windows: list[int]


class DatasetSettings(Record):
    """Everything but the text and the vocabulary that the examples depend on.

    Attributes:
        sequence_length: of the longest window with its `[CLS]` and `[SEP]`.
        text_field: key of the text in JSON lines and Parquet.
        on_bad_text: what was done with text that could not be read.
        shard_bytes: of text in a shard.
    """

    sequence_length: Annotated[int, Field(ge=3)]
    text_field: str
    on_bad_text: BadTextPolicy
    shard_bytes: Annotated[int, Field(ge=1)]


class DatasetInfo(Record):
    """The whole of `dataset.json`.

    Attributes:
        schema_version: of this layout.
        settings: what the examples depend on besides the text and the vocabulary.
        vocabulary_sha256: of the SentencePiece model.
        vocabulary_size: its number of pieces.
        token_dtype: how a record stores its token ids.
        splits: for `train` and, if there is one, `held_out`, what each language came to.
        kzoo_version, sentencepiece_version: that made the examples.
    """

    schema_version: Literal[1]
    settings: DatasetSettings
    vocabulary_sha256: str
    vocabulary_size: int
    token_dtype: Literal["<u2", "<u4"]
    splits: dict[Split, dict[str, LanguageInfo]]
    kzoo_version: str
    sentencepiece_version: str

    def table(self) -> str:
        """What each language came to, for people."""
        rows = [("split", "language", "documents", "sentences", "windows", "tokens", "unknown")]
        for split, languages in self.splits.items():
            for language, entry in languages.items():
                numbers = (entry.documents, entry.sentences, entry.windows, entry.tokens)
                unknown = f"{entry.unknown_tokens / entry.tokens:.2%}"
                rows.append((split, language, *(f"{number:,}" for number in numbers), unknown))
        return format_table(rows, names=2)

    @classmethod
    def load(cls, folder: str) -> "DatasetInfo":
        """Reads `dataset.json` of a folder.

        Raises:
            KzooError: there is none, so the folder is not complete; or it cannot be understood.
        """
        path = os.path.join(folder, INFO_FILE)
        if not exists(path):
            raise KzooError(_why_missing(folder))
        return load_record(cls, path)


def partial_folder(folder: str) -> str:
    """Where the examples of `folder` are while they are being made."""
    return folder + ".partial"


def _why_missing(folder: str) -> str:
    if exists(partial_folder(folder)) or exists(folder):
        return (
            f"the examples in {folder} are not complete; run the same `python -m kzoo.prepare`"
            " command again, which goes on where it was interrupted"
        )
    return (
        f"there are no examples at {folder}; make them with `python -m kzoo.prepare --input …"
        f" --vocabulary … --sequence_length … --output {folder}`"
    )
