"""The RemBERT encoder."""

import math
import numbers

import keras
from keras_hub.models import Backbone

from kzoo.errors import KzooError
from kzoo.layers.activations import check_activation
from kzoo.layers.encoder_block import DROPOUTS_PER_BLOCK, EncoderBlock
from kzoo.layers.factorized_embeddings import FactorizedEmbeddings
from kzoo.layers.pooler import Pooler, check_pooler
from kzoo.text.tokenizer import RemBertTokenizer

# TensorFlow's 32-bit ids end here.
_MAX_SIZE = 2**31 - 1


@keras.saving.register_keras_serializable(package="kzoo")
class RemBertBackbone(Backbone):
    """A BERT encoder whose input embeddings have a width of their own.

    See "Rethinking embedding coupling in pre-trained language models" (arXiv 2010.12821). The
    masked-LM head, with its output embeddings, is `kzoo.RemBertMaskedLM`.

    Inputs are a dict of `token_ids`, `padding_mask` (1 at tokens, 0 at padding) and
    `segment_ids`, each integers [batch, length]. Ids are not checked here: a graph on a GPU reads
    zeros for an id outside of the table. Outputs are a dict of `sequence_output`
    [batch, length, hidden_dim] and, with a pooler, `pooled_output` [batch, hidden_dim].

    Args:
        vocabulary_size: rows of the token table (the paper's V).
        num_layers: Transformer layers (L).
        num_heads: attention heads of each layer; divides `hidden_dim`.
        hidden_dim: width of the layers (H).
        intermediate_dim: width inside their feed-forward part.
        embedding_dim: width of the input embeddings (E_in).
        max_sequence_length: rows of the position table.
        num_segments: rows of the segment table.
        dropout: rate on embeddings and on the outputs of attention and feed-forward part.
        attention_dropout: rate on attention probabilities.
        activation: "gelu" (exact) or "gelu_approximate" (tanh).
        layer_norm_epsilon: added to the variances.
        pooler: "dense" (tanh of a Dense layer over the first token), "first_token", "mean" (over
            tokens that are not padding), or None.
        project_embeddings: "auto" leaves the projection from E_in to H out where the two are
            equal, as the paper's parameter counts do; True keeps it there too, as Hugging Face
            does.
        dtype: a dtype policy. LayerNorm and softmax are computed in float32 under any.

    Example:

    ```python
    backbone = kzoo.RemBertBackbone(
        vocabulary_size=8000, num_layers=4, num_heads=4, hidden_dim=256, intermediate_dim=1024,
        embedding_dim=64, max_sequence_length=128,
    )
    batch = {
        "token_ids": np.ones((2, 16), "int32"),
        "padding_mask": np.ones((2, 16), "int32"),
        "segment_ids": np.zeros((2, 16), "int32"),
    }
    backbone(batch)["sequence_output"].shape  # (2, 16, 256)
    ```

    Raises:
        KzooError: for arguments that make no model.
    """

    def __init__(
        self,
        vocabulary_size: int,
        num_layers: int,
        num_heads: int,
        hidden_dim: int,
        intermediate_dim: int,
        embedding_dim: int,
        max_sequence_length: int = 512,
        num_segments: int = 2,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation: str = "gelu",
        layer_norm_epsilon: float = 1e-12,
        pooler: str | None = "dense",
        project_embeddings: bool | str = "auto",
        dtype=None,
        name: str = "rembert_backbone",
        **kwargs,
    ):
        arguments = {
            "vocabulary_size": vocabulary_size,
            "num_layers": num_layers,
            "num_heads": num_heads,
            "hidden_dim": hidden_dim,
            "intermediate_dim": intermediate_dim,
            "embedding_dim": embedding_dim,
            "max_sequence_length": max_sequence_length,
            "num_segments": num_segments,
            "dropout": dropout,
            "attention_dropout": attention_dropout,
            "activation": activation,
            "layer_norm_epsilon": layer_norm_epsilon,
            "pooler": pooler,
            "project_embeddings": project_embeddings,
        }
        check_arguments(**arguments)

        # === Layers ===
        self.embeddings = FactorizedEmbeddings(
            vocabulary_size,
            embedding_dim,
            hidden_dim,
            max_sequence_length,
            num_segments,
            dropout,
            layer_norm_epsilon,
            project=project_embeddings is True or embedding_dim != hidden_dim,
            dropout_stream=0,
            dtype=dtype,
            name="embeddings",
        )
        self.encoder_blocks = [
            EncoderBlock(
                num_heads,
                hidden_dim,
                intermediate_dim,
                dropout,
                attention_dropout,
                activation,
                layer_norm_epsilon,
                dropout_stream=1 + DROPOUTS_PER_BLOCK * index,
                dtype=dtype,
                name=f"encoder_block_{index}",
            )
            for index in range(num_layers)
        ]
        self.pooler_layer = None if pooler is None else Pooler(pooler, dtype=dtype, name="pooler")
        self.token_embedding = self.embeddings.token_embedding

        # === Functional model ===
        inputs = {
            key: keras.Input((None,), dtype="int32", name=key)
            for key in ("token_ids", "padding_mask", "segment_ids")
        }
        sequence_output = self.hidden_states(inputs)[-1]
        outputs = {"sequence_output": sequence_output}
        if self.pooler_layer is not None:
            outputs["pooled_output"] = self.pooler_layer(sequence_output, inputs["padding_mask"])
        super().__init__(inputs=inputs, outputs=outputs, dtype=dtype, name=name, **kwargs)

        # === Config ===
        self._argument_names = tuple(arguments)
        for argument, value in arguments.items():
            setattr(self, argument, value)

    def hidden_states(self, inputs: dict, training: bool = False) -> list:
        """Every layer's output, for inputs as the model takes them (symbolic ones too).

        Returns:
            num_layers + 1 tensors [batch, length, hidden_dim]: first the projected embeddings,
            last the `sequence_output`.
        """
        hidden = self.embeddings(inputs["token_ids"], inputs["segment_ids"], training=training)
        states = [hidden]
        for block in self.encoder_blocks:
            states.append(block(states[-1], inputs["padding_mask"], training=training))
        return states

    def get_config(self) -> dict:
        arguments = {argument: getattr(self, argument) for argument in self._argument_names}
        return {**super().get_config(), **arguments}


