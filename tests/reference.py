"""Weights of the reference models, put into ours by names alone."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

from kzoo.interchange.hugging_face_names import hugging_face_name
from kzoo.models.backbone import RemBertBackbone
from kzoo.models.masked_lm import RemBertMaskedLM


def hugging_face_model(folder: Path, **changes) -> RemBertMaskedLM:
    """A model of the shape of `folder/config.json`, with fresh weights."""
    config = json.loads((folder / "config.json").read_text())
    arguments = {
        "vocabulary_size": config["vocab_size"],
        "num_layers": config["num_hidden_layers"],
        "num_heads": config["num_attention_heads"],
        "hidden_dim": config["hidden_size"],
        "intermediate_dim": config["intermediate_size"],
        "embedding_dim": config["input_embedding_size"],
        "max_sequence_length": config["max_position_embeddings"],
        "num_segments": config["type_vocab_size"],
        "layer_norm_epsilon": config["layer_norm_eps"],
        "project_embeddings": True,
    }
    backbone = RemBertBackbone(**{**arguments, **changes})
    return RemBertMaskedLM(backbone, config["output_embedding_size"])


def hugging_face_weights_into(model: RemBertMaskedLM, folder: Path) -> None:
    """Assigns every variable of `model` from `folder/model.safetensors`; none may be left over."""
    tensors = load_file(folder / "model.safetensors")
    for variable in model.variables:
        value = tensors.pop(hugging_face_name(variable.path))
        variable.assign(value.T if variable.path.endswith("/kernel") else value)
    assert not tensors, f"unused: {sorted(tensors)}"


def random_weights_into(model, seed: int = 0, scale: float = 0.1) -> None:
    """Weights that hide nothing: no zero bias, no LayerNorm that is the identity."""
    random = np.random.default_rng(seed)
    for variable in model.variables:
        value = random.normal(0, scale, variable.shape)
        variable.assign(value + 1 if variable.path.endswith("/gamma") else value)


def random_inputs(
    vocabulary_size: int, lengths: list[int], length: int, predictions: int = 0, seed: int = 0
) -> dict[str, np.ndarray]:
    """Rows of random ids and segments, each with its number of tokens."""
    random = np.random.default_rng(seed)
    shape = (len(lengths), length)
    inputs = {
        "token_ids": random.integers(0, vocabulary_size, shape, dtype=np.int32),
        "padding_mask": (np.arange(length) < np.array(lengths)[:, None]).astype(np.int32),
        "segment_ids": random.integers(0, 2, shape, dtype=np.int32),
    }
    if predictions:
        positions = random.integers(0, length, (len(lengths), predictions), dtype=np.int32)
        inputs["mask_positions"] = np.sort(positions, axis=1)
    return inputs
