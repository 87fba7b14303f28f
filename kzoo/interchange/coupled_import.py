"""A BERT or an XLM-R in a folder of Hugging Face, as a source for a model with two tables."""

import os

from kzoo.errors import KzooError
from kzoo.interchange.coupled_config import XLM_ROBERTA
from kzoo.interchange.coupled_models import decouple
from kzoo.interchange.hugging_face_files import CONFIG_FILE, open_weights, read_config
from kzoo.interchange.hugging_face_names import hugging_face_name
from kzoo.interchange.source_model import SourceModel
from kzoo.interchange.xlm_roberta_vocabulary import MODEL_FILE, convert_vocabulary
from kzoo.text.vocabulary import Vocabulary

_WORD_PIECES = "vocab.txt"

_TASK_HEAD = "the head of a model that was fine-tuned for a task"
_IGNORED = {
    "*embeddings.position_ids": "the numbers 0, 1, 2, … of old versions",
    "cls.seq_relationship.*": "the head that told whether one sentence followed another",
    "classifier.*": _TASK_HEAD,
    "qa_outputs.*": _TASK_HEAD,
}


def open_coupled(folder: str, family: str, vocabulary: Vocabulary | None = None) -> SourceModel:
    """Finds a model in `config.json`, its files of weights, and XLM-R's vocabulary.

    Args:
        folder: of these.
        family: "bert" or "xlm_roberta".
        vocabulary: with the ids of the model; used in the place of `sentencepiece.bpe.model`.

    Raises:
        KzooError: a file is missing or is not what it should be.
    """
    path = os.path.join(folder, CONFIG_FILE)
    model = decouple(read_config(folder), open_weights(folder), family, folder)
    arguments, weights, notes = model.arguments, model.weights, model.notes
    vocabulary_file = os.path.join(folder, MODEL_FILE)
    if vocabulary is not None:
        pass
    elif family == XLM_ROBERTA and os.path.isfile(vocabulary_file):
        num_rows = arguments["vocabulary_size"]
        converted = convert_vocabulary(_read(vocabulary_file), vocabulary_file, num_rows)
        vocabulary = converted.vocabulary
        arguments = {**arguments, "vocabulary_size": converted.change.size}
        weights = converted.change.apply(weights, hugging_face_name, num_rows)
        notes = [
            *notes,
            "XLM-R's <s>, </s> and <mask> are [CLS], [SEP] and [MASK], under their ids; kzoo's "
            "</s>, which nothing gives, is a new row behind all others, a copy of [SEP]'s",
        ]
    elif os.path.isfile(os.path.join(folder, _WORD_PIECES)):
        notes = [
            *notes,
            f"{_WORD_PIECES} is left out: word pieces are cut by other rules than SentencePiece's, "
            "so no SentencePiece model gives their ids; texts have to be encoded elsewhere",
        ]
    return SourceModel(
        arguments=arguments,
        output_embedding_dim=model.output_embedding_dim,
        weights=weights,
        where=path,
        name_of=hugging_face_name,
        transpose=True,
        ignored=_IGNORED,
        vocabulary=vocabulary,
        notes=notes,
    )


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise KzooError(f"cannot read {path}: {error.strerror}") from error
