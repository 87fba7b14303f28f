import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kzoo.corpora.held_out_examples import HeldOutExamples
from kzoo.corpora.masking import MaskingVocabulary, mask_window, num_targets
from kzoo.corpora.random_bits import RandomBits
from kzoo.corpora.training_examples import TrainingExamples
from kzoo.corpora.words import MAX_WORD_PIECES, WordBoundaries
from kzoo.text.vocabulary import Vocabulary
from tests.corpora.memory_examples import (
    CLS,
    MASK,
    PAD,
    SEP,
    UNK,
    MemoryVocabulary,
    three_languages,
)
from tests.interchange.sentencepiece_models import train

CONTROLS = ["<pad>", "</s>", "<unk>", "[CLS]", "[SEP]", "[MASK]"]
# Pieces with a space in front and without: of words of 1 to 4 pieces, chosen by a test.
VOCABULARY = MemoryVocabulary(1000)
PIECES = MaskingVocabulary(VOCABULARY, whole_words=True)
HEAD, TAIL = 300, 301


class ListedVocabulary:
    """Has the pieces that a test lists, behind the control ones."""

    pad_id, unk_id, cls_id, sep_id, mask_id = PAD, UNK, CLS, SEP, MASK

    def __init__(self, pieces: list[str]):
        self.pieces = CONTROLS + pieces
        self.size = len(self.pieces)
        self.ordinary_ids = np.arange(len(CONTROLS), self.size, dtype=np.int32)


def words_of(*pieces: str) -> list[str]:
    """Some pieces, those of one word joined by +; control and unknown ones by their names."""
    vocabulary = ListedVocabulary(sorted(set(pieces) - set(CONTROLS)))
    ids = np.array([vocabulary.pieces.index(piece) for piece in pieces])
    numbers = WordBoundaries(vocabulary).numbers(ids).tolist()
    assert numbers == sorted(numbers)
    assert len(numbers) == len(pieces)
    groups = itertools.groupby(range(len(pieces)), key=numbers.__getitem__)
    return ["+".join(pieces[index] for index in group) for _, group in groups]


def test_a_word_reaches_from_a_space_to_the_next():
    assert words_of("▁Wort", "e", "▁sind", "▁mehr", "er", "e") == ["▁Wort+e", "▁sind", "▁mehr+er+e"]


def test_a_window_may_begin_inside_of_a_word():
    assert words_of("ter", "n", "▁und") == ["ter+n", "▁und"]


@pytest.mark.parametrize(
    ("pieces", "words"),
    [
        (["▁我", "喜欢", "北京", "▁我"], ["▁我", "喜欢", "北京", "▁我"]),
        (["▁", "今", "は", "カタ"], ["▁", "今", "は", "カタ"]),
        (["▁ภา", "ษา", "ไทย"], ["▁ภา", "ษา", "ไทย"]),
        (["中国", "B", "ERT", "模型", "e"], ["中国", "B+ERT", "模型", "e"]),
        (["▁한국", "어", "는"], ["▁한국+어+는"]),
        (["▁हिन", "्दी"], ["▁हिन+्दी"]),
    ],
)
def test_pieces_of_scripts_without_spaces_are_words_of_their_own(pieces, words):
    assert words_of(*pieces) == words


def test_punctuation_is_a_word_of_its_own():
    assert words_of("▁(", "Ha", "us", ")", ".", "▁3", ",", "14") == [
        *("▁(", "Ha+us", ")", ".", "▁3", ",", "14")
    ]


def test_a_lone_space_belongs_to_the_word_behind_it():
    assert words_of("▁", "Ø", "l", "▁x") == ["▁+Ø+l", "▁x"]


def test_an_unknown_piece_is_inside_of_its_word_and_a_control_piece_between_two():
    assert words_of("▁Gr", "<unk>", "n", "▁x") == ["▁Gr+<unk>+n", "▁x"]
    assert words_of("▁a", "[SEP]", "b", "[MASK]", "[MASK]") == [
        *("▁a", "[SEP]", "b", "[MASK]", "[MASK]")
    ]


