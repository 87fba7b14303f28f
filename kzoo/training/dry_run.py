"""What a run would take, said before anything of it is done."""

import collections
import dataclasses
import json
import math
import os
import shutil
from collections.abc import Mapping

import tensorflow as tf

from kzoo.config.checks import check_sequence_length, check_vocabulary
from kzoo.config.schema import Config
from kzoo.corpora.dataset_info import INFO_FILE, DatasetInfo
from kzoo.corpora.masking import num_targets
from kzoo.corpora.mixture import language_probabilities
from kzoo.errors import KzooError
from kzoo.models.by_shape import build_by_shape
from kzoo.models.masked_lm import RemBertMaskedLM
from kzoo.models.parameter_counts import ParameterCounts, count_parameters
from kzoo.storage import files
from kzoo.storage.paths import clean, is_remote
from kzoo.storage.remote import reason
from kzoo.training import budget, initialization, parts
from kzoo.training.budget import Workload
from kzoo.training.build import num_logical_cpus, trained_variables
from kzoo.training.checkpoints import Checkpoints
from kzoo.training.dry_run_report import Data, Devices, Plan, Speed, report, report_of_steps
from kzoo.training.flops import peak_flops_per_second
from kzoo.training.memory import available_memory_bytes
from kzoo.training.run_folder import CHECKPOINT_FOLDER
from kzoo.training.strategies import configure_runtime
from kzoo.training.trial_step import measure_steps


@dataclasses.dataclass(frozen=True)
class Assumptions:
    """What a plan for other machines than this one says of them.

    Attributes:
        num_replicas: devices in all; None for what the configuration comes to here.
        peak_tflops: of one device, in 10¹² operations a second; None measures this machine's.
        utilization: share of the peak that the run reaches.
        memory_gigabytes: of one device; None for this machine's, if it has no GPU.
    """

    num_replicas: int | None = None
    peak_tflops: float | None = None
    utilization: float = 0.4
    memory_gigabytes: float | None = None


def dry_run(
    config: Config, model_dir: str, *, assumptions: Assumptions, num_steps: int = 0
) -> None:
    """Prints what a run would take of devices, memory, disk and time. Writes nothing.

    The model is not made, unless steps are asked for, and the examples need not be there.

    Args:
        config: of the run.
        model_dir: its folder, which need not be there.
        assumptions: of the machines.
        num_steps: real steps to take on made-up windows, to compare with; they need the devices
            and the memory of a run.

    Raises:
        KzooError: the batch cannot be shared out, the examples that are there or the model to
            begin with do not fit, or the steps cannot be taken.
    """
    runtime = config.runtime
    configure_runtime(
        precision=runtime.precision,
        threads=runtime.threads,
        deterministic=runtime.deterministic,
        memory_growth=runtime.memory_growth,
        num_logical_cpus=num_logical_cpus(config),
    )
    devices = _devices(config, assumptions)
    workload = workload_of(config, devices.num_replicas)
    _check_shares(config, devices)
    if not Checkpoints(os.path.join(model_dir, CHECKPOINT_FOLDER)).steps():
        initialization.find(config, model_dir)
    counts = parameter_counts(config)
    plan = Plan(
        workload=workload,
        counts=counts,
        memory=budget.memory(workload, counts),
        devices=devices,
        speed=_speed(config, assumptions, devices),
        data=_data(config),
        train_steps=config.trainer.train_steps,
        checkpoints_kept=config.trainer.keep_checkpoints + config.trainer.keep_best,
        free_disk_bytes=_free_disk_bytes(model_dir),
    )
    print(report(plan), flush=True)
    if num_steps:
        _take_steps(config, plan, num_steps)


def parameter_counts(config: Config) -> ParameterCounts:
    """The parameters of a run's model, which has no dense pooler: see `build_model`."""
    return count_parameters(**{**config.model.model_dump(exclude={"preset"}), "pooler": None})


def workload_of(config: Config, num_replicas: int) -> Workload:
    """The step of a run, with as many replicas."""
    model, data = config.model, config.data
    tied = model.output_embedding_dim == "tied"
    by_shape = _model_by_shape(config)
    trained = trained_variables(config, by_shape)
    return Workload(
        vocabulary_size=model.vocabulary_size,
        num_layers=model.num_layers,
        num_heads=model.num_heads,
        hidden_dim=model.hidden_dim,
        intermediate_dim=model.intermediate_dim,
        embedding_dim=model.embedding_dim,
        output_embedding_dim=model.embedding_dim if tied else model.output_embedding_dim,
        sequence_length=data.sequence_length,
        max_predictions=num_targets(data.sequence_length - 2, data.mask_rate, data.max_predictions),
        global_batch_size=data.global_batch_size,
        num_replicas=num_replicas,
        accumulation_steps=config.trainer.accumulation_steps,
        compute_bytes=4 if config.runtime.precision == "float32" else 2,
        dropout=model.dropout > 0,
        attention_dropout=model.attention_dropout > 0,
        recompute=config.runtime.recompute,
        trained_parameters=sum(math.prod(variable.shape) for variable in trained),
        num_untouched_layers=parts.num_untouched_layers(by_shape, trained),
        output_table_is_trained=any(variable is by_shape.head.table for variable in trained),
    )


