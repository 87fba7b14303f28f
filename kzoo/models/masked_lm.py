"""RemBERT with its masked-language-model head."""

import keras
from keras_hub.models import MaskedLM

from kzoo.errors import KzooError
from kzoo.layers.gather_positions import GatherPositions
from kzoo.layers.masked_lm_head import MaskedLMHead
from kzoo.models.backbone import RemBertBackbone, check_size

TIED = "tied"


@keras.saving.register_keras_serializable(package="kzoo")
class RemBertMaskedLM(MaskedLM):
    """The model that is pre-trained: a backbone and a head that predicts masked pieces.

    Inputs are the backbone's and `mask_positions`, integers [batch, num_predictions]; the output
    is float32 logits [batch, num_predictions, vocabulary_size]. Only the vectors at these
    positions go through the head.

    Pre-training takes another way to the same numbers, without so large a tensor:
    `backbone(...)["sequence_output"]`, then `head.transform`, `head.table` and `head.bias`.
    The model is not compiled, since a loss that hides in a default is a loss nobody chose.

    `from_preset`, given an encoder alone and an `output_embedding_dim`, makes a head with random
    weights, as KerasHub's tasks do. `python -m kzoo.pretrain` with `init_from.path` does not.

    Args:
        backbone: the encoder.
        output_embedding_dim: width of the output embeddings (the paper's E_out), or "tied": the
            input table is the output table too, and E_out = E_in.
        preprocessor: what turns text into inputs in `fit` and `predict`, if anything.

    Raises:
        KzooError: for an `output_embedding_dim` that is neither.
    """

    backbone_cls = RemBertBackbone

    def __init__(
        self,
        backbone: RemBertBackbone,
        output_embedding_dim: int | str,
        preprocessor=None,
        name: str = "rembert_masked_lm",
        **kwargs,
    ):
        check_output_embedding_dim(output_embedding_dim)
        tied = output_embedding_dim == TIED

        # === Layers ===
        self.backbone = backbone
        self.preprocessor = preprocessor
        self.gather = GatherPositions(dtype=backbone.dtype_policy, name="gather_positions")
        self.head = MaskedLMHead(
            backbone.vocabulary_size,
            backbone.embedding_dim if tied else output_embedding_dim,
            backbone.activation,
            backbone.layer_norm_epsilon,
            tied_embedding=backbone.token_embedding if tied else None,
            dtype=backbone.dtype_policy,
            name="masked_lm_head",
        )

        # === Functional model ===
        mask_positions = keras.Input((None,), dtype="int32", name="mask_positions")
        hidden = backbone(backbone.input)["sequence_output"]
        super().__init__(
            inputs={**backbone.input, "mask_positions": mask_positions},
            outputs=self.head(self.gather(hidden, mask_positions)),
            compile=False,
            name=name,
            **kwargs,
        )

        # === Config ===
        self.output_embedding_dim = output_embedding_dim

    def get_config(self) -> dict:
        return {**super().get_config(), "output_embedding_dim": self.output_embedding_dim}


def check_output_embedding_dim(value: object) -> None:
    """Raises a KzooError for what is neither a width nor "tied"."""
    if isinstance(value, str) and value != TIED:
        raise KzooError(
            f'`output_embedding_dim` must be a positive integer or "{TIED}". '
            f"Received: output_embedding_dim={value!r}"
        )
    if value != TIED:
        check_size("output_embedding_dim", value)
