"""On which devices a run computes, and with which settings of TensorFlow's runtime."""

from collections.abc import Sequence

import keras
import tensorflow as tf

from kzoo.errors import KzooError

PRECISIONS = ("float32", "mixed_bfloat16", "mixed_float16")

# What this process computes on. Two strategy objects in one process would collide in their
# collectives.
_made: tuple[str, tuple[str, ...], tf.distribute.Strategy] | None = None


def configure_runtime(
    *,
    precision: str = "float32",
    threads: int | None = None,
    deterministic: bool = True,
    num_logical_cpus: int | None = None,
) -> None:
    """Sets up TensorFlow and Keras; call it before anything is computed.

    Args:
        precision: Keras's dtype policy, of `PRECISIONS`.
        threads: how many threads share the work of one operation; None for all cores.
        deterministic: whether equal runs give equal bits. Random operations then need seeds, and
            some operations are slower on a GPU.
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
            # Otherwise the first process takes all memory of every GPU it sees.
            tf.config.experimental.set_memory_growth(gpu, True)
    except RuntimeError as error:
        raise KzooError(
            f"threads and devices cannot be set once TensorFlow has used a device ({error}); "
            "configure the runtime first, in a new process"
        ) from error
    if deterministic:
        tf.config.experimental.enable_op_determinism()


def make_strategy(name: str, devices: Sequence[str] | None = None) -> tf.distribute.Strategy:
    """The strategy of this process; asked again for the same, the same object.

    Args:
        name: `one_device`, or `mirrored` for synchronous replicas on several devices.
        devices: such as `["GPU:0", "GPU:1"]`. None: for `one_device`, where TensorFlow places
            operations by itself, which is the first GPU if there is one; for `mirrored`, all
            GPUs, or without any, all logical CPUs.

    Raises:
        KzooError: if the name or a device is unknown, or the process has another strategy.
    """
    global _made
    if name not in _STRATEGIES:
        raise KzooError(f"unknown strategy {name!r}; choose of {', '.join(_STRATEGIES)}")
    devices = tuple(devices or ())
    if _made is None:
        _check_devices(devices)
        _made = (name, devices, _STRATEGIES[name](devices))
    elif _made[:2] != (name, devices):
        raise KzooError(
            f"this process computes with strategy {_made[0]!r} and cannot change to {name!r} "
            f"on devices {list(devices)}; use a process for each"
        )
    return _made[2]


def _one_device(devices: tuple[str, ...]) -> tf.distribute.Strategy:
    if len(devices) > 1:
        raise KzooError(f"strategy 'one_device' takes one device; received {list(devices)}")
    return tf.distribute.OneDeviceStrategy(devices[0]) if devices else tf.distribute.get_strategy()


def _mirrored(devices: tuple[str, ...]) -> tf.distribute.Strategy:
    return tf.distribute.MirroredStrategy(devices or _device_names("GPU") or _device_names("CPU"))


_STRATEGIES = {"one_device": _one_device, "mirrored": _mirrored}


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
