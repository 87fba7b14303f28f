"""Measures the update alone, on the weights of the model of `pretrain_step.py`.

    python benchmarks/optimizer.py --output optimizer.json

AdamW with weight decay on matrices and gradients clipped at a global norm of 1: kzoo's, Keras's
(as a graph, and compiled by XLA), and Model Garden's. The gradients are given and stay alive, so
`extra GB` is what the update takes beside weights, their two moments and their gradients.
"""

import statistics
import sys
from collections.abc import Callable
from typing import Any

import measuring
from absl import flags
from measuring import GIGABYTE, Workload
from step_systems import CLIP_NORM, EPSILON, WEIGHT_DECAY

from kzoo import command
from kzoo.corpora.table import format_table

FLOAT32_BYTES = 4

Update = Callable[[list], Any]  # takes one gradient a weight


def kzoo(workload: Workload) -> Update:
    """The end of `TrainingStep`: the norm of the gradients, and the update."""
    import keras
    import tensorflow as tf

    from kzoo.training.optimizer import AdamW, global_norm

    weights = [_keras_variable(keras, shape) for shape in workload.weight_shapes()]
    optimizer = AdamW(
        weights,
        [weight for weight in weights if len(weight.shape) > 1],
        epsilon=EPSILON,
        weight_decay=WEIGHT_DECAY,
        clip_norm=CLIP_NORM,
    )

    @tf.function
    def update(gradients):
        optimizer.apply(
            gradients,
            step=tf.constant(0, tf.int64),
            learning_rate=tf.constant(workload.learning_rate),
            factor=optimizer.clip_factor(global_norm(gradients)),
        )

    return update


def keras(workload: Workload) -> Update:
    """`keras.optimizers.AdamW`."""
    return _keras(workload, jit_compile=False)


def keras_xla(workload: Workload) -> Update:
    """The same, compiled by XLA."""
    return _keras(workload, jit_compile=True)


def _keras(workload: Workload, *, jit_compile: bool) -> Update:
    import keras
    import tensorflow as tf

    weights = [_keras_variable(keras, shape) for shape in workload.weight_shapes()]
    optimizer = keras.optimizers.AdamW(
        workload.learning_rate, WEIGHT_DECAY, epsilon=EPSILON, global_clipnorm=CLIP_NORM
    )
    optimizer.exclude_from_weight_decay(var_names=["vector"])
    optimizer.build(weights)
    return tf.function(optimizer.apply, jit_compile=jit_compile)


def _keras_variable(keras: Any, shape: tuple[int, ...]) -> Any:
    name = "matrix" if len(shape) > 1 else "vector"
    return keras.Variable(shape=shape, initializer="zeros", name=name)


def model_garden(workload: Workload) -> Update:
    """`AdamWeightDecay` as `official.nlp.optimization.create_optimizer` makes it."""
    import tensorflow as tf
    from official.nlp import optimization

    optimizer = optimization.create_optimizer(
        workload.learning_rate, num_train_steps=1_000_000, num_warmup_steps=0
    )
    weights = [
        tf.Variable(tf.zeros(shape), name="kernel" if len(shape) > 1 else "bias")
        for shape in workload.weight_shapes()
    ]
    optimizer._create_all_weights(weights)

    @tf.function
    def update(gradients):
        optimizer.apply_gradients(zip(gradients, weights, strict=True))

    return update


SYSTEMS = {function.__name__: function for function in (kzoo, keras, keras_xla, model_garden)}
NEEDS = {"model_garden": ("official", "models")}

FLAGS = flags.FlagValues()
flags.DEFINE_integer("vocabulary_size", 250_300, "Rows of both tables.", 2, flag_values=FLAGS)
flags.DEFINE_multi_enum(
    "systems",
    [],
    list(SYSTEMS),
    f"What to measure: {', '.join(SYSTEMS)}; may be repeated. Default: all that are installed.",
    flag_values=FLAGS,
)
flags.DEFINE_integer("threads", 2, "Threads that share an operation.", 1, flag_values=FLAGS)
flags.DEFINE_integer("rounds", 3, "Processes for each system.", 1, flag_values=FLAGS)
flags.DEFINE_integer("updates", 5, "Timed updates of each process.", 1, flag_values=FLAGS)
flags.DEFINE_string("output", None, "Write the results to this file.", flag_values=FLAGS)


def main() -> None:
    systems = measuring.choose_systems(FLAGS.systems, SYSTEMS, NEEDS)
    workload = Workload(FLAGS.vocabulary_size)
    runs = {system: [] for system in systems}
    for number in range(FLAGS.rounds):
        for system in systems:
            measuring.say(f"round {number + 1}: {system}")
            runs[system].append(
                measuring.in_own_process(run, system, workload, FLAGS.threads, FLAGS.updates)
            )
    results = {
        **measuring.machine(),
        "threads": FLAGS.threads,
        "vocabulary_size": workload.vocabulary_size,
        "parameters": workload.num_parameters(),
        "systems": {system: summary(rounds) for system, rounds in runs.items()},
    }
    print_table(results)
    measuring.write_results(results, FLAGS.output)


def run(system: str, workload: Workload, threads: int, updates: int) -> dict[str, Any]:
    """One process of one system."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    # What the libraries themselves take is not the update's: a tiny model goes first.
    tiny = Workload(
        2,
        hidden_dim=8,
        intermediate_dim=8,
        embedding_dim=8,
        output_embedding_dim=8,
        max_sequence_length=8,
    )
    _prepare(system, tiny)()
    before = measuring.resident_memory()
    update = _prepare(system, workload)
    update()
    seconds = measuring.durations(update, updates)
    given = 4 * FLOAT32_BYTES * workload.num_parameters()
    return {
        "seconds": seconds,
        "extra_memory_bytes": max(0, measuring.peak_memory() - before - given),
    }


def _prepare(system: str, workload: Workload) -> Callable[[], Any]:
    """The update of one system, with gradients for it."""
    import tensorflow as tf

    update = SYSTEMS[system](workload)
    gradients = [tf.fill(shape, 1e-3) for shape in workload.weight_shapes()]
    return lambda: update(gradients)


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The medians over the rounds of one system, with the rounds themselves."""
    return {
        "seconds": statistics.median(duration for one in runs for duration in one["seconds"]),
        "extra_memory_bytes": statistics.median(one["extra_memory_bytes"] for one in runs),
        "rounds": runs,
    }


def print_table(results: dict[str, Any]) -> None:
    print(f"\n{results['parameters']:,} parameters, float32, {results['threads']} threads")
    rows = [("system", "seconds", "kzoo faster", "extra GB")]
    ours = results["systems"].get("kzoo")
    for system, measured in results["systems"].items():
        faster = "" if ours is None else f"{measured['seconds'] / ours['seconds']:.2f}x"
        rows.append(
            (
                system,
                f"{measured['seconds']:.3f}",
                "" if system == "kzoo" else faster,
                f"{measured['extra_memory_bytes'] / GIGABYTE:.2f}",
            )
        )
    print(format_table(rows, names=1))


if __name__ == "__main__":
    sys.exit(command.run(main, FLAGS, __doc__))
