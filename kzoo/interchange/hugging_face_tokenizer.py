"""The files from which Hugging Face makes the tokenizer of a model.

From `sentencepiece.model` alone, transformers 5 makes a RemBERT tokenizer that puts no [CLS] and
[SEP] around a text. So `tokenizer.json` says all of it: pieces, normalisation, and the sequence
that one or two texts become. Case and accents are kept, as SentencePiece's own rules have it.
"""

import base64
import json
import os
from typing import Any

from kzoo.interchange.sentencepiece_proto import (
    WORD_START,
    ModelProto,
    PieceType,
    is_unigram,
    parse_model,
)
from kzoo.text.special_pieces import CLS, MASK, PAD, SEP, UNKNOWN
from kzoo.text.vocabulary import MODEL_FILE, Vocabulary


def write_tokenizer(folder: str, vocabulary: Vocabulary, max_sequence_length: int) -> list[str]:
    """Writes `sentencepiece.model`, `tokenizer.json` and `tokenizer_config.json`.

    Args:
        folder: where they go.
        vocabulary: the model's.
        max_sequence_length: the most tokens that the model takes.

    Returns:
        What of the tokenizer could not be written, for people.
    """
    vocabulary.save(folder)
    _write_json(os.path.join(folder, "tokenizer_config.json"), _settings(max_sequence_length))
    if not is_unigram(vocabulary.model):
        return [
            f"no tokenizer.json: {vocabulary.source} is no unigram model. Without it, "
            f"transformers 5 adds no {CLS} and {SEP}; its version 4 reads {MODEL_FILE}"
        ]
    proto = parse_model(vocabulary.model, vocabulary.source)
    _write_json(os.path.join(folder, "tokenizer.json"), _tokenizer(proto, vocabulary))
    return []


def _settings(max_sequence_length: int) -> dict[str, Any]:
    return {
        # Reads tokenizer.json as it stands. The class made for RemBERT has rules of its own: it
        # takes the unknown piece to be number 2, and changes some quotes.
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_sequence_length,
        "model_input_names": ["input_ids", "attention_mask", "token_type_ids"],
        # For who asks for RemBERT's class all the same: it lower-cases by default in version 4.
        "do_lower_case": False,
        "keep_accents": True,
        "remove_space": True,
        "clean_up_tokenization_spaces": False,
        "bos_token": CLS,
        "cls_token": CLS,
        "eos_token": SEP,
        "sep_token": SEP,
        "pad_token": PAD,
        "unk_token": UNKNOWN,
        "mask_token": MASK,
    }


def _tokenizer(proto: ModelProto, vocabulary: Vocabulary) -> dict[str, Any]:
    spec = proto.normalizer_spec
    spaces = {
        "type": "Metaspace",
        "replacement": WORD_START,
        "prepend_scheme": "always" if spec.add_dummy_prefix else "never",
        "split": False,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added_tokens(proto),
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(proto)},
        "pre_tokenizer": spaces,
        "post_processor": _template(vocabulary),
        "decoder": spaces,
        "model": {
            "type": "Unigram",
            "unk_id": vocabulary.unk_id,
            "vocab": [[piece.piece, piece.score] for piece in proto.pieces],
            "byte_fallback": any(piece.type == PieceType.BYTE for piece in proto.pieces),
        },
    }


def _added_tokens(proto: ModelProto) -> list[dict[str, Any]]:
    """The pieces that are cut out of a text before it is normalised."""
    special = (PieceType.CONTROL, PieceType.UNKNOWN)
    return [
        {
            "id": index,
            "content": piece.piece,
            "single_word": False,
            # The mask stands for a piece that brings the space before it.
            "lstrip": piece.piece == MASK,
            "rstrip": False,
            "normalized": False,
            "special": piece.type in special,
        }
        for index, piece in enumerate(proto.pieces)
        if piece.type in (*special, PieceType.USER_DEFINED)
    ]


def _normalizers(proto: ModelProto) -> list[dict[str, Any]]:
    spec = proto.normalizer_spec
    rules: list[dict[str, Any]] = []
    if spec.precompiled_charsmap:
        charsmap = base64.b64encode(spec.precompiled_charsmap).decode()
        rules.append({"type": "Precompiled", "precompiled_charsmap": charsmap})
    if spec.remove_extra_whitespaces:
        rules.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
        rules.append({"type": "Strip", "strip_left": True, "strip_right": True})
    return rules


def _template(vocabulary: Vocabulary) -> dict[str, Any]:
    """[CLS] a [SEP], and [CLS] a [SEP] b [SEP], with segments 0 and 1."""

    def special(piece: str, segment: int) -> dict[str, Any]:
        return {"SpecialToken": {"id": piece, "type_id": segment}}

    def text(name: str, segment: int) -> dict[str, Any]:
        return {"Sequence": {"id": name, "type_id": segment}}

    single = [special(CLS, 0), text("A", 0), special(SEP, 0)]
    ids = {CLS: vocabulary.cls_id, SEP: vocabulary.sep_id}
    return {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, text("B", 1), special(SEP, 1)],
        "special_tokens": {
            piece: {"id": piece, "ids": [index], "tokens": [piece]} for piece, index in ids.items()
        },
    }


def _write_json(path: str, content: dict[str, Any]) -> None:
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file, ensure_ascii=False, indent=1)
        file.write("\n")
