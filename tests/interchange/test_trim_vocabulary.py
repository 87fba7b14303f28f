"""A vocabulary without the pieces that a corpus does not use: nothing changes on that corpus."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kzoo import KzooError, sample
from kzoo.corpora.files import find_files
from kzoo.interchange.trim_vocabulary import count_pieces, trim_vocabulary
from kzoo.text.special_pieces import SPECIAL_PIECES
from kzoo.text.vocabulary import Vocabulary
from tests.interchange.sentencepiece_models import train
from tests.paths import SHARED, needs_shared


def lines_of(language: str) -> list[str]:
    text = (sample.folder() / f"dev-{language}.txt").read_text(encoding="utf-8")
    return [line for line in text.split("\n") if line]


def counts_of(vocabulary: Vocabulary, lines: list[str]) -> np.ndarray:
    return sum(np.bincount(vocabulary.encode(line), minlength=vocabulary.size) for line in lines)


def assert_same_pieces(trimmed, vocabulary: Vocabulary, lines: list[str]) -> None:
    for line in lines:
        new = trimmed.vocabulary.encode(line)
        assert trimmed.change.row_ids[new].tolist() == vocabulary.encode(line).tolist(), line


def test_ids_of_the_corpus_map_one_to_one(vocabulary_folder):
    vocabulary = Vocabulary.load(vocabulary_folder)
    # Japanese: unknown characters, whose score must not move either.
    lines = [*lines_of("en"), *lines_of("de"), "a 日 x本 y"]
    trimmed = trim_vocabulary(vocabulary, counts_of(vocabulary, lines), vocabulary.size)
    assert len(trimmed.change.row_ids) == trimmed.vocabulary.size < 500
    assert trimmed.removed == vocabulary.size - trimmed.vocabulary.size
    assert_same_pieces(trimmed, vocabulary, lines)
    for index, old in enumerate(trimmed.change.row_ids.tolist()):
        piece = vocabulary.processor.id_to_piece(old)
        assert trimmed.vocabulary.processor.id_to_piece(index) == piece
    # What is not in the corpus is gone.
    assert trimmed.vocabulary.unk_id in trimmed.vocabulary.encode("बाज़ार")


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_any_corpus_keeps_its_pieces(data, vocabulary_folder):
    vocabulary = Vocabulary.load(vocabulary_folder)
    words = sorted(
        {word for name in ("de", "hi", "ru") for word in " ".join(lines_of(name)).split()}
    )
    corpus = [
        " ".join(line)
        for line in data.draw(st.lists(st.lists(st.sampled_from(words), max_size=8), max_size=6))
    ]
    trimmed = trim_vocabulary(vocabulary, counts_of(vocabulary, ["a", *corpus]), vocabulary.size)
    assert_same_pieces(trimmed, vocabulary, corpus)


@needs_shared
@pytest.mark.parametrize("name", ["control_symbols", "byte_fallback"])
def test_models_made_elsewhere_can_be_trimmed(name):
    vocabulary = Vocabulary.load(SHARED / "peers/sentencepiece" / f"{name}.model")
    lines = lines_of("hi") + lines_of("zh")
    trimmed = trim_vocabulary(vocabulary, counts_of(vocabulary, lines), vocabulary.size)
    assert trimmed.vocabulary.size < vocabulary.size
    assert_same_pieces(trimmed, vocabulary, lines)


def test_control_and_byte_pieces_stay_though_no_text_gives_them():
    vocabulary = Vocabulary(train(byte_fallback=True, vocab_size=400), "bytes.model")
    trimmed = trim_vocabulary(vocabulary, counts_of(vocabulary, ["the"]), vocabulary.size)
    kept = [
        trimmed.vocabulary.processor.id_to_piece(index) for index in range(trimmed.vocabulary.size)
    ]
    assert set(SPECIAL_PIECES) < set(kept)
    assert sum(piece.startswith("<0x") for piece in kept) == 256
    # The word itself, `▁`, and the piece that unknown characters have their score from.
    assert len(kept) <= 6 + 256 + len(vocabulary.encode("the")) + 2
    assert_same_pieces(trimmed, vocabulary, ["the 日本"])


def test_the_scores_that_others_hang_on_stay():
    vocabulary = Vocabulary(train(user_defined_symbols=["<url>", "x1"]), "symbols.model")
    processor = vocabulary.processor
    scores = [processor.get_score(int(index)) for index in vocabulary.ordinary_ids]
    trimmed = trim_vocabulary(vocabulary, counts_of(vocabulary, ["a <url>"]), vocabulary.size)
    kept = trimmed.vocabulary
    kept_scores = [kept.processor.get_score(int(index)) for index in kept.ordinary_ids]
    # User-defined pieces have score 0, which is no ordinary piece's.
    assert min(kept_scores) == min(scores)
    assert max(score for score in kept_scores if score) == max(score for score in scores if score)
    assert_same_pieces(trimmed, vocabulary, ["a <url>"])


def test_tables_keep_the_rows_of_the_pieces_that_stay(vocabulary_folder):
    vocabulary = Vocabulary.load(vocabulary_folder)
    num_rows = vocabulary.size + 5
    trimmed = trim_vocabulary(vocabulary, counts_of(vocabulary, lines_of("en")), num_rows)
    assert trimmed.removed == num_rows - trimmed.vocabulary.size
    for shape in ((num_rows, 16), (num_rows, 40), (num_rows,)):
        table = np.random.default_rng(0).normal(size=shape).astype(np.float32)
        new = trimmed.change.rows(table)
        np.testing.assert_array_equal(new, table[trimmed.change.row_ids])


def test_the_whole_corpus_is_counted(vocabulary_folder, tmp_path):
    vocabulary = Vocabulary.load(vocabulary_folder)
    lines = {language: lines_of(language) for language in ("en", "hi")}
    for language, some in lines.items():
        (tmp_path / f"text-{language}.txt").write_text("\n".join(some), encoding="utf-8")
    use = count_pieces(find_files(str(tmp_path / "text-{lang}.txt")), vocabulary, workers=2)
    expected = counts_of(vocabulary, lines["en"] + lines["hi"])
    np.testing.assert_array_equal(use.counts, expected)
    assert use.documents == 2


def test_only_unigram_models_can_be_trimmed():
    vocabulary = Vocabulary(train(model_type="bpe"), "bpe.model")
    with pytest.raises(KzooError, match=r"bpe\.model: only a unigram model.* of type BPE"):
        trim_vocabulary(vocabulary, np.ones(vocabulary.size), vocabulary.size)
