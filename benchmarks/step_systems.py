"""One training step of the same masked language model, as each system's users would write it.

Each function takes the workload and a precision, "float32" or "mixed_bfloat16", sets its process
up and returns a step: a call without arguments that makes one update and returns the loss before
it, in nats per target.
"""

from collections.abc import Callable

from measuring import Workload

Step = Callable[[], float]

CLIP_NORM = 1.0
WEIGHT_DECAY = 0.01
EPSILON = 1e-6


def kzoo(workload: Workload, precision: str, threads: int) -> Step:
    """What `python -m kzoo.pretrain` does by default."""
    return _kzoo(workload, precision, threads)


def kzoo_nondeterministic(workload: Workload, precision: str, threads: int) -> Step:
    """The same with `runtime.deterministic: false`."""
    return _kzoo(workload, precision, threads, deterministic=False)


def kzoo_recomputing(workload: Workload, precision: str, threads: int) -> Step:
    """The same as `kzoo` with `runtime.recompute: true`."""
    return _kzoo(workload, precision, threads, recompute=True)


def kzoo_xla(workload: Workload, precision: str, threads: int) -> Step:
    """The same as `kzoo` with `runtime.jit_compile: true`."""
    return _kzoo(workload, precision, threads, jit_compile=True)


def kzoo_xla_recomputing(workload: Workload, precision: str, threads: int) -> Step:
    """The same as `kzoo` with both."""
    return _kzoo(workload, precision, threads, recompute=True, jit_compile=True)


def _kzoo(
    workload: Workload, precision: str, threads: int, *, deterministic: bool = True, **settings
) -> Step:
    from kzoo.training.strategies import configure_runtime, make_strategy

    configure_runtime(precision=precision, threads=threads, deterministic=deterministic)
    training_step, _ = kzoo_training_step(workload, make_strategy("one_device"), **settings)
    batch, steps = workload.batch(), 0

    def step() -> float:
        nonlocal steps
        metrics = training_step([batch], steps, workload.learning_rate)
        steps += 1
        return float(metrics.loss) / workload.num_targets

    return step


def kzoo_training_step(workload: Workload, strategy, **settings):
    """The workload's model and optimizer under a strategy.

    Args:
        workload: what is trained.
        strategy: of `kzoo.training.strategies.make_strategy`.
        settings: of `TrainingStep`.

    Returns:
        The `kzoo.training.step.TrainingStep`, and the variables that a checkpoint must hold.
    """
    import keras

    from kzoo.models.backbone import RemBertBackbone
    from kzoo.models.masked_lm import RemBertMaskedLM
    from kzoo.training.optimizer import AdamW, decayed_variables
    from kzoo.training.step import TrainingStep, trainable_weights

    keras.utils.set_random_seed(0)
    with strategy.scope():
        backbone = RemBertBackbone(
            vocabulary_size=workload.vocabulary_size,
            num_layers=workload.num_layers,
            num_heads=workload.num_heads,
            hidden_dim=workload.hidden_dim,
            intermediate_dim=workload.intermediate_dim,
            embedding_dim=workload.embedding_dim,
            max_sequence_length=workload.max_sequence_length,
            num_segments=workload.num_segments,
            pooler="mean",
        )
        model = RemBertMaskedLM(backbone, workload.output_embedding_dim)
        optimizer = AdamW(
            trainable_weights(model),
            decayed_variables(model),
            epsilon=EPSILON,
            weight_decay=WEIGHT_DECAY,
            clip_norm=CLIP_NORM,
        )
    step = TrainingStep(model, optimizer, strategy, **settings)
    return step, [*model.variables, *optimizer.variables]


def hugging_face(workload: Workload, precision: str, threads: int) -> Step:
    """`RemBertForMaskedLM`: logits at every position, labels -100 where there is no target."""
    import numpy as np
    import torch
    from transformers import RemBertConfig, RemBertForMaskedLM

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    model = RemBertForMaskedLM(
        RemBertConfig(
            vocab_size=workload.vocabulary_size,
            num_hidden_layers=workload.num_layers,
            num_attention_heads=workload.num_heads,
            hidden_size=workload.hidden_dim,
            intermediate_size=workload.intermediate_dim,
            input_embedding_size=workload.embedding_dim,
            output_embedding_size=workload.output_embedding_dim,
            max_position_embeddings=workload.max_sequence_length,
            type_vocab_size=workload.num_segments,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
        )
    )
    model.train()
    matrices = [weight for weight in model.parameters() if weight.ndim > 1]
    vectors = [weight for weight in model.parameters() if weight.ndim == 1]
    optimizer = torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": WEIGHT_DECAY},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=workload.learning_rate,
        eps=EPSILON,
    )
    batch = workload.batch()
    labels = np.full(batch["token_ids"].shape, -100, np.int64)
    np.put_along_axis(labels, batch["mask_positions"], batch["mask_ids"], axis=1)
    inputs = {
        "input_ids": torch.tensor(batch["token_ids"], dtype=torch.long),
        "attention_mask": torch.tensor(batch["padding_mask"], dtype=torch.long),
        "labels": torch.tensor(labels),
    }
    half = precision == "mixed_bfloat16"

    def step() -> float:
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return step


