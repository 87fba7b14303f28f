"""Measures the input pipeline alone: reading, mixing, masking and padding, without a model.

    python benchmarks/input_pipeline.py --examples data/mini
    python benchmarks/input_pipeline.py            # makes examples of random words first

Prints tokens per second (pieces with [CLS] and [SEP], without padding) for several numbers of
threads, and writes the same as JSON.
"""

import itertools
import json
import os
import pathlib
import platform
import statistics
import sys
import tempfile
import time

import numpy as np
from absl import flags

from kzoo import command

FLAGS = flags.FlagValues()
flags.DEFINE_string("examples", None, "Folder of examples.", flag_values=FLAGS)
flags.DEFINE_string("output", None, "Write the results to this file.", flag_values=FLAGS)
flags.DEFINE_integer("batch_size", 32, "Examples in a batch.", 1, flag_values=FLAGS)
flags.DEFINE_integer("batches", 200, "Batches in one measurement.", 1, flag_values=FLAGS)
flags.DEFINE_integer(
    "repeats", 3, "Measurements, of which the median counts.", 1, flag_values=FLAGS
)
flags.DEFINE_multi_integer(
    "threads", [0, 1, 2, 4], "Number of threads; may be repeated.", 0, flag_values=FLAGS
)
flags.DEFINE_bool("whole_word_masking", False, "Mask whole words.", flag_values=FLAGS)

_SEQUENCE_LENGTH = 128
_VOCABULARY_SIZE = 8_000
_LANGUAGES = 10
_LINES = 20_000


def main() -> None:
    from kzoo.corpora.examples import ExampleFiles

    if FLAGS.examples:
        results = measure(ExampleFiles.open(FLAGS.examples))
    else:
        with tempfile.TemporaryDirectory() as folder:
            results = measure(synthetic_examples(pathlib.Path(folder)))
    print_table(results)
    if FLAGS.output:
        pathlib.Path(FLAGS.output).write_text(json.dumps(results, indent=1) + "\n")


def measure(examples) -> dict:
    """Runs every variant; all variants once, then all again, so that none has the quiet hour."""
    from kzoo.corpora.batching import padding_sizes
    from kzoo.corpora.training_examples import TrainingExamples

    length = examples.info.settings.sequence_length
    source = TrainingExamples(
        examples, sequence_length=length, whole_word_masking=FLAGS.whole_word_masking
    )
    variants = [
        {"threads": threads, "padding": padding, "tokens_per_second": []}
        for padding in ("longest", "sequence_length")
        for threads in FLAGS.threads
    ]
    for _ in range(FLAGS.repeats):
        for variant in variants:
            pad_to = padding_sizes(length) if variant["padding"] == "longest" else None
            speed, share = run(source, variant["threads"], pad_to)
            variant["tokens_per_second"].append(speed)
            variant["padding_share"] = share
    for variant in variants:
        variant["median"] = statistics.median(variant["tokens_per_second"])
    pieces = sum(entry.tokens for entry in examples.info.splits["train"].values())
    windows = sum(entry.windows for entry in examples.info.splits["train"].values())
    return {
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "sequence_length": length,
        "pieces_per_window": pieces / windows,
        "languages": len(source.languages),
        "batch_size": FLAGS.batch_size,
        "whole_word_masking": FLAGS.whole_word_masking,
        "variants": variants,
    }


def run(source, threads: int, pad_to: list[int] | None) -> tuple[float, float]:
    """Tokens per second over `--batches` batches, and the share of padding among them."""
    from kzoo.corpora.batching import padding_share
    from kzoo.corpora.pipeline import batches

    iterator = batches(
        source, global_batch_size=FLAGS.batch_size, pad_to=pad_to, threads=threads, prefetch=4
    )
    next(iterator)
    started = time.perf_counter()
    taken = [share for [share] in itertools.islice(iterator, FLAGS.batches)]
    seconds = time.perf_counter() - started
    iterator.close()
    tokens = sum(int(share["padding_mask"].sum()) for share in taken)
    return tokens / seconds, padding_share(taken)


def synthetic_examples(folder: pathlib.Path):
    """Examples of random words in several invented languages, through the usual preparation."""
    from kzoo.corpora.examples import ExampleFiles
    from kzoo.corpora.prepare import prepare
    from kzoo.text.vocabulary_training import train_vocabulary

    generator = np.random.Generator(np.random.Philox(0))
    files = {}
    for number in range(_LANGUAGES):
        letters = generator.choice(list("abcdefghijklmnopqrstuvwxyz"), (5_000, 7))
        words = np.array(["".join(word) for word in letters])
        lines = generator.choice(words, (_LINES, 12), p=_zipf(len(words)))
        path = folder / f"{number}.txt"
        path.write_text("\n".join(map(" ".join, lines)), encoding="utf-8")
        files[f"x{number}"] = [str(path)]
    train_vocabulary(files, _VOCABULARY_SIZE, folder / "vocabulary")
    prepare(files, None, folder / "vocabulary", _SEQUENCE_LENGTH, folder / "examples")
    return ExampleFiles.open(folder / "examples")


def _zipf(count: int) -> np.ndarray:
    weights = 1 / np.arange(1, count + 1)
    return weights / weights.sum()


def print_table(results: dict) -> None:
    print(
        f"{results['languages']} languages, windows of {results['pieces_per_window']:.1f} pieces, "
        f"batches of {results['batch_size']} x {results['sequence_length']}"
    )
    print(f"{'padded to':>16} {'threads':>8} {'tokens/s':>12} {'padding':>8}")
    for variant in results["variants"]:
        print(
            f"{variant['padding']:>16} {variant['threads']:>8} {variant['median']:>12,.0f} "
            f"{variant['padding_share']:>8.1%}"
        )


if __name__ == "__main__":
    sys.exit(command.run(main, FLAGS, __doc__))
