"""What the modules of an export must compute, from their source model and none of their code.

Arrays are named `MODULE/in/NAME` and `MODULE/out/NAME`, where MODULE is a folder of the export:
`encoder`, `preprocessor`, `serving/1`, `masked_lm`.
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kzoo.errors import KzooError
from kzoo.models.backbone import RemBertBackbone
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.saved_model.signature_names import INPUT_NAMES
from kzoo.saved_model.source import Source
from kzoo.text.packing import pack
from kzoo.text.vocabulary import Vocabulary

TEXTS = ("", "Am Morgen fährt der Zug.", "الطقس جميل اليوم 🚂", "天气很好。 [MASK] " * 40)
_LENGTH = 16
# Of a backbone's inputs.
_HUB_NAMES = dict(zip(("token_ids", "padding_mask", "segment_ids"), INPUT_NAMES, strict=True))


def expected_of_export(source: Source, manifest: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """For all modules of an export that were made of a model like the source.

    Raises:
        KzooError: if none was: their configurations are others.
    """
    backbone = functools.cache(source.load_backbone)
    model = source.sentencepiece_model
    expected = {}
    if manifest["source"]["config"] == source.arguments:
        if "encoder" in manifest:
            expected |= expected_of_encoder(backbone(manifest["encoder"]["keep_layers"]))
        if "preprocessor" in manifest:
            length = manifest["preprocessor"]["sequence_length"]
            expected |= expected_of_preprocessor(model, length)
        if "masked_lm" in manifest:
            expected |= expected_of_masks(source.load_masked_lm(backbone(source.num_layers)))
    for version, served in manifest["serving"].items():
        if served.get("source", manifest["source"])["config"] == source.arguments:
            encoder, name = backbone(served["keep_layers"]), f"serving/{version}"
            expected |= expected_of_serving(name, encoder, model, served["sequence_length"])
    if not expected:
        raise KzooError(
            f"{source.folder} is not what was exported: its configuration is another than that in "
            "the manifest"
        )
    return expected


def expected_of_encoder(backbone: RemBertBackbone) -> dict[str, np.ndarray]:
    """For `encoder`: rows of several lengths, with two segments that do not follow the mask."""
    inputs = _ids(backbone)
    named = {f"encoder/in/{_HUB_NAMES[name]}": value for name, value in inputs.items()}
    return named | _named("encoder/out/", backbone(inputs))


def _ids(backbone: RemBertBackbone) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    length = min(_LENGTH, backbone.max_sequence_length)
    shape = (3, length)
    inputs = {
        "token_ids": random.integers(0, backbone.vocabulary_size, shape, np.int32),
        "padding_mask": (np.arange(length) < np.array([[length], [1 + length // 2], [1]])) * 1,
        "segment_ids": random.integers(0, backbone.num_segments, shape, np.int32),
    }
    return {name: np.asarray(value, np.int32) for name, value in inputs.items()}


def expected_of_preprocessor(
    sentencepiece_model: bytes, sequence_length: int
) -> dict[str, np.ndarray]:
    """For `preprocessor`."""
    padded = _packed(Vocabulary(sentencepiece_model), TEXTS, sequence_length)
    ids = {f"preprocessor/out/{_HUB_NAMES[name]}": value for name, value in padded.items()}
    return {"preprocessor/in/text": np.array(TEXTS), **ids}


def expected_of_serving(
    module: str, backbone: RemBertBackbone, sentencepiece_model: bytes, sequence_length: int
) -> dict[str, np.ndarray]:
    """For `serving/VERSION`, which is `module`."""
    padded = _packed(Vocabulary(sentencepiece_model), TEXTS, sequence_length)
    longest = padded["padding_mask"].sum(axis=1).max()
    inputs = {name: value[:, :longest] for name, value in padded.items()}
    return {
        f"{module}/in/text": np.array(TEXTS),
        f"{module}/out/input_mask": inputs["padding_mask"],
        **_named(f"{module}/out/", backbone(inputs)),
    }


def expected_of_masks(masked_lm: RemBertMaskedLM) -> dict[str, np.ndarray]:
    """For `masked_lm`, on the ids of `expected_of_encoder`."""
    ids = _ids(masked_lm.backbone)
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
