"""Checks that compare keys with one another, or with the vocabulary, before any work."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from kzoo.config import part_names
from kzoo.config.schema import Config, Corpus, Data, InitFrom, Model, Optimizer, Runtime, Trainer
from kzoo.errors import KzooError

_LANGUAGE = re.compile(r"[A-Za-z0-9]+([_-][A-Za-z0-9]+)*")


@dataclass(frozen=True)
class Problem:
    """Keys that do not go together.

    Attributes:
        keys: the keys at fault, as `section.key`, the one to change first.
        text: what is wrong with the first of them.
    """

    keys: tuple[str, ...]
    text: str


def problems(config: Config) -> list[Problem]:
    """Everything that can be seen to be wrong without looking at any other file."""
    return [
        *_model(config.model),
        *_init_from(config.init_from),
        *_corpus(config.corpus, config.model),
        *_data(config.data, config.model),
        *_schedule(config.optimizer, config.trainer),
        *_frozen(config.optimizer, config.model),
        *_trainer(config.trainer),
        *_devices(config.runtime, config.data, config.trainer),
    ]


def check_sequence_length(config: Config, prepared: int, folder: str) -> None:
    """Checks a configuration against the examples that it names.

    Args:
        config: of the run.
        prepared: the length of their windows.
        folder: where they are, for the message.

    Raises:
        KzooError: `data.sequence_length` is another one.
    """
    if prepared != config.data.sequence_length:
        raise KzooError(
            f"data.sequence_length is {config.data.sequence_length}, but the examples in {folder} "
            f"were prepared with {prepared}; set it to {prepared}, or prepare others"
        )


def check_vocabulary(config: Config, num_pieces: int, path: str) -> None:
    """Checks the vocabulary against the model, once it is known.

    Args:
        config: the whole configuration.
        num_pieces: pieces of the vocabulary.
        path: where the vocabulary lies, for messages.

    Raises:
        KzooError: the table has fewer rows than there are pieces.
    """
    rows = config.model.vocabulary_size
    if num_pieces > rows:
        raise KzooError(
            f"model.vocabulary_size: {rows} rows are too few for the {num_pieces} pieces of the "
            f"vocabulary in {path}; set model.vocabulary_size to {num_pieces} or more"
        )


def _model(model: Model) -> Iterator[Problem]:
    if model.hidden_dim % model.num_heads:
        yield Problem(
            ("model.num_heads", "model.hidden_dim"),
            f"{model.num_heads} heads do not divide model.hidden_dim, {model.hidden_dim}",
        )


def _init_from(init_from: InitFrom) -> Iterator[Problem]:
    if init_from.path is None:
        for key, field in InitFrom.model_fields.items():
            if getattr(init_from, key) != field.default:
                yield Problem((f"init_from.{key}",), "has no effect without init_from.path")


def _corpus(corpus: Corpus, model: Model) -> Iterator[Problem]:
    yield from _files("corpus.train_files", corpus.train_files)
    yield from _files("corpus.held_out_files", corpus.held_out_files)
    both = ("corpus.held_out_files", "corpus.train_files")
    if corpus.held_out_files is not None:
        if corpus.train_files is None:
            yield Problem(both, "is given, but corpus.train_files is not")
        elif corpus.held_out_files == corpus.train_files:
            yield Problem(both, "are the training files; held-out text must be other text")
    if isinstance(corpus.train_files, dict) and isinstance(corpus.held_out_files, dict):
        for language in sorted(corpus.held_out_files.keys() - corpus.train_files.keys()):
            yield Problem(
                (f"corpus.held_out_files.{language}",), "a language that corpus.train_files lacks"
            )
    if corpus.vocabulary is None and (corpus.vocabulary_size or 0) > model.vocabulary_size:
        yield Problem(
            ("corpus.vocabulary_size", "model.vocabulary_size"),
            f"{corpus.vocabulary_size} pieces do not fit into the {model.vocabulary_size} rows of "
            "model.vocabulary_size",
        )


def _files(key: str, files: str | dict | None) -> Iterator[Problem]:
    if isinstance(files, str) and files.count("{lang}") != 1:
        yield Problem(
            (key,),
            f"{files!r} must hold {{lang}} exactly once, where file names hold the language; "
            "other names need a mapping from language to files",
        )
    for language, given in files.items() if isinstance(files, dict) else ():
        inner_key = f"{key}.{language}"
        if not _LANGUAGE.fullmatch(language):
            yield Problem(
                (inner_key,), f"{language!r} is no name of a language, such as en, zh-Hant or no"
            )
        for pattern in [given] if isinstance(given, str) else given:
            if "{lang}" in pattern:
                yield Problem(
                    (inner_key,), f"{pattern!r} must not hold {{lang}}, for its key is the language"
                )


def _data(data: Data, model: Model) -> Iterator[Problem]:
    if data.sequence_length > model.max_sequence_length:
        yield Problem(
            ("data.sequence_length", "model.max_sequence_length"),
            f"{data.sequence_length} pieces are more than model.max_sequence_length, "
            f"{model.max_sequence_length}",
        )
    room = data.sequence_length - 2
    if data.max_predictions is not None and data.max_predictions > room:
        yield Problem(
            ("data.max_predictions", "data.sequence_length"),
            f"{data.max_predictions} is more than the {room} pieces between [CLS] and [SEP]",
        )


def _schedule(optimizer: Optimizer, trainer: Trainer) -> Iterator[Problem]:
    needs_decay = optimizer.schedule == "warmup_stable_decay"
    decay_keys = ("optimizer.decay_steps", "optimizer.schedule")
    if needs_decay and optimizer.decay_steps is None:
        yield Problem(decay_keys, "warmup_stable_decay needs it")
    if not needs_decay and optimizer.decay_steps is not None:
        yield Problem(decay_keys, f"has no effect on the schedule {optimizer.schedule}")
    steps = optimizer.warmup_steps + (optimizer.decay_steps or 0)
    if steps > trainer.train_steps:
        with_decay = " with optimizer.decay_steps" if optimizer.decay_steps else ""
        yield Problem(
            ("optimizer.warmup_steps", "optimizer.decay_steps", "trainer.train_steps"),
            f"{steps} steps{with_decay} are more than trainer.train_steps, {trainer.train_steps}",
        )
    if optimizer.learning_rate * optimizer.weight_decay >= 1:
        yield Problem(
            ("optimizer.weight_decay", "optimizer.learning_rate"),
            f"{optimizer.weight_decay} times optimizer.learning_rate, {optimizer.learning_rate}, "
            "is 1 or more, which would leave nothing of the weights",
        )
    end_keys = ("optimizer.end_learning_rate", "optimizer.learning_rate")
    if optimizer.end_learning_rate > optimizer.learning_rate:
        yield Problem(
            end_keys,
            f"{optimizer.end_learning_rate} is above optimizer.learning_rate, "
            f"{optimizer.learning_rate}",
        )
    if optimizer.schedule == "constant" and optimizer.end_learning_rate:
        yield Problem((end_keys[0], "optimizer.schedule"), "has no effect on the schedule constant")


def _frozen(optimizer: Optimizer, model: Model) -> Iterator[Problem]:
    unknown = part_names.unknown(optimizer.frozen, model)
    for name in unknown:
        yield Problem(
            ("optimizer.frozen",),
            f"no part of this model is {name!r}; there are {part_names.in_words(model)}",
        )
    if not unknown and part_names.is_everything(optimizer.frozen, model):
        yield Problem(("optimizer.frozen",), "leaves nothing to train")


def _trainer(trainer: Trainer) -> Iterator[Problem]:
    keys = ("trainer.max_skipped_steps", "trainer.on_nonfinite")
    if trainer.on_nonfinite == "skip" and trainer.max_skipped_steps is None:
        yield Problem(keys, "trainer.on_nonfinite: skip needs it")
    if trainer.on_nonfinite != "skip" and trainer.max_skipped_steps is not None:
        yield Problem(keys, f"has no effect with trainer.on_nonfinite: {trainer.on_nonfinite}")


def _devices(runtime: Runtime, data: Data, trainer: Trainer) -> Iterator[Problem]:
    strategy, devices = runtime.strategy, runtime.devices
    if (runtime.tpu is None) == (strategy == "tpu"):
        yield Problem(
            ("runtime.tpu", "runtime.strategy"),
            "is needed by the strategy tpu: a name, an address or local"
            if runtime.tpu is None
            else f"has no effect on the strategy {strategy}",
        )
    keys = ("runtime.devices", "runtime.strategy")
    if strategy == "tpu" and devices is not None:
        yield Problem(keys, "has no effect on the strategy tpu, which takes all its cores")
    replicas = 1 if devices is None else devices if isinstance(devices, int) else len(devices)
    if strategy == "one_device" and replicas > 1:
        yield Problem(keys, f"{replicas} devices for the strategy one_device; mirrored takes more")
    if isinstance(devices, list) and len(set(devices)) < len(devices):
        yield Problem(keys, f"names a device twice: {', '.join(devices)}")
    if data.global_batch_size % (replicas * trainer.accumulation_steps):
        by = "trainer.accumulation_steps" if trainer.accumulation_steps > 1 else "runtime.devices"
        yield Problem(
            ("data.global_batch_size", by),
            f"{data.global_batch_size} windows cannot be shared evenly by {replicas} devices with "
            f"{trainer.accumulation_steps} micro-batches each",
        )
