"""Small SentencePiece models, trained by SentencePiece itself on the English sample."""

import io

import sentencepiece

from kzoo import sample

# Ids as kzoo's own vocabularies have them.
_SPECIAL = {
    "pad_id": 0,
    "eos_id": 1,
    "unk_id": 2,
    "bos_id": -1,
    "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
}


def train(**options) -> bytes:
    """A serialized model; `options` are the trainer's."""
    lines = (sample.folder() / "train-en.txt").read_text(encoding="utf-8").split("\n")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        minloglevel=2,
        **{"vocab_size": 300, **_SPECIAL, **options},
    )
    return model.getvalue()


def xlm_roberta_model() -> tuple[sentencepiece.SentencePieceProcessor, bytes]:
    """A model with the special pieces that XLM-R's has: as SentencePiece makes them."""
    model = train(pad_id=-1, unk_id=0, bos_id=1, eos_id=2, control_symbols=[])
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(model)
    return processor, model
