"""What TensorFlow Serving reads beside a SavedModel, and that it cannot spoil a request."""

import re
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from tensorflow_serving.apis import prediction_log_pb2
from tensorflow_serving.config import model_server_config_pb2

from kzoo.errors import KzooError
from kzoo.saved_model import serving_files
from kzoo.saved_model.grpc_client import GrpcClient
from kzoo.saved_model.masked_lm import MaskedLMModule
from kzoo.saved_model.prediction import predict
from kzoo.saved_model.rest_client import RestClient
from kzoo.saved_model.serving import ServingModule
from kzoo.saved_model.text_graph import TextGraph
from tests.saved_model.exports import SEQUENCE_LENGTH, TEXTS, packed

SERVER = shutil.which("tensorflow_model_server")
MODULES = {"serving": ServingModule, "masked_lm": MaskedLMModule}


@pytest.fixture(scope="module")
def loaded(served):
    return tf.saved_model.load(str(served.serving))


@pytest.fixture(scope="module")
def base(served, tmp_path_factory) -> Path:
    """A folder as it is mounted for the server: the files, and version 1."""
    folder = tmp_path_factory.mktemp("served") / "encoder"
    shutil.copytree(served.serving, folder / "1")
    serving_files.write(folder, folder / "1", module_of(served, "serving"))
    return folder


def module_of(served, name: str) -> ServingModule | MaskedLMModule:
    model = served.model.backbone if name == "serving" else served.model
    return MODULES[name](model, TextGraph(served.vocabulary.model), SEQUENCE_LENGTH)


@pytest.mark.parametrize("name", MODULES)
def test_every_signature_has_a_warm_up_request_that_runs(name, served, tmp_path):
    module = module_of(served, name)
    serving_files.write(tmp_path, tmp_path / "1", module)
    path = tmp_path / "1" / "assets.extra" / "tf_serving_warmup_requests"
    loaded = tf.saved_model.load(str(getattr(served, name)))
    warmed_up = []
    for record in tf.data.TFRecordDataset(str(path)).as_numpy_iterator():
        request = prediction_log_pb2.PredictionLog.FromString(record).predict_log.request
        assert request.model_spec.name == module.model_name
        signature = loaded.signatures[request.model_spec.signature_name]
        wanted = signature.structured_input_signature[1]
        inputs = {key: tf.constant(tf.make_ndarray(value)) for key, value in request.inputs.items()}
        assert {key: value.dtype for key, value in inputs.items()} == {
            key: spec.dtype for key, spec in wanted.items()
        }
        outputs = signature(**inputs)
        assert {len(value) for value in outputs.values()} == {2}
        warmed_up.append(request.model_spec.signature_name)
    assert sorted(warmed_up) == sorted(loaded.signatures)


def test_warm_up_requests_are_never_written_twice(served, base):
    with pytest.raises(KzooError, match="is there already"):
        serving_files.write(base, base / "1", module_of(served, "serving"))


@pytest.mark.parametrize(("name", "served_as"), [("serving", "encoder"), ("masked_lm",) * 2])
def test_models_config_names_the_model_where_a_container_has_it(name, served_as, served, tmp_path):
    serving_files.write(tmp_path, tmp_path / "1", module_of(served, name))
    text = (tmp_path / "models.config").read_text()
    config = text_format.Parse(text, model_server_config_pb2.ModelServerConfig())
    [model] = config.model_config_list.config
    assert (model.name, model.base_path) == (served_as, f"/models/{served_as}")
    assert model.model_platform == "tensorflow"
    assert str(tmp_path) not in text


def test_files_that_were_edited_are_left_alone(served, tmp_path):
    (tmp_path / "models.config").write_text("mine")
    (tmp_path / "batching_parameters.txt").write_text("mine too")
    serving_files.write(tmp_path, tmp_path / "2", module_of(served, "serving"))
    assert (tmp_path / "models.config").read_text() == "mine"
    assert (tmp_path / "batching_parameters.txt").read_text() == "mine too"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ([], 1),
        (["1"], 2),
        (["1", "2", "10"], 11),
        (["007"], 8),
        (["models.config", ".3.partial", "4-old", "²", "٥", "v6"], 1),
    ],
)
def test_the_next_version_is_one_more_than_the_highest(names, expected, tmp_path):
    for name in names:
        (tmp_path / name).mkdir()
    assert serving_files.next_version(tmp_path) == expected


def test_a_folder_that_is_not_there_has_no_version_yet(tmp_path):
    assert serving_files.next_version(tmp_path / "serving") == 1


class RefusedError(Exception):
    """The server does not put these requests together."""


