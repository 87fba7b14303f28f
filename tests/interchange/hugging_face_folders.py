"""Folders as Hugging Face writes them, of a small RemBERT with random weights.

The shape is uneven on purpose: what is swapped or transposed does not fit.
"""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path

import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

CONFIG = {
    "architectures": ["RemBertForMaskedLM"],
    "model_type": "rembert",
    "vocab_size": 617,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "hidden_size": 48,
    "intermediate_size": 80,
    "input_embedding_size": 16,
    "output_embedding_size": 40,
    "max_position_embeddings": 32,
    "type_vocab_size": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "classifier_dropout_prob": 0.1,
    "initializer_range": 0.02,
    "layer_norm_eps": 1e-12,
    "pad_token_id": 0,
    "bos_token_id": 3,
    "eos_token_id": 4,
    "torch_dtype": "float32",
    "transformers_version": "4.57.1",
    "use_cache": True,
}
HEAD = "cls.predictions."
POOLER = "rembert.pooler."


def tensors(seed: int = 0) -> dict[str, np.ndarray]:
    """The state dict of a `RemBertForMaskedLM`, and a pooler."""
    width, narrow, wide = 48, 16, 40
    dense = {
        "rembert.encoder.embedding_hidden_mapping_in": (width, narrow),
        "rembert.pooler.dense": (width, width),
        "cls.predictions.dense": (wide, width),
        "cls.predictions.decoder": (617, wide),
    }
    norms = {"rembert.embeddings.LayerNorm": narrow, "cls.predictions.LayerNorm": wide}
    for layer in range(3):
        stem = f"rembert.encoder.layer.{layer}."
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            dense[f"{stem}attention.{name}"] = (width, width)
        dense |= {f"{stem}intermediate.dense": (80, width), f"{stem}output.dense": (width, 80)}
        norms |= {f"{stem}attention.output.LayerNorm": width, f"{stem}output.LayerNorm": width}
    shapes = {
        "rembert.embeddings.word_embeddings.weight": (617, narrow),
        "rembert.embeddings.position_embeddings.weight": (32, narrow),
        "rembert.embeddings.token_type_embeddings.weight": (2, narrow),
    }
    for name, shape in dense.items():
        shapes |= {f"{name}.weight": shape, f"{name}.bias": shape[:1]}
    for name, size in norms.items():
        shapes |= {f"{name}.weight": (size,), f"{name}.bias": (size,)}
    random = np.random.default_rng(seed)
    return {name: random.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}


def without(state: Mapping[str, np.ndarray], *beginnings: str) -> dict[str, np.ndarray]:
    """The tensors whose names begin otherwise."""
    return {name: value for name, value in state.items() if not name.startswith(beginnings)}


def bare(state: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As a file of a `RemBertModel` has them: no head, no prefix."""
    kept = without(state, HEAD)
    return {name.removeprefix("rembert."): value for name, value in kept.items()}


def as_type(state: Mapping[str, np.ndarray], kind: str) -> dict[str, np.ndarray]:
    """In another type: F16 or BF16."""
    dtype = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16}[kind]
    return {name: value.astype(dtype) for name, value in state.items()}


def write_config(folder: Path, **changes) -> Path:
    """Writes `config.json`; a value of None leaves the key out."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {key: value for key, value in {**CONFIG, **changes}.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def write_folder(folder: Path, state: Mapping[str, np.ndarray], **changes) -> Path:
    """Writes `config.json` and `model.safetensors`."""
    write_config(folder, **changes)
    save_file(dict(state), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_sharded(folder: Path, state: Mapping[str, np.ndarray], shards: int = 3) -> Path:
    """Writes `config.json`, shards and their index."""
    write_config(folder)
    weight_map = {}
    for number in range(shards):
        name = f"model-{number + 1:05}-of-{shards:05}.safetensors"
        names = list(state)[number::shards]
        save_file({name: state[name] for name in names}, folder / name)
        weight_map |= dict.fromkeys(names, name)
    index = {"metadata": {}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


_STORAGES = {"float32": "FloatStorage", "float16": "HalfStorage", "bfloat16": "BFloat16Storage"}


def write_pickled(path: Path, state: Mapping[str, np.ndarray], **changes: bytes) -> None:
    """Writes a zip archive as `torch.save` does, without PyTorch.

    Args:
        path: of the file.
        state: the tensors.
        changes: content of `data_pkl` or of a storage `data_N`, in the place of the true one.
    """
    members = {"data.pkl": _pickle_of(state), "byteorder": b"little", "version": b"3\n"}
    for index, value in enumerate(state.values()):
        members[f"data/{index}"] = value.tobytes()
    for name, content in changes.items():
        members[name.replace("data_pkl", "data.pkl").replace("data_", "data/")] = content
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(f"archive/{name}", content)


def _pickle_of(state: Mapping[str, np.ndarray]) -> bytes:
    def text(value: str) -> bytes:
        return b"X" + len(value.encode()).to_bytes(4, "little") + value.encode()

    def number(value: int) -> bytes:
        return b"J" + value.to_bytes(4, "little")

    def numbers(values) -> bytes:
        return b"(" + b"".join(map(number, values)) + b"t"

    program = b"\x80\x02ccollections\nOrderedDict\n)R("
    for index, (name, value) in enumerate(state.items()):
        kind = {"int64": "LongStorage", **_STORAGES}[str(value.dtype)]
        strides = [stride // value.itemsize for stride in value.strides]
        storage = f"ctorch\n{kind}\n".encode() + text(str(index)) + text("cpu") + number(value.size)
        program += text(name) + b"ctorch._utils\n_rebuild_tensor_v2\n(("
        program += text("storage") + storage + b"tQ" + number(0)
        program += numbers(value.shape) + numbers(strides)
        program += b"\x89ccollections\nOrderedDict\n)RtR"
    return program + b"u."
