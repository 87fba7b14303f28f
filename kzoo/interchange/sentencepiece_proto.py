"""SentencePiece models as protocol buffers, whose pieces can be changed.

The package `sentencepiece` brings a Python module for them, but one that wants a newer protobuf
than TensorFlow does. So the few fields that are needed are described here; all others are carried
along as they are.
"""

import enum

import sentencepiece
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from kzoo.errors import KzooError

WORD_START = "▁"
"""What SentencePiece writes for a space: U+2581."""


class PieceType(enum.IntEnum):
    """`ModelProto.SentencePiece.Type` of SentencePiece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class _ModelType(enum.IntEnum):
    """`TrainerSpec.ModelType` of SentencePiece."""

    UNIGRAM = 1
    BPE = 2
    WORD = 3
    CHAR = 4


_PACKAGE = "kzoo.sentencepiece"

# Name, number, type, default: of the messages in SentencePiece's sentencepiece_model.proto.
_FIELDS = {
    "Piece": (
        ("piece", 1, "STRING", None),
        ("score", 2, "FLOAT", None),
        ("type", 3, "INT32", "1"),
    ),
    "TrainerSpec": (
        ("model_type", 3, "INT32", "1"),
        ("vocab_size", 4, "INT32", None),
        ("unk_id", 40, "INT32", None),
        ("bos_id", 41, "INT32", None),
        ("eos_id", 42, "INT32", None),
        ("pad_id", 43, "INT32", None),
        ("unk_piece", 45, "STRING", "<unk>"),
        ("bos_piece", 46, "STRING", "<s>"),
        ("eos_piece", 47, "STRING", "</s>"),
        ("pad_piece", 48, "STRING", "<pad>"),
    ),
    "NormalizerSpec": (
        ("name", 1, "STRING", None),
        ("precompiled_charsmap", 2, "BYTES", None),
        ("add_dummy_prefix", 3, "BOOL", "true"),
        ("remove_extra_whitespaces", 4, "BOOL", "true"),
        ("escape_whitespaces", 5, "BOOL", "true"),
    ),
    "SelfTestData": (),
    "ModelProto": (
        ("pieces", 1, "Piece", None),
        ("trainer_spec", 2, "TrainerSpec", None),
        ("normalizer_spec", 3, "NormalizerSpec", None),
        ("self_test_data", 4, "SelfTestData", None),
    ),
}


def _model_proto() -> type:
    """The class of `ModelProto` messages."""
    field_types = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="kzoo/sentencepiece_model.proto", package=_PACKAGE, syntax="proto2"
    )
    for message_name, fields in _FIELDS.items():
        message = file.message_type.add(name=message_name)
        for name, number, kind, default in fields:
            field = message.field.add(
                name=name, number=number, label=field_types.LABEL_OPTIONAL, default_value=default
            )
            if kind in _FIELDS:
                field.type, field.type_name = field_types.TYPE_MESSAGE, f".{_PACKAGE}.{kind}"
            else:
                field.type = getattr(field_types, f"TYPE_{kind}")
            if name == "pieces":
                field.label = field_types.LABEL_REPEATED
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    descriptor = pool.FindMessageTypeByName(f"{_PACKAGE}.ModelProto")
    return message_factory.GetMessageClass(descriptor)


ModelProto = _model_proto()


def parse_model(model: bytes, source: str) -> ModelProto:
    """Reads a serialized model, to be changed.

    Args:
        model: the bytes of a `.model` file.
        source: its path, or what else an error may call it.

    Raises:
        KzooError: it is no model, or not a unigram model. The pieces of a BPE model hang together,
            since each is merged from two others.
    """
    try:
        proto = ModelProto.FromString(model)
    except DecodeError as error:
        raise KzooError(f"{source} is not a SentencePiece model") from error
    if proto.trainer_spec.model_type != _ModelType.UNIGRAM:
        kind = _ModelType(proto.trainer_spec.model_type).name
        raise KzooError(
            f"{source}: only a unigram model can be changed piece by piece. "
            f"Received: a model of type {kind}"
        )
    return proto


def is_unigram(model: bytes) -> bool:
    """Whether a serialized model is a unigram model, whose pieces can be taken one by one."""
    return ModelProto.FromString(model).trainer_spec.model_type == _ModelType.UNIGRAM


def serialize(proto: ModelProto) -> bytes:
    """Brings what a changed model says about itself up to date, and serializes it."""
    # SentencePiece would compare these with what the model gives, and refuse to load it.
    proto.ClearField("self_test_data")
    spec = proto.trainer_spec
    spec.vocab_size = len(proto.pieces)
    ids = {piece.piece: index for index, piece in enumerate(proto.pieces)}
    spec.unk_id = ids.get(spec.unk_piece, -1)
    spec.bos_id = ids.get(spec.bos_piece, -1)
    spec.eos_id = ids.get(spec.eos_piece, -1)
    spec.pad_id = ids.get(spec.pad_piece, -1)
    return proto.SerializeToString()


def raw_processor(proto: ModelProto) -> sentencepiece.SentencePieceProcessor:
    """Encodes strings of pieces as they stand: not normalised, with `▁` written out."""
    raw = ModelProto()
    raw.CopyFrom(proto)
    raw.ClearField("self_test_data")
    raw.ClearField("normalizer_spec")
    raw.normalizer_spec.name = "identity"
    raw.normalizer_spec.add_dummy_prefix = False
    raw.normalizer_spec.remove_extra_whitespaces = False
    raw.normalizer_spec.escape_whitespaces = False
    processor = sentencepiece.SentencePieceProcessor()
    processor.LoadFromSerializedProto(raw.SerializeToString())
    return processor


def normal_scores(proto: ModelProto) -> tuple[float, float]:
    """The lowest and the highest score of an ordinary piece.

    SentencePiece derives the score of unknown characters from the lowest, that of user-defined
    pieces from the highest: a change that moves either moves the pieces of other text.
    """
    scores = [piece.score for piece in proto.pieces if piece.type == PieceType.NORMAL]
    return min(scores, default=0.0), max(scores, default=0.0)
