"""Checkpoints as TensorFlow 1 writes them."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from kzoo.interchange.tf1_names import tf1_name
from kzoo.models.masked_lm import RemBertMaskedLM


def tensors_of(model: RemBertMaskedLM, scope: str = "bert/") -> dict[str, np.ndarray]:
    """The weights of a model under the names that BERT's code gives them."""
    return {tf1_name(variable.path, scope): variable.numpy() for variable in model.variables}


def with_optimizer(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors, two slots of each, and the number of the step."""
    slots = {
        f"{name}/{slot}": np.full_like(value, 0.5)
        for name, value in tensors.items()
        for slot in ("adam_m", "adam_v")
    }
    return {**tensors, **slots, "global_step": np.array(1_000, np.int64)}


def write_checkpoint(prefix: Path, tensors: Mapping[str, np.ndarray]) -> Path:
    """Writes variables of these names and values by TensorFlow 1's own `Saver`."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        with tf.compat.v1.variable_scope("", use_resource=False):
            variables = [
                tf.compat.v1.get_variable(
                    name, initializer=tf.constant(value), trainable=value.dtype == np.float32
                )
                for name, value in tensors.items()
            ]
        session.run(tf.compat.v1.global_variables_initializer())
        tf.compat.v1.train.Saver(variables).save(session, str(prefix), global_step=1_000)
    return prefix.with_name(f"{prefix.name}-1000")
