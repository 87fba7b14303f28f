"""A model on TensorFlow Serving, asked through its REST interface."""

import http.client
import json
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from typing import Any

import numpy as np

from kzoo.errors import KzooError
from kzoo.saved_model.prediction import Signature

_NUMPY_TYPES = {"DT_FLOAT": np.float32, "DT_INT32": np.int32, "DT_INT64": np.int64}


class RestClient:
    """Runs the signatures of a served model. Needs neither TensorFlow nor gRPC.

    Attributes:
        source: the model's address.
    """

    def __init__(self, url: str, model_name: str, timeout_seconds: float = 60.0):
        """
        Args:
            url: the server's, as `http://localhost:8501`; the port is that of TensorFlow Serving's
                `--rest_api_port`.
            model_name: as in the server's `models.config`.
            timeout_seconds: how long an answer may take.

        Raises:
            KzooError: if `url` is not one.
        """
        _check_url(url)
        self.source = f"{url.rstrip('/')}/v1/models/{urllib.parse.quote(model_name, safe='')}"
        self._timeout_seconds = timeout_seconds
        self._signatures: dict[str, Signature] | None = None

    def signatures(self) -> Mapping[str, Signature]:
        """The model's signatures by name, as the server describes them.

        Raises:
            KzooError: if the server does not answer, or has no such model.
        """
        if self._signatures is None:
            answer = self._ask("/metadata", None)
            try:
                self._signatures = _signatures(answer["metadata"]["signature_def"])
            except (AttributeError, KeyError, TypeError):
                raise self._strange(answer) from None
        return self._signatures

    def run(self, signature: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs a signature; see `Client.run`. Strings must be UTF-8."""
        body = {
            "signature_name": signature,
            "inputs": {name: _as_json(value) for name, value in inputs.items()},
        }
        answer = self._ask(":predict", body)
        types = self.signatures()[signature].outputs
        try:
            outputs = answer["outputs"]
            if len(types) == 1:
                # The server leaves the name of an only output out.
                outputs = dict.fromkeys(types, outputs)
            return {name: np.array(value, types[name]) for name, value in outputs.items()}
        except (AttributeError, KeyError, OverflowError, TypeError, ValueError):
            raise self._strange(answer) from None

    def _ask(self, path: str, body: dict[str, Any] | None) -> Any:
        """Sends a request, a POST if it has a body, and reads the JSON that comes back."""
        request = urllib.request.Request(
            self.source + path,
            data=None if body is None else json.dumps(body, ensure_ascii=False).encode(),
            headers={"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=self._timeout_seconds) as response:
                answer = response.read()
        except urllib.error.HTTPError as error:
            raise KzooError(f"{self.source}: {_message(error)} (HTTP {error.code})") from error
        except TimeoutError as error:
            raise self._too_slow() from error
        # A host's name that is none, as `a..b`, is a `UnicodeError`.
        except (OSError, http.client.HTTPException, UnicodeError) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise self._too_slow() from error
            raise KzooError(
                f"no TensorFlow Serving answers at {self.source}: is it running, and is this its "
                f"port for REST (8501 by default)? Received: {reason}"
            ) from error
        try:
            return json.loads(answer)
        except (ValueError, RecursionError):
            raise self._strange(answer.decode(errors="replace")) from None

    def _too_slow(self) -> KzooError:
        return KzooError(
            f"no answer from {self.source} within {self._timeout_seconds:g} seconds; allow more, "
            "or send fewer texts at a time"
        )

    def _strange(self, answer: Any) -> KzooError:
        return KzooError(
            f"{self.source} does not answer as TensorFlow Serving does. Received: "
            f"{str(answer)[:200]}"
        )


def _message(error: urllib.error.HTTPError) -> str:
    """What the server says: TensorFlow Serving puts it into JSON."""
    try:
        text = error.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        text = ""
    try:
        text = json.loads(text)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        text = text[:200] or error.reason
    return " ".join(str(text).split())


def _check_url(url: str) -> None:
    """Raises a KzooError for what cannot be the URL of a server."""
    if not url.startswith(("http://", "https://")):
        raise KzooError(f"the server's URL must begin with http:// or https://. Received: {url}")
    try:
        parts = urllib.parse.urlsplit(url)
        is_one = bool(parts.hostname) and parts.port != 0 and not (parts.query or parts.fragment)
    except ValueError:  # of a port that is no number up to 65535, and of brackets
        is_one = False
    if not is_one or not url.isascii() or not url.isprintable() or " " in url:
        raise KzooError(f"no URL of a server, as http://localhost:8501 is one. Received: {url!r}")


def _signatures(described: Mapping[str, Any]) -> dict[str, Signature]:
    return {
        name: Signature(
            _numpy_types(signature.get("inputs", {})), _numpy_types(signature.get("outputs", {}))
        )
        for name, signature in described["signature_def"].items()
        # TensorFlow keeps the operation that initialises the model among them.
        if not name.startswith("__")
    }


def _numpy_types(tensors: Mapping[str, Any]) -> dict[str, type]:
    return {name: _NUMPY_TYPES.get(info["dtype"], object) for name, info in tensors.items()}


def _as_json(value: np.ndarray) -> list:
    if value.dtype == object:
        return [text.decode() for text in value]
    return value.tolist()
