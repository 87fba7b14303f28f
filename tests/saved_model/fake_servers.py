"""Small servers that speak as TensorFlow Serving does, and run a SavedModel behind it.

They follow its rules where these decide what a model must be like: names and dtypes of inputs must
be the signature's, every input and output has the batch in its first dimension, and REST leaves
the name of an only output out.
"""

import base64
import contextlib
import json
import threading
from collections.abc import Iterator, Mapping
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
import tensorflow_text  # noqa: F401
from google.protobuf.json_format import MessageToDict
from tensorflow.core.protobuf import saved_model_pb2
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)


class RequestError(Exception):
    """What the server has against a request, with the code that gRPC has for it."""

    def __init__(self, code: grpc.StatusCode, message: str):
        super().__init__(message)
        self.code = code


class ServedModel:
    """A SavedModel that is run as the server runs it."""

    def __init__(self, folder: Path):
        self._loaded = tf.saved_model.load(str(folder))
        message = saved_model_pb2.SavedModel()
        message.ParseFromString((folder / "saved_model.pb").read_bytes())
        self.signature_defs = message.meta_graphs[0].signature_def

    def signature_def(self, name: str):
        if name not in self.signature_defs:
            raise RequestError(
                grpc.StatusCode.FAILED_PRECONDITION, f'Serving signature key "{name}" not found.'
            )
        return self.signature_defs[name]

    def run(self, name: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        signature = self.signature_def(name)
        if set(inputs) != set(signature.inputs):
            raise RequestError(
                grpc.StatusCode.INVALID_ARGUMENT,
                f"input size does not match signature: {set(inputs)} {set(signature.inputs)}",
            )
        dtypes = {key: tf.as_dtype(info.dtype) for key, info in signature.inputs.items()}
        tensors = {key: tf.constant(value, dtypes[key]) for key, value in inputs.items()}
        try:
            outputs = self._loaded.signatures[name](**tensors)
        except tf.errors.InvalidArgumentError as error:
            raise RequestError(grpc.StatusCode.INVALID_ARGUMENT, error.message) from error
        [batch] = {len(value) for value in inputs.values()}
        assert {len(value) for value in outputs.values()} == {batch}
        return {key: value.numpy() for key, value in outputs.items()}


def find(models: Mapping[str, ServedModel], name: str) -> ServedModel:
    if name not in models:
        message = f"Servable not found for request: Latest({name})"
        raise RequestError(grpc.StatusCode.NOT_FOUND, message)
    return models[name]


class _PredictionService(prediction_service_pb2_grpc.PredictionServiceServicer):
    def __init__(self, models: Mapping[str, ServedModel]):
        self._models = models

    def Predict(self, request, context):  # noqa: N802
        try:
            model = find(self._models, request.model_spec.name)
            inputs = {key: tf.make_ndarray(value) for key, value in request.inputs.items()}
            outputs = model.run(request.model_spec.signature_name or "serving_default", inputs)
        except RequestError as error:
            context.abort(error.code, str(error))
        response = predict_pb2.PredictResponse()
        for key, value in outputs.items():
            response.outputs[key].CopyFrom(tf.make_tensor_proto(value))
        return response

    def GetModelMetadata(self, request, context):  # noqa: N802
        try:
            model = find(self._models, request.model_spec.name)
        except RequestError as error:
            context.abort(error.code, str(error))
        response = get_model_metadata_pb2.GetModelMetadataResponse()
        response.metadata["signature_def"].Pack(_signature_def_map(model))
        return response


def _signature_def_map(model: ServedModel) -> get_model_metadata_pb2.SignatureDefMap:
    signatures = get_model_metadata_pb2.SignatureDefMap()
    for name, signature in model.signature_defs.items():
        signatures.signature_def[name].CopyFrom(signature)
    return signatures


@contextlib.contextmanager
def grpc_server(models: Mapping[str, ServedModel]) -> Iterator[str]:
    """Serves models by gRPC; yields the address."""
    server = grpc.server(futures.ThreadPoolExecutor(2))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(
        _PredictionService(models), server
    )
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        server.stop(None).wait()


@contextlib.contextmanager
def rest_server(models: Mapping[str, ServedModel]) -> Iterator[str]:
    """Serves models by REST; yields the URL."""

    class Handler(_RestHandler):
        served = models

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


class _RestHandler(BaseHTTPRequestHandler):
    served: Mapping[str, ServedModel]

    def do_GET(self):
        name = self.path.removeprefix("/v1/models/").removesuffix("/metadata")
        self._answer(lambda: _metadata(find(self.served, name)))

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = self.path.removeprefix("/v1/models/").removesuffix(":predict")
        self._answer(lambda: rest_predict(find(self.served, name), body))

    def _answer(self, compute) -> None:
        try:
            status, answer = 200, compute()
        except RequestError as error:
            status = 404 if error.code == grpc.StatusCode.NOT_FOUND else 400
            answer = {"error": str(error)}
        body = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments) -> None:
        """Tests print nothing."""


def _metadata(model: ServedModel) -> dict[str, Any]:
    signatures = MessageToDict(
        _signature_def_map(model),
        preserving_proto_field_name=True,
        always_print_fields_with_no_presence=True,
    )
    return {"metadata": {"signature_def": signatures}}


def rest_predict(model: ServedModel, body: Mapping[str, Any]) -> dict[str, Any]:
    """Answers a request in the row format (`instances`) or in the column format (`inputs`)."""
    signature = body.get("signature_name", "serving_default")
    input_names = list(model.signature_def(signature).inputs)
    if "instances" in body:
        rows = body["instances"]
        if not all(isinstance(row, dict) and "b64" not in row for row in rows):
            [only] = input_names
            rows = [{only: row} for row in rows]
        columns = {name: [row[name] for row in rows] for name in input_names}
    else:
        columns = body["inputs"]
        if not isinstance(columns, dict):
            [only] = input_names
            columns = {only: columns}
    outputs = model.run(signature, {name: _decoded(value) for name, value in columns.items()})
    columns = {name: _encoded(value) for name, value in outputs.items()}
    if "instances" not in body:
        return {"outputs": columns if len(columns) > 1 else next(iter(columns.values()))}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if len(columns) == 1:
        rows = [next(iter(row.values())) for row in rows]
    return {"predictions": rows}


def _decoded(value: Any) -> Any:
    if isinstance(value, list):
        return [_decoded(item) for item in value]
    if isinstance(value, dict):
        return base64.b64decode(value["b64"])
    return value.encode() if isinstance(value, str) else value


def _encoded(value: np.ndarray) -> Any:
    if value.dtype == np.float32:
        return value.astype(str).astype(np.float64).tolist()
    if value.dtype == object:
        return np.vectorize(bytes.decode, otypes=[object])(value).tolist()
    return value.tolist()
