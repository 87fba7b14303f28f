"""An exported encoder as a layer of Keras 3."""

import contextlib
import os
from typing import Any

import keras
import tensorflow as tf

from kzoo.errors import KzooError
from kzoo.saved_model.loaded_encoder import (
    GRAPH_FILE,
    EncoderSpec,
    LoadedEncoder,
    VariableSpec,
    load_encoder,
    load_same_encoder,
)
from kzoo.saved_model.signature_names import INPUT_NAMES, OUTPUT_NAMES


@keras.saving.register_keras_serializable(package="kzoo")
class EncoderLayer(keras.layers.Layer):
    """Fine-tunes the encoder of an export in a Keras 3 model.

    `hub.KerasLayer` is a layer of tf_keras, which Keras 3 refuses, and Keras's own `TFSMLayer` has
    no training behaviour of its own. Here every variable of the loaded encoder is a weight of the
    layer, on the same storage: what an optimizer, `load_weights` or `tf.train.Checkpoint` writes
    there is what the encoder computes with.

    Inputs are a dict of `input_word_ids`, `input_mask` (1 at tokens, 0 at padding) and
    `input_type_ids`, each integers [batch, length]. Outputs are a dict of `sequence_output`
    [batch, length, H], `pooled_output` [batch, H], `default` (the same) and `encoder_outputs`, a
    list of what each layer returns [batch, length, H]. The encoder computes in float32 under every
    dtype policy; its outputs have the policy's compute dtype.

    Under a `tf.distribute` strategy make the layer, or load the model that has it, in the
    strategy's scope.

    A `.keras` file carries the encoder's graph beside its weights, so it needs the folder no more.
    `import kzoo.saved_model` before loading it, so that Keras knows the class. The graph is checked
    to do nothing but compute.

    Args:
        path: `export/encoder`, or another folder that `python -m kzoo.export` has written as one.
        trainable: False freezes the encoder, its dropouts too; `layer.trainable` changes it later.
        output: one of the outputs' names, to return it alone.
        encoder: what `get_config` tells of the encoder; leave it out.
        **kwargs: of a Keras layer, such as `name` and `dtype`.

    Example:

    ```python
    inputs = {
        name: keras.Input((None,), dtype="int32", name=name)
        for name in ("input_word_ids", "input_mask", "input_type_ids")
    }
    pooled = EncoderLayer("export/encoder", output="pooled_output")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(3)(pooled))
    ```

    Raises:
        KzooError: if there is no encoder at `path`, for another output, and for other inputs.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        trainable: bool = True,
        output: str | None = None,
        encoder: dict[str, Any] | None = None,
        **kwargs,
    ):
        super().__init__(trainable=trainable, **kwargs)
        if output is not None and output not in OUTPUT_NAMES:
            raise KzooError(
                f"`output` must be one of {', '.join(OUTPUT_NAMES)}, or None for all of them. "
                f"Received: output={output!r}"
            )
        # `path` and `output` are properties of every Keras layer, and mean something else there.
        self.encoder_path = os.fspath(path)
        self.output_name = output
        self._encoder: LoadedEncoder | None
        if encoder is None:
            self._encoder = load_encoder(self.encoder_path)
            self._spec = self._encoder.spec
        else:
            self._spec = EncoderSpec.from_config(encoder)
            self._encoder = load_same_encoder(self.encoder_path, self._spec)
        self._own_variables = self._make_variables()
        self.built = True

    def _make_variables(self) -> list[keras.Variable]:
        """A Keras variable on the storage of each variable of the encoder."""
        specs = self._spec.variables
        values = [None] * len(specs) if self._encoder is None else self._encoder.module.variables
        made = []
        for spec, value in zip(specs, values, strict=True):
            variable = self._make_variable(spec, value)
            # As an attribute, or `tf.train.Checkpoint` does not see it.
            setattr(self, f"weight/{spec.name}", variable)
            variable.trainable = spec.trainable and self.trainable
            made.append(variable)
        return made

    def _make_variable(self, spec: VariableSpec, value: tf.Variable | None) -> keras.Variable:
        """A variable whose path ends as it did in pre-training; zeros if there is no storage."""
        *scopes, name = spec.name.split("/")
        with contextlib.ExitStack() as stack:
            for scope in (self.name, *scopes):
                stack.enter_context(keras.name_scope(scope))
            return keras.Variable(
                "zeros" if value is None else value,
                shape=spec.shape,
                dtype=spec.dtype,
                trainable=spec.trainable,
                autocast=False,
                aggregation="mean",
                name=name,
            )

    def call(self, inputs: dict[str, Any], training: bool | None = None):
        """Runs the encoder.

        Args:
            inputs: integers [batch, length] under the three names.
            training: whether its dropouts are active.

        Returns:
            The dict of outputs, or the one that `output` names.
        """
        self._check_inputs(inputs)
        if self._encoder is None:
            raise KzooError(
                f"layer {self.name!r} has no encoder: {self.encoder_path} does not hold the one "
                "that it was made from. Put the folder back, or load the model from its .keras file"
            )
        ids = {name: tf.cast(inputs[name], tf.int32) for name in INPUT_NAMES}
        # A frozen encoder is a fixed function, as with `hub.KerasLayer`.
        outputs = self._encoder.module(ids, training=bool(training and self.trainable))
        outputs = outputs if self.output_name is None else outputs[self.output_name]
        return tf.nest.map_structure(lambda output: tf.cast(output, self.compute_dtype), outputs)

    def compute_output_spec(self, inputs: dict[str, Any], training: bool | None = None):
        """The outputs' shapes and dtypes, without running the encoder."""
        self._check_inputs(inputs)
        batch, length = inputs[INPUT_NAMES[0]].shape

        def hidden() -> keras.KerasTensor:
            return keras.KerasTensor((batch, length, self._spec.hidden_dim), self.compute_dtype)

        def pooled() -> keras.KerasTensor:
            return keras.KerasTensor((batch, self._spec.hidden_dim), self.compute_dtype)

        outputs = {
            "sequence_output": hidden(),
            "pooled_output": pooled(),
            "default": pooled(),
            "encoder_outputs": [hidden() for _ in range(self._spec.num_layers)],
        }
        return outputs if self.output_name is None else outputs[self.output_name]

    def _check_inputs(self, inputs: dict[str, Any]) -> None:
        if not isinstance(inputs, dict) or set(inputs) != set(INPUT_NAMES):
            received = sorted(inputs) if isinstance(inputs, dict) else type(inputs).__name__
            raise KzooError(
                f"layer {self.name!r} takes a dict of {', '.join(INPUT_NAMES)}. "
                f"Received: {received}"
            )
        for name in INPUT_NAMES:
            dtype = keras.backend.standardize_dtype(inputs[name].dtype)
            if not ("int" in dtype or dtype == "bool"):
                raise KzooError(
                    f'layer {self.name!r} takes integers: give `keras.Input` dtype="int32". '
                    f"Received: {name} of dtype {dtype}"
                )

    def save_assets(self, dir_path: str) -> None:
        """Puts the encoder's graph into a `.keras` file; Keras puts the weights there."""
        if self._encoder is None:
            raise KzooError(
                f"layer {self.name!r} cannot be saved: {self.encoder_path} does not hold the "
                "encoder that it was made from. Put the folder back"
            )
        with open(os.path.join(dir_path, GRAPH_FILE), "wb") as file:
            file.write(self._encoder.graph)

    def load_assets(self, dir_path: str | None) -> None:
        """Takes the graph out of a `.keras` file, unless the same one has been loaded already."""
        if self._encoder is not None or dir_path is None:
            return
        storage = {
            spec.name: variable.value
            for spec, variable in zip(self._spec.variables, self._own_variables, strict=True)
        }
        self._encoder = load_same_encoder(dir_path, self._spec, storage)
        if self._encoder is None:
            raise KzooError(f"layer {self.name!r}: the encoder's graph in this file is damaged")

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "path": self.encoder_path,
            "output": self.output_name,
            "encoder": self._spec.to_config(),
        }
