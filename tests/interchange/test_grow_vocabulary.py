"""New pieces: which are taken, when text gives them, and what their rows begin as."""

import hashlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kzoo import KzooError, sample
from kzoo.interchange.grow_vocabulary import NewPiece, grow_vocabulary, read_pieces
from kzoo.interchange.sentencepiece_proto import PieceType, parse_model, serialize
from kzoo.text.special_pieces import SPECIAL_PIECES
from kzoo.text.vocabulary import Vocabulary
from tests.interchange.sentencepiece_models import train

PIECES = ["▁tokenizers", "nization", "▁tokenizer", "▁New▁York", "▁日本", "▁बाज़ारों"]


@pytest.fixture(scope="module")
def vocabulary(vocabulary_folder):
    return Vocabulary.load(vocabulary_folder)


@pytest.fixture
def pieces_file(tmp_path):
    def write(*lines: str):
        path = tmp_path / "pieces.txt"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return path

    return write


@pytest.fixture
def grown(vocabulary, pieces_file):
    return grow_vocabulary(vocabulary, read_pieces(pieces_file(*PIECES)), vocabulary.size)


def pieces_of(vocabulary: Vocabulary, text: str) -> list[str]:
    return [vocabulary.processor.id_to_piece(int(index)) for index in vocabulary.encode(text)]


def test_text_gives_the_new_pieces(vocabulary, grown):
    assert grown.vocabulary.size == vocabulary.size + len(PIECES)
    assert pieces_of(grown.vocabulary, "tokenizers") == ["▁tokenizers"]
    assert pieces_of(grown.vocabulary, "tokenizer New York 日本 बाज़ारों") == [
        "▁tokenizer",
        "▁New▁York",
        "▁日本",
        "▁बाज़ारों",
    ]
    # Longer words go on as they must.
    assert pieces_of(grown.vocabulary, "tokenizery")[0] == "▁tokenizer"
    assert "nization" in pieces_of(grown.vocabulary, "colonization")


def test_a_piece_that_only_longer_words_give_is_reported(vocabulary, grown):
    assert grown.only_inside == []
    # Alone, this word is `▁The` and what follows.
    without_start = grow_vocabulary(vocabulary, read_lines("Then", "▁tokenizer"), vocabulary.size)
    assert without_start.only_inside == ["Then"]


def test_old_pieces_keep_their_ids_and_other_text_its_pieces(vocabulary, grown):
    for index in range(vocabulary.size):
        piece = vocabulary.processor.id_to_piece(index)
        assert grown.vocabulary.processor.id_to_piece(index) == piece
    for language in ("de", "hi", "ru", "zh"):
        text = (sample.folder() / f"train-{language}.txt").read_text(encoding="utf-8")
        for line in text.split("\n"):
            if not any(piece.strip("▁") in line for piece in PIECES):
                assert grown.vocabulary.encode(line).tolist() == vocabulary.encode(line).tolist()


def test_text_still_gives_no_control_piece(grown):
    ids = grown.vocabulary.encode(" x ".join(SPECIAL_PIECES) + " tokenizer")
    special = [grown.vocabulary.processor.piece_to_id(piece) for piece in SPECIAL_PIECES]
    special.remove(grown.vocabulary.unk_id)
    assert not set(ids.tolist()) & set(special)


def test_new_rows_are_the_mean_of_what_spelled_the_piece(vocabulary, grown):
    random = np.random.default_rng(0)
    for width in (16, 40):
        table = random.normal(size=(vocabulary.size, width)).astype(np.float32)
        new = grown.change.rows(table)
        assert new.shape == (vocabulary.size + len(PIECES), width)
        assert new.dtype == np.float32
        np.testing.assert_array_equal(new[: vocabulary.size], table)
        spelling = vocabulary.encode("tokenizers")
        assert len(spelling) > 1
        np.testing.assert_allclose(new[vocabulary.size], table[spelling].mean(0), atol=1e-6)
    bias = random.normal(size=vocabulary.size).astype(np.float32)
    assert grown.change.rows(bias).shape == (vocabulary.size + len(PIECES),)
    assert grown.spellings[0] == pieces_of(vocabulary, "tokenizers")
    # Inside a word, so without the ▁ that text would put before it.
    assert "▁" not in "".join(grown.spellings[1])


def test_unknown_characters_count_only_where_nothing_else_is_known(vocabulary, grown):
    assert vocabulary.unk_id in vocabulary.encode("日本")
    assert "<unk>" in grown.spellings[PIECES.index("▁日本")]
    mixed = grow_vocabulary(vocabulary, read_lines("▁market日"), vocabulary.size)
    assert mixed.spellings == [pieces_of(vocabulary, "market")]


def read_lines(*texts: str) -> list[NewPiece]:
    return [NewPiece(text, f"line {number}") for number, text in enumerate(texts, 1)]


def test_spare_rows_are_taken_before_tables_grow(vocabulary, pieces_file):
    num_rows = vocabulary.size + 2
    grown = grow_vocabulary(vocabulary, read_pieces(pieces_file(*PIECES[:3])), num_rows)
    assert grown.change.size == vocabulary.size + 3
    fits = grow_vocabulary(vocabulary, read_pieces(pieces_file(PIECES[0])), num_rows)
    table = np.random.default_rng(0).normal(size=(num_rows, 4)).astype(np.float32)
    new = fits.change.rows(table)
    assert len(new) == num_rows
    np.testing.assert_array_equal(new[-1], table[-1])
    assert not np.array_equal(new[vocabulary.size], table[vocabulary.size])


