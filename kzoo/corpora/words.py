"""Which pieces of a window make one word."""

import unicodedata

import numpy as np

from kzoo.text.vocabulary import Vocabulary

MAX_WORD_PIECES = 10
"""Pieces of a longer run, such as an address or a formula, are words of their own. SpanBERT (arXiv
1907.10529, section 3.1) hides no longer spans either."""

_SPACE = "▁"

# How Unicode's names of characters begin in scripts that put no space between words.
_UNSPACED_SCRIPTS = (
    *("CJK", "IDEOGRAPHIC", "HIRAGANA", "KATAKANA", "HALFWIDTH KATAKANA", "BOPOMOFO"),
    *("THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "TAI", "NEW TAI", "BALINESE", "JAVANESE"),
)


class WordBoundaries:
    """Where words begin and end, looked up once for every piece of a vocabulary.

    A word begins at a piece with `▁` in front, and goes on until the next one; at the start of a
    window it may be the rest of a word whose beginning another window has. Where that would make
    words of whole sentences or of what is no word, three kinds of pieces stand alone, each a word
    between two others, much as BERT's tokenizer (google-research/bert, tokenization.py) cuts text
    before WordPiece:

    - of scripts without spaces between words (Chinese, Japanese, Thai, Lao, Khmer, Burmese …): only
      a dictionary knows where their words end, and the pieces of a unigram model come near;
    - without any letter, digit or mark: punctuation, symbols;
    - control and unused pieces.

    An unknown piece is a part of the word that it stands in: the ordinary pieces around it are
    hidden together, itself stays in sight. A word of more than `MAX_WORD_PIECES` pieces, unknown
    ones included, falls apart into its pieces.

    Attributes:
        starts_word: bool `[vocabulary size]`, pieces that begin a word, those that stand alone too.
        stands_alone: bool `[vocabulary size]`, pieces after which the next word begins.
    """

    def __init__(self, vocabulary: Vocabulary):
        bare = [piece.removeprefix(_SPACE) for piece in vocabulary.pieces]
        # A lone `▁` begins the word that follows.
        self.stands_alone = np.array([piece != "" and _stands_alone(piece) for piece in bare])
        without_text = np.ones(vocabulary.size, bool)
        without_text[vocabulary.ordinary_ids] = False
        self.stands_alone |= without_text
        self.stands_alone[vocabulary.unk_id] = False
        begins_with_space = [piece.startswith(_SPACE) for piece in vocabulary.pieces]
        self.starts_word = self.stands_alone | np.array(begins_with_space)

    def numbers(self, token_ids: np.ndarray) -> np.ndarray:
        """The word that each piece of a window belongs to, counted from the window's start.

        Args:
            token_ids: integer `[n]`, without [CLS] and [SEP].

        Returns:
            Ascending numbers, 0 or more; int64 `[n]`.
        """
        starts = self.starts_word[token_ids]
        starts[1:] |= self.stands_alone[token_ids[:-1]]
        words = starts.cumsum()
        sizes = np.bincount(words)
        if sizes.max(initial=0) > MAX_WORD_PIECES:
            words = (starts | (sizes[words] > MAX_WORD_PIECES)).cumsum()
        return words


def _stands_alone(text: str) -> bool:
    """Whether a piece without its `▁` is of a script without spaces, or has nothing to read."""
    if not any(unicodedata.category(character)[0] in "LNM" for character in text):
        return True
    return any(unicodedata.name(character, "").startswith(_UNSPACED_SCRIPTS) for character in text)
