"""XLM-R's vocabulary gives XLM-R's ids, and has kzoo's special pieces."""

import numpy as np
import pytest

from kzoo import KzooError, sample
from kzoo.interchange.xlm_roberta_vocabulary import convert_vocabulary
from kzoo.text.special_pieces import SPECIAL_PIECES
from tests.interchange.sentencepiece_models import train, xlm_roberta_model

TEXTS = (sample.folder() / "dev-en.txt").read_text(encoding="utf-8").split("\n")
TEXTS += ["x 日本 y", "", "  ", "<s> </s> <mask> <pad> [CLS] [MASK]"]


@pytest.fixture(scope="module")
def model():
    return xlm_roberta_model()


def test_ids_are_those_of_the_model_moved_by_one(model):
    processor, data = model
    converted = convert_vocabulary(data, "some.model", processor.get_piece_size() + 2)
    for text in TEXTS:
        # As Hugging Face's program does it: 0 is the unknown piece.
        expected = [index + 1 if index else 3 for index in processor.encode(text)]
        assert converted.vocabulary.encode(text).tolist() == expected


def test_special_pieces_are_where_xlm_r_has_its_own(model):
    processor, data = model
    size = processor.get_piece_size()
    vocabulary = convert_vocabulary(data, "some.model", size + 2).vocabulary
    assert (vocabulary.cls_id, vocabulary.pad_id, vocabulary.sep_id, vocabulary.unk_id) == (
        0,
        1,
        2,
        3,
    )
    assert vocabulary.mask_id == size + 1
    assert vocabulary.processor.piece_to_id("</s>") == size + 2
    special = {vocabulary.processor.piece_to_id(piece) for piece in SPECIAL_PIECES}
    assert special.isdisjoint(vocabulary.ordinary_ids.tolist())
    assert vocabulary.size == size + 3


def test_the_end_piece_gets_a_row_of_its_own(model):
    processor, data = model
    num_rows = processor.get_piece_size() + 2
    table = np.random.default_rng(0).normal(size=(num_rows, 3)).astype(np.float32)
    new = convert_vocabulary(data, "some.model", num_rows).change.rows(table)
    np.testing.assert_array_equal(new[:-1], table)
    np.testing.assert_array_equal(new[-1], table[2])


def test_other_vocabularies_are_refused(model):
    with pytest.raises(KzooError, match=r"x\.model is no vocabulary of XLM-R.* Received: <pad>"):
        convert_vocabulary(train(), "x.model", 1000)
    with pytest.raises(KzooError, match=r"x\.model is not a SentencePiece model"):
        convert_vocabulary(b"nothing of the kind", "x.model", 1000)
    processor, data = model
    with pytest.raises(KzooError, match="tables have only 300 rows: the files are of two"):
        convert_vocabulary(data, "x.model", processor.get_piece_size())


@pytest.mark.peers
def test_ids_are_those_of_hugging_face(model):
    transformers = pytest.importorskip("transformers")
    processor, data = model
    # Hugging Face reads the model's file with a module that TensorFlow's protobuf is too old for.
    pieces = [
        (processor.id_to_piece(index), processor.get_score(index))
        for index in range(3, processor.get_piece_size())
    ]
    first = [(piece, 0.0) for piece in ("<s>", "<pad>", "</s>", "<unk>")]
    peer = transformers.XLMRobertaTokenizer(vocab=[*first, *pieces, ("<mask>", 0.0)])
    vocabulary = convert_vocabulary(data, "some.model", len(peer)).vocabulary
    for text in [text for text in TEXTS if text.isascii() and "<" not in text]:
        ids = vocabulary.encode(text).tolist()
        assert peer(text).input_ids == [vocabulary.cls_id, *ids, vocabulary.sep_id]
    assert (peer.pad_token_id, peer.unk_token_id) == (vocabulary.pad_id, vocabulary.unk_id)
    assert peer.mask_token_id == vocabulary.mask_id
