"""Whether all workers see the same folder."""

import os
import time

import tensorflow as tf

from kzoo.errors import KzooError
from kzoo.storage.remote import reason
from kzoo.training.cluster import Cluster

_TOKEN_FILE = ".token"
_TOKEN_BYTES = 7  # of an int64

# How long a network file system may take to show a new file.
_PATIENCE_SECONDS = 10.0


def check_shared_folder(cluster: Cluster, folder: str) -> None:
    """Refuses a folder that each worker has for itself, where each would go on from its own state.

    Args:
        cluster: the workers; with one alone nothing is checked.
        folder: which the chief has made.

    Raises:
        KzooError: a worker does not find what the chief writes there, on each worker.
    """
    if cluster.num_workers == 1:
        return
    path = os.path.join(folder, _TOKEN_FILE)
    token = int.from_bytes(os.urandom(_TOKEN_BYTES))
    cluster.chief_first(lambda: _write(path, token), f"write {path}")
    token = cluster.gather(token)[0]
    seen = _is_seen(path, token)
    blind = [index for index, sees in enumerate(cluster.gather(int(seen))) if not sees]
    if cluster.is_chief:
        tf.io.gfile.remove(path)
    if blind:
        raise KzooError(
            f"worker {', '.join(map(str, blind))} does not find in {folder} what worker 0 has "
            "written there; --model_dir must be on storage that all workers share, under one path"
        )


def _write(path: str, token: int) -> None:
    try:
        with tf.io.gfile.GFile(path, "w") as file:
            file.write(str(token))
    except tf.errors.OpError as error:
        raise KzooError(f"cannot write {path}: {reason(error)}") from error


def _is_seen(path: str, token: int) -> bool:
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while not _holds(path, token):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def _holds(path: str, token: int) -> bool:
    try:
        with tf.io.gfile.GFile(path) as file:
            return file.read() == str(token)
    except tf.errors.OpError:
        return False
