"""The tokenizer layer: special pieces by their strings, and text that never gives them."""

import io

import numpy as np
import pytest
import sentencepiece
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

from kzoo import KzooError, sample
from kzoo.text.special_pieces import SPECIAL_PIECES
from kzoo.text.tokenizer import RemBertTokenizer

SPECIAL_TEXT = "x [MASK] y [SEP] </s> <pad> [CLS] <unk>"
PIECES_BY_ATTRIBUTE = {
    "pad_token": "<pad>",
    "eos_token": "</s>",
    "unk_token": "<unk>",
    "cls_token": "[CLS]",
    "sep_token": "[SEP]",
    "mask_token": "[MASK]",
}


def train(**changes) -> bytes:
    """A small SentencePiece model of the English sample."""
    text = (sample.folder() / "train-en.txt").read_text("utf-8")
    settings = {
        "vocab_size": 300,
        "pad_id": 0,
        "eos_id": 1,
        "unk_id": 2,
        "bos_id": -1,
        "control_symbols": ["[CLS]", "[SEP]", "[MASK]"],
        "minloglevel": 2,
    }
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text.splitlines()), model_writer=model, **{**settings, **changes}
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def model():
    return train()


@pytest.fixture(scope="module")
def tokenizer(model):
    return RemBertTokenizer(model)


@pytest.mark.parametrize(
    "order",
    [
        {},
        {"pad_id": 2, "eos_id": 0, "unk_id": 1},
        {"control_symbols": ["<a>", "[MASK]", "<b>", "[SEP]", "[CLS]"]},
    ],
)
def test_special_ids_are_those_of_their_strings_in_any_order(order):
    model = train(**order)
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    tokenizer = RemBertTokenizer(model)
    for attribute, piece in PIECES_BY_ATTRIBUTE.items():
        assert getattr(tokenizer, attribute) == piece
        assert getattr(tokenizer, f"{attribute}_id") == processor.piece_to_id(piece)
    ids = [getattr(tokenizer, f"{attribute}_id") for attribute in PIECES_BY_ATTRIBUTE]
    assert len(set(ids)) == 6


def test_text_gives_no_special_id(tokenizer):
    ids = np.asarray(tokenizer(SPECIAL_TEXT))
    controls = {*tokenizer.special_token_ids} - {tokenizer.unk_token_id}
    assert len(ids) > 10
    assert not controls & set(ids.tolist())
    for piece in SPECIAL_PIECES:
        assert tokenizer.token_to_id(piece) in tokenizer.special_token_ids


@given(st.lists(st.sampled_from([*SPECIAL_PIECES, " ", "a", "▁", "[", "é"]), max_size=8))
def test_no_mixture_of_special_strings_gives_their_ids(tokenizer, parts):
    ids = np.asarray(tokenizer("".join(parts))).tolist()
    assert not set(ids) & ({*tokenizer.special_token_ids} - {tokenizer.unk_token_id})


def test_a_graph_gives_the_ids_of_sentencepiece(model, tokenizer):
    texts = ["The yarn is dyed.", SPECIAL_TEXT, "", "   ", "É\u0301tude № 5…", "日本"]
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    mapped = list(tf.data.Dataset.from_tensor_slices(texts).map(tokenizer))
    for text, in_graph in zip(texts, mapped, strict=True):
        expected = processor.encode(text)
        assert in_graph.numpy().tolist() == expected
        assert np.asarray(tokenizer(text)).tolist() == expected


def test_case_and_accents_are_kept():
    tokenizer = RemBertTokenizer(train(character_coverage=1.0))
    text = "The Yarn is dyed"
    assert tokenizer.detokenize(tokenizer(text)) == text
    assert not np.array_equal(tokenizer("the"), tokenizer("The"))


@pytest.mark.parametrize("piece", SPECIAL_PIECES)
def test_a_missing_piece_is_named_with_the_file(piece, tmp_path):
    names = {"<pad>": "pad_piece", "</s>": "eos_piece", "<unk>": "unk_piece"}
    if piece in names:
        model = train(**{names[piece]: "<other>"})
    else:
        others = [other for other in ("[CLS]", "[SEP]", "[MASK]") if other != piece]
        model = train(control_symbols=others)
    file = tmp_path / "foreign.model"
    file.write_bytes(model)
    with pytest.raises(KzooError) as raised:
        RemBertTokenizer(str(file))
    assert str(raised.value).startswith(f"{file}: ")
    assert f"has no piece {piece};" in str(raised.value)


def test_a_special_piece_that_text_could_give_is_refused():
    model = train(control_symbols=["[CLS]", "[SEP]"], user_defined_symbols=["[MASK]"])
    with pytest.raises(KzooError, match=r"the given bytes: \[MASK\] is an ordinary piece"):
        RemBertTokenizer(model)


def test_what_is_no_vocabulary_is_named(tmp_path):
    with pytest.raises(KzooError, match=r"nothing\.model: cannot be read as a vocabulary: No such"):
        RemBertTokenizer(str(tmp_path / "nothing.model"))
    file = tmp_path / "text.model"
    file.write_text("not a model")
    with pytest.raises(KzooError, match=r"text\.model: not a SentencePiece model"):
        RemBertTokenizer(str(file))


def test_saved_assets_come_back(model, tokenizer, tmp_path):
    tokenizer.save_assets(str(tmp_path))
    again = RemBertTokenizer.from_config(tokenizer.get_config())
    again.load_assets(str(tmp_path))
    assert again.proto == model
    assert again.special_token_ids == tokenizer.special_token_ids
