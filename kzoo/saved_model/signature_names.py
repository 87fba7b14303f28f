"""The signatures of what is exported for serving, with the names of their inputs and outputs.

A signature is matched by these names alone, and none ends in `_bytes`: TensorFlow Serving would
take such an output for base64.
"""

_IDS = ("input_word_ids", "input_mask", "input_type_ids")
_FILLED = ("pieces", "probabilities", "mask_positions", "num_masks", "num_masks_cut_off")

SERVING: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "serving_default": (("text",), ("pooled_output",)),
    "sequence_output": (("text",), ("sequence_output", "input_mask")),
    "from_ids": (_IDS, ("pooled_output", "sequence_output")),
}
"""Of `ServingModule`: signature → (inputs, outputs)."""

MASKED_LM: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "serving_default": (
        (*_IDS, "masked_lm_positions"),
        ("mlm_logits", "sequence_output", "pooled_output"),
    ),
    "fill_mask": (("text",), _FILLED),
    "fill_mask_top_k": (("text", "top_k"), _FILLED),
}
"""Of `MaskedLMModule`: signature → (inputs, outputs)."""
