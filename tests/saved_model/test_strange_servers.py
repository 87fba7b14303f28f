"""Servers that are not TensorFlow Serving, or answer nonsense: one clear error each."""

import contextlib
import json
import threading
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from kzoo import KzooError
from kzoo.saved_model.prediction import Signature, predict
from kzoo.saved_model.rest_client import RestClient

SIGNATURE = {"inputs": {"text": {"dtype": "DT_STRING"}}, "outputs": {"v": {"dtype": "DT_FLOAT"}}}
METADATA = {"metadata": {"signature_def": {"signature_def": {"serving_default": SIGNATURE}}}}


@contextlib.contextmanager
def http_server(*answers: bytes):
    """Sends each of the answers to one request, as it is; yields the URL."""
    waiting = iter(answers)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            self.rfile.read(int(self.headers["Content-Length"] or 0))
            self.wfile.write(next(waiting))
            self.close_connection = True

        do_POST = do_GET  # noqa: N815

        def log_message(self, *arguments):
            """Tests print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


def http(content, length=None, status="200 OK") -> bytes:
    """An answer with a body: JSON, or bytes as they are."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    length = len(body) if length is None else length
    return f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n".encode() + body


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"220 mail.example.org ESMTP\r\n", "no TensorFlow Serving answers"),
        (b"", "no TensorFlow Serving answers"),
        (http({}, length=99), "no TensorFlow Serving answers"),
        (http(b"<html>"), "does not answer as TensorFlow Serving does. Received: <html>"),
        (http(b"[" * 100_000), "does not answer as TensorFlow Serving does"),
        (http([]), "does not answer as TensorFlow Serving does"),
        (http({"metadata": {"signature_def": []}}), "does not answer as TensorFlow Serving does"),
        (
            http({"metadata": {"signature_def": {"signature_def": {"a": {"inputs": [3]}}}}}),
            "does not answer as TensorFlow Serving does",
        ),
        (http(b"\xff" * 300, status="500 Oh"), r"\(HTTP 500\)"),
        (http(b"", length=9, status="404 Not Found"), r"Not Found \(HTTP 404\)"),
    ],
)
def test_metadata_that_are_none(answer, message):
    with http_server(answer) as url, pytest.raises(KzooError, match=message):
        RestClient(url, "encoder", 5.0).signatures()


@pytest.mark.parametrize(
    "answer",
    [
        [],
        {"predictions": [[1.0]]},
        {"outputs": [["a"]]},
        {"outputs": [[1.0], [1.0, 2.0]]},
        {"outputs": {"v": [[1.0]]}},
    ],
)
def test_outputs_that_are_none(answer):
    with http_server(http(METADATA), http(answer)) as url:
        client = RestClient(url, "encoder", 5.0)
        assert list(client.signatures()) == ["serving_default"]
        with pytest.raises(KzooError, match="does not answer as TensorFlow Serving does"):
            client.run("serving_default", {"text": np.array([b"a"], object)})


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://[::1",
        "http://a:b",
        "http://a:0",
        "http://a:99999",
        "http://a b",
        "http://a\n",
        "http://ä",
        "http://a?b",
        "http://a#b",
    ],
)
def test_a_url_that_is_none_is_refused_at_once(url):
    with pytest.raises(KzooError, match=r"no URL of a server, as http://localhost:8501 is one"):
        RestClient(url, "encoder")


def test_names_that_no_host_can_have_are_no_server():
    for url in ("http://a..b", f"http://{'a' * 70}.example"):
        with pytest.raises(KzooError, match="no TensorFlow Serving answers"):
            RestClient(url, "encoder", 5.0).signatures()


class Fixed:
    """A client that always gives the same."""

    source = "the model"

    def __init__(self, **outputs):
        self.outputs = {name: np.asarray(value) for name, value in outputs.items()}

    def signatures(self):
        return {"serving_default": Signature({"text": object}, {})}

    def run(self, signature, inputs):
        return self.outputs


@pytest.mark.parametrize(
    "outputs",
    [
        {"vectors": np.ones((1, 3))},
        {"vectors": np.float32(1)},
        {"input_mask": np.ones(3), "sequence_output": np.ones((2, 3))},
        {"input_mask": np.full((2, 3), np.inf), "sequence_output": np.ones((2, 3))},
        {"num_masks": [1, 1]},
    ],
)
def test_outputs_that_are_not_of_the_texts(outputs):
    client = Fixed(**outputs)
    with pytest.raises(KzooError, match="of the model does not give a row for each text"):
        list(predict(client, "serving_default", ["a", "b"]))


def test_a_module_without_vectors_gives_what_it_gives():
    ids = np.array([[3, 9, 4], [3, 4, 0]])
    client = Fixed(input_word_ids=ids, input_mask=(ids > 0) * 1)
    results = list(predict(client, "serving_default", ["a", "b"]))
    assert results[1] == {"text": "b", "input_word_ids": [3, 4, 0], "input_mask": [1, 1, 0]}


@contextlib.contextmanager
def grpc_server(metadata, prediction):
    """A service that gives each request the same answer; yields the address."""
    import grpc
    from tensorflow_serving.apis import prediction_service_pb2_grpc as service

    class Service(service.PredictionServiceServicer):
        def GetModelMetadata(self, request, context):  # noqa: N802
            return metadata

        def Predict(self, request, context):  # noqa: N802
            return prediction

    server = grpc.server(futures.ThreadPoolExecutor(1))
    service.add_PredictionServiceServicer_to_server(Service(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


def test_a_service_that_answers_nonsense():
    from tensorflow_serving.apis import get_model_metadata_pb2, predict_pb2

    from kzoo.saved_model.grpc_client import GrpcClient

    nothing = get_model_metadata_pb2.GetModelMetadataResponse()
    damaged = get_model_metadata_pb2.GetModelMetadataResponse()
    damaged.metadata["signature_def"].Pack(get_model_metadata_pb2.SignatureDefMap())
    damaged.metadata["signature_def"].value = b"\xff"
    unknown = get_model_metadata_pb2.GetModelMetadataResponse()
    signatures = get_model_metadata_pb2.SignatureDefMap()
    signatures.signature_def["a"].inputs["text"].dtype = 999
    unknown.metadata["signature_def"].Pack(signatures)
    short = predict_pb2.PredictResponse()
    short.outputs["v"].dtype = 1
    short.outputs["v"].tensor_shape.dim.add(size=3)
    short.outputs["v"].tensor_content = b"abc"
    for metadata in (nothing, damaged, unknown):
        with grpc_server(metadata, short) as address:
            client = GrpcClient(address, "encoder", 5.0)
            with pytest.raises(KzooError, match="does not answer as TensorFlow Serving does"):
                client.signatures()
            with pytest.raises(KzooError, match="does not answer as TensorFlow Serving does"):
                client.run("serving_default", {"text": np.array([b"a"], object)})
