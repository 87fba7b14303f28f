"""Models whose variables have shapes and no values."""

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from kzoo.models.backbone import RemBertBackbone
from kzoo.models.masked_lm import RemBertMaskedLM


def build_by_shape(backbone: Mapping[str, Any], output_embedding_dim: int | str) -> RemBertMaskedLM:
    """Builds a model without memory for its weights: in a second, whatever its size.

    It can be asked for its variables' paths, shapes and dtypes, and for its configuration. It
    cannot be called, trained or saved.

    Args:
        backbone: arguments of `RemBertBackbone`.
        output_embedding_dim: E_out, or "tied".

    Raises:
        KzooError: for arguments that make no model.
    """
    # A graph that no session ever runs allocates nothing.
    with tf.Graph().as_default():
        return RemBertMaskedLM(RemBertBackbone(**backbone), output_embedding_dim)