def test_a_run_longer_than_the_limit_falls_apart():
    longest = ["▁a"] + ["b"] * (MAX_WORD_PIECES - 1)
    assert words_of("x", *longest, "▁c", "d") == ["x", "+".join(longest), "▁c+d"]
    assert words_of("x", *longest, "b", "▁c", "d") == ["x", *longest, "b", "▁c+d"]
    assert words_of(*longest, "b", *longest) == [*longest, "b", "+".join(longest)]


def test_pieces_of_bytes_stay_with_their_word():
    vocabulary = Vocabulary(train(byte_fallback=True, vocab_size=600))
    ids = vocabulary.encode("so ☃ x")
    pieces = [vocabulary.pieces[token_id] for token_id in ids]
    snowman = [index for index, piece in enumerate(pieces) if piece.startswith("<0x")]
    assert len(snowman) == 3
    numbers = WordBoundaries(vocabulary).numbers(ids)
    assert len(set(numbers[snowman].tolist())) == 1
    assert numbers[snowman[0]] < numbers[-1]


def test_words_of_a_trained_vocabulary_are_those_between_spaces():
    vocabulary = Vocabulary(train(vocab_size=300))
    text = "the river and the village were quiet"
    ids = vocabulary.encode(text)
    numbers = WordBoundaries(vocabulary).numbers(ids)
    groups = [ids[numbers == number].tolist() for number in np.unique(numbers)]
    assert [vocabulary.processor.decode(group) for group in groups] == text.split()


token_ids_lists = st.lists(st.sampled_from([UNK, HEAD]) | st.integers(MASK + 1, 999), max_size=60)


@given(
    token_ids=token_ids_lists,
    seed=st.integers(0, 2**32),
    mask_rate=st.floats(0.01, 1),
    max_predictions=st.none() | st.integers(1, 20),
)
def test_targets_are_whole_words_of_ordinary_pieces(token_ids, seed, mask_rate, max_predictions):
    token_ids = np.array(token_ids, np.int32)
    masked = mask_window(
        token_ids,
        RandomBits(seed),
        PIECES,
        mask_rate=mask_rate,
        max_predictions=max_predictions,
    )
    framed = np.array([CLS, *token_ids, SEP])
    positions = masked.mask_positions
    assert masked.token_ids.dtype == positions.dtype == masked.mask_ids.dtype == np.int32
    assert (np.diff(positions) > 0).all()
    np.testing.assert_array_equal(masked.mask_ids, framed[positions])
    np.testing.assert_array_equal(
        np.delete(masked.token_ids, positions), np.delete(framed, positions)
    )
    assert PIECES.is_ordinary[masked.mask_ids].all()
    assert not np.isin(masked.token_ids[positions], [PAD, UNK, CLS, SEP]).any()

    is_ordinary = PIECES.is_ordinary[token_ids]
    count = num_targets(int(is_ordinary.sum()), mask_rate, max_predictions)
    words = PIECES.words.numbers(token_ids)
    sizes = np.bincount(words[is_ordinary], minlength=len(token_ids) + 2)
    chosen = np.bincount(words[positions - 1], minlength=len(token_ids) + 2)
    if sizes[sizes > 0].size and sizes[sizes > 0].min() > count:
        # No word is short enough: a part of one.
        assert len(positions) == count == chosen.max()
        return
    assert ((chosen == 0) | (chosen == sizes)).all()
    missing = count - len(positions)
    assert missing >= 0
    assert not ((chosen == 0) & (sizes > 0) & (sizes <= missing)).any()


def test_targets_are_drawn_from_the_key_alone_and_anew_in_every_epoch():
    window = np.tile([HEAD, TAIL, 302], 40)

    def positions(epoch):
        bits = RandomBits(0, "masking", "train", "de", epoch, 7)
        return mask_window(window, bits, PIECES).mask_positions.tolist()

    assert positions(0) == positions(0)
    assert positions(0) != positions(1)


