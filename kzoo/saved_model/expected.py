"""What the modules of an export must compute, from their source model and none of their code."""

from collections.abc import Sequence

import numpy as np

from kzoo.models.backbone import RemBertBackbone
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.text.packing import pack
from kzoo.text.vocabulary import Vocabulary

TEXTS = ("", "Am Morgen fährt der Zug.", "الطقس جميل اليوم 🚂", "天气很好。 [MASK] " * 40)
_LENGTH = 16
_HUB_NAMES = {
    "token_ids": "input_word_ids",
    "padding_mask": "input_mask",
    "segment_ids": "input_type_ids",
}


def expected_of_ids(backbone: RemBertBackbone) -> dict[str, np.ndarray]:
    """For `encoder`: rows of several lengths, with two segments that do not follow the mask.

    Returns:
        `encoder/in/NAME` and `encoder/out/NAME`.
    """
    random = np.random.default_rng(0)
    length = min(_LENGTH, backbone.max_sequence_length)
    shape = (3, length)
    inputs = {
        "token_ids": random.integers(0, backbone.vocabulary_size, shape, np.int32),
        "padding_mask": (np.arange(length) < np.array([[length], [1 + length // 2], [1]])) * 1,
        "segment_ids": random.integers(0, backbone.num_segments, shape, np.int32),
    }
    inputs = {name: np.asarray(value, np.int32) for name, value in inputs.items()}
    named = {f"encoder/in/{_HUB_NAMES[name]}": value for name, value in inputs.items()}
    return named | _named("encoder/out/", backbone(inputs))


def expected_of_text(
    backbone: RemBertBackbone, sentencepiece_model: bytes, sequence_length: int
) -> dict[str, np.ndarray]:
    """For `preprocessor` and `serving`.

    Returns:
        `KIND/in/text`, and `KIND/out/NAME`.
    """
    vocabulary = Vocabulary(sentencepiece_model)
    texts = np.array(TEXTS)
    padded = _packed(vocabulary, TEXTS, sequence_length)
    longest = padded["padding_mask"].sum(axis=1).max()
    inputs = {name: value[:, :longest] for name, value in padded.items()}
    outputs = _named("serving/out/", backbone(inputs))
    ids = {f"preprocessor/out/{_HUB_NAMES[name]}": value for name, value in padded.items()}
    return {
        "preprocessor/in/text": texts,
        "serving/in/text": texts,
        "serving/out/input_mask": inputs["padding_mask"],
        **outputs,
        **ids,
    }


def expected_of_masks(
    masked_lm: RemBertMaskedLM, of_ids: dict[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """For `masked_lm`, on the inputs of `expected_of_ids`.

    Returns:
        `masked_lm/in/NAME` and `masked_lm/out/mlm_logits`.
    """
    ids = {name: of_ids[f"encoder/in/{hub_name}"] for name, hub_name in _HUB_NAMES.items()}
    positions = np.zeros((len(ids["token_ids"]), 2), np.int32)
    positions[0, 1] = ids["token_ids"].shape[1] - 1
    logits = masked_lm({**ids, "mask_positions": positions})
    return {
        **{f"masked_lm/in/{_HUB_NAMES[name]}": value for name, value in ids.items()},
        "masked_lm/in/masked_lm_positions": positions,
        "masked_lm/out/mlm_logits": np.asarray(logits),
    }


def _named(prefix: str, outputs: dict) -> dict[str, np.ndarray]:
    return {prefix + name: np.asarray(value) for name, value in outputs.items()}


def _packed(
    vocabulary: Vocabulary, texts: Sequence[str], sequence_length: int
) -> dict[str, np.ndarray]:
    """A backbone's inputs for texts, int32 [texts, sequence_length]."""
    shape = (len(texts), sequence_length)
    token_ids = np.full(shape, vocabulary.pad_id, np.int32)
    mask = np.zeros(shape, np.int32)
    for row, text in enumerate(texts):
        ids, _ = pack(
            vocabulary.encode(text),
            cls_id=vocabulary.cls_id,
            sep_id=vocabulary.sep_id,
            sequence_length=sequence_length,
        )
        token_ids[row, : len(ids)] = ids
        mask[row, : len(ids)] = 1
    return {"token_ids": token_ids, "padding_mask": mask, "segment_ids": np.zeros(shape, np.int32)}
