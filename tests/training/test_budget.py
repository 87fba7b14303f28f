"""Memory, disk and arithmetic of a run, against counts by hand."""

import dataclasses

import pytest

from kzoo.config import loader
from kzoo.models.by_shape import build_by_shape
from kzoo.models.parameter_counts import count_parameters
from kzoo.training import budget
from kzoo.training.budget import Workload
from kzoo.training.dry_run import parameter_counts, workload_of
from tests.paths import REPOSITORY

WORKLOAD = Workload(
    vocabulary_size=1000,
    num_layers=3,
    num_heads=2,
    hidden_dim=4,
    intermediate_dim=16,
    embedding_dim=2,
    output_embedding_dim=6,
    sequence_length=8,
    max_predictions=1,
    global_batch_size=24,
    num_replicas=2,
    accumulation_steps=3,
)
COUNTS = count_parameters(
    vocabulary_size=1000,
    num_layers=3,
    hidden_dim=4,
    intermediate_dim=16,
    embedding_dim=2,
    output_embedding_dim=6,
    max_sequence_length=8,
    pooler=None,
)


def changed(**changes):
    return dataclasses.replace(WORKLOAD, **changes)


def test_a_batch_is_shared_by_replicas_and_their_micro_batches():
    assert (WORKLOAD.replica_batch_size, WORKLOAD.micro_batch_size) == (12, 4)
    assert (WORKLOAD.tokens_per_step, WORKLOAD.targets_per_step) == (192, 24)


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        # 6 H + A S + 4 FFN = 24 + 16 + 64 = 104 numbers; 4 H = 16 in float32.
        ({}, 4 * 104 + 4 * 16),
        ({"compute_bytes": 2}, 2 * 104 + 4 * 16 + 4 * 16),
        ({"dropout": True}, 4 * 104 + 4 * 16 + 2 * 4),
        ({"attention_dropout": True}, 4 * 104 + 4 * 16 + 16 + 4 * 16),
    ],
)
def test_bytes_that_a_layer_keeps_of_a_token(changes, size):
    assert budget.layer_bytes_per_token(changed(**changes)) == size


def test_activations_of_a_micro_batch():
    # 4 windows of 8 tokens, with one target each.
    embeddings = 32 * 2 * (8 + 4)
    head = 4 * (4 * 4 + 6 * (16 + 12))
    layer = 32 * 480
    assert budget.activation_bytes(WORKLOAD) == embeddings + 3 * layer + head
    inputs = 3 * 32 * 4 * 4
    again = embeddings + inputs + layer + head
    assert budget.activation_bytes(changed(recompute=True)) == again
    assert budget.activation_bytes(WORKLOAD, recompute=True) == again
    assert budget.activation_bytes(changed(recompute=True), recompute=False) == (
        budget.activation_bytes(WORKLOAD)
    )


def test_temporaries_are_of_the_wider_part_of_a_layer():
    assert budget.backward_temporaries(WORKLOAD) == 3 * 32 * 4 * 16
    assert budget.backward_temporaries(changed(num_heads=4)) == 3 * 32 * 4 * 32


@pytest.mark.parametrize(
    ("vocabulary_size", "targets", "rows", "tables"),
    # A chunk is 256 MiB of logits: 268 rows of a vocabulary of 250,000.
    [
        (1000, 24, 24, 0),
        (250_000, 268, 268, 0),
        (250_000, 269, 135, 2),
        (250_000, 1000, 250, 2),
    ],
)
def test_scores_are_those_of_one_chunk(vocabulary_size, targets, rows, tables):
    workload = changed(
        vocabulary_size=vocabulary_size,
        global_batch_size=targets,
        num_replicas=1,
        accumulation_steps=1,
    )
    assert budget.scoring_bytes(workload) == 4 * vocabulary_size * (2 * rows + 6 * tables)


def test_memory_of_one_device():
    total = COUNTS.total
    alone = changed(num_replicas=1, accumulation_steps=1)
    memory = budget.memory(alone, COUNTS)
    assert (memory.weights, memory.averages, memory.gradients) == (4 * total, 8 * total, 4 * total)
    assert (memory.accumulated, memory.reduced) == (0, 0)
    assert memory.state == 12 * total
    assert memory.update == 4 * 6000
    assert memory.output_table_gradient == 4 * 6000
    begins = memory.activations + memory.output_table_gradient + memory.scoring
    assert memory.peak == memory.state + max(begins, memory.gradients + memory.update)
    shared = budget.memory(WORKLOAD, COUNTS)
    assert (shared.accumulated, shared.reduced) == (4 * total, 12 * total)
    assert shared.state == memory.state
    assert (memory.casts, budget.memory(changed(compute_bytes=2), COUNTS).casts) == (0, 2 * total)
    assert shared.activations * 6 == memory.activations


def test_the_peak_is_at_the_beginning_or_at_the_end_of_the_backward_pass():
    memory = budget.Memory(
        weights=10,
        averages=20,
        accumulated=0,
        gradients=10,
        reduced=0,
        casts=0,
        activations=50,
        output_table_gradient=2,
        scoring=3,
        temporaries=7,
        update=4,
    )
    assert memory.peak == 30 + 50 + (2 + 7)
    assert dataclasses.replace(memory, temporaries=0).peak == 30 + 50 + (2 + 3)
    assert dataclasses.replace(memory, casts=5).peak == 30 + 5 + 50 + (2 + 7)
    assert dataclasses.replace(memory, activations=1).peak == 30 + 10 + 4
    assert dataclasses.replace(memory, activations=1, reduced=10).peak == 30 + 10 + 10
    assert dataclasses.replace(memory, accumulated=10).peak == 40 + 50 + (2 + 7)


