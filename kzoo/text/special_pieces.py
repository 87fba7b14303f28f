"""The six pieces of a vocabulary that have a meaning of their own."""

import sentencepiece

from kzoo.errors import KzooError

PAD, END, UNKNOWN, CLS, SEP, MASK = "<pad>", "</s>", "<unk>", "[CLS]", "[SEP]", "[MASK]"
SPECIAL_PIECES = (PAD, END, UNKNOWN, CLS, SEP, MASK)


def special_ids(processor: sentencepiece.SentencePieceProcessor, source: str) -> dict[str, int]:
    """Looks the six pieces up by their strings: their ids differ from one vocabulary to the next.

    Args:
        processor: a loaded SentencePiece model.
        source: its path, or what else an error may call it.

    Returns:
        Piece → id, in the order of `SPECIAL_PIECES`.

    Raises:
        KzooError: if a piece is not there, or is one that text could give.
    """
    ids = {piece: _find(processor, piece, source) for piece in SPECIAL_PIECES}
    for piece, found in ids.items():
        if not (processor.is_unknown(found) or processor.is_control(found)):
            raise KzooError(
                f"{source}: {piece} is an ordinary piece, so that text which holds these "
                "characters would be taken for it; train the vocabulary with it among "
                "`control_symbols`"
            )
    return ids


def _find(processor: sentencepiece.SentencePieceProcessor, piece: str, source: str) -> int:
    # A piece that is not there has the id of the unknown piece, whatever that is called.
    found = processor.piece_to_id(piece) if processor.vocab_size() else -1
    if found < 0 or processor.id_to_piece(found) != piece:
        raise KzooError(
            f"{source}: this SentencePiece vocabulary of {processor.vocab_size()} pieces has no "
            f"piece {piece}; kzoo needs {', '.join(SPECIAL_PIECES)}"
        )
    return found
