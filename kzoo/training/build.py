"""The parts of a run, each built from its configuration."""

from collections.abc import Callable

import keras
import tensorflow as tf

from kzoo.config import part_names
from kzoo.config.schema import Config
from kzoo.corpora.batching import padding_sizes
from kzoo.corpora.examples import ExampleFiles
from kzoo.corpora.held_out_examples import HeldOutExamples
from kzoo.corpora.pipeline import batches
from kzoo.corpora.training_examples import TrainingExamples
from kzoo.models.backbone import RemBertBackbone
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.training import parts
from kzoo.training.cluster import Cluster
from kzoo.training.evaluation import Evaluation
from kzoo.training.flops import peak_flops_per_second, training_flops
from kzoo.training.loop import DataStream
from kzoo.training.optimizer import AdamW, decayed_variables
from kzoo.training.schedules import learning_rate_schedule
from kzoo.training.step import trainable_weights


def build_model(config: Config) -> RemBertMaskedLM:
    """The model that a configuration describes, with new weights.

    The masked-LM loss trains no pooler, so a `dense` one would stay random for ever: a run's model
    has `mean` in its place, which has no weights. Fine-tuning can add a dense one.
    """
    arguments = config.model.model_dump(exclude={"preset", "output_embedding_dim"})
    if arguments["pooler"] == "dense":
        arguments["pooler"] = "mean"
    return RemBertMaskedLM(RemBertBackbone(**arguments), config.model.output_embedding_dim)


def trained_variables(config: Config, model: RemBertMaskedLM) -> list[keras.Variable]:
    """The weights that a run trains: those that the loss reaches and that are not frozen."""
    frozen = part_names.simple_parts(config.optimizer.frozen, config.model)
    return parts.trained_variables(model, trainable_weights(model), frozen)


def build_optimizer(config: Config, model: RemBertMaskedLM) -> AdamW:
    """The optimizer of a model's weights that are not frozen, with new slots."""
    settings = config.optimizer
    trained = trained_variables(config, model)
    return AdamW(
        trained,
        decayed_variables(model),
        rate_factors=parts.rate_factors(model, trained, settings.layer_decay),
        beta_1=settings.beta_1,
        beta_2=settings.beta_2,
        epsilon=settings.epsilon,
        weight_decay=settings.weight_decay,
        clip_norm=settings.clip_norm,
    )


def num_logical_cpus(config: Config) -> int | None:
    """How many devices the CPU is split into: where several were asked for and no GPU is there."""
    devices = config.runtime.devices
    if isinstance(devices, int) and not tf.config.list_physical_devices("GPU"):
        return devices
    return None


def device_names(config: Config) -> list[str] | None:
    """The names of the devices that were asked for; None where TensorFlow chooses."""
    devices = config.runtime.devices
    if isinstance(devices, int):
        kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
        return [f"{kind}:{index}" for index in range(devices)]
    return devices


def build_schedule(config: Config) -> Callable[[int], float]:
    settings = config.optimizer
    return learning_rate_schedule(
        settings.schedule,
        peak=settings.learning_rate,
        train_steps=config.trainer.train_steps,
        warmup_steps=settings.warmup_steps,
        decay_steps=settings.decay_steps,
        end=settings.end_learning_rate,
    )


def build_training_examples(config: Config, examples: ExampleFiles) -> TrainingExamples:
    return TrainingExamples(
        examples,
        sequence_length=config.data.sequence_length,
        sampling_exponent=config.data.sampling_exponent,
        mask_rate=config.data.mask_rate,
        max_predictions=config.data.max_predictions,
        whole_word_masking=config.data.whole_word_masking,
        seed=config.data.seed,
    )


def has_static_shapes(config: Config) -> bool:
    """Whether every batch must have the same shapes: what XLA compiles, it compiles for a shape."""
    return config.runtime.jit_compile or config.runtime.strategy == "tpu"


def build_data_stream(config: Config, source: TrainingExamples, cluster: Cluster) -> DataStream:
    length = config.data.sequence_length

    def batches_from(position: int):
        return batches(
            source,
            start=position,
            global_batch_size=config.data.global_batch_size,
            worker=cluster.index,
            num_workers=cluster.num_workers,
            num_shares=cluster.replicas_per_worker,
            pad_to=None if has_static_shapes(config) else padding_sizes(length),
        )

    return DataStream(batches_from, source.describe, config.data.global_batch_size)


def build_evaluation(
    config: Config,
    examples: ExampleFiles,
    source: TrainingExamples,
    model: RemBertMaskedLM,
    strategy: tf.distribute.Strategy,
    cluster: Cluster,
    batch_size: int,
) -> Evaluation | None:
    """The measurement on held-out text, if there is any.

    Args:
        config, examples, source, model, strategy, cluster: of the run.
        batch_size: windows at a time, a multiple of the replicas; it changes nothing else.
    """
    languages = examples.languages("held_out")
    if not languages:
        return None
    limit = None
    if config.trainer.validation_steps is not None:
        windows = config.trainer.validation_steps * config.data.global_batch_size
        limit = max(1, windows // len(languages))
    held_out = HeldOutExamples(
        examples,
        sequence_length=config.data.sequence_length,
        limit=limit,
        mask_rate=config.data.mask_rate,
        max_predictions=config.data.max_predictions,
        whole_word_masking=config.data.whole_word_masking,
        seed=config.data.seed,
    )
    return Evaluation(
        model,
        examples,
        held_out,
        source.language_probabilities,
        strategy,
        cluster,
        batch_size=batch_size,
        static_shapes=has_static_shapes(config),
    )


def build_peak_share(
    config: Config, cluster: Cluster
) -> Callable[[float, float, float], float] | None:
    """From positions, targets and seconds to the share of what the devices could do at best.

    None for a TPU, whose peak cannot be measured from its host.
    """
    if config.runtime.strategy == "tpu":
        return None
    model, sequence_length = config.model, config.data.sequence_length
    dtype = {"mixed_bfloat16": "bfloat16", "mixed_float16": "float16"}.get(
        config.runtime.precision, "float32"
    )
    # Parts of one CPU are no devices of their own.
    gpus = max(1, len(tf.config.list_physical_devices("GPU")))
    devices = min(cluster.replicas_per_worker, gpus) * cluster.num_workers
    tied = model.output_embedding_dim == "tied"

    def share(num_positions: float, num_targets: float, seconds: float) -> float:
        flops = training_flops(
            num_tokens=num_positions,
            num_targets=num_targets,
            sequence_length=sequence_length,
            num_layers=model.num_layers,
            hidden_dim=model.hidden_dim,
            intermediate_dim=model.intermediate_dim,
            embedding_dim=model.embedding_dim,
            output_embedding_dim=model.embedding_dim if tied else model.output_embedding_dim,
            vocabulary_size=model.vocabulary_size,
        )
        return flops / seconds / (devices * peak_flops_per_second(dtype))

    return share