def _model_by_shape(config: Config) -> RemBertMaskedLM:
    """The model of a run, without memory for its weights: see `build_model`."""
    arguments = config.model.model_dump(exclude={"preset", "output_embedding_dim"})
    return build_by_shape({**arguments, "pooler": "mean"}, config.model.output_embedding_dim)


def _devices(config: Config, assumptions: Assumptions) -> Devices:
    """The devices of the run. No strategy is made: it would wait for other workers, or a TPU."""
    strategy, given = config.runtime.strategy, config.runtime.devices
    gpus = len(tf.config.list_physical_devices("GPU"))
    hosts = _workers_of_hosts() if strategy == "multi_worker_mirrored" else {}
    num_workers = max(1, sum(hosts.values()))
    if strategy == "tpu" and assumptions.num_replicas is None:
        raise KzooError(
            "how many cores the TPU has is known to itself alone, and a dry run does not ask it: "
            "say --replicas=8, or as many as there are"
        )
    if strategy == "one_device":
        local = 1
    elif given is None:
        local = max(1, gpus)
    else:
        local = given if isinstance(given, int) else len(given)
    num_replicas = assumptions.num_replicas or local * num_workers
    return Devices(
        strategy=strategy,
        num_replicas=num_replicas,
        num_workers=num_workers,
        # Parts of one CPU are no devices of their own.
        num_processors=num_replicas if gpus or assumptions.num_replicas else num_workers,
        has_gpu=gpus > 0,
        memory_bytes=_device_memory_bytes(
            assumptions, gpus, sharing=local * max(hosts.values(), default=1)
        ),
    )


def _workers_of_hosts() -> Mapping[str, int]:
    """How many workers `TF_CONFIG` names on each machine."""
    try:
        cluster = json.loads(os.environ.get("TF_CONFIG") or "{}").get("cluster", {})
        addresses = [address for job in ("chief", "worker") for address in cluster.get(job, ())]
        return collections.Counter(address.rpartition(":")[0] for address in addresses)
    except (ValueError, AttributeError, TypeError) as error:
        raise KzooError(f"TF_CONFIG cannot be read: {error}") from error


def _device_memory_bytes(assumptions: Assumptions, gpus: int, sharing: int) -> float | None:
    """The memory of one device; parts of a CPU, in all processes of a machine, share its own."""
    if assumptions.memory_gigabytes is not None:
        return 1e9 * assumptions.memory_gigabytes
    if gpus or assumptions.num_replicas is not None:
        return None
    available = available_memory_bytes()
    return available / sharing if available else None


def _check_shares(config: Config, devices: Devices) -> None:
    parts = devices.num_replicas * config.trainer.accumulation_steps
    if config.data.global_batch_size % parts:
        raise KzooError(
            f"data.global_batch_size: {config.data.global_batch_size} windows cannot be shared "
            f"evenly by {devices.num_replicas} replicas with "
            f"{config.trainer.accumulation_steps} micro-batches each; set it to a multiple of "
            f"{parts}"
        )


def _speed(config: Config, assumptions: Assumptions, devices: Devices) -> Speed:
    if assumptions.peak_tflops is not None:
        return Speed(1e12 * assumptions.peak_tflops, assumptions.utilization, is_measured=False)
    dtype = {"mixed_bfloat16": "bfloat16", "mixed_float16": "float16"}.get(
        config.runtime.precision, "float32"
    )
    return Speed(peak_flops_per_second(dtype), assumptions.utilization, is_measured=True)


def _data(config: Config) -> Data | None:
    """The mixture of the examples; None where they are not there yet."""
    folder = clean(config.data.examples)
    if not files.exists(os.path.join(folder, INFO_FILE)):
        return None
    # Of remote examples too, this one small file says enough.
    info = DatasetInfo.load(folder)
    check_sequence_length(config, info.settings.sequence_length, folder)
    check_vocabulary(config, info.vocabulary_size, folder)
    languages = info.splits["train"]
    sentences = {name: info.sentences for name, info in languages.items()}
    return Data(
        language_probabilities(sentences, config.data.sampling_exponent),
        {name: info.windows for name, info in languages.items()},
        {name: info.tokens for name, info in languages.items()},
    )


def _free_disk_bytes(model_dir: str) -> int | None:
    """Room on the disk that the folder is or will be on; None on object storage."""
    if is_remote(model_dir):
        return None
    folder = os.path.abspath(model_dir)
    while not os.path.isdir(folder):
        folder = os.path.dirname(folder)
    return shutil.disk_usage(folder).free


def _take_steps(config: Config, plan: Plan, num_steps: int) -> None:
    try:
        measured = measure_steps(config, plan.workload, num_steps)
    except tf.errors.ResourceExhaustedError as error:
        raise KzooError(
            f"memory ran out in a step: {reason(error)}. A higher "
            "trainer.accumulation_steps needs less"
        ) from error
    print(report_of_steps(plan, measured))
