"""Vocabularies: which models are accepted, and what is known of their pieces."""

import io
import itertools
import pickle

import numpy as np
import pytest
import sentencepiece

from kzoo import KzooError, sample
from kzoo.text.vocabulary import Vocabulary
from tests.paths import SHARED, needs_shared


def train(**options) -> bytes:
    """A model trained by SentencePiece itself, on the English sample."""
    lines = (sample.folder() / "train-en.txt").read_text(encoding="utf-8").split("\n")
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines),
        model_writer=model,
        vocab_size=100,
        minloglevel=2,
        **options,
    )
    return model.getvalue()


def test_special_pieces_are_found_wherever_they_are():
    vocabulary = Vocabulary(
        train(
            unk_id=0,
            bos_id=-1,
            eos_id=1,
            control_symbols=["[MASK]", "x", "[SEP]", "<pad>", "[CLS]"],
        )
    )
    assert vocabulary.size == 100
    ids = {name: getattr(vocabulary, f"{name}_id") for name in ("unk", "mask", "sep", "pad", "cls")}
    assert ids == {"unk": 0, "mask": 2, "sep": 4, "pad": 5, "cls": 6}
    assert vocabulary.ordinary_ids.tolist() == list(range(7, 100))
    assert vocabulary.ordinary_ids.dtype == np.int32


def test_encoding_gives_what_sentencepiece_gives(vocabulary_folder):
    vocabulary = Vocabulary.load(vocabulary_folder)
    lines = ["The market", "", "बाज़ार में", "[MASK] </s>"]
    expected = vocabulary.processor.encode(lines)
    assert [vocabulary.encode(line).tolist() for line in lines] == expected
    token_ids, lengths = vocabulary.encode_documents([lines, [], lines[:1]])
    assert token_ids.tolist() == [*itertools.chain(*expected), *expected[0]]
    assert token_ids.dtype == np.int32
    assert lengths == [sum(map(len, expected)), 0, len(expected[0])]


def test_no_documents_have_no_pieces(vocabulary_folder):
    vocabulary = Vocabulary.load(vocabulary_folder)
    for documents in ([], [[]], [[""]]):
        token_ids, lengths = vocabulary.encode_documents(documents)
        assert (token_ids.size, lengths) == (0, [0] * len(documents))


def test_long_documents_give_the_pieces_of_their_lines(vocabulary_folder):
    vocabulary = Vocabulary.load(vocabulary_folder)
    text = (sample.folder() / "train-en.txt").read_text(encoding="utf-8")
    lines = [*text.split("\n"), "a word " * 500, "बाज़ार" * 500, "the end"]
    token_ids, _ = vocabulary.encode_documents([lines])
    assert token_ids.tolist() == list(itertools.chain(*vocabulary.processor.encode(lines)))


def test_a_vocabulary_can_be_pickled_and_saved(vocabulary_folder, tmp_path):
    vocabulary = Vocabulary.load(vocabulary_folder)
    vocabulary.save(tmp_path / "copy")
    for copy in (pickle.loads(pickle.dumps(vocabulary)), Vocabulary.load(tmp_path / "copy")):
        assert copy.sha256 == vocabulary.sha256
        assert copy.encode("a market").tolist() == vocabulary.encode("a market").tolist()


def test_a_model_without_a_special_piece_is_refused():
    model = train(pad_id=0, eos_id=1, unk_id=2, bos_id=-1, control_symbols=["[CLS]", "[SEP]"])
    with pytest.raises(KzooError, match=r"here\.model.*\[MASK\]"):
        Vocabulary(model, "here.model")


@pytest.mark.parametrize("content", [b"", b"these are no weights", bytes(1000)])
def test_what_is_no_model_is_refused(tmp_path, content):
    (tmp_path / "some.model").write_bytes(content)
    with pytest.raises(KzooError, match=r"some\.model is not a SentencePiece model"):
        Vocabulary.load(tmp_path / "some.model")


def test_a_vocabulary_that_is_not_there(tmp_path):
    with pytest.raises(KzooError, match=r"no vocabulary at .*python -m kzoo\.vocabulary"):
        Vocabulary.load(tmp_path)


@needs_shared
@pytest.mark.parametrize("name", ["control_symbols", "byte_fallback"])
def test_models_made_elsewhere(name):
    vocabulary = Vocabulary.load(SHARED / "peers/sentencepiece" / f"{name}.model")
    assert (vocabulary.pad_id, vocabulary.unk_id) == (0, 2)
    assert (vocabulary.cls_id, vocabulary.sep_id, vocabulary.mask_id) == (3, 4, 5)
    assert vocabulary.ordinary_ids.tolist() == list(range(6, 1500))
