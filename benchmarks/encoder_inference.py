"""Measures exported encoders, against Hugging Face's with the same weights.

    python benchmarks/encoder_inference.py --output encoder_inference.json
    python benchmarks/encoder_inference.py --text 'parallel/*.txt'

The model: L 12, H 768, 12 heads, FFN 3072, E_in 128, V 250,300, random weights, no padding. It is
exported as `python -m kzoo.export` does, and what is measured are the folders, loaded by
TensorFlow: `kzoo` is the encoder module, `kzoo_bfloat16` and `kzoo_int8` the `from_ids` signature
of serving modules. Every measurement is a process of its own; the systems take turns, and medians
are over the calls of all rounds.

The columns: rows x tokens; `tokens/s`; `x`, how many times Hugging Face's, and what is wanted of
kzoo; `of peak`, the share of the machine's own matrix-product peak (float32) that the call's matrix
products reach; and once for each system the bytes on disk and the lowest cosine between its pooled
outputs and those of `kzoo`.

With --text (one sentence a line), the serving module also encodes these sentences: sorted by length
into batches of their own length, and in the order of the files with each batch padded to 128.
"""

import functools
import glob
import itertools
import pathlib
import statistics
import sys
import tempfile
from collections.abc import Callable
from typing import Any

import measuring
import numpy as np
from absl import flags

from kzoo import command
from kzoo.corpora.table import format_table
from kzoo.errors import KzooError

SHAPES = ((8, 128), (1, 32), (4, 512))
WIDTHS = {
    "num_heads": 12,
    "hidden_dim": 768,
    "intermediate_dim": 3072,
    "embedding_dim": 128,
}
SERVING = {"kzoo_float32": "float32", "kzoo_bfloat16": "bfloat16", "kzoo_int8": "int8"}
TEXT_BATCH = 32
PADDED_LENGTH = 128

# How many times Hugging Face's tokens/s.
WANTED = {
    ("kzoo", (8, 128)): 1.1,
    ("kzoo", (1, 32)): 1.35,
    ("kzoo", (4, 512)): 1.2,
    ("kzoo_bfloat16", (8, 128)): 1.65,
    ("kzoo_bfloat16", (1, 32)): 1.8,
    ("kzoo_bfloat16", (4, 512)): 2.0,
}

Encode = Callable[[dict[str, np.ndarray]], np.ndarray]


def kzoo(folder: pathlib.Path) -> Encode:
    """The exported encoder, as a TensorFlow program calls it."""
    import tensorflow as tf

    encoder = tf.saved_model.load(str(folder))
    return lambda inputs: encoder(
        {name: tf.constant(values) for name, values in inputs.items()}, training=False
    )["pooled_output"].numpy()


