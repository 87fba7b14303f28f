"""An encoder for serving alone: the same function, with smaller weights."""

import warnings

import keras

from kzoo.errors import KzooError
from kzoo.layers.initializers import left_empty
from kzoo.models.backbone import RemBertBackbone
from kzoo.saved_model.manifest import PRECISIONS


def with_precision(backbone: RemBertBackbone, precision: str) -> RemBertBackbone:
    """An encoder whose weights are stored, and whose matrices are multiplied, in a precision.

    LayerNorm, softmax and pooled means are computed in float32 in each.

    Args:
        backbone: a float32 encoder.
        precision: "float32": the same object; "bfloat16": every weight, half the bytes (weights
            that stay float32 and are cast at each call cost what the narrow products gain);
            "int8": tables and kernels, a quarter of the bytes, with a float32 scale for each row
            of a table and each column of a kernel, and activations quantized row by row as they
            come.

    Raises:
        KzooError: for another precision.
    """
    if precision not in PRECISIONS:
        known = ", ".join(f'"{known}"' for known in PRECISIONS)
        raise KzooError(f"`precision` must be one of {known}. Received: precision={precision!r}")
    if precision == "float32":
        return backbone
    config = backbone.get_config()
    config["dtype"] = keras.DTypePolicy("bfloat16" if precision == "bfloat16" else "float32")
    with left_empty():
        copy = RemBertBackbone.from_config(config)
    for variable, source in zip(copy.variables, backbone.variables, strict=True):
        variable.assign(source.value)
    if precision == "int8":
        with warnings.catch_warnings():
            # Keras's, for layers that have nothing to quantize.
            warnings.filterwarnings("ignore", message=".*does not have a `quantize` method")
            copy.quantize("int8")
    return copy