def test_a_piece_that_is_there_is_not_added_again(vocabulary, pieces_file):
    there = vocabulary.processor.id_to_piece(vocabulary.size // 2)
    path = pieces_file(there, "▁tokenizer", "", "▁tokenizer")
    grown = grow_vocabulary(vocabulary, read_pieces(path), vocabulary.size)
    assert grown.added == ["▁tokenizer"]
    assert grown.already_there == [there, "▁tokenizer"]


def test_every_piece_that_text_cannot_give_is_named(vocabulary, pieces_file):
    path = pieces_file("▁fine", "ﬁne", "[MASK]", "a b", "▁\u200b")
    with pytest.raises(KzooError) as caught:
        grow_vocabulary(vocabulary, read_pieces(path), vocabulary.size)
    message = str(caught.value)
    assert "pieces.txt, line 1" not in message
    assert "line 2: text never gives 'ﬁne', since this vocabulary's normalisation makes" in message
    assert "line 3: '[MASK]' is a piece of type CONTROL" in message
    assert "line 4: text never gives 'a b'" in message
    assert "line 5" in message
    assert "makes nothing of it" in message


def test_files_that_are_no_lists_of_pieces(tmp_path, pieces_file):
    with pytest.raises(KzooError, match=r"cannot read the new pieces in .*nothing\.txt"):
        read_pieces(tmp_path / "nothing.txt")
    with pytest.raises(KzooError, match="there is no piece in"):
        read_pieces(pieces_file("", "  "))
    (tmp_path / "latin").write_bytes(b"caf\xe9\n")
    with pytest.raises(KzooError, match="latin is not UTF-8"):
        read_pieces(tmp_path / "latin")


def test_only_unigram_models_can_be_changed():
    vocabulary = Vocabulary(train(model_type="bpe"), "bpe.model")
    with pytest.raises(KzooError, match=r"bpe\.model: only a unigram model.* of type BPE"):
        grow_vocabulary(vocabulary, read_lines("▁tokenizer"), vocabulary.size)


def test_a_byte_fallback_vocabulary_grows_too():
    vocabulary = Vocabulary(train(byte_fallback=True, vocab_size=400), "bytes.model")
    grown = grow_vocabulary(vocabulary, read_lines("▁日本"), vocabulary.size)
    assert pieces_of(grown.vocabulary, "日本") == ["▁日本"]
    assert grown.spellings[0][1:] == ["<0xE6>", "<0x97>", "<0xA5>", "<0xE6>", "<0x9C>", "<0xAC>"]
    with pytest.raises(KzooError, match="BYTE, which text never gives"):
        grow_vocabulary(vocabulary, read_lines("<0x41>"), vocabulary.size)


def with_a_rare_piece(vocabulary: Vocabulary) -> Vocabulary:
    """One so rare that new pieces have their scores from their spellings, and not from it."""
    proto = parse_model(vocabulary.model, vocabulary.source)
    proto.pieces.add(piece="▁qqqq", score=-200, type=PieceType.NORMAL)
    return Vocabulary(serialize(proto))


def test_a_new_piece_wins_over_shorter_new_pieces(vocabulary):
    vocabulary = with_a_rare_piece(vocabulary)
    pieces = read_lines("▁zebrafish", "▁zebra", "fish", "fishes")
    grown = grow_vocabulary(vocabulary, pieces, vocabulary.size)
    # Though each of its parts is now worth a margin more than before.
    assert pieces_of(grown.vocabulary, "zebrafish") == ["▁zebrafish"]
    assert pieces_of(grown.vocabulary, "zebra") == ["▁zebra"]
    assert pieces_of(grown.vocabulary, "zebrafishes") == ["▁zebra", "fishes"]


@pytest.fixture(scope="module")
def words() -> list[str]:
    """Words of many scripts, most of them with characters that the vocabulary does not know."""
    languages = ("ar", "de", "el", "en", "hi", "ko", "ru", "sw", "tr", "zh")
    texts = [(sample.folder() / f"dev-{name}.txt").read_text("utf-8") for name in languages]
    return sorted({word for text in texts for word in text.split()})


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_every_word_that_became_a_piece_is_that_piece(data, vocabulary, words):
    if data.draw(st.booleans()):
        vocabulary = with_a_rare_piece(vocabulary)
    chosen = data.draw(st.lists(st.sampled_from(words), min_size=1, max_size=30))
    # Beginnings too: pieces that other new pieces could be spelled with.
    lengths = data.draw(st.lists(st.integers(1, 12), min_size=len(chosen), max_size=len(chosen)))
    chosen += [word[:length] for word, length in zip(chosen, lengths, strict=True)]
    normalized = {vocabulary.processor.normalize(word) for word in chosen} - {"", "▁"}
    grown = grow_vocabulary(vocabulary, read_lines(*sorted(normalized)), vocabulary.size)
    assert sorted(grown.added + grown.already_there) == sorted(normalized)
    for index, piece in enumerate(grown.added, vocabulary.size):
        assert grown.vocabulary.encode(piece.removeprefix("▁")).tolist() == [index]
    assert not grown.only_inside


def test_the_same_pieces_give_the_same_model(vocabulary, pieces_file):
    path = pieces_file(*PIECES)
    models = [
        grow_vocabulary(vocabulary, read_pieces(path), vocabulary.size).vocabulary.model
        for _ in range(2)
    ]
    assert len({hashlib.sha256(model).hexdigest() for model in models}) == 1