def serving(folder: pathlib.Path) -> Encode:
    """The `from_ids` signature of a serving module."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 (its operations are in the module)

    loaded = tf.saved_model.load(str(folder))
    encode = loaded.signatures["from_ids"]
    return lambda inputs: encode(**{name: tf.constant(values) for name, values in inputs.items()})[
        "pooled_output"
    ].numpy()


def hugging_face(model: dict[str, int], folder: pathlib.Path, threads: int) -> Encode:
    """`RemBertModel` in inference mode, with the weights that were exported."""
    import torch
    from safetensors.torch import load_file
    from transformers import RemBertConfig, RemBertModel

    torch.set_num_threads(threads)
    peer = RemBertModel(
        RemBertConfig(
            vocab_size=model["vocabulary_size"],
            num_hidden_layers=model["num_layers"],
            num_attention_heads=model["num_heads"],
            hidden_size=model["hidden_dim"],
            intermediate_size=model["intermediate_dim"],
            input_embedding_size=model["embedding_dim"],
        )
    )
    peer.load_state_dict(load_file(folder))
    peer.eval()
    names = {
        "input_word_ids": "input_ids",
        "input_mask": "attention_mask",
        "input_type_ids": "token_type_ids",
    }

    def encode(inputs: dict[str, np.ndarray]) -> np.ndarray:
        with torch.inference_mode():
            tensors = {
                names[name]: torch.from_numpy(values).long() for name, values in inputs.items()
            }
            return peer(**tensors).pooler_output.numpy()

    return encode


SYSTEMS = ("kzoo", *SERVING, "hugging_face")
NEEDS = {"hugging_face": ("transformers", "peers")}

FLAGS = flags.FlagValues()
flags.DEFINE_multi_enum(
    "systems",
    [],
    list(SYSTEMS),
    f"What to measure: {', '.join(SYSTEMS)}; may be repeated. Default: all that are installed.",
    flag_values=FLAGS,
)
flags.DEFINE_string(
    "text", None, "Files with a sentence a line (a glob) to encode as text too.", flag_values=FLAGS
)
flags.DEFINE_string(
    "vocabulary",
    None,
    "What the text is cut with; without it one of kzoo's sample.",
    flag_values=FLAGS,
)
flags.DEFINE_integer(
    "sentences",
    500,
    "How many of the sentences, spread evenly over the files.",
    1,
    flag_values=FLAGS,
)
flags.DEFINE_integer(
    "vocabulary_size", 250_300, "Rows of the input table.", 4000, flag_values=FLAGS
)
flags.DEFINE_integer("num_layers", 12, "Layers.", 1, flag_values=FLAGS)
flags.DEFINE_integer("threads", 2, "Threads that share an operation.", 1, flag_values=FLAGS)
flags.DEFINE_integer("rounds", 3, "Processes for each system.", 1, flag_values=FLAGS)
flags.DEFINE_integer("calls", 5, "Timed calls of each process and shape.", 1, flag_values=FLAGS)
flags.DEFINE_string("output", None, "Write the results to this file.", flag_values=FLAGS)


def main() -> None:
    systems = measuring.choose_systems(FLAGS.systems, SYSTEMS, NEEDS)
    model = {"vocabulary_size": FLAGS.vocabulary_size, "num_layers": FLAGS.num_layers, **WIDTHS}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        measuring.say("exporting")
        sentences = read_sentences(FLAGS.text) if FLAGS.text else []
        measuring.in_own_process(export, model, FLAGS.vocabulary, folder)
        peaks, runs = [], {system: [] for system in systems}
        for number in range(FLAGS.rounds):
            peaks.append(
                measuring.in_own_process(measuring.matrix_product_peak, FLAGS.threads, "float32")
            )
            for system in systems:
                measuring.say(f"round {number + 1}: {system}")
                runs[system].append(
                    measuring.in_own_process(run, system, model, folder, FLAGS.threads, FLAGS.calls)
                )
        results = {
            **measuring.machine(),
            "threads": FLAGS.threads,
            "peak_flops_per_second": max(peaks),
            "model": model,
            "systems": {
                system: summary(model, rounds, max(peaks)) for system, rounds in runs.items()
            },
            "bytes": {system: size_bytes(folder / system_folder(system)) for system in systems},
        }
        if sentences:
            results["text"] = measuring.in_own_process(
                encode_text, folder, sentences, FLAGS.threads
            )
    print_results(results)
    measuring.write_results(results, FLAGS.output)


def system_folder(system: str) -> str:
    return {"kzoo": "encoder", "hugging_face": "model.safetensors"}.get(system, system)


def read_sentences(pattern: str) -> list[str]:
    """Lines of all files that match, `--sentences` of them.

    Raises:
        KzooError: if there are none.
    """
    lines = [
        line
        for path in sorted(glob.glob(pattern))
        for line in pathlib.Path(path).read_text("utf-8").splitlines()
        if line.strip()
    ]
    if not lines:
        raise KzooError(f"--text={pattern}: no file matches, or all are empty")
    return lines[:: max(1, len(lines) // FLAGS.sentences)]


def export(model: dict[str, int], vocabulary: str | None, folder: pathlib.Path) -> None:
    """Writes the encoder, a serving module of each precision, and the weights for the peer."""
    import keras
    from safetensors.numpy import save_file

    from kzoo.interchange.hugging_face_names import hugging_face_name
    from kzoo.models.backbone import RemBertBackbone
    from kzoo.saved_model.encoder import EncoderModule
    from kzoo.saved_model.precision import with_precision
    from kzoo.saved_model.preprocessor import PreprocessorModule
    from kzoo.saved_model.serving import ServingModule
    from kzoo.saved_model.text_graph import TextGraph

    keras.utils.set_random_seed(0)
    backbone = RemBertBackbone(**model, project_embeddings=True)
    EncoderModule(backbone).save(str(folder / "encoder"))
    text_graph = TextGraph(sentencepiece_model(vocabulary, folder))
    PreprocessorModule(text_graph, PADDED_LENGTH).save(str(folder / "preprocessor"))
    for name, precision in SERVING.items():
        module = ServingModule(with_precision(backbone, precision), text_graph, PADDED_LENGTH)
        module.save(str(folder / name))
    weights = {}
    for variable in backbone.variables:
        values = variable.numpy()
        weights[hugging_face_name(variable.path).removeprefix("rembert.")] = np.ascontiguousarray(
            values.T if variable.path.endswith("/kernel") else values
        )
    save_file(weights, folder / "model.safetensors")


def sentencepiece_model(path: str | None, folder: pathlib.Path) -> bytes:
    """The vocabulary at `path`, or a small one of kzoo's sample."""
    import kzoo
    from kzoo.text.vocabulary import Vocabulary
    from kzoo.text.vocabulary_training import train_vocabulary

    if path:
        return Vocabulary.load(path).model
    files = sorted(pathlib.Path(kzoo.__file__).parent.glob("sample/train-*.txt"))
    return train_vocabulary({"all": [str(file) for file in files]}, 4000, folder / "text").model


