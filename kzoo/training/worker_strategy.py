"""TensorFlow's strategy for several processes, on the devices that each of them was told to use."""

from collections.abc import Sequence

import tensorflow as tf
from tensorflow.python.distribute.collective_all_reduce_strategy import (
    CollectiveAllReduceExtended,
)


def worker_strategy(devices: Sequence[str] = ()) -> tf.distribute.MultiWorkerMirroredStrategy:
    """A `MultiWorkerMirroredStrategy` of the cluster in `TF_CONFIG`; waits for all its workers.

    Args:
        devices: of this worker, such as `["GPU:0", "GPU:1"]`, as many on each worker; none for
            all GPUs or, without any, the CPU as one device.
    """
    if devices:
        return _OnDevices(devices)
    return tf.distribute.MultiWorkerMirroredStrategy()


class _OnDevices(tf.distribute.MultiWorkerMirroredStrategy):
    """TensorFlow's own takes all GPUs of a process, or one CPU: it has no argument for devices."""

    def __init__(self, devices: Sequence[str]):
        tf.distribute.Strategy.__init__(self, _ExtendedOnDevices(self, devices))


class _ExtendedOnDevices(CollectiveAllReduceExtended):
    def __init__(self, strategy: tf.distribute.Strategy, devices: Sequence[str]):
        self._chosen_devices = devices
        super().__init__(
            strategy,
            cluster_resolver=tf.distribute.cluster_resolver.TFConfigClusterResolver(),
            communication_options=tf.distribute.experimental.CommunicationOptions(),
        )

    def _initialize_local_devices(self, cluster_resolver, worker_device):
        names = tuple(f"{worker_device}/device:{device}" for device in self._chosen_devices)
        return names, self._chosen_devices[0].split(":")[0]
