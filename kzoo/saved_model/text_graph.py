"""Text to ids inside a TensorFlow graph, as preparation does it outside."""

from collections.abc import Sequence

import tensorflow as tf

from kzoo.errors import KzooError
from kzoo.saved_model.sentencepiece_graph import SentencePieceGraph
from kzoo.text.vocabulary import Vocabulary


class TextGraph(tf.Module):
    """Tokenizing and packing with the operations that TensorFlow Serving knows.

    Beyond core TensorFlow a graph needs `SentencepieceOp` and `SentencepieceTokenizeOp` alone. The
    SentencePiece model is part of the graph: no file is looked for when it is loaded.

    Attributes:
        vocabulary_size: number of pieces.
        pad_id, cls_id, sep_id, mask_id, unk_id: ids of the special pieces.
        sentencepiece_model: the serialized model.
    """

    def __init__(self, sentencepiece_model: bytes):
        """Takes a serialized SentencePiece model.

        Raises:
            KzooError: it is no SentencePiece model, lacks a special piece, or has one that text
                could give.
        """
        super().__init__(name="text_graph")
        vocabulary = Vocabulary(sentencepiece_model)
        self.sentencepiece_model = sentencepiece_model
        self.vocabulary_size = vocabulary.size
        self.pad_id, self.unk_id = vocabulary.pad_id, vocabulary.unk_id
        self.cls_id, self.sep_id = vocabulary.cls_id, vocabulary.sep_id
        self.mask_id = vocabulary.mask_id
        self._sentencepiece = SentencePieceGraph(sentencepiece_model)

    def tokenize(self, texts: tf.Tensor) -> tf.RaggedTensor:
        """The pieces of each text, without [CLS] and [SEP].

        They are those of `kzoo.text.vocabulary.Vocabulary.encode` (`SentencePieceGraph` says where
        rounding may differ): nothing in a text gives a control piece, and bytes that are not UTF-8
        become U+FFFD, as preparation replaces them.

        A text is what preparation calls a line. Where it holds line ends, preparation would encode
        its lines one by one; here a line end is a character like any other, which the usual
        normalization rules (`nmt_nfkc`) make a space.

        Args:
            texts: string [batch], UTF-8.

        Returns:
            int32 [batch, (pieces)].
        """
        return self._sentencepiece.tokenize(valid_utf8(texts))

    def pack(
        self,
        segments: Sequence[tf.RaggedTensor],
        sequence_length: int | tf.Tensor,
        pad_to_length: bool = True,
    ) -> dict[str, tf.Tensor]:
        """Packs pieces into `[CLS] a [SEP]`, or `[CLS] a [SEP] b [SEP]`, and pads.

        What is too long loses pieces from its end, the longer segment first, as
        `kzoo.text.packing.truncated_lengths` has it.

        Args:
            segments: one or two, each int32 [batch, (pieces)].
            sequence_length: the most ids that a row may have; a tensor is an integer scalar.
            pad_to_length: pad every row to `sequence_length`, not just to the longest row.

        Returns:
            `input_word_ids`, `input_mask` (1: not padding) and `input_type_ids` (1: second
            segment and its [SEP]), each int32 [batch, length].

        Raises:
            KzooError: there are more segments than two or none, or no room for the special pieces.
            tf.errors.InvalidArgumentError: in the graph, for a tensor that leaves no such room, or
                segments with different numbers of rows.
        """
        if len(segments) not in (1, 2):
            raise KzooError(f"a sequence has 1 or 2 segments. Received: {len(segments)} of them")
        num_special = len(segments) + 1
        with tf.control_dependencies(_checks(segments, sequence_length, num_special)):
            # Shapes are inferred before the checks run; a negative one would fail unexplained.
            length = tf.maximum(tf.cast(sequence_length, tf.int64), num_special)
        room = length - num_special
        kept = _kept_lengths([_row_lengths(segment) for segment in segments], room)
        if not pad_to_length:
            # A batch without rows has no longest one.
            rows = tf.concat([num_special + tf.add_n(kept), [num_special]], axis=0)
            length = tf.reduce_max(rows)
        return self._rows(segments, kept, length)

    def _rows(
        self, segments: Sequence[tf.RaggedTensor], kept: Sequence[tf.Tensor], length: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        """Lays out rows of `length` columns, with the first `kept` pieces of each segment."""
        # Every id of a row is one of these; what follows finds out which one.
        special = tf.constant([self.pad_id, self.cls_id, self.sep_id], tf.int32)
        source = tf.concat([special, *(segment.values for segment in segments)], axis=0)
        pad, cls, sep = (tf.constant(index, tf.int64) for index in range(3))

        column = tf.range(length)[tf.newaxis]
        index, segment_ids = cls, 0
        start, offset = tf.constant(1, tf.int64), tf.size(special, tf.int64)
        for number, (segment, num_kept) in enumerate(zip(segments, kept, strict=True)):
            end = start + num_kept[:, tf.newaxis]
            first = offset + tf.cast(segment.row_starts(), tf.int64)[:, tf.newaxis]
            here = tf.where(column < end, first + column - start, sep)
            index = tf.where(column < start, index, here)
            segment_ids = tf.where(column < start, segment_ids, number)
            start, offset = end + 1, offset + tf.size(segment.values, tf.int64)
        in_row = column < start
        return {
            "input_word_ids": tf.gather(source, tf.where(in_row, index, pad)),
            "input_mask": tf.cast(in_row, tf.int32),
            "input_type_ids": tf.where(in_row, segment_ids, 0),
        }


def valid_utf8(texts: tf.Tensor) -> tf.Tensor:
    """Puts U+FFFD in place of bytes that are not UTF-8, as `bytes.decode(errors="replace")` does.

    Args:
        texts: string, any shape.

    Returns:
        string, the same shape.
    """
    return tf.strings.unicode_transcode(texts, "UTF-8", "UTF-8", errors="replace")


def _row_lengths(segment: tf.RaggedTensor) -> tf.Tensor:
    return tf.cast(segment.row_lengths(), tf.int64)


def _kept_lengths(lengths: Sequence[tf.Tensor], room: tf.Tensor) -> list[tf.Tensor]:
    """`kzoo.text.packing.truncated_lengths` for every row.

    Args:
        lengths: of the pieces of one or two segments, each int64 [batch].
        room: how many pieces fit into a row, int64 scalar.

    Returns:
        How many pieces of each segment stay, each int64 [batch].
    """
    if len(lengths) == 1:
        return [tf.minimum(lengths[0], room)]
    a_lengths, b_lengths = lengths
    # Each side may have its half, and what the other one leaves of its own.
    half = room // 2
    return [
        tf.minimum(a_lengths, tf.maximum(room - half, room - b_lengths)),
        tf.minimum(b_lengths, tf.maximum(half, room - a_lengths)),
    ]


def _checks(
    segments: Sequence[tf.RaggedTensor], sequence_length: int | tf.Tensor, num_special: int
) -> list[tf.Operation]:
    """What must hold before packing: at once where it is known, else in the graph."""
    problem = f"a sequence of {len(segments)} segment(s) has at least {num_special} ids"
    checks = []
    if isinstance(sequence_length, tf.Tensor):
        fits = sequence_length >= num_special
        checks.append(tf.debugging.Assert(fits, [f"{problem}; its length is", sequence_length]))
    elif sequence_length < num_special:
        raise KzooError(f"{problem} ([CLS] and [SEP]). Received: sequence_length={sequence_length}")
    if len(segments) == 2:
        num_rows = [segment.nrows() for segment in segments]
        same = tf.equal(*num_rows)
        checks.append(tf.debugging.Assert(same, ["both segments need the same batch", *num_rows]))
    return [check for check in checks if check is not None]
