"""What TensorFlow Serving reads beside a SavedModel.

serving/
  models.config             which models are served: for --model_config_file
  batching_parameters.txt   how requests are put together: for --batching_parameters_file
  1/                        a version: an integer, or the server does not see it
    saved_model.pb …
    assets.extra/tf_serving_warmup_requests
"""

import os
from pathlib import Path
from typing import Protocol

import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_log_pb2

from kzoo.errors import KzooError
from kzoo.saved_model.manifest import BATCHING_PARAMETERS, MODELS_CONFIG

WARMUP_REQUESTS = "assets.extra/tf_serving_warmup_requests"
"""Where TensorFlow Serving looks for them, inside of a version's folder."""

_MODELS_CONFIG = """\
# For tensorflow_model_server --model_config_file. The path is the server's: mount the folder of
# this file there, as in `docker run -v "$PWD/export/serving:/models/encoder" …`.
model_config_list {{
  config {{
    name: "{name}"
    base_path: "/models/{name}"
    model_platform: "tensorflow"
  }}
}}
"""
_BATCHING_PARAMETERS = """\
# For tensorflow_model_server --enable_batching --batching_parameters_file.

# Texts, not requests. A request of more than this is refused, so clients send at most as many.
max_batch_size { value: 32 }

# How long the first text of a batch waits for others.
batch_timeout_micros { value: 2000 }

# Batches that may wait; beyond this the server answers UNAVAILABLE.
max_enqueued_batches { value: 100 }

# Never true. The server would make requests of different lengths equal by repeating a tensor's
# first element: token ids would be padded with [CLS], and the mask with 1, so that the padding is
# read as text. Signatures that take text need no padding by the server; the graph pads. Requests
# with ids of different lengths are refused where they meet in a batch: send text, pad ids to one
# length in all clients (with the mask 0 there), or serve without --enable_batching.
pad_variable_length_inputs: false

# Left out: num_batch_threads (as many as the machine has cores); allowed_batch_sizes (a smaller
# batch would be filled up with copies of a row, which a CPU computes for nothing);
# enable_large_batch_splitting (the parts of a request would be padded to different lengths, and
# the server could not join their sequence_output).
"""


class ServedModule(Protocol):
    """A module that TensorFlow Serving can serve.

    Attributes:
        model_name: the name under which it is served.
    """

    model_name: str

    def warmup_inputs(self) -> dict[str, dict[str, np.ndarray]]:
        """A small request for each signature: signature → input → value."""


def next_version(base: str | os.PathLike) -> int:
    """The number after the highest version in `base`; 1 if there is none, or no such folder."""
    try:
        names = os.listdir(base)
    except FileNotFoundError:
        return 1
    # The server takes every integer for a version, 007 too.
    versions = [int(name) for name in names if name.isascii() and name.isdecimal()]
    return max(versions, default=0) + 1


def write(base: str | os.PathLike, version_folder: str | os.PathLike, module: ServedModule) -> None:
    """Writes warm-up requests, and what the server is told of the model.

    Args:
        base: where `models.config` and `batching_parameters.txt` go; files of these names that are
            there already are left alone, since they are there to be edited.
        version_folder: the SavedModel that the warm-up requests are for.
        module: what was saved there.

    Raises:
        KzooError: if `version_folder` has warm-up requests already.
    """
    base = Path(base)
    write_warmup_requests(version_folder, module)
    _write_unless_there(base / MODELS_CONFIG, _MODELS_CONFIG.format(name=module.model_name))
    _write_unless_there(base / BATCHING_PARAMETERS, _BATCHING_PARAMETERS)


def write_warmup_requests(version_folder: str | os.PathLike, module: ServedModule) -> None:
    """Writes requests that the server runs before it says that the model is ready.

    Without them the first request of each signature pays for what TensorFlow sets up on first use.

    Raises:
        KzooError: if there are warm-up requests already.
    """
    path = Path(version_folder, WARMUP_REQUESTS)
    if path.exists():
        raise KzooError(f"{path} is there already: a version is never written twice")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tf.io.TFRecordWriter(str(path)) as writer:
        for signature, inputs in module.warmup_inputs().items():
            request = predict_pb2.PredictRequest()
            request.model_spec.name = module.model_name
            request.model_spec.signature_name = signature
            for name, value in inputs.items():
                request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
            log = prediction_log_pb2.PredictionLog(
                predict_log=prediction_log_pb2.PredictLog(request=request)
            )
            writer.write(log.SerializeToString())


def _write_unless_there(path: Path, text: str) -> None:
    if not path.exists():
        path.write_text(text, "utf-8")
