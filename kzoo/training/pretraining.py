"""A pre-training run, from its configuration to its preset."""

import contextlib
import functools
import hashlib
import json
import os
import sys
from dataclasses import dataclass

import keras
import tensorflow as tf

from kzoo.config.schema import Config
from kzoo.corpora.examples import ExampleFiles
from kzoo.corpora.table import format_table
from kzoo.corpora.training_examples import TrainingExamples
from kzoo.errors import KzooError
from kzoo.layers.initializers import left_empty
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.storage.paths import is_remote
from kzoo.storage.remote import check_scheme, reason
from kzoo.training import initialization, parts
from kzoo.training.build import (
    build_data_stream,
    build_evaluation,
    build_model,
    build_optimizer,
    build_peak_share,
    build_schedule,
    build_training_examples,
    device_names,
    has_static_shapes,
    num_logical_cpus,
)
from kzoo.training.checkpoints import Checkpoints
from kzoo.training.cluster import (
    Cluster,
    is_of_another_worker,
    is_of_other_devices,
    why_collectives_ended,
)
from kzoo.training.known_vocabulary import KnownVocabulary
from kzoo.training.loop import Progressed, TrainingLoop, max_skipped_steps
from kzoo.training.loss_scale import DynamicLossScale
from kzoo.training.optimizer import AdamW
from kzoo.training.ready_examples import ready_examples
from kzoo.training.run_folder import CHECKPOINT_FOLDER, PRESET_FOLDER
from kzoo.training.run_preset import write_preset
from kzoo.training.shared_folder import check_shared_folder
from kzoo.training.step import TrainingStep
from kzoo.training.strategies import configure_runtime, make_strategy
from kzoo.training.writers import MetricWriter
from kzoo.training.written_config import write_config


def pretrain(config: Config, model_dir: str) -> None:
    """Trains a masked language model, or goes on where an earlier call was stopped.

    Leaves in `model_dir`: `config.yaml`, `checkpoints/`, `metrics.jsonl`, `tensorboard/` and, at
    the end, `preset/`.

    Raises:
        KzooError: the configuration does not fit the data, the machine or what is in `model_dir`;
            or the run cannot go on.
    """
    if is_remote(model_dir):
        check_scheme(model_dir)
    try:
        _pretrain(config, model_dir)
    except tf.errors.ResourceExhaustedError as error:
        raise KzooError(
            f"memory ran out: {reason(error)}. A higher trainer.accumulation_steps or"
            " runtime.recompute=true takes less and changes nothing else, as does a wider machine;"
            " else runtime.precision=mixed_bfloat16, a lower data.global_batch_size or"
            " data.sequence_length, or a smaller model"
        ) from error
    except tf.errors.OpError as error:
        if is_of_other_devices(error):
            raise KzooError(
                "the workers have different numbers of devices, and a step is shared out evenly: "
                "give each as many by runtime.devices or CUDA_VISIBLE_DEVICES"
            ) from error
        if not is_of_another_worker(error):
            raise
        gone = {
            "multi_worker_mirrored": "another worker has ended or cannot be reached",
            "tpu": "the TPU has ended or cannot be reached",
        }.get(config.runtime.strategy)
        if gone is None:
            raise
        raise KzooError(
            f"{gone} ({why_collectives_ended(error)}); its own output says why. Start all again "
            "with the same command: the run goes on from the last checkpoint"
        ) from error


def _pretrain(config: Config, model_dir: str) -> None:
    run = _set_up(config, model_dir)
    # Nothing is written to the folder, not even made, before all that can be wrong was looked at.
    run.cluster.chief_first(run.checkpoints.claim, f"use {model_dir}")
    check_shared_folder(run.cluster, os.path.join(model_dir, CHECKPOINT_FOLDER))
    state = run.checkpoints.restore_latest(run.variables)
    step = state["step"] if state else 0
    run.cluster.check_agreement(
        step,
        f"the newest checkpoint in {model_dir} that can be read",
        "the warnings above say what is wrong with others",
    )
    _check_vocabulary_of_run(state, run.examples, model_dir)
    begun_from = _begun_from(run, state)
    if step < config.trainer.train_steps or state.get("unmeasured"):
        step = _train(run, state, begun_from)
    elif run.cluster.is_chief:
        print(f"the run in {model_dir} is finished: it has made {step:,} steps")
    # On a finished run too, since a kill may have come between its last checkpoint and its preset.
    if step >= config.trainer.train_steps:
        run.cluster.chief_first(
            functools.partial(_finish, run, step, begun_from), "write the preset"
        )


def _finish(run: "_Run", step: int, begun_from: dict | None) -> None:
    preset = os.path.join(run.model_dir, PRESET_FOLDER)
    cache_dir = run.config.runtime.cache_dir
    write_preset(run.model, run.examples, preset, step, begun_from, cache_dir)
    print(f"finished {step:,} steps; the model is in {preset}")