def run(
    system: str, model: dict[str, int], folder: pathlib.Path, threads: int, calls: int
) -> dict[str, dict[str, list[Any]]]:
    """One process of one system: seconds of each call, and pooled outputs, by shape."""
    encode = load(system, model, folder, threads)
    results = {}
    for shape in SHAPES:
        inputs = random_inputs(model["vocabulary_size"], shape)
        encode(inputs)
        encode(inputs)
        seconds = measuring.durations(lambda inputs=inputs: encode(inputs), calls)
        results[shape_name(shape)] = {"seconds": seconds, "pooled": encode(inputs).tolist()}
    return results


def load(system: str, model: dict[str, int], folder: pathlib.Path, threads: int) -> Encode:
    if system == "hugging_face":
        return hugging_face(model, folder / system_folder(system), threads)
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    path = folder / system_folder(system)
    return kzoo(path) if system == "kzoo" else serving(path)


def random_inputs(vocabulary_size: int, shape: tuple[int, int]) -> dict[str, np.ndarray]:
    generator = np.random.Generator(np.random.Philox(0))
    return {
        "input_word_ids": generator.integers(vocabulary_size, size=shape, dtype=np.int32),
        "input_mask": np.ones(shape, np.int32),
        "input_type_ids": np.zeros(shape, np.int32),
    }


