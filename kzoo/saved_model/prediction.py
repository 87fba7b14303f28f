"""Texts in, one result for each text out, through whatever runs the model."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Protocol

import numpy as np

from kzoo.errors import KzooError

# Which signature is meant where none is named, the first that takes what is given.
_PREFERRED = ("serving_default", "fill_mask", "fill_mask_top_k")
# How many batches are sorted at a time: enough that a batch's texts are about equally long, few
# enough that input of any size needs little memory.
_SORTED_BATCHES = 64


@dataclasses.dataclass(frozen=True)
class Signature:
    """What a signature takes and gives: names of tensors → NumPy dtypes (`object`: strings)."""

    inputs: Mapping[str, type]
    outputs: Mapping[str, type]


class Client(Protocol):
    """Runs signatures of one model, here or on a server.

    Attributes:
        source: the model's folder or the server's address, for messages.
    """

    source: str

    def signatures(self) -> Mapping[str, Signature]:
        """The model's signatures by name."""

    def run(self, signature: str, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Runs a signature on a batch; strings are bytes in arrays of objects.

        Raises:
            KzooError: what the model or the server has against the request.
        """


def choose_signature(client: Client, wanted: str | None, given: Iterable[str]) -> str:
    """The name of the signature to run.

    Args:
        client: what runs the model.
        wanted: a name, or None for `serving_default`, or else one that fills masks.
        given: names of the inputs that there are.

    Raises:
        KzooError: if there is no such signature, or it takes other inputs.
    """
    signatures, given = client.signatures(), sorted(given)
    if wanted is not None and wanted not in signatures:
        raise KzooError(
            f"{client.source} has no signature {wanted!r}; it has {', '.join(sorted(signatures))}"
        )
    fitting = [name for name, signature in signatures.items() if sorted(signature.inputs) == given]
    if wanted in fitting:
        return wanted
    if wanted is None and fitting:
        return next((name for name in _PREFERRED if name in fitting), min(fitting))
    if wanted is None:
        listed = ", ".join(
            f"{name} (of {_listed(signature.inputs)})" for name, signature in signatures.items()
        )
        raise KzooError(
            f"{client.source} has no signature that takes {_listed(given)}; it has {listed}"
        )
    instead = f"those that take it: {_listed(fitting)}" if fitting else "no other one takes it"
    raise KzooError(
        f"signature {wanted!r} of {client.source} takes {_listed(signatures[wanted].inputs)}. "
        f"Received: {_listed(given)}; {instead}"
    )


def predict(
    client: Client,
    signature: str,
    texts: Iterable[str],
    batch_size: int = 32,
    top_k: int | None = None,
) -> Iterator[dict[str, Any]]:
    """Runs a signature on texts, in batches of about equal length.

    Args:
        client: what runs the model.
        signature: one that takes `text`, and `top_k` if that is given.
        texts: any number of them; they are read as they are needed.
        batch_size: how many go to the model at a time.
        top_k: how many pieces are asked for at each mask.

    Yields:
        For each text, in the order of `texts`, a dict that can be written as JSON: `text` and the
        signature's outputs. Beside an `input_mask`, `sequence_output` has the vectors of
        this text's tokens alone. Filled masks are a list `masks`, one for each `[MASK]` of the
        text, each with its `position` among the tokens and its `candidates`; `num_masks_cut_off`
        says of a text that was too long how many are beyond its end.
    """
    texts = iter(texts)
    while window := list(itertools.islice(texts, batch_size * _SORTED_BATCHES)):
        encoded = [text.encode() for text in window]
        # Bytes foretell the number of pieces across scripts better than characters do.
        order = sorted(range(len(window)), key=lambda index: len(encoded[index]))
        results: list[dict[str, Any] | None] = [None] * len(window)
        for start in range(0, len(order), batch_size):
            batch = order[start : start + batch_size]
            inputs = {"text": np.array([encoded[index] for index in batch], dtype=object)}
            if top_k is not None:
                inputs["top_k"] = np.full(len(batch), top_k, np.int32)
            outputs = client.run(signature, inputs)
            try:
                for row, index in enumerate(batch):
                    results[index] = _result(window[index], _row(outputs, row, len(batch)))
            except (IndexError, KeyError, OverflowError, TypeError, ValueError) as error:
                raise KzooError(
                    f"signature {signature!r} of {client.source} does not give a row for each "
                    f"text, as those that kzoo exports do ({error})"
                ) from error
        yield from results


def _row(outputs: Mapping[str, np.ndarray], row: int, num_rows: int) -> dict[str, np.ndarray]:
    """The part of a batch's outputs that is one text's."""
    for name, value in outputs.items():
        if value.shape[:1] != (num_rows,):
            raise ValueError(f"{name} has the shape {list(value.shape)} for {num_rows} texts")
    return {name: value[row] for name, value in outputs.items()}


def _result(text: str, row: dict[str, np.ndarray]) -> dict[str, Any]:
    if "num_masks" in row:
        cut_off = int(row["num_masks_cut_off"])
        notice = {"num_masks_cut_off": cut_off} if cut_off else {}
        return {"text": text, "masks": _filled_masks(row), **notice}
    if "input_mask" in row and "sequence_output" in row:
        num_tokens = int(row.pop("input_mask").sum())
        row["sequence_output"] = row["sequence_output"][:num_tokens]
    return {"text": text, **{name: _plain(value) for name, value in row.items()}}


def _filled_masks(row: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    return [
        {
            "position": int(row["mask_positions"][mask]),
            "candidates": [
                {"piece": _plain(piece), "probability": _plain(probability)}
                for piece, probability in zip(
                    row["pieces"][mask], row["probabilities"][mask], strict=True
                )
                # A row that asked for fewer than another of its batch is filled up.
                if _plain(piece)
            ],
        }
        for mask in range(int(row["num_masks"]))
    ]


def _plain(value: Any) -> Any:
    """Arrays as lists; float32 as the shortest number that stands for it, strings as `str`."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    value = np.asarray(value)
    if value.dtype == np.float32:
        # Through text: 0.1, and not 0.10000000149011612, which is as long and no more exact.
        return value.astype(str).astype(np.float64).tolist()
    if value.dtype == object:
        return np.vectorize(_plain, otypes=[object])(value).tolist() if value.ndim else value[()]
    return value.tolist()


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"