@dataclass(frozen=True)
class _Run:
    """What a run consists of before its first step."""

    config: Config
    model_dir: str
    examples: ExampleFiles
    strategy: tf.distribute.Strategy
    cluster: Cluster
    model: RemBertMaskedLM
    optimizer: AdamW
    loss_scale: DynamicLossScale | None
    checkpoints: Checkpoints
    # None where weights are random, or will be those of the run's own checkpoint.
    beginning: initialization.Beginning | None

    @property
    def variables(self) -> list:
        """Everything that a checkpoint must hold."""
        scale = self.loss_scale.variables if self.loss_scale else []
        return [*self.model.variables, *self.optimizer.variables, *scale]


def _set_up(config: Config, model_dir: str) -> _Run:
    runtime = config.runtime
    configure_runtime(
        precision=runtime.precision,
        threads=runtime.threads,
        deterministic=runtime.deterministic,
        memory_growth=runtime.memory_growth,
        num_logical_cpus=num_logical_cpus(config),
    )
    # Before anything is computed: workers have to know of each other first.
    strategy = make_strategy(runtime.strategy, device_names(config), runtime.tpu)
    cluster = Cluster(strategy, config.trainer.stall_warning_seconds)
    _check_strategy(config, strategy)
    checkpoints = Checkpoints(
        os.path.join(model_dir, CHECKPOINT_FOLDER), config.trainer.keep_checkpoints
    )
    # A run that has begun goes on from its own checkpoint.
    start, known = None, None
    if checkpoints.steps():
        known = KnownVocabulary.of_run(config, model_dir, checkpoints)
    elif start := initialization.find(config, model_dir):
        known = KnownVocabulary.of_start(start)
    examples = _shared_examples(config, cluster, known)
    keras.utils.set_random_seed(config.data.seed)
    with strategy.scope(), left_empty() if start else contextlib.nullcontext():
        model = build_model(config)
        optimizer = build_optimizer(config, model)
        loss_scale = DynamicLossScale() if runtime.precision == "mixed_float16" else None
    beginning = None
    if start is not None:
        vocabulary = examples.vocabulary()
        beginning = initialization.initialize(start, config, model, optimizer, vocabulary)
    _check_same_beginning(cluster, model, optimizer, beginning)
    return _Run(
        config,
        model_dir,
        examples,
        strategy,
        cluster,
        model,
        optimizer,
        loss_scale,
        checkpoints,
        beginning,
    )


def _check_same_beginning(
    cluster: Cluster,
    model: RemBertMaskedLM,
    optimizer: AdamW,
    beginning: initialization.Beginning | None,
) -> None:
    """Refuses to train where workers have read different models: each has found it by itself."""
    if cluster.num_workers == 1:
        return
    digest = initialization.digest(model, optimizer, beginning) if beginning else 0
    cluster.check_agreement(
        digest,
        "the model that the run begins with (init_from.path)",
        "name a folder that all workers share. If that is of a run which is still training, a "
        "checkpoint may have come in between: start all workers again",
    )


def _begun_from(run: _Run, state: dict | None) -> dict | None:
    """What the run keeps on saying of the model that it has begun with, if it was one."""
    record = run.beginning.record if run.beginning else None
    if state is not None:
        record = state.get("begun_from")
    run.optimizer.updates_before = (record or {}).get("updates_before", 0)
    return record


def _shared_examples(
    config: Config, cluster: Cluster, known: KnownVocabulary | None
) -> ExampleFiles:
    """The examples of all workers, made by the chief where they are not there yet."""
    made = cluster.chief_first(lambda: ready_examples(config, known), "open the examples")
    examples = made or ready_examples(config, known)
    settings = json.dumps([config.model_dump(), examples.info.model_dump()], sort_keys=True)
    digest = hashlib.sha256(settings.encode()).digest()
    cluster.check_agreement(
        int.from_bytes(digest[:7]),
        "the configuration, or the examples that it names,",
        "start all workers with the same command, on the same files",
    )
    return examples


