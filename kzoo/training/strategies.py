"""On which devices a run computes, and with which settings of TensorFlow's runtime."""

import re
from collections.abc import Sequence

import keras
import tensorflow as tf

from kzoo.errors import KzooError
from kzoo.storage.remote import reason
from kzoo.training.cluster import check_tf_config, own_address
from kzoo.training.worker_strategy import worker_strategy

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")

# What this process computes on. Two strategy objects in one process would collide in their
# collectives.
_made: tuple[tuple, tf.distribute.Strategy] | None = None


def configure_runtime(
    *,
    precision: str = "float32",
    threads: int | None = None,
    deterministic: bool = True,
    memory_growth: bool = True,
    num_logical_cpus: int | None = None,
) -> None:
    """Sets up TensorFlow and Keras; call it before anything is computed.

    Args:
        precision: Keras's dtype policy, of `PRECISIONS`.
        threads: how many threads share the work of one operation; None for all cores.
        deterministic: whether equal runs give equal bits. Random operations then need seeds, and
            some operations are slower on a GPU.
        memory_growth: whether TensorFlow takes GPU memory as it needs it. Otherwise the first
            process takes all memory of every GPU that it sees, in one piece.
        num_logical_cpus: split the CPU into so many devices, to try a strategy without GPUs.

    Raises:
        KzooError: if the precision is unknown, or TensorFlow has already set up its devices in
            another way.
    """
    if precision not in PRECISIONS:
        raise KzooError(f"unknown precision {precision!r}; choose of {', '.join(PRECISIONS)}")
    keras.config.set_dtype_policy(precision)
    try:
        if threads is not None:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
        if num_logical_cpus is not None:
            tf.config.set_logical_device_configuration(
                tf.config.list_physical_devices("CPU")[0],
                [tf.config.LogicalDeviceConfiguration()] * num_logical_cpus,
            )
        for gpu in tf.config.list_physical_devices("GPU"):
            tf.config.experimental.set_memory_growth(gpu, memory_growth)
    except RuntimeError as error:
        raise KzooError(
            f"threads and devices cannot be set once TensorFlow has used a device ({error}); "
            "configure the runtime first, in a new process"
        ) from error
    if deterministic:
        tf.config.experimental.enable_op_determinism()


def make_strategy(
    name: str, devices: Sequence[str] | None = None, tpu: str | None = None
) -> tf.distribute.Strategy:
    """The strategy of this process; asked again for the same, the same object.

    Args:
        name: `one_device`; `mirrored` for synchronous replicas on several devices;
            `multi_worker_mirrored` for such replicas in several processes, which `TF_CONFIG`
            names; `tpu` for the cores of a TPU.
        devices: such as `["GPU:0", "GPU:1"]`. None: for `one_device`, where TensorFlow places
            operations by itself, which is the first GPU if there is one; for the mirrored ones,
            all GPUs of this process, or without any, all its logical CPUs.
        tpu: name or gRPC address of a TPU, or `local` for the one of this machine (a TPU VM).

    Raises:
        KzooError: if the name or a device is unknown, the process has another strategy, or the
            TPU does not answer.
    """
    global _made
    if name not in _STRATEGIES:
        raise KzooError(f"unknown strategy {name!r}; choose of {', '.join(_STRATEGIES)}")
    wanted = (name, tuple(devices or ()), tpu)
    if _made is None:
        _made = (wanted, _STRATEGIES[name](*wanted[1:]))
    elif _made[0] != wanted:
        raise KzooError(
            f"this process computes with strategy {_made[0][0]!r} and cannot change to {name!r} "
            f"on devices {list(wanted[1])}; use a process for each"
        )
    return _made[1]


def _one_device(devices: tuple[str, ...], _tpu: str | None) -> tf.distribute.Strategy:
    if len(devices) > 1:
        raise KzooError(f"strategy 'one_device' takes one device; received {list(devices)}")
    _check_devices(devices)
    return tf.distribute.OneDeviceStrategy(devices[0]) if devices else tf.distribute.get_strategy()


def _mirrored(devices: tuple[str, ...], _tpu: str | None) -> tf.distribute.Strategy:
    _check_devices(devices)
    return tf.distribute.MirroredStrategy(devices or _device_names("GPU") or _device_names("CPU"))


def _multi_worker_mirrored(devices: tuple[str, ...], _tpu: str | None) -> tf.distribute.Strategy:
    check_tf_config()
    # Looking at logical devices would start TensorFlow's runtime before it knows its cluster.
    names = [_short_name(device) for device in devices]
    gpus = len(tf.config.list_physical_devices("GPU"))
    absent = [name for name in names if not re.fullmatch(r"CPU:\d+", name)]
    absent = [name for name in absent if name not in {f"GPU:{index}" for index in range(gpus)}]
    if absent:
        raise KzooError(f"no such device: {', '.join(absent)}; this worker has {gpus} GPUs")
    try:
        return worker_strategy(names)
    except tf.errors.UnknownError as error:
        # That of its own server; of other workers, which do not come, it reports other errors.
        raise KzooError(
            f"this worker cannot listen at {own_address()}, its address in TF_CONFIG "
            f"({reason(error)}): the port may be another program's. Choose a free one, on all "
            "workers"
        ) from error


def _tpu(_devices: tuple[str, ...], tpu: str | None) -> tf.distribute.Strategy:
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=tpu)
        if tpu != "local":
            tf.config.experimental_connect_to_cluster(resolver)
        tf.tpu.experimental.initialize_tpu_system(resolver)
        return tf.distribute.TPUStrategy(resolver)
    except (ValueError, RuntimeError, OSError, tf.errors.OpError) as error:
        raise KzooError(
            f"runtime.tpu: there is no TPU at {tpu!r} ({error}). Name it, give its address "
            "(grpc://HOST:8470), or say local on a TPU VM, whose TensorFlow must be the one for "
            "TPUs (tensorflow-tpu)"
        ) from error


_STRATEGIES = {
    "one_device": _one_device,
    "mirrored": _mirrored,
    "multi_worker_mirrored": _multi_worker_mirrored,
    "tpu": _tpu,
}


def _check_devices(devices: tuple[str, ...]) -> None:
    present = _device_names("CPU") + _device_names("GPU")
    absent = [device for device in devices if _short_name(device) not in present]
    if absent:
        raise KzooError(f"no such device: {', '.join(absent)}; there are {', '.join(present)}")
    if len({_short_name(device) for device in devices}) < len(devices):
        raise KzooError(f"a device is named twice: {', '.join(devices)}")


def _device_names(kind: str) -> list[str]:
    return [_short_name(device.name) for device in tf.config.list_logical_devices(kind)]


def _short_name(device: str) -> str:
    """`GPU:0`, for `/gpu:0` and `/device:GPU:0` alike."""
    return device.upper().removeprefix("/").removeprefix("DEVICE:")
