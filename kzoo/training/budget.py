"""What a run will take of memory, disk and arithmetic: pure functions of its shapes.

Sizes are bytes of one device unless they say otherwise. What cannot be known but by measuring
(libraries, allocators, what XLA fuses) is left out.
"""

import dataclasses

from kzoo.layers.vocabulary_loss import default_chunk_size
from kzoo.models.parameter_counts import ParameterCounts
from kzoo.training.flops import training_flops

FLOAT = 4
# Of the optimizer.
AVERAGES = 2


@dataclasses.dataclass(frozen=True)
class Workload:
    """The shapes of one step, and how it is shared out.

    Attributes:
        vocabulary_size, num_layers, num_heads, hidden_dim, intermediate_dim, embedding_dim,
        output_embedding_dim: V, L, A, H, FFN, E_in and E_out, which is E_in where it is tied.
        sequence_length: S.
        max_predictions: the most targets of a window.
        global_batch_size: windows of a step.
        num_replicas: devices that share them, all workers together.
        accumulation_steps: micro-batches that each replica cuts its share into.
        compute_bytes: of a number in the layers: 4, or 2 in mixed precision.
        dropout, attention_dropout: whether there is any.
        recompute: whether layers run again for their gradient.
        trained_parameters: how many of the model's are not frozen; None for all.
        num_untouched_layers: the lowest layers, if they and what is below them are frozen, so that
            no gradient passes through them.
        output_table_is_trained: whether it is not frozen.
    """

    vocabulary_size: int
    num_layers: int
    num_heads: int
    hidden_dim: int
    intermediate_dim: int
    embedding_dim: int
    output_embedding_dim: int
    sequence_length: int
    max_predictions: int
    global_batch_size: int
    num_replicas: int = 1
    accumulation_steps: int = 1
    compute_bytes: int = FLOAT
    dropout: bool = False
    attention_dropout: bool = False
    recompute: bool = False
    trained_parameters: int | None = None
    num_untouched_layers: int = 0
    output_table_is_trained: bool = True

    @property
    def replica_batch_size(self) -> int:
        """Windows that one replica takes of a step."""
        return self.global_batch_size // self.num_replicas

    @property
    def micro_batch_size(self) -> int:
        """Windows that one replica computes at a time."""
        return self.replica_batch_size // self.accumulation_steps

    @property
    def tokens_per_step(self) -> int:
        """Positions of a step, padding included, if every window is full."""
        return self.global_batch_size * self.sequence_length

    @property
    def targets_per_step(self) -> int:
        """Targets of a step, if every window is full."""
        return self.global_batch_size * self.max_predictions


@dataclasses.dataclass(frozen=True)
class Memory:
    """The memory of one device, part by part, in bytes.

    Attributes:
        weights: of the model.
        averages: the optimizer's two, of what is trained.
        accumulated: the sum of the micro-batches' gradients; 0 without accumulation.
        gradients: of all that is trained, at the end of the backward pass.
        reduced: their sum over replicas, with what it is packed into; 0 where there is one. As
            measured on CPUs: collectives of GPUs may take less.
        casts: the weights in the layers' number format, where that is not their own.
        activations: what the forward pass keeps for the backward pass.
        output_table_gradient: which the loss forms in the forward pass already.
        scoring: what the loss needs besides, for a chunk of targets at a time.
        temporaries: what a layer's backward pass needs besides.
        update: the larger table once more.
    """

    weights: int
    averages: int
    accumulated: int
    gradients: int
    reduced: int
    casts: int
    activations: int
    output_table_gradient: int
    scoring: int
    temporaries: int
    update: int

    @property
    def state(self) -> int:
        """What is there between two steps."""
        return self.weights + self.averages

    @property
    def peak(self) -> int:
        """The most that is there at one time.

        Either as the backward pass begins, when all activations are there and few gradients, or
        at its end, when it is the other way round.
        """
        kept = self.casts + self.activations + self.output_table_gradient
        begins = kept + max(self.scoring, self.temporaries)
        ends = self.gradients + max(self.reduced, self.update)
        return self.state + self.accumulated + max(begins, ends)


def memory(workload: Workload, counts: ParameterCounts) -> Memory:
    """What one device holds.

    Args:
        workload: the step.
        counts: the parameters of the model; without a pooler, which a run has none of.
    """
    gradients = FLOAT * _trained_parameters(workload, counts)
    input_table = FLOAT * workload.vocabulary_size * workload.embedding_dim
    output_table = FLOAT * workload.vocabulary_size * workload.output_embedding_dim
    return Memory(
        weights=FLOAT * counts.total,
        averages=AVERAGES * gradients,
        accumulated=gradients if workload.accumulation_steps > 1 else 0,
        gradients=gradients,
        reduced=3 * gradients if workload.num_replicas > 1 else 0,
        casts=workload.compute_bytes * counts.total if workload.compute_bytes != FLOAT else 0,
        activations=activation_bytes(workload),
        output_table_gradient=output_table if workload.output_table_is_trained else 0,
        scoring=scoring_bytes(workload),
        temporaries=backward_temporaries(workload),
        update=max(input_table, output_table),
    )


def _trained_parameters(workload: Workload, counts: ParameterCounts) -> int:
    trained = workload.trained_parameters
    return counts.total if trained is None else trained


