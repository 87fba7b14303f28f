"""The preprocessor as a SavedModel: texts in, the encoder's inputs out."""

import itertools
import os

import tensorflow as tf

from kzoo.saved_model.text_graph import TextGraph


class PreprocessorModule(tf.Module):
    """A text preprocessor with the interface that TensorFlow Hub has for BERT's.

    Called with texts, it gives the encoder's inputs. `tokenize` and `bert_pack_inputs` are its two
    halves, for pairs of texts and for other lengths; each can be given to `hub.KerasLayer` itself:

        preprocessor = tf.saved_model.load("export/preprocessor")
        premises = preprocessor.tokenize(["It rains."])
        hypotheses = preprocessor.tokenize(["The street is wet."])
        inputs = preprocessor.bert_pack_inputs([premises, hypotheses], seq_length=64)

    Attributes:
        tokenize: see `Tokenize`.
        bert_pack_inputs: see `PackInputs`.
    """

    def __init__(self, text_graph: TextGraph, sequence_length: int):
        """Makes the module.

        Args:
            text_graph: tokenizes and packs.
            sequence_length: of the rows, where a call does not say otherwise.

        Raises:
            KzooError: there is no room for the special pieces of two texts.
        """
        super().__init__(name="preprocessor")
        self.tokenize = Tokenize(text_graph)
        self.bert_pack_inputs = PackInputs(text_graph, sequence_length)

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    def __call__(self, text: tf.Tensor) -> dict[str, tf.Tensor]:
        """The encoder's inputs for single texts.

        Args:
            text: string [batch], UTF-8.

        Returns:
            `input_word_ids`, `input_mask` and `input_type_ids`, each int32
            [batch, sequence_length].
        """
        return self.bert_pack_inputs([self.tokenize(text)])

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes a SavedModel, whose signature `serving_default` takes `text`."""
        signature = self.__call__.get_concrete_function()
        tf.saved_model.save(self, os.fspath(folder), signatures={"serving_default": signature})


class Tokenize(tf.Module):
    """Texts to pieces."""

    def __init__(self, text_graph: TextGraph):
        super().__init__(name="tokenize")
        self._text_graph = text_graph

    @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="text")], autograph=False)
    def __call__(self, text: tf.Tensor) -> tf.RaggedTensor:
        """The pieces of each text, without [CLS] and [SEP].

        Args:
            text: string [batch], UTF-8.

        Returns:
            int32 [batch, (pieces)].
        """
        return self._text_graph.tokenize(text)

    @tf.function(input_signature=[], autograph=False)
    def get_special_tokens_dict(self) -> dict[str, tf.Tensor]:
        """Size of the vocabulary and ids of the special pieces, each an int32 scalar."""
        numbers = {
            "vocab_size": self._text_graph.vocabulary_size,
            "padding_id": self._text_graph.pad_id,
            "start_of_sequence_id": self._text_graph.cls_id,
            "end_of_segment_id": self._text_graph.sep_id,
            "mask_id": self._text_graph.mask_id,
        }
        return {name: tf.constant(number, tf.int32) for name, number in numbers.items()}


class PackInputs(tf.Module):
    """Pieces to the encoder's inputs."""

    def __init__(self, text_graph: TextGraph, sequence_length: int):
        super().__init__(name="bert_pack_inputs")
        self._text_graph = text_graph
        self._sequence_length = sequence_length
        self._trace()

    @tf.function(autograph=False)
    def __call__(
        self, inputs: list[tf.RaggedTensor], seq_length: int | tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Packs into `[CLS] a [SEP]`, or `[CLS] a [SEP] b [SEP]`.

        What is too long loses pieces from its end, the longer segment first.

        Args:
            inputs: one or two segments, each int32 [batch, (pieces)], or
                [batch, (words), (pieces)], whose words are joined.
            seq_length: length of the rows, an integer scalar; by default what the module was made
                with.

        Returns:
            `input_word_ids`, `input_mask` and `input_type_ids`, each int32 [batch, seq_length].

        Raises:
            tf.errors.InvalidArgumentError: `seq_length` has no room for the special pieces, or the
                segments have different numbers of rows.
        """
        segments = [_joined(segment) for segment in inputs]
        if seq_length is None:
            # Its length is known, and so is the shape of what comes out.
            return self._text_graph.pack(segments, self._sequence_length)
        return self._pack(segments, tf.cast(seq_length, tf.int64))

    @tf.function(autograph=False)
    def _pack(self, segments: list[tf.RaggedTensor], length: tf.Tensor) -> dict[str, tf.Tensor]:
        """One graph for all the kinds of calls that give a length."""
        return self._text_graph.pack(segments, length)

    def _trace(self) -> None:
        """Makes a graph for every kind of call: a SavedModel has no other ones."""
        kinds = [
            tf.RaggedTensorSpec([None] * (ragged_rank + 1), tf.int32, ragged_rank)
            for ragged_rank in (1, 2)
        ]
        lengths = [
            None,
            *(tf.TensorSpec([], dtype, "seq_length") for dtype in (tf.int32, tf.int64)),
        ]
        for num_segments in (1, 2):
            for segments in itertools.product(kinds, repeat=num_segments):
                for length in lengths:
                    self.__call__.get_concrete_function(list(segments), seq_length=length)


def _joined(segment: tf.RaggedTensor) -> tf.RaggedTensor:
    """The pieces of all words of a row, one after the other: int32 [batch, (pieces)]."""
    return segment if segment.ragged_rank == 1 else segment.merge_dims(1, -1)