def test_operations_of_a_step():
    # Layers: 4 H² + 2 H FFN = 192 weights each; projection 8; scores 2 S H a token and product.
    encoder = 6 * 192 * (8 + 3 * 192)
    scores = 12 * 192 * 8 * 4 * 3
    head = 6 * 24 * 6 * (4 + 1000)
    needed = encoder + scores + head
    assert budget.step_flops(WORKLOAD) == (needed, needed)
    again = (6 * 192 * 3 * 192 + scores) / 3
    assert budget.step_flops(changed(recompute=True)) == (needed, needed + again)


def test_the_fewest_micro_batches_that_fit():
    alone = changed(num_replicas=1, accumulation_steps=1)
    peaks = {
        steps: budget.memory(changed(num_replicas=1, accumulation_steps=steps), COUNTS).peak
        for steps in (1, 2, 3, 4, 6, 8, 12, 24)
    }
    assert budget.smallest_accumulation(alone, COUNTS, peaks[1]) == 1
    assert budget.smallest_accumulation(alone, COUNTS, peaks[4]) == 4
    assert budget.smallest_accumulation(alone, COUNTS, peaks[24] - 1) is None


def test_epochs_of_each_language():
    found = budget.epochs(1000, {"de": 0.75, "sw": 0.25}, {"de": 300, "sw": 10})
    assert found == {"de": 2.5, "sw": 25.0}


@pytest.mark.parametrize("name", ["sample", "rembert"])
def test_parameters_are_those_of_the_model(name):
    config = loader.load([str(REPOSITORY / "configs" / f"{name}.yaml")])
    arguments = config.model.model_dump(exclude={"preset", "output_embedding_dim"})
    model = build_by_shape({**arguments, "pooler": "mean"}, config.model.output_embedding_dim)
    assert parameter_counts(config).total == model.count_params()
    workload = workload_of(config, 1)
    assert workload.trained_parameters == model.count_params()
    assert (workload.num_untouched_layers, workload.output_table_is_trained) == (0, True)
    assert budget.checkpoint_bytes(workload, parameter_counts(config)) == 12 * model.count_params()


def test_what_is_frozen_has_no_gradients_and_no_averages():
    total, trained = COUNTS.total, COUNTS.total - 1000
    some = changed(trained_parameters=trained)
    memory = budget.memory(some, COUNTS)
    assert (memory.weights, memory.averages, memory.gradients) == (
        *(4 * total, 8 * trained, 4 * trained),
    )
    assert (memory.accumulated, memory.reduced) == (4 * trained, 12 * trained)
    assert budget.checkpoint_bytes(some, COUNTS) == 4 * total + 8 * trained
    assert budget.checkpoint_bytes(WORKLOAD, COUNTS) == 12 * total
    assert budget.memory(changed(output_table_is_trained=False), COUNTS).output_table_gradient == 0


def test_below_what_is_trained_nothing_is_kept_and_there_is_no_backward_pass():
    top = changed(num_untouched_layers=2)
    head = 4 * (4 * 4 + 6 * (16 + 12))
    layer = 32 * 480
    assert budget.activation_bytes(top) == layer + head
    assert budget.activation_bytes(top, recompute=True) == 32 * 4 * 4 + layer + head
    none = changed(num_untouched_layers=3)
    assert budget.activation_bytes(none) == budget.activation_bytes(none, recompute=True) == head
    # A layer needs 6 · 192 · 192 operations in its kernels, and 12 · 192 · S · H for its scores.
    of_a_layer = 6 * 192 * 192 + 12 * 192 * 8 * 4
    needed, _ = budget.step_flops(WORKLOAD)
    assert budget.step_flops(top)[0] == pytest.approx(needed - 2 * of_a_layer * 2 / 3)


@pytest.mark.parametrize(
    ("frozen", "trained", "untouched", "table"),
    [
        ("[embeddings]", lambda counts: counts.total - counts.embeddings, 0, True),
        (
            "[encoder]",
            lambda counts: counts.head_transform + counts.output_table + counts.output_bias,
            "all",
            True,
        ),
        (
            "[embeddings, projection, layer_0, output_table]",
            lambda counts: counts.layers * 31 // 32 + counts.head_transform,
            1,
            False,
        ),
    ],
)
def test_the_step_of_a_model_that_is_frozen_in_part(frozen, trained, untouched, table):
    config = loader.load(
        [str(REPOSITORY / "configs" / "rembert.yaml")], [f"optimizer.frozen={frozen}"]
    )
    workload = workload_of(config, 1)
    assert workload.trained_parameters == trained(parameter_counts(config))
    assert workload.num_untouched_layers == (
        config.model.num_layers if untouched == "all" else untouched
    )
    assert workload.output_table_is_trained == table


def test_the_step_of_a_configuration():
    config = loader.load(
        [str(REPOSITORY / "configs" / "rembert.yaml")],
        [
            "runtime.precision=mixed_bfloat16",
            "trainer.accumulation_steps=16",
            "model.output_embedding_dim=tied",
            "model.attention_dropout=0.1",
            "runtime.recompute=true",
        ],
    )
    workload = workload_of(config, 8)
    assert (workload.micro_batch_size, workload.max_predictions) == (16, 77)
    assert workload.output_embedding_dim == workload.embedding_dim == 256
    assert workload.compute_bytes == 2
    assert (workload.dropout, workload.attention_dropout) == (False, True)
    assert workload.recompute