def merged(requests: list[dict[str, np.ndarray]], pad: bool) -> dict[str, np.ndarray]:
    """The server's way of making one batch of requests, for `pad_variable_length_inputs`."""
    batch = {}
    for name in requests[0]:
        tensors = [request[name] for request in requests]
        longest = np.max([tensor.shape for tensor in tensors], axis=0)
        padding = [[(0, 0), *((0, size) for size in (longest - t.shape)[1:])] for t in tensors]
        if np.any(padding) and not pad:
            raise RefusedError(name)
        # The server has nothing else to pad with than what a tensor begins with.
        tensors = [
            np.pad(tensor, sizes, constant_values=tensor.flat[0]) if pad else tensor
            for tensor, sizes in zip(tensors, padding, strict=True)
        ]
        batch[name] = np.concatenate(tensors)
    return batch


def pads_variable_length_inputs(base: Path) -> bool:
    """What the file says; its message is not among the published ones."""
    text = (base / "batching_parameters.txt").read_text()
    settings = re.sub("#.*", "", text)
    [value] = re.findall(r"pad_variable_length_inputs\s*:\s*(\w+)", settings)
    return {"true": True, "false": False}[value]


def test_ids_of_different_lengths_are_refused_rather_than_spoilt(base, loaded, served):
    requests = []
    for text in ("The train", "The train is late, the train"):
        inputs = packed(served.vocabulary, [text])
        requests.append(
            {
                "input_word_ids": inputs["token_ids"],
                "input_mask": inputs["padding_mask"],
                "input_type_ids": inputs["segment_ids"],
            }
        )
    with pytest.raises(RefusedError):
        merged(requests, pads_variable_length_inputs(base))

    # What the setting would do: the short text's vector would be another one.
    def pooled(inputs):
        tensors = {name: tf.constant(value) for name, value in inputs.items()}
        return loaded.signatures["from_ids"](**tensors)["pooled_output"][0]

    spoilt = pooled(merged(requests, pad=True))
    assert np.abs(spoilt - pooled(requests[0])).max() > 1e-2


def test_texts_of_different_lengths_are_put_together_unharmed(base, loaded):
    requests = [{"text": np.array([text.encode()], dtype=object)} for text in TEXTS]
    batch = merged(requests, pads_variable_length_inputs(base))
    for signature, name in (("serving_default", "pooled_output"), ("sequence_output",) * 2):
        run = loaded.signatures[signature]
        together = run(text=tf.constant(batch["text"]))[name]
        for row, request in enumerate(requests):
            alone = run(text=tf.constant(request["text"]))[name][0]
            np.testing.assert_allclose(together[row][: len(alone)], alone, atol=1e-5)


def test_batching_parameters_are_a_message_of_known_fields(base):
    settings = re.sub("#.*", "", (base / "batching_parameters.txt").read_text())
    fields = re.findall(r"(\w+)\s*(?:\{\s*value:\s*(\d+)\s*\}|:\s*(\w+))", settings)
    assert [name for name, *_ in fields] == [
        "max_batch_size",
        "batch_timeout_micros",
        "max_enqueued_batches",
        "pad_variable_length_inputs",
    ]
    # Nothing else is in the file.
    assert not re.sub(r"\w+\s*(\{\s*value:\s*\d+\s*\}|:\s*\w+)", "", settings).strip()


@pytest.fixture
def tensorflow_serving(base, tmp_path) -> Iterator[tuple[int, int]]:
    """TensorFlow Serving itself, with the files as they are; yields its ports (gRPC, REST)."""
    if SERVER is None:
        pytest.skip("needs the program tensorflow_model_server, which is not here")
    ports = _free_port(), _free_port()
    config = (base / "models.config").read_text().replace("/models/encoder", str(base))
    (tmp_path / "models.config").write_text(config)
    process = subprocess.Popen(
        [
            SERVER,
            *(f"--port={ports[0]}", f"--rest_api_port={ports[1]}"),
            f"--model_config_file={tmp_path / 'models.config'}",
            f"--batching_parameters_file={base / 'batching_parameters.txt'}",
            "--enable_batching",
        ]
    )
    try:
        _wait_for(f"http://localhost:{ports[1]}/v1/models/encoder", process)
        yield ports
    finally:
        process.terminate()
        process.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        return probe.getsockname()[1]


def _wait_for(url: str, process: subprocess.Popen, seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and process.poll() is None:
        try:
            with urllib.request.urlopen(url) as response:
                if '"AVAILABLE"' in response.read().decode():
                    return
        except urllib.error.URLError:
            pass
        time.sleep(0.2)
    pytest.fail(f"the server is not ready; its exit status is {process.poll()}")


def test_tensorflow_serving_gives_the_same(tensorflow_serving, served):
    grpc_port, rest_port = tensorflow_serving
    expected = served.model.backbone(packed(served.vocabulary, TEXTS))["pooled_output"]
    for client in (
        GrpcClient(f"localhost:{grpc_port}", "encoder"),
        RestClient(f"http://localhost:{rest_port}", "encoder"),
    ):
        results = list(predict(client, "serving_default", TEXTS, batch_size=2))
        vectors = [result["pooled_output"] for result in results]
        np.testing.assert_allclose(vectors, expected, atol=1e-5)
