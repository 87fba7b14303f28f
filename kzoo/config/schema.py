"""Every key of a configuration: its type, its bounds, its default, and what it means.

Defaults are the published recipe of RemBERT (arXiv 2010.12821, table 14) where it states a value.
Types are strict: a string is never read as a number, and an unknown key is an error. Checks that
compare keys with one another are in `kzoo.config.checks`.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints


@dataclass(frozen=True)
class Described:
    """Says in words what a type accepts, where its bounds alone would not."""

    text: str


Count = Annotated[int, Field(ge=1)]
VocabularySize = Annotated[int, Field(ge=8, le=2**31 - 1)]  # ids are int32
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, lt=1)]
Exponent = Annotated[float, Field(ge=0, le=1)]
Text = Annotated[
    str,
    StringConstraints(min_length=1, pattern=r"^[^\x00-\x1f]*$"),
    Described("a string"),
]
TextList = Annotated[list[Text], Field(min_length=1)]
Files = Annotated[
    Text | Annotated[dict[Text, Text | TextList], Field(min_length=1)],
    Described(
        "a pattern that holds {lang}, or a mapping from language to a path or a list of paths"
    ),
]


class Section(BaseModel):
    """What all sections share: strict types, known keys only, no change after loading."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True
    )


class Model(Section):
    """The encoder and its masked-LM head: a preset, arguments, or a preset with some changed."""

    preset: Text | None = None
    """A name from `python -m kzoo.zoo`. It gives the arguments below that no file and no `--set`
    gives."""

    vocabulary_size: VocabularySize
    """Rows of the input and the output table (V); at least the pieces of the vocabulary."""

    num_layers: Count
    """Transformer layers (L)."""

    num_heads: Count
    """Attention heads of a layer; they divide `hidden_dim`. The paper's heads are 64 wide."""

    hidden_dim: Count
    """Width of the Transformer layers (H)."""

    intermediate_dim: Count
    """Width inside the feed-forward network; by custom 4 H."""

    embedding_dim: Count
    """Width of the input table (E_in), projected to H before the first layer."""

    output_embedding_dim: Count | Literal["tied"]
    """Width of the output table (E_out), which exports leave out; `tied` reuses the input table
    (E_out = E_in), as BERT does."""

    max_sequence_length: Annotated[int, Field(ge=3)] = 512
    """Rows of the position table: the longest input, in pieces, that the model will ever take."""

    num_segments: Count = 2
    """Rows of the segment table: 2, for `[CLS] a [SEP] b [SEP]`."""

    dropout: Fraction = 0.0
    """Share of activations dropped after embeddings and sublayers in pre-training."""

    attention_dropout: Fraction = 0.0
    """Share of attention probabilities dropped in pre-training."""

    activation: Literal["gelu", "gelu_approximate"] = "gelu"
    """GELU by the error function, or by its tanh approximation."""

    layer_norm_epsilon: Positive = 1e-12
    """Added to the variance in layer normalisation."""

    pooler: Literal["dense", "first_token", "mean"] | None = "dense"
    """What `pooled_output` is: a tanh layer over the first position, that position as it is, the
    mean over positions, or nothing. Masked-LM training would leave the tanh layer random, so
    that a run has `mean` in its place."""

    project_embeddings: Literal["auto", True] = "auto"
    """`auto` leaves the projection E_in → H out where the two are equal; `true` keeps it."""


class InitFrom(Section):
    """A model that a run goes on from. All of it may be left out: weights then begin at random."""

    path: Text | None = None
    """A preset's folder, or a run's (of one that has not finished, its newest checkpoint is
    taken). With it, `model.preset` and arguments of the model may be left out: they are then those
    of that model. A run that has a checkpoint of its own goes on from that instead."""

    checkpoint: Literal["newest", "best"] = "newest"
    """Of a run: its newest checkpoint, or the one with the lowest held-out loss."""

    optimizer: Literal["fresh", "kept"] = "fresh"
    """Whether Adam's moments are kept (from a run only). Steps and schedule begin anew in either
    case."""

    allow_missing: Annotated[
        list[Literal["masked_lm_head"]], Described("a list that may hold masked_lm_head")
    ] = []
    """What is made anew, from `data.seed`, where that model lacks it or has it in another width.
    What is missing otherwise is an error."""

    position_table: Literal["interpolate", "repeat"] | None = None
    """How a table of more positions is made, which needs it: the old rows spread evenly with what
    lies between them, or the old rows over and over. A table of fewer keeps the first rows."""


