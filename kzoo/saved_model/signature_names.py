"""The names of inputs and outputs of what is exported, and its signatures.

Callers match inputs and outputs by these names alone, and none ends in `_bytes`: TensorFlow Serving
would take such an output for base64. Imports nothing, so that what must stay light can use it.
"""

INPUT_NAMES = ("input_word_ids", "input_mask", "input_type_ids")
"""Of an encoder, in the order in which code unpacks them."""

OUTPUT_NAMES = ("sequence_output", "pooled_output", "default", "encoder_outputs")
"""Of an encoder that is called; `encoder_outputs` is a list, which signatures cannot return."""

POSITIONS = "masked_lm_positions"
"""The further input of a masked language model."""

_FILLED = ("pieces", "probabilities", "mask_positions", "num_masks", "num_masks_cut_off")

SERVING: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "serving_default": (("text",), ("pooled_output",)),
    "sequence_output": (("text",), ("sequence_output", "input_mask")),
    "from_ids": (INPUT_NAMES, ("pooled_output", "sequence_output")),
}
"""Of `ServingModule`: signature → (inputs, outputs)."""

MASKED_LM: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "serving_default": (
        (*INPUT_NAMES, POSITIONS),
        ("mlm_logits", "sequence_output", "pooled_output"),
    ),
    "fill_mask": (("text",), _FILLED),
    "fill_mask_top_k": (("text", "top_k"), _FILLED),
}
"""Of `MaskedLMModule`: signature → (inputs, outputs)."""
