"""Text with `[MASK]` in it to ids, inside a TensorFlow graph."""

import sentencepiece
import tensorflow as tf

from kzoo.saved_model.sentencepiece_graph import SentencePieceGraph
from kzoo.saved_model.text_graph import TextGraph, valid_utf8
from kzoo.text.special_pieces import MASK

# As SentencePiece writes it.
_SPACE = "▁"


class FillMaskText(tf.Module):
    """Packs texts in which the characters `[MASK]` stand for one masked piece each.

    This is the one place where text gives a special piece. The parts between the markers are
    tokenized one by one, so that no piece reaches over a marker.

    SentencePiece puts a space before every text. A part that follows a marker has it only if it
    begins with white space: `[MASK]ing` asks for the beginning of a word, and Chinese has no spaces
    at all. White space before a marker gives no piece, as at the end of a text.
    """

    def __init__(self, text_graph: TextGraph):
        """Takes what tokenizes and packs.

        A part without the space needs a SentencePiece model with another setting, so the graph
        holds the vocabulary twice.
        """
        super().__init__(name="fill_mask_text")
        self._text_graph = text_graph
        model = text_graph.sentencepiece_model
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._adds_space = processor.normalize("x").startswith(_SPACE)
        other = _with_dummy_prefix(model, not self._adds_space)
        self._other_sentencepiece = SentencePieceGraph(other)
        self._begins_with_space = _leading_space_pattern(_with_dummy_prefix(model, False))

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """The pieces of each text, with the id of [MASK] for every marker.

        Args:
            texts: string [batch], UTF-8, each with any number of markers.

        Returns:
            int32 [batch, (pieces)], without [CLS] and [SEP].
        """
        parts = tf.strings.split(valid_utf8(texts), MASK)
        follows_marker = _ranks(parts) > 0
        text = parts.values
        needs_space = tf.strings.regex_full_match(text, self._begins_with_space)
        # The model as it is serves where it treats the part as its place asks for.
        as_it_is = ~follows_marker | (needs_space == self._adds_space)
        # One of the two is empty for each part.
        pieces = self._text_graph.tokenize(tf.where(as_it_is, text, ""))
        other_pieces = self._other_sentencepiece.tokenize(tf.where(as_it_is, "", text))
        num_markers = tf.cast(follows_marker, tf.int64)
        mask_ids = tf.fill(tf.reduce_sum(num_markers, keepdims=True), self._text_graph.mask_id)
        markers = tf.RaggedTensor.from_row_lengths(mask_ids, num_markers, validate=False)
        marked = tf.concat([markers, pieces, other_pieces], axis=1)
        return parts.with_values(marked).merge_dims(1, 2)

    def pack(
        self, texts: tf.Tensor, sequence_length: int | tf.Tensor, pad_to_length: bool = False
    ) -> dict[str, tf.Tensor]:
        """Packs texts into `[CLS] text [SEP]` and finds the markers.

        A text that is too long loses pieces from its end. Markers that go with them are no error,
        since a server puts the texts of several clients into one batch, but are counted.

        Args:
            texts: string [batch], UTF-8, each with any number of markers.
            sequence_length: the most ids that a row may have; a tensor is an integer scalar.
            pad_to_length: pad every row to `sequence_length`, not just to the longest row.

        Returns:
            All int32: `input_word_ids`, `input_mask` and `input_type_ids` [batch, length];
            `mask_positions` [batch, most markers of a row], in rising order, 0 where a row has
            fewer; `num_masks` [batch], how many positions of a row are markers;
            `num_masks_cut_off` [batch], how many markers of a text are beyond the end of its row.

        Raises:
            KzooError: there is no room for the special pieces.
            tf.errors.InvalidArgumentError: the same in the graph, where the length is a tensor.
        """
        pieces = self.tokenize(texts)
        packed = self._text_graph.pack([pieces], sequence_length, pad_to_length)
        is_mask = packed["input_word_ids"] == self._text_graph.mask_id
        num_masks = tf.reduce_sum(tf.cast(is_mask, tf.int32), axis=1)
        positions = tf.RaggedTensor.from_row_lengths(
            tf.cast(tf.where(is_mask)[:, 1], tf.int32), num_masks, validate=False
        )
        is_marker = tf.cast(pieces == self._text_graph.mask_id, tf.int32)
        return packed | {
            "mask_positions": positions.to_tensor(),
            "num_masks": num_masks,
            "num_masks_cut_off": tf.reduce_sum(is_marker, axis=1) - num_masks,
        }


def _ranks(parts: tf.RaggedTensor) -> tf.Tensor:
    """The number of each part within its text, from 0: int64 [all parts]."""
    return tf.range(tf.size(parts.values, tf.int64)) - tf.gather(
        parts.row_starts(), parts.value_rowids()
    )


def _with_dummy_prefix(sentencepiece_model: bytes, add_dummy_prefix: bool) -> bytes:
    """The same model, but for whether it puts a space before every text.

    A serialized protocol buffer may be followed by another one of its type, whose fields count:
    here `normalizer_spec { add_dummy_prefix: … }`. The classes that SentencePiece brings for its
    protocol buffers need another version of protobuf than TensorFlow has.
    """
    return sentencepiece_model + bytes([0x1A, 2, 0x18, add_dummy_prefix])


def _leading_space_pattern(sentencepiece_model: bytes) -> str:
    """A regular expression (RE2) for texts that lose white space at their beginning.

    What is white space is for the model's normalization to say: with `nmt_nfkc` line ends, the
    ideographic space and U+200B are among it, and control characters, which are dropped, may stand
    before it.

    Args:
        sentencepiece_model: one that adds no dummy prefix.
    """
    processor = sentencepiece.SentencePieceProcessor(model_proto=sentencepiece_model)
    # Nothing beyond the basic plane is made a space.
    characters = [chr(code) for code in range(0x10000) if not 0xD800 <= code < 0xE000]
    inside = processor.normalize([f"x{character}y" for character in characters])
    leading = processor.normalize([f"{character}y" for character in characters])
    dropped, spaces = [], []
    for character, within, at_start in zip(characters, inside, leading, strict=True):
        if within == "xy":
            dropped.append(character)
        elif within.startswith(f"x{_SPACE}") and not at_start.startswith(_SPACE):
            spaces.append(character)
    return f"(?s){_character_class(dropped)}*{_character_class(spaces)}.*"


def _character_class(characters: list[str]) -> str:
    """A class of RE2 with these characters, or one that nothing is in."""
    if not characters:
        return r"[^\x{0}-\x{10FFFF}]"
    return "[" + "".join(f"\\x{{{ord(character):X}}}" for character in characters) + "]"