def _train(run: _Run, state: dict | None, begun_from: dict | None) -> int:
    """Trains from the state of a checkpoint on, and returns the steps made in all."""
    config = run.config
    start = Progressed.of(state) if state else Progressed()
    source = build_training_examples(config, run.examples)
    evaluation = None
    if config.trainer.validation_interval is not None:
        evaluation = build_evaluation(
            config,
            run.examples,
            source,
            run.model,
            run.strategy,
            run.cluster,
            # As much memory at a time as training takes.
            batch_size=config.data.global_batch_size // config.trainer.accumulation_steps,
        )
    with contextlib.ExitStack() as stack:
        writer = None
        if run.cluster.is_chief:
            write_config(config, run.model_dir)
            _describe_run(run, source, start)
            writer = stack.enter_context(MetricWriter(run.model_dir, start.step if state else None))
            if evaluation is not None and not state:
                writer.write(0, "held_out", evaluation.unigram_baseline())
        loop = TrainingLoop(
            TrainingStep(
                run.model,
                run.optimizer,
                run.strategy,
                seed=config.data.seed,
                accumulation_steps=config.trainer.accumulation_steps,
                loss_scale=run.loss_scale,
                max_skipped_steps=max_skipped_steps(config.trainer, start.nonfinite_steps),
                nonfinite_steps=start.nonfinite_steps,
                static_shapes=has_static_shapes(config),
                recompute=config.runtime.recompute,
                jit_compile=config.runtime.jit_compile,
            ),
            build_schedule(config),
            build_data_stream(config, source, run.cluster),
            cluster=run.cluster,
            variables=run.variables,
            run_state={
                "vocabulary_sha256": run.examples.info.vocabulary_sha256,
                **({"begun_from": begun_from} if begun_from else {}),
            },
            checkpoints=run.checkpoints,
            writer=writer,
            evaluation=evaluation,
            settings=config.trainer,
            peak_share=build_peak_share(config, run.cluster),
        )
        return loop.run(start)


def _check_strategy(config: Config, strategy: tf.distribute.Strategy) -> None:
    """Refuses what can be seen once the devices are known."""
    replicas, micro_batches = strategy.num_replicas_in_sync, config.trainer.accumulation_steps
    is_on_cpus = replicas > 1 and "CPU" in strategy.extended.worker_devices[0]
    if config.runtime.jit_compile and is_on_cpus:
        raise KzooError(
            "runtime.jit_compile: XLA cannot share a step out over parts of a CPU; leave it out, "
            "or take the strategy one_device"
        )
    if config.data.global_batch_size % (replicas * micro_batches):
        with_them = f" with {micro_batches} micro-batches each" if micro_batches > 1 else ""
        raise KzooError(
            f"data.global_batch_size: {config.data.global_batch_size} windows cannot be shared "
            f"evenly by the {replicas} devices of strategy {config.runtime.strategy}{with_them}; "
            f"set it to a multiple of {replicas * micro_batches}, or choose runtime.devices"
        )


def _check_vocabulary_of_run(state: dict | None, examples: ExampleFiles, model_dir: str) -> None:
    trained_with = (state or {}).get("vocabulary_sha256", examples.info.vocabulary_sha256)
    if trained_with != examples.info.vocabulary_sha256:
        raise KzooError(
            f"the examples in {examples.folder} were made with another vocabulary than the run in "
            f"{model_dir} was trained with: its ids would mean other pieces. Use the examples "
            "that the run began with, or another model_dir"
        )


def _describe_run(run: _Run, source: TrainingExamples, start: Progressed) -> None:
    """Says what is going to happen, before it does."""
    model, examples = run.model, run.examples
    rows = [("language", "sentences", "windows", "share of the batches")]
    for language, probability in source.language_probabilities.items():
        counts = (examples.sentences("train", language), examples.num_windows("train", language))
        rows.append((language, *(f"{count:,}" for count in counts), f"{probability:.2%}"))
    encoder = model.backbone.count_params()
    num_decayed = run.optimizer.num_decayed
    num_excluded = len(run.optimizer.trained) - num_decayed
    lines = [
        format_table(rows, names=1),
        f"model: {model.count_params():,} parameters, of which the exported encoder keeps "
        f"{encoder:,}",
        f"weight decay: {num_decayed} matrices; not {num_excluded} biases and layer normalisations",
        *parts.describe_training(model, run.optimizer.trained, run.config),
    ]
    if run.beginning and not start.step:
        lines.append(run.beginning.table)
    if run.strategy.num_replicas_in_sync > 1 or run.config.trainer.accumulation_steps > 1:
        lines.append(_sharing(run))
    if start.step:
        lines.append(
            f"resumed at step {start.step:,} of {run.config.trainer.train_steps:,}, with example "
            f"{start.position:,}"
        )
    print("\n".join(lines), file=sys.stderr)


def _sharing(run: _Run) -> str:
    """Who computes which part of a global batch."""
    config, cluster = run.config, run.cluster
    micro_batches = config.trainer.accumulation_steps
    shares = run.strategy.num_replicas_in_sync * micro_batches
    return (
        f"global batch of {config.data.global_batch_size:,}: {cluster.num_workers} workers with "
        f"{cluster.replicas_per_worker} replicas each, {micro_batches} micro-batches of "
        f"{config.data.global_batch_size // shares:,}; a worker takes consecutive examples"
    )