def check_arguments(**arguments) -> None:
    """Raises a KzooError for the first argument of a backbone that is out of its range."""
    sizes = (
        "vocabulary_size",
        "num_layers",
        "num_heads",
        "hidden_dim",
        "intermediate_dim",
        "embedding_dim",
        "max_sequence_length",
        "num_segments",
    )
    for size in sizes:
        check_size(size, arguments[size])
    for number in ("dropout", "attention_dropout", "layer_norm_epsilon"):
        _check_number(number, arguments[number])
    for rate in ("dropout", "attention_dropout"):
        if not 0 <= arguments[rate] < 1:
            raise KzooError(f"`{rate}` must be in [0, 1). Received: {rate}={arguments[rate]!r}")
    hidden_dim, num_heads = arguments["hidden_dim"], arguments["num_heads"]
    if hidden_dim % num_heads:
        raise KzooError(
            "`num_heads` must divide `hidden_dim`. "
            f"Received: num_heads={num_heads}, hidden_dim={hidden_dim}"
        )
    if not arguments["layer_norm_epsilon"] > 0:
        raise KzooError(
            "`layer_norm_epsilon` must be positive. "
            f"Received: layer_norm_epsilon={arguments['layer_norm_epsilon']!r}"
        )
    check_activation(arguments["activation"])
    if arguments["pooler"] is not None:
        check_pooler(arguments["pooler"])
    if arguments["project_embeddings"] not in ("auto", True):
        raise KzooError(
            '`project_embeddings` must be "auto" or True. '
            f"Received: project_embeddings={arguments['project_embeddings']!r}"
        )


def check_size(argument: str, value: object) -> None:
    """Raises a KzooError unless `value` is a positive integer that can be the size of a tensor."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise KzooError(f"`{argument}` must be a positive integer. Received: {argument}={value!r}")
    if value > _MAX_SIZE:
        raise KzooError(
            f"`{argument}` must be at most {_MAX_SIZE:,}. Received: {argument}={value!r}"
        )


def _check_number(argument: str, value: object) -> None:
    """Raises a KzooError unless `value` is a finite number."""
    is_number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value):
        raise KzooError(f"`{argument}` must be a number. Received: {argument}={value!r}")


# `Tokenizer.from_preset` finds the tokenizer of a preset by its backbone; the tokenizer itself
# knows nothing of models.
RemBertTokenizer.backbone_cls = RemBertBackbone
