"""The encoder as a reusable SavedModel: to be fine-tuned by whoever loads it."""

import functools
import os

import tensorflow as tf

from kzoo.errors import KzooError
from kzoo.models.backbone import RemBertBackbone
from kzoo.saved_model.encoding import encode, ids_spec, named_variables, save_with_signatures
from kzoo.saved_model.signature_names import INPUT_NAMES

SIGNATURE_OUTPUTS = ("sequence_output", "pooled_output", "default")
"""Of `serving_default`: a signature has no lists, so `encoder_outputs` is left out."""


class EncoderModule(tf.Module):
    """An encoder with the interface of TensorFlow Hub's Transformer encoders.

    Called with a dict of `input_word_ids`, `input_mask` (0 at padding) and `input_type_ids`, all
    int32 or all int64 [batch, length], it returns `sequence_output` float32 [batch, length, H],
    `pooled_output` and `default` float32 [batch, H], and `encoder_outputs`, a list of what each
    layer returns. `training=True` switches dropout on, at the backbone's rates. Inputs and outputs
    are matched by name alone. More ids in a row than the model has positions are an error.

    `hub.KerasLayer(folder, trainable=True)` fine-tunes what `save` writes. `serving_default` is the
    same in int32, without `encoder_outputs`.

    Attributes:
        named_variables: the variables, under their paths.
        variables, trainable_variables: the same in lists.
        regularization_losses: none; TensorFlow Hub looks for it.
    """

    # Not the properties of `tf.Module`, which a SavedModel leaves out: TensorFlow Hub reads lists.
    variables = trainable_variables = None

    def __init__(self, backbone: RemBertBackbone):
        """Makes the module of a backbone's own variables; nothing is copied.

        Raises:
            KzooError: if the backbone does not compute in float32, or its weights have no float32
                values.
        """
        super().__init__(name="encoder")
        _check_float32(backbone)
        # Checkpoint keys are the shortest way to a variable, then the first by name: so through
        # this mapping, flat and before `variables`, they are the variables' paths.
        self.named_variables = named_variables(backbone)
        self.variables = [variable.value for variable in backbone.variables]
        self.trainable_variables = [variable.value for variable in backbone.trainable_variables]
        self.regularization_losses = []
        # A function, and not the backbone, which would be stored with its layers.
        self._encode = functools.partial(encode, backbone)
        for dtype in (tf.int32, tf.int64):
            inputs = {name: ids_spec(name, dtype) for name in INPUT_NAMES}
            for training in (True, False):
                self.__call__.get_concrete_function(inputs, training=training)

    @tf.function(autograph=False)
    def __call__(self, inputs, training=False):
        """The encoder's outputs, by name."""
        return self._encode(inputs, training)

    @tf.function(input_signature=[ids_spec(name) for name in INPUT_NAMES], autograph=False)
    def serving_default(self, input_word_ids, input_mask, input_type_ids):
        """Ids → `sequence_output`, `pooled_output`, `default`."""
        values = (input_word_ids, input_mask, input_type_ids)
        outputs = self._encode(dict(zip(INPUT_NAMES, values, strict=True)))
        # Two outputs of a signature cannot be one tensor: TensorFlow Serving would name it once.
        return {name: tf.identity(outputs[name], name) for name in SIGNATURE_OUTPUTS}

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes a SavedModel.

        Raises:
            KzooError: if `folder` is there already.
        """
        save_with_signatures(self, folder, ("serving_default",))


def _check_float32(backbone: RemBertBackbone) -> None:
    layers = [layer.compute_dtype for layer in backbone._flatten_layers()]
    dtypes = {*layers, *(variable.dtype for variable in backbone.variables)}
    if dtypes != {"float32"}:
        raise KzooError(
            "an encoder to be fine-tuned is exported in float32: build the backbone with "
            f'dtype="float32". Received: {", ".join(sorted(dtypes))}'
        )