def test_the_share_of_targets_and_of_each_fate_is_as_without_words():
    bits = RandomBits("windows of words")
    hidden, targets, pieces = [], [], 0
    for index, length in enumerate(bits.integers(300, 3_000) + 200):
        window = (bits.integers(994, int(length)) + MASK + 1).astype(np.int32)
        masked = mask_window(window, RandomBits("fates", index), PIECES)
        hidden.append(masked.token_ids[masked.mask_positions])
        targets.append(masked.mask_ids)
        pieces += len(window)
    hidden, targets = np.concatenate(hidden), np.concatenate(targets)
    assert len(targets) > 100_000
    assert abs(len(targets) / pieces - 0.15) < 0.0002
    is_masked, is_kept = hidden == MASK, hidden == targets
    assert abs(is_masked.mean() - 0.8) < 0.005
    assert abs(is_kept.mean() - 0.1) < 0.005
    assert abs((~is_masked & ~is_kept).mean() - 0.1) < 0.005


@pytest.mark.parametrize(("words", "tolerance"), [(14, 0.2), (72, 0.05)])
def test_pieces_of_long_words_are_nearly_as_often_targets_as_others(words, tolerance):
    # Words of 1, 2, 3 and 1 pieces, over and over. Where little is left to choose, only short
    # words fit: it matters less, the more targets there are.
    window = np.tile([HEAD, HEAD, TAIL, HEAD, TAIL, TAIL, HEAD], words)
    counts = np.zeros(len(window))
    for index in range(3_000):
        counts[mask_window(window, RandomBits(index), PIECES).mask_positions - 1] += 1
    share = counts.reshape(words, 7).mean(axis=0) / 3_000
    expected = num_targets(len(window), 0.15) / len(window)
    assert abs(share.mean() - expected) < 1e-6
    np.testing.assert_allclose(share, expected, rtol=tolerance)


def test_each_piece_of_a_word_has_a_fate_of_its_own():
    window = np.array([HEAD, TAIL] * 200)
    masked = mask_window(window, RandomBits(0), PIECES, mask_rate=1.0)
    is_masked = (masked.token_ids[1:-1] == MASK).reshape(-1, 2)
    assert 0.5 < is_masked.all(axis=1).mean() < 0.75  # 0.64 if independent
    assert (is_masked[:, 0] != is_masked[:, 1]).any()


def test_a_window_without_ordinary_pieces_has_no_target():
    for window in ([], [UNK], [UNK, UNK]):
        masked = mask_window(np.array(window, np.int32), RandomBits(0), PIECES)
        assert masked.mask_ids.size == 0
        assert masked.token_ids.tolist() == [CLS, *window, SEP]


def test_a_word_longer_than_the_number_of_targets_gives_its_first_pieces():
    window = np.array([HEAD, TAIL, TAIL, HEAD, TAIL, TAIL])
    chosen = {
        tuple(mask_window(window, RandomBits(seed), PIECES).mask_positions.tolist())
        for seed in range(20)
    }
    assert chosen == {(1,), (4,)}


@pytest.mark.parametrize("make", [TrainingExamples, HeldOutExamples])
def test_examples_are_masked_by_words_if_asked_to(make):
    for whole_words in (False, True):
        source = make(three_languages(), sequence_length=32, whole_word_masking=whole_words)
        part_of_a_word = 0
        for position in range(32):
            _, positions, ids = source[position].window
            window = np.array(source[position].window.token_ids)
            window[positions] = ids
            words = PIECES.words.numbers(window[1:-1])
            chosen = np.bincount(words[positions - 1], minlength=40)
            sizes = np.bincount(words, minlength=40)
            part_of_a_word += ((chosen > 0) & (chosen < sizes) & (sizes <= len(positions))).sum()
        assert (part_of_a_word == 0) == whole_words


def test_masks_of_words_stay_the_same_from_release_to_release():
    masked = mask_window(np.tile([HEAD, TAIL, TAIL], 9), RandomBits("test", 0), PIECES)
    assert masked.mask_positions.tolist() == [1, 2, 3]
    assert masked.token_ids[masked.mask_positions].tolist() == [MASK] * 3
