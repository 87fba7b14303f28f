"""A trained vocabulary: a SentencePiece model and the ids that a masked language model needs."""

import functools
import hashlib
import itertools
import os
from collections.abc import Sequence

import numpy as np
import sentencepiece

from kzoo.errors import KzooError
from kzoo.storage import files
from kzoo.storage.paths import clean
from kzoo.text.special_pieces import CLS, MASK, PAD, SEP, UNKNOWN, special_ids

MODEL_FILE = "sentencepiece.model"
"""The model's name inside a vocabulary's folder."""


class Vocabulary:
    """A SentencePiece model whose control pieces are looked up by their strings.

    Works with any model that has them, whatever their ids: RemBERT's published one keeps `[CLS]`
    at 312, one trained by kzoo at 3.

    Attributes:
        model: the serialized SentencePiece model.
        source: where it came from, for messages.
        processor: the `sentencepiece.SentencePieceProcessor`.
        size: number of pieces; ids are `0 … size - 1`.
        sha256: of `model`, in hexadecimal.
        pad_id, cls_id, sep_id, mask_id, unk_id: ids of the special pieces.
    """

    def __init__(self, model: bytes, source: str = "the SentencePiece model"):
        """Wraps a serialized model; `load` reads one from disk.

        Raises:
            KzooError: `model` is no SentencePiece model, or lacks a special piece.
        """
        self.model = model
        self.source = source
        try:
            self.processor = sentencepiece.SentencePieceProcessor()
            self.processor.LoadFromSerializedProto(model)
            self.size: int = self.processor.get_piece_size()
        except (RuntimeError, ValueError) as error:
            raise KzooError(f"{source} is not a SentencePiece model") from error
        self.sha256 = hashlib.sha256(model).hexdigest()
        ids = special_ids(self.processor, source)
        self.pad_id, self.unk_id = ids[PAD], ids[UNKNOWN]
        self.cls_id, self.sep_id, self.mask_id = ids[CLS], ids[SEP], ids[MASK]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Vocabulary":
        """Reads a vocabulary.

        Args:
            path: a folder written by `python -m kzoo.vocabulary`, or a SentencePiece `.model`;
                local or remote.

        Raises:
            KzooError: there is no such file, it is no SentencePiece model, or a special piece is
                missing.
        """
        path = clean(path)
        file = os.path.join(path, MODEL_FILE) if files.is_folder(path) else path
        try:
            with files.open_stored(file) as stream:
                model = stream.read()
        except FileNotFoundError:
            raise KzooError(
                f"no vocabulary at {path}: {file} does not exist; train one with"
                f" `python -m kzoo.vocabulary --input … --size … --output {path}`"
            ) from None
        except OSError as error:
            raise KzooError(f"cannot read the vocabulary {file}: {error.strerror}") from error
        return cls(model, file)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes the model to a folder, which is made if it is not there."""
        os.makedirs(folder, exist_ok=True)
        with open(os.path.join(folder, MODEL_FILE), "wb") as stream:
            stream.write(self.model)

    def __reduce__(self):
        return Vocabulary, (self.model, self.source)

    @functools.cached_property
    def ordinary_ids(self) -> np.ndarray:
        """Ids that stand for text: neither control, unknown nor unused; int32, sorted."""
        ids = list(range(self.size))
        ordinary = ~(
            np.array(self.processor.is_control(ids))
            | np.array(self.processor.is_unknown(ids))
            | np.array(self.processor.is_unused(ids))
        )
        return _frozen(np.flatnonzero(ordinary).astype(np.int32))

    @functools.cached_property
    def pieces(self) -> list[str]:
        """The string of every id; `▁` stands for a space."""
        return self.processor.id_to_piece(list(range(self.size)))

    def encode(self, text: str) -> np.ndarray:
        """The piece ids of `text`, without `[CLS]` and `[SEP]`: int32 [number of pieces]."""
        return self.processor.encode_as_numpy(text)

    def encode_documents(self, documents: Sequence[Sequence[str]]) -> tuple[np.ndarray, list[int]]:
        """Encodes documents in one call, on one thread.

        Args:
            documents: each a list of lines, which are encoded one by one: joined they would take
                a third less time, but SentencePiece decides between equally likely pieces by the
                last bits of a sum, and 136 of 15,334 documents had other pieces (measured).

        Returns:
            The piece ids of all documents, one after the other: int32 [number of pieces]; and how
            many of them each document has.
        """
        lines = list(itertools.chain.from_iterable(documents))
        encoded = self.processor.encode_as_numpy(lines, num_threads=1)
        sizes = map(len, encoded)
        lengths = [sum(itertools.islice(sizes, len(document))) for document in documents]
        # Joined as bytes: `np.concatenate` takes longer, and fails where there are no lines.
        return np.frombuffer(b"".join(encoded), np.int32), lengths


def _frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array