def encode_text(folder: pathlib.Path, sentences: list[str], threads: int) -> dict[str, Any]:
    """Seconds that a serving module takes for all sentences, in two ways."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401 (its operations are in the module)

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    loaded = tf.saved_model.load(str(folder / "kzoo_float32"))
    from_text, from_ids = (loaded.signatures[name] for name in ("serving_default", "from_ids"))
    preprocess = tf.saved_model.load(str(folder / "preprocessor"))
    by_length = sorted(sentences, key=lambda sentence: len(sentence.encode()))

    def sorted_batches(batches: list[list[str]]) -> None:
        for batch in batches:
            from_text(text=tf.constant(batch))

    def padded_batches(batches: list[list[str]]) -> None:
        for batch in batches:
            from_ids(**preprocess(tf.constant(batch)))

    seconds = {}
    ways = (("sorted", sorted_batches, by_length), ("padded", padded_batches, sentences))
    for name, encode_all, lines in ways:
        batches = cut(lines)
        encode_all(batches[:1])
        seconds[name] = measuring.durations(functools.partial(encode_all, batches), 1)[0]
    return {"sentences": len(sentences), "seconds": seconds}


def cut(sentences: list[str]) -> list[list[str]]:
    starts = range(0, len(sentences), TEXT_BATCH)
    return [sentences[start : start + TEXT_BATCH] for start in starts]


def summary(model: dict[str, int], runs: list[dict[str, Any]], peak: float) -> dict[str, Any]:
    """By shape: tokens/s in the median, and the share of the peak."""
    results = {}
    for shape in SHAPES:
        name = shape_name(shape)
        seconds = statistics.median(second for one in runs for second in one[name]["seconds"])
        results[name] = {
            "tokens_per_second": shape[0] * shape[1] / seconds,
            "share_of_peak": matrix_product_flops(model, shape) / seconds / peak,
            "pooled": runs[0][name]["pooled"],
            "rounds": [one[name]["seconds"] for one in runs],
        }
    return results


def matrix_product_flops(model: dict[str, int], shape: tuple[int, int]) -> float:
    """Floating-point operations of all matrix products of one call, the pooler's left out."""
    rows, length = shape
    hidden, inner = model["hidden_dim"], model["intermediate_dim"]
    each_layer = 4 * hidden * hidden + 2 * hidden * inner + 2 * length * hidden
    per_token = model["num_layers"] * each_layer + model["embedding_dim"] * hidden
    return 2.0 * rows * length * per_token


def size_bytes(path: pathlib.Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def lowest_cosine(measured: dict[str, Any], reference: dict[str, Any]) -> float:
    """Over all rows of all shapes."""
    cosines = []
    for shape in map(shape_name, SHAPES):
        a, b = (np.array(one[shape]["pooled"]) for one in (measured, reference))
        norms = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        cosines.extend((a * b).sum(axis=1) / norms)
    return float(min(cosines))


def print_results(results: dict[str, Any]) -> None:
    systems = results["systems"]
    print(
        f"\n{results['threads']} threads, float32 peak "
        f"{results['peak_flops_per_second'] / 1e9:,.0f} GFLOP/s"
    )
    columns = ("tokens/s", "x", "wanted", "of peak")
    rows = [("system", *itertools.chain(*((shape_name(shape), *columns[1:]) for shape in SHAPES)))]
    rows += [
        (system, *itertools.chain(*(_cells(systems, system, shape) for shape in SHAPES)))
        for system in systems
    ]
    print(format_table(rows, names=1))
    rows = [("system", "MB on disk", "lowest cosine")]
    for system, measured in systems.items():
        cosine = lowest_cosine(measured, systems["kzoo"]) if "kzoo" in systems else float("nan")
        rows.append((system, f"{results['bytes'][system] / 1e6:,.0f}", f"{cosine:.6f}"))
    print("\n" + format_table(rows, names=1))
    if "text" in results:
        seconds = results["text"]["seconds"]
        print(
            f"\n{results['text']['sentences']:,} sentences: {seconds['sorted']:.1f} s sorted into "
            f"batches of {TEXT_BATCH}, {seconds['padded']:.1f} s padded to {PADDED_LENGTH}: "
            f"{seconds['padded'] / seconds['sorted']:.2f}x (2x wanted)"
        )


def _cells(systems: dict[str, Any], system: str, shape: tuple[int, int]) -> tuple[str, ...]:
    name = shape_name(shape)
    measured, peer = systems[system][name], systems.get("hugging_face")
    ratio = measured["tokens_per_second"] / peer[name]["tokens_per_second"] if peer else None
    wanted = WANTED.get((system, shape))
    return (
        f"{measured['tokens_per_second']:,.0f}",
        f"{ratio:.2f}" if ratio and system != "hugging_face" else "",
        f"{wanted}" if wanted else "",
        f"{measured['share_of_peak']:.0%}",
    )


def shape_name(shape: tuple[int, int]) -> str:
    return f"{shape[0]} x {shape[1]}"


if __name__ == "__main__":
    sys.exit(command.run(main, FLAGS, __doc__))
