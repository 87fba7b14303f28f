"""A model on TensorFlow Serving, asked through gRPC."""

from collections.abc import Callable, Mapping
from typing import Any

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf.message import DecodeError
from tensorflow_serving.apis import (
    get_model_metadata_pb2,
    predict_pb2,
    prediction_service_pb2_grpc,
)

from kzoo.errors import KzooError
from kzoo.saved_model.prediction import Signature

# A batch of vectors for every token is larger than gRPC's 4 MB.
_NO_LIMIT = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


class GrpcClient:
    """Runs the signatures of a served model.

    Attributes:
        source: the model's name and the server's address.
    """

    def __init__(self, address: str, model_name: str, timeout_seconds: float = 60.0):
        """
        Args:
            address: `host:port`; the port of TensorFlow Serving's `--port`, 8500 by default.
            model_name: as in the server's `models.config`.
            timeout_seconds: how long an answer may take.

        Raises:
            KzooError: if there is no address.
        """
        if not address:
            raise KzooError("the server's address is host:port. Received: ''")
        self.source = f"{model_name} at {address}"
        self._address = address
        self._model_name = model_name
        self._timeout_seconds = timeout_seconds
        channel = grpc.insecure_channel(address, options=_NO_LIMIT)
        self._stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)

    def signatures(self) -> Mapping[str, Signature]:
        """The model's signatures by name, as the server describes them.

        Raises:
            KzooError: if the server does not answer, or has no such model.
        """
        request = get_model_metadata_pb2.GetModelMetadataRequest(metadata_field=["signature_def"])
        request.model_spec.name = self._model_name
        response = self._call(self._stub.GetModelMetadata, request)
        signatures = get_model_metadata_pb2.SignatureDefMap()
        try:
            if not response.metadata["signature_def"].Unpack(signatures):
                raise TypeError("it describes no signatures")
            return {
                name: Signature(_numpy_types(found.inputs), _numpy_types(found.outputs))
                for name, found in signatures.signature_def.items()
                # TensorFlow keeps the operation that initialises the model among them.
                if not name.startswith("__")
            }
        except (DecodeError, KeyError, TypeError) as error:
            raise self._strange(error) from error

    def run(self, signature: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs a signature; see `Client.run`."""
        request = predict_pb2.PredictRequest()
        request.model_spec.name = self._model_name
        request.model_spec.signature_name = signature
        for name, value in inputs.items():
            request.inputs[name].CopyFrom(tf.make_tensor_proto(value))
        response = self._call(self._stub.Predict, request)
        try:
            return {name: tf.make_ndarray(value) for name, value in response.outputs.items()}
        except (KeyError, TypeError, ValueError) as error:
            raise self._strange(error) from error

    def _strange(self, error: Exception) -> KzooError:
        return KzooError(f"{self.source} does not answer as TensorFlow Serving does: {error}")

    def _call(self, method: Callable, request: Any) -> Any:
        try:
            return method(request, timeout=self._timeout_seconds)
        except grpc.RpcError as error:
            raise KzooError(self._explained(error.code(), error.details() or "")) from error

    def _explained(self, code: grpc.StatusCode, details: str) -> str:
        details = " ".join(details.split())
        if code == grpc.StatusCode.UNAVAILABLE:
            return (
                f"no TensorFlow Serving answers at {self._address}: is it running, and is this its "
                f"port for gRPC (8500 by default)? Received: {details}"
            )
        if code == grpc.StatusCode.DEADLINE_EXCEEDED:
            return (
                f"no answer from {self._address} within {self._timeout_seconds:g} seconds; allow "
                "more, or send fewer texts at a time"
            )
        if code == grpc.StatusCode.NOT_FOUND:
            return (
                f"{self._address} serves no model {self._model_name!r}: its names are in the "
                f"server's models.config. Received: {details}"
            )
        return f"{self.source}: {details} ({code.name})"


def _numpy_types(tensors: Mapping[str, Any]) -> dict[str, type]:
    return {name: tf.as_dtype(info.dtype).as_numpy_dtype for name, info in tensors.items()}