class Corpus(Section):
    """Raw text and its vocabulary: needed only while the example files are not there."""

    train_files: Files | None = None
    """Training text: a pattern with `{lang}` (`corpus/train-{lang}.jsonl.gz`), or a mapping from
    language to a path, a glob or a list of them. `.txt`, `.jsonl` or `.parquet`, each also `.gz`,
    `.xz` or `.zst`."""

    held_out_files: Files | None = None
    """Text that is only measured on, given in the same way; null measures nothing."""

    text_field: Text = "text"
    """Name of the field that holds the text, in `.jsonl` and `.parquet` files."""

    on_bad_text: Literal["error", "replace", "skip"] = "error"
    """Bytes that are not UTF-8: stop, put U+FFFD in their place, or leave the document out."""

    vocabulary: Text | None = None
    """Folder of a vocabulary that is there already; null takes that of `init_from.path`, or else
    trains one on `train_files`."""

    vocabulary_size: VocabularySize | None = None
    """Pieces of a vocabulary that is trained; null means `model.vocabulary_size`."""

    vocabulary_sampling_exponent: Exponent = 0.5
    """Languages give lines to the vocabulary's sample by p ∝ n^α: 1 is proportional to size, 0
    the same for all."""

    vocabulary_sentences: Count = 1_000_000
    """Lines that the vocabulary's sample holds at most, all languages together."""


