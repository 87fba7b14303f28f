"""The SentencePiece tokenizer of a model, as a KerasHub layer."""

import keras
import sentencepiece
from keras_hub.tokenizers import SentencePieceTokenizer

from kzoo.errors import KzooError
from kzoo.text.special_pieces import CLS, END, MASK, PAD, SEP, UNKNOWN, special_ids


@keras.saving.register_keras_serializable(package="kzoo")
class RemBertTokenizer(SentencePieceTokenizer):
    """Text to pieces and back, with the ids of the special pieces.

    `pad_token_id`, `eos_token_id`, `unk_token_id`, `cls_token_id`, `sep_token_id` and
    `mask_token_id` are looked up by the pieces' strings. Text that holds such a string gives
    ordinary pieces: only packing and masking put a special id into a sequence. Case and accents
    are kept.

    Args:
        proto: path of a SentencePiece model, or its bytes.

    Raises:
        KzooError: if the file cannot be read, is no SentencePiece model, lacks one of the special
            pieces, or has one that text could give.
    """

    def __init__(self, proto: str | bytes | None = None, **kwargs):
        self._add_special_token(PAD, "pad_token")
        self._add_special_token(END, "eos_token")
        self._add_special_token(UNKNOWN, "unk_token")
        self._add_special_token(CLS, "cls_token")
        self._add_special_token(SEP, "sep_token")
        self._add_special_token(MASK, "mask_token")
        super().__init__(proto=proto, **kwargs)

    def set_proto(self, proto: str | bytes | None) -> None:
        """Takes a SentencePiece model, or none for the time being."""
        if proto is not None:
            _check(proto)
        super().set_proto(proto)


def _check(proto: str | bytes) -> None:
    source = proto if isinstance(proto, str) else "the given bytes"
    try:
        if isinstance(proto, str):
            with open(proto, "rb") as file:
                proto = file.read()
        processor = sentencepiece.SentencePieceProcessor(model_proto=proto)
    except OSError as error:
        raise KzooError(f"{source}: cannot be read as a vocabulary: {error.strerror}") from error
    except RuntimeError as error:
        raise KzooError(f"{source}: not a SentencePiece model") from error
    special_ids(processor, source)
