"""A RemBERT in a folder of Hugging Face, as a source for ours."""

import os

from kzoo.interchange.hugging_face_config import read_shape
from kzoo.interchange.hugging_face_files import CONFIG_FILE, open_weights, read_config
from kzoo.interchange.hugging_face_names import hugging_face_name
from kzoo.interchange.source_model import SourceModel
from kzoo.text.vocabulary import MODEL_FILE, Vocabulary

_PREFIX = "rembert."
# What the names of a bare `RemBertModel` begin with.
_WITHOUT_PREFIX = ("embeddings.", "encoder.", "pooler.")

_TASK_HEAD = "the head of a model that was fine-tuned for a task"
_IGNORED = {
    "rembert.embeddings.position_ids": "the numbers 0, 1, 2, … of old versions",
    "classifier.*": _TASK_HEAD,
    "qa_outputs.*": _TASK_HEAD,
}

# Key of config.json → attribute of `Vocabulary`.
_SPECIAL_IDS = {"pad_token_id": "pad_id", "bos_token_id": "cls_id", "eos_token_id": "sep_id"}


def open_hugging_face(folder: str, vocabulary: Vocabulary | None = None) -> SourceModel:
    """Finds a model in `config.json`, one or more files of weights, and `sentencepiece.model`.

    Args:
        folder: of the three.
        vocabulary: used in the place of `sentencepiece.model`.

    Raises:
        KzooError: a file is missing or is not what it should be.
    """
    path = os.path.join(folder, CONFIG_FILE)
    config = read_config(folder)
    shape = read_shape(config, path)
    vocabulary_file = os.path.join(folder, MODEL_FILE)
    if vocabulary is None and os.path.isfile(vocabulary_file):
        vocabulary = Vocabulary.load(vocabulary_file)
    notes = [] if vocabulary is None else _differing_ids(config, path, vocabulary)
    return SourceModel(
        arguments=shape.arguments,
        output_embedding_dim=shape.output_embedding_dim,
        weights=open_weights(folder).renamed(_with_prefix),
        where=path,
        name_of=hugging_face_name,
        transpose=True,
        ignored=_IGNORED,
        vocabulary=vocabulary,
        notes=notes,
    )


def special_ids(vocabulary: Vocabulary) -> dict[str, int]:
    """The ids that a `config.json` has, under its keys."""
    return {key: getattr(vocabulary, attribute) for key, attribute in _SPECIAL_IDS.items()}


def _with_prefix(name: str) -> str:
    return _PREFIX + name if name.startswith(_WITHOUT_PREFIX) else name


def _differing_ids(config: dict, path: str, vocabulary: Vocabulary) -> list[str]:
    return [
        f"{path} says {key}={config[key]}; in {vocabulary.source} it is {index}, which counts"
        for key, index in special_ids(vocabulary).items()
        if config.get(key, index) not in (index, None)
    ]
