"""Rows of one vocabulary for the pieces of another: by strings, whatever the ids."""

import numpy as np
import pytest

from kzoo.interchange.grow_vocabulary import NewPiece, grow_vocabulary
from kzoo.interchange.sentencepiece_proto import PieceType, parse_model, serialize
from kzoo.interchange.vocabulary_match import match_vocabulary
from kzoo.text.special_pieces import SPECIAL_PIECES
from kzoo.text.vocabulary import Vocabulary
from tests.interchange.sentencepiece_models import train


@pytest.fixture(scope="module")
def old():
    return Vocabulary(train(vocab_size=300), "old")


def pieces(vocabulary: Vocabulary) -> list[str]:
    return [vocabulary.processor.id_to_piece(index) for index in range(vocabulary.size)]


def changed(vocabulary: Vocabulary, change) -> Vocabulary:
    """A vocabulary whose list of pieces a function has changed."""
    proto = parse_model(vocabulary.model, vocabulary.source)
    kept = change(list(proto.pieces))
    copies = [type(piece).FromString(piece.SerializeToString()) for piece in kept]
    del proto.pieces[:]
    proto.pieces.extend(copies)
    return Vocabulary(serialize(proto), "changed")


def piece_like(vocabulary: Vocabulary, text: str, kind: PieceType, score: float = -5.0):
    proto = parse_model(vocabulary.model, "")
    proto.pieces.add(piece=text, type=kind, score=score)
    return proto.pieces[-1]


def test_the_same_vocabulary_keeps_all_rows(old):
    matched = match_vocabulary(old, 310, old, 310)
    np.testing.assert_array_equal(matched.change.row_ids, np.arange(310))
    assert (matched.both, matched.new, matched.without_text, matched.gone) == (300, [], 0, 0)
    assert not matched.change.means


def test_pieces_keep_their_rows_under_other_ids(old):
    turned = changed(old, lambda all_pieces: all_pieces[::-1])
    assert turned.pad_id == 299
    matched = match_vocabulary(old, 300, turned, 300)
    np.testing.assert_array_equal(matched.change.row_ids, np.arange(300)[::-1])
    assert (matched.both, matched.gone) == (300, 0)


def test_a_grown_vocabulary_begins_as_conversion_would_have_it(old):
    new = [NewPiece(text, "here") for text in ("▁trainee", "inging", "▁日本")]
    grown = grow_vocabulary(old, new, 300)
    matched = match_vocabulary(old, 300, grown.vocabulary, 303)
    np.testing.assert_array_equal(matched.change.row_ids[:300], grown.change.row_ids[:300])
    assert matched.change.means.keys() == grown.change.means.keys() == {300, 301, 302}
    for row, ids in grown.change.means.items():
        np.testing.assert_array_equal(matched.change.means[row], ids)
    assert matched.new == ["▁trainee", "inging", "▁日本"]
    table = np.random.default_rng(0).normal(size=(300, 5)).astype(np.float32)
    rows = matched.change.rows(table)
    np.testing.assert_array_equal(rows[:300], table)
    spelling = [pieces(old)[index] for index in matched.change.means[300]]
    assert "".join(spelling) == "▁trainee"
    assert len(spelling) > 1
    np.testing.assert_allclose(rows[300], table[matched.change.means[300]].mean(0), rtol=1e-6)


def test_another_vocabulary_has_the_rows_of_the_strings_that_both_have(old):
    other = Vocabulary(train(vocab_size=400, pad_id=5, unk_id=0, eos_id=3), "other")
    matched = match_vocabulary(old, 300, other, 420)
    mine, theirs = pieces(other), pieces(old)
    assert matched.both == len({*mine} & {*theirs}) > 200
    for row, piece in enumerate(mine):
        if piece in theirs:
            assert theirs[matched.change.row_ids[row]] == piece
        else:
            spelling = "".join(theirs[index] for index in matched.change.means[row])
            assert spelling.replace("<unk>", "") in piece
    for piece in SPECIAL_PIECES:
        row = other.processor.piece_to_id(piece)
        assert matched.change.row_ids[row] == old.processor.piece_to_id(piece)
    # Rows of no piece, of which the old model had none, are the padding's.
    np.testing.assert_array_equal(matched.change.row_ids[400:], np.full(20, old.pad_id))
    assert matched.without_text == 20
    assert matched.gone == 300 - matched.both


def test_spare_rows_stay_spare_rows_and_the_first_make_way_for_pieces(old):
    grown = grow_vocabulary(old, [NewPiece("▁日本", "here")], 310)
    matched = match_vocabulary(old, 310, grown.vocabulary, 312)
    np.testing.assert_array_equal(matched.change.row_ids[301:310], np.arange(301, 310))
    np.testing.assert_array_equal(matched.change.row_ids[310:], [old.pad_id] * 2)
    assert 300 in matched.change.means
    assert matched.without_text == 2


def test_text_and_control_pieces_of_one_string_are_two_pieces(old):
    with_control = changed(old, lambda there: [*there, piece_like(old, "<de>", PieceType.CONTROL)])
    with_text = changed(old, lambda there: [*there, piece_like(old, "<de>", PieceType.NORMAL)])
    as_text = match_vocabulary(with_control, 301, with_text, 301)
    assert as_text.new == ["<de>"]
    assert 300 not in as_text.change.means[300]
    as_control = match_vocabulary(with_text, 301, with_control, 301)
    assert as_control.new == []
    assert as_control.change.row_ids[300] == old.pad_id
    assert as_control.without_text == as_control.gone == 1
    user_defined = changed(
        old, lambda there: [*there, piece_like(old, "<de>", PieceType.USER_DEFINED)]
    )
    assert match_vocabulary(with_text, 301, user_defined, 301).both == 301


def test_a_vocabulary_that_is_no_unigram_model_is_matched_too(old):
    merges = Vocabulary(train(vocab_size=300, model_type="bpe"), "merges")
    matched = match_vocabulary(merges, 300, old, 300)
    assert matched.both > 100
    assert all(len(ids) for ids in matched.change.means.values())