class Data(Section):
    """Example files, and how they become masked batches."""

    examples: Text
    """Folder of the example files, made on first use from `corpus`."""

    sequence_length: Annotated[int, Field(ge=3)] = 512
    """Pieces in a window, `[CLS]` and `[SEP]` included."""

    global_batch_size: Count = 2048
    """Windows in one optimizer step, all replicas together."""

    sampling_exponent: Exponent = 0.5
    """Languages are drawn by p ∝ n^α, n the sentences of a language: 1 is proportional to size, 0
    the same for all."""

    mask_rate: Annotated[float, Field(gt=0, lt=1)] = 0.15
    """Share of a window's ordinary pieces that are predicted; 80 % of them are shown as `[MASK]`,
    10 % as a random piece, 10 % as they are."""

    max_predictions: Count | None = None
    """Predicted pieces in a window at most; null sets no limit beyond `mask_rate`."""

    whole_word_masking: bool = False
    """Whether all pieces of a word are predicted together. A piece of a script without spaces, such
    as Chinese or Thai, is a word of its own, and so is one of only punctuation."""

    seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Decides the order of examples, masks, initial weights and dropout."""


class Optimizer(Section):
    """AdamW and its learning rate, which depends on the step alone."""

    learning_rate: Positive = 2e-4
    """Highest learning rate, reached at the end of the warm-up."""

    schedule: Literal["linear", "cosine", "warmup_stable_decay", "constant"] = "linear"
    """What follows the warm-up: a line or half a cosine down to `end_learning_rate` just after the
    last step, the highest rate until the last `decay_steps` and then a line down, or no change."""

    warmup_steps: Annotated[int, Field(ge=0)] = 15_000
    """Steps over which the rate rises in a line from almost 0."""

    decay_steps: Count | None = None
    """Length of the last phase of `warmup_stable_decay`, which needs it; null elsewhere."""

    end_learning_rate: NotNegative = 0.0
    """Learning rate at which the decay aims."""

    weight_decay: NotNegative = 0.01
    """Decoupled decay of every weight but biases and layer normalisations, times the learning
    rate."""

    beta_1: Fraction = 0.9
    """Decay of the mean of gradients."""

    beta_2: Fraction = 0.999
    """Decay of the mean of squared gradients."""

    epsilon: Positive = 1e-6
    """Added to the root of the mean of squared gradients."""

    clip_norm: Positive | None = 1.0
    """Global norm to which a larger gradient is scaled down; null does not clip."""

    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """What the rate is multiplied by for each layer on the way down: the masked-LM head has the
    whole rate, layer i of L (the lowest is layer 0) its `layer_decay` ** (L - i), and embeddings
    and projection, the lowest of all, its `layer_decay` ** (L + 1). 1 is the same for all."""

    frozen: Annotated[list[Text], Described("a list of parts of the model")] = []
    """Parts that are not trained: `embeddings` (all tables and their normalisation), `input_table`
    (that of the pieces alone), `projection`, `layer_0` (the lowest), `layers_0_to_5`, `encoder`
    (all of these), `masked_lm_head`, `output_table` (with its bias)."""


class Trainer(Section):
    """How long training runs, and how often it measures, reports and saves."""

    train_steps: Count = 1_760_000
    """Optimizer steps of the whole run."""

    accumulation_steps: Count = 1
    """Micro-batches of a step: each replica computes its share of the global batch in so many
    parts, one after the other, which takes less memory and changes nothing else."""

    steps_per_loop: Count = 10
    """Steps between two moments at which the host waits for the device and reads its metrics; also
    those at which several workers that are asked to stop do so, together."""

    log_interval: Count = 100
    """Steps between two lines of `metrics.jsonl`, TensorBoard points and progress reports."""

    checkpoint_interval: Count = 1_000
    """Steps between two checkpoints. A killed run repeats so many steps at most, and those that
    were made while a checkpoint was being written."""

    keep_checkpoints: Count = 5
    """Newest checkpoints that are kept."""

    keep_best: bool = True
    """Whether the checkpoint with the lowest held-out loss is kept beside the newest; without
    `validation_interval` there is none."""

    validation_interval: Count | None = 1_000
    """Steps between two measurements on held-out text; the last step is always measured. null
    measures none, not even the last: for runs that `--mode=eval_loop` follows."""

    validation_steps: Count | None = None
    """Batches of `data.global_batch_size` windows in one measurement at most, shared evenly by
    the languages; null takes the whole held-out text."""

    on_nonfinite: Literal["stop", "skip"] = "stop"
    """What a loss or gradient that is not a finite number does: stop the run and name the step,
    the batch and the last good checkpoint, or leave that step out, up to `max_skipped_steps`."""

    max_skipped_steps: Count | None = None
    """How many steps of the whole run `on_nonfinite: skip` leaves out before it stops; it needs
    this number."""

    stall_warning_seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = 300.0
    """After how long a wait for the input, the device, another worker or a disk is reported, with
    what is waited for; null never does."""


class Runtime(Section):
    """The machine: devices, number formats, threads."""

    strategy: Literal["one_device", "mirrored", "multi_worker_mirrored", "tpu"] = "one_device"
    """One device (a GPU if there is one); copies of the model that share a batch, on several
    devices or on those of several processes, which `TF_CONFIG` names; or the cores of a TPU."""

    devices: Count | TextList | None = None
    """How many devices of each process (GPUs, or parts of the CPU where there are none) or their
    names (`[GPU:0, GPU:1]`); null takes what `strategy` says, and where it takes several, all."""

    tpu: Text | None = None
    """For the strategy `tpu`: its name or address (`grpc://10.0.0.2:8470`), or `local` on a TPU
    VM."""

    memory_growth: bool = True
    """Whether TensorFlow takes the memory of GPUs as it needs it, instead of all at once."""

    precision: Literal["float32", "mixed_bfloat16", "mixed_float16"] = "float32"
    """Number format of matrix products; weights, softmax, layer normalisation and loss stay in
    float32. `mixed_float16` scales the loss."""

    jit_compile: bool = False
    """Whether XLA compiles the step. Batches are then always padded to `data.sequence_length`."""

    recompute: bool = False
    """Whether the backward pass runs every Transformer layer again instead of keeping what it
    computed: a fraction of the memory for activations, for up to a third more time. Gradients
    stay the same, up to rounding."""

    deterministic: bool = True
    """Whether TensorFlow must give the same bits in every run; slower on a GPU."""

    cache_dir: Text | None = None
    """Local folder for copies of what `data.examples` and other paths keep on object storage
    (`gs://…`), and for what goes there; null means `kzoo` in the user's cache folder."""

    threads: Annotated[int, Field(ge=1, le=1024)] | None = None
    """CPU threads for one operation; null takes every core."""


class Config(Section):
    """A whole run."""

    model: Model
    init_from: InitFrom
    corpus: Corpus
    data: Data
    optimizer: Optimizer
    trainer: Trainer
    runtime: Runtime