def model_garden(workload: Workload, precision: str, threads: int) -> Step:
    """`BertPretrainerV2` with an output table of its own, trained by Model Garden's MLM task.

    In float32 alone: its head cannot take a table of its own under a mixed policy.
    """
    import tensorflow as tf
    import tf_keras
    from official.nlp import optimization
    from official.nlp.data.pretrain_dataloader import BertPretrainDataConfig
    from official.nlp.modeling import layers, models, networks
    from official.nlp.tasks.masked_lm import MaskedLMConfig, MaskedLMTask

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf_keras.mixed_precision.set_global_policy(precision)
    tf_keras.utils.set_random_seed(0)
    encoder = networks.BertEncoderV2(
        vocab_size=workload.vocabulary_size,
        num_layers=workload.num_layers,
        num_attention_heads=workload.num_heads,
        hidden_size=workload.hidden_dim,
        inner_dim=workload.intermediate_dim,
        inner_activation=tf_keras.activations.gelu,
        embedding_width=workload.embedding_dim,
        max_sequence_length=workload.max_sequence_length,
        type_vocab_size=workload.num_segments,
        output_dropout=0.0,
        attention_dropout=0.0,
    )
    initializer = tf_keras.initializers.TruncatedNormal(stddev=0.02, seed=0)
    table = tf.Variable(
        initializer([workload.vocabulary_size, workload.output_embedding_dim]), name="output_table"
    )
    model = models.BertPretrainerV2(
        encoder,
        customized_masked_lm=layers.MaskedLM(table, tf_keras.activations.gelu, initializer),
    )
    data = BertPretrainDataConfig(use_next_sentence_label=False)
    task = MaskedLMTask(MaskedLMConfig(train_data=data))
    optimizer = optimization.create_optimizer(
        workload.learning_rate, num_train_steps=1_000_000, num_warmup_steps=0
    )
    metrics = task.build_metrics()
    training_step = tf.function(lambda batch: task.train_step(batch, model, optimizer, metrics))
    batch = workload.batch()
    inputs = {
        "input_word_ids": batch["token_ids"],
        "input_mask": batch["padding_mask"],
        "input_type_ids": 0 * batch["token_ids"],
        "masked_lm_positions": batch["mask_positions"],
        "masked_lm_ids": batch["mask_ids"],
        "masked_lm_weights": batch["mask_weights"],
    }
    inputs = {key: tf.convert_to_tensor(value) for key, value in inputs.items()}
    return lambda: float(training_step(inputs)[task.loss])


def keras(workload: Workload, precision: str, threads: int) -> Step:
    """Keras 3 and KerasHub's layers: positions gathered, then logits, Keras's AdamW."""
    return _keras(workload, precision, threads, jit_compile=False)


def keras_xla(workload: Workload, precision: str, threads: int) -> Step:
    """The same compiled by XLA, which is what `compile` chooses unless told otherwise."""
    return _keras(workload, precision, threads, jit_compile=True)


def _keras(workload: Workload, precision: str, threads: int, *, jit_compile: bool) -> Step:
    import keras
    import keras_hub
    import tensorflow as tf
    from keras import ops

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    keras.config.set_dtype_policy(precision)
    keras.utils.set_random_seed(0)
    initializer = keras.initializers.TruncatedNormal(stddev=0.02)
    gelu = keras.activations.gelu

    def layer_norm() -> keras.layers.Layer:
        return keras.layers.LayerNormalization(epsilon=1e-12)

    def dense(units: int, **arguments) -> keras.layers.Layer:
        return keras.layers.Dense(units, kernel_initializer=initializer, **arguments)

    names = ("token_ids", "padding_mask", "segment_ids", "mask_positions")
    inputs = {name: keras.Input((None,), dtype="int32", name=name) for name in names}
    hidden = keras_hub.layers.TokenAndPositionEmbedding(
        workload.vocabulary_size,
        workload.max_sequence_length,
        workload.embedding_dim,
        embeddings_initializer=initializer,
    )(inputs["token_ids"])
    hidden += keras.layers.Embedding(workload.num_segments, workload.embedding_dim, initializer)(
        inputs["segment_ids"]
    )
    hidden = dense(workload.hidden_dim)(layer_norm()(hidden))
    for _ in range(workload.num_layers):
        hidden = keras_hub.layers.TransformerEncoder(
            workload.intermediate_dim,
            workload.num_heads,
            activation=gelu,
            layer_norm_epsilon=1e-12,
            kernel_initializer=initializer,
        )(hidden, padding_mask=inputs["padding_mask"])
    hidden = ops.take_along_axis(hidden, inputs["mask_positions"][:, :, None], axis=1)
    hidden = layer_norm()(dense(workload.output_embedding_dim, activation=gelu)(hidden))
    logits = dense(workload.vocabulary_size, dtype=precision)(hidden)
    model = keras.Model(inputs, keras.layers.Activation("linear", dtype="float32")(logits))
    optimizer = keras.optimizers.AdamW(
        workload.learning_rate, WEIGHT_DECAY, epsilon=EPSILON, global_clipnorm=CLIP_NORM
    )
    optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    model.compile(
        optimizer,
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        jit_compile=jit_compile,
    )
    batch = workload.batch()
    features = {key: batch[key] for key in inputs if key in batch}
    features["segment_ids"] = 0 * batch["token_ids"]
    targets, weights = batch["mask_ids"], batch["mask_weights"]

    def step() -> float:
        model.reset_metrics()  # whose mean over steps is what train_on_batch returns
        return float(model.train_on_batch(features, targets, weights))

    return step