def activation_bytes(workload: Workload, *, recompute: bool | None = None) -> int:
    """What the forward pass of one micro-batch keeps for its backward pass.

    Args:
        workload: the step.
        recompute: whether layers run again for their gradient; None for what `workload` says.

    Returns:
        Bytes: of the embeddings, and of all layers, or with recomputation their inputs and what
        the one that runs again keeps.
    """
    tokens = workload.micro_batch_size * workload.sequence_length
    targets = workload.micro_batch_size * workload.max_predictions
    layer = tokens * layer_bytes_per_token(workload)
    # The sum of the tables, centred and normalised in float32, and what is projected.
    embeddings = tokens * workload.embedding_dim * (2 * FLOAT + workload.compute_bytes)
    # Gathered; then dense layer, activation and normalisation as in `layer_bytes_per_token`.
    head = targets * (
        workload.hidden_dim * workload.compute_bytes
        + workload.output_embedding_dim * (4 * workload.compute_bytes + 3 * FLOAT)
    )
    num_layers = workload.num_layers - workload.num_untouched_layers
    if workload.recompute if recompute is None else recompute:
        inputs = tokens * workload.hidden_dim * workload.compute_bytes
        layers = num_layers * inputs + min(1, num_layers) * layer
    else:
        layers = num_layers * layer
    return (0 if workload.num_untouched_layers else embeddings) + layers + head


def layer_bytes_per_token(workload: Workload) -> int:
    """What one Transformer layer keeps of one token for its backward pass.

    In the layers' number format: query, key, value, what attention gathers, and two normalised
    outputs (6 H); the probabilities (A · S); input of the activation, its argument scaled, its
    factor, and its output (4 FFN). In float32 anyhow: what two normalisations centre and scale
    (4 H), and in mixed precision the probabilities once more. A byte for each value that dropout
    may drop, and the probabilities after it.
    """
    hidden, scores = workload.hidden_dim, workload.num_heads * workload.sequence_length
    in_layer_format = 6 * hidden + scores + 4 * workload.intermediate_dim
    in_float32 = 4 * hidden + (scores if workload.compute_bytes != FLOAT else 0)
    dropped = (2 * hidden if workload.dropout else 0) + (
        scores * (1 + workload.compute_bytes) if workload.attention_dropout else 0
    )
    return workload.compute_bytes * in_layer_format + FLOAT * in_float32 + dropped


def backward_temporaries(workload: Workload) -> int:
    """What the backward pass of a layer has at a time beside what was kept for it.

    The gradients of the activation's output and of its two factors, or those of the probabilities
    and scores: three arrays of their width, whichever is wider.
    """
    tokens = workload.micro_batch_size * workload.sequence_length
    feed_forward = workload.compute_bytes * workload.intermediate_dim
    scores = FLOAT * workload.num_heads * workload.sequence_length
    return 3 * tokens * max(feed_forward, scores)


def scoring_bytes(workload: Workload) -> int:
    """What the loss has at a time beside what it keeps.

    The scores of one chunk of targets and their gradient; and where there are several chunks, the
    part of the output table's gradient that is added, and the new sum.
    """
    targets = workload.micro_batch_size * workload.max_predictions
    largest = default_chunk_size(workload.vocabulary_size)
    num_chunks = max(1, -(-targets // largest))
    rows = -(-targets // num_chunks)
    logits = 2 * FLOAT * rows * workload.vocabulary_size
    table = FLOAT * workload.vocabulary_size * workload.output_embedding_dim
    is_added = num_chunks > 1 and workload.output_table_is_trained
    return logits + (2 * table if is_added else 0)


def step_flops(workload: Workload) -> tuple[float, float]:
    """The floating-point operations of one step, of all devices together.

    Returns:
        What the model needs, and what is computed: with recomputation the products of the layers'
        forward pass, a third of theirs, are done twice. Both count layers that no gradient passes
        through a third, and whatever else is frozen as if it were trained.
    """
    shapes = {
        "sequence_length": workload.sequence_length,
        "hidden_dim": workload.hidden_dim,
        "intermediate_dim": workload.intermediate_dim,
        "embedding_dim": workload.embedding_dim,
        "output_embedding_dim": workload.output_embedding_dim,
        "vocabulary_size": workload.vocabulary_size,
    }
    tokens, targets = workload.tokens_per_step, workload.targets_per_step

    def of_layers(num_layers: int) -> float:
        return training_flops(
            num_tokens=tokens, num_targets=targets, num_layers=num_layers, **shapes
        )

    touched = of_layers(workload.num_layers - workload.num_untouched_layers)
    untouched = (of_layers(workload.num_layers) - touched) / 3
    again = (touched - of_layers(0)) / 3 if workload.recompute else 0.0
    return touched + untouched, touched + untouched + again


def checkpoint_bytes(workload: Workload, counts: ParameterCounts) -> int:
    """The disk space of one checkpoint: weights, and two averages of what is trained."""
    return FLOAT * (counts.total + AVERAGES * _trained_parameters(workload, counts))


def smallest_accumulation(
    workload: Workload, counts: ParameterCounts, available_bytes: float
) -> int | None:
    """The fewest micro-batches with which a step fits into a device; None if it never does."""
    for steps in range(1, workload.replica_batch_size + 1):
        if workload.replica_batch_size % steps == 0:
            tried = dataclasses.replace(workload, accumulation_steps=steps)
            if memory(tried, counts).peak <= available_bytes:
                return steps
    return None


def epochs(
    num_examples: int, probabilities: dict[str, float], num_windows: dict[str, int]
) -> dict[str, float]:
    """How often a run sees each language's windows.

    Args:
        num_examples: that the run takes in all.
        probabilities: each language's share of them.
        num_windows: of each language.
    """
    return {
        language: num_examples * share / num_windows[language]
        for language, share in probabilities.items()
    }
