"""Cuts multilingual text into examples for masked language modelling.

    python -m kzoo.prepare --input 'corpus/train-{lang}.jsonl.gz' \\
        --held_out 'corpus/dev-{lang}.jsonl.gz' --vocabulary data/vocabulary \\
        --sequence_length 128 --output data/mini

Reads .txt (a blank line ends a document), .jsonl and .parquet, each also .gz, .xz or .zst. Uses all
cores; with --runner, a cluster. Interrupted, the same command goes on where it stopped.
"""

import math
import sys

from absl import flags

from kzoo import command
from kzoo.errors import KzooError

FLAGS = flags.FlagValues()

flags.DEFINE_multi_string(
    "input",
    None,
    "Pattern of the training text, with {lang} where the language code stands; *, ?, [] and ** are"
    " globs.",
    flag_values=FLAGS,
)
flags.DEFINE_multi_string(
    "held_out", None, "Likewise, text to measure the training by.", flag_values=FLAGS
)
flags.DEFINE_string(
    "vocabulary",
    None,
    "A folder written by `python -m kzoo.vocabulary`, or a SentencePiece .model.",
    flag_values=FLAGS,
)
flags.DEFINE_integer(
    "sequence_length",
    128,
    "Pieces in the longest example, with its [CLS] and [SEP].",
    lower_bound=3,
    flag_values=FLAGS,
)
flags.DEFINE_string("output", None, "Folder to make.", flag_values=FLAGS)
flags.DEFINE_integer(
    "workers", None, "Processes that encode; default: one a core.", lower_bound=1, flag_values=FLAGS
)
flags.DEFINE_string(
    "runner",
    None,
    "Work by Apache Beam, on DirectRunner, DataflowRunner, FlinkRunner, SparkRunner or another of"
    " its runners. Other flags than these are then Beam's pipeline options; what stands behind --"
    " goes to the runner unchecked.",
    flag_values=FLAGS,
)
flags.DEFINE_string(
    "text_field", "text", "Key or column of the text, in .jsonl and .parquet.", flag_values=FLAGS
)
flags.DEFINE_enum(
    "on_bad_text",
    "error",
    ["error", "replace", "skip"],
    "What to do with text that cannot be read: stop and say where; put U+FFFD in place of bytes"
    " that are not UTF-8; or leave the line out. What is replaced or left out is counted.",
    flag_values=FLAGS,
)
flags.DEFINE_float(
    "shard_megabytes",
    8.0,
    "Text in one shard, in millions of bytes. Two shards a worker are held in memory; beyond"
    " 10 GB of text, larger ones save files.",
    lower_bound=1e-6,
    flag_values=FLAGS,
)
flags.DEFINE_boolean(
    "overwrite", False, "Replace examples that were made from something else.", flag_values=FLAGS
)
command.define_cache_dir(FLAGS)
flags.mark_flags_as_required(["input", "vocabulary", "output"], flag_values=FLAGS)


def main(pipeline_options: list[str]) -> None:
    """Prepares examples and prints what each language came to."""
    from kzoo.corpora.files import find_files
    from kzoo.corpora.prepare import prepare

    if not math.isfinite(FLAGS.shard_megabytes):
        raise KzooError(
            f"--shard_megabytes: expected a number, received {FLAGS.shard_megabytes}; the default"
            " is 8"
        )
    info = prepare(
        find_files(FLAGS.input),
        find_files(FLAGS.held_out) if FLAGS.held_out else None,
        FLAGS.vocabulary,
        FLAGS.sequence_length,
        FLAGS.output,
        workers=FLAGS.workers,
        text_field=FLAGS.text_field,
        on_bad_text=FLAGS.on_bad_text,
        shard_bytes=round(FLAGS.shard_megabytes * 1e6),
        overwrite=FLAGS.overwrite,
        engine=_engine(pipeline_options),
        cache_dir=FLAGS.cache_dir,
    )
    print(info.table())
    print(f"The examples are in {FLAGS.output}.")


def _engine(pipeline_options: list[str]):
    """What `--runner` asks for; None for processes of this machine."""
    if FLAGS.runner is None:
        return None
    if FLAGS.workers is not None:
        raise KzooError(
            "--workers is for preparing without --runner; how many workers there are, the runner's"
            " options say, such as --direct_num_workers of the DirectRunner"
        )
    from kzoo.corpora import beam_messages

    try:
        with beam_messages.unheard():
            from kzoo.corpora.beam import BeamEngine
    except ModuleNotFoundError as error:
        if error.name != "apache_beam":
            raise
        raise KzooError(
            "--runner needs Apache Beam, which is not installed: pip install 'kzoo[beam]'"
        ) from error
    return BeamEngine(FLAGS.runner, pipeline_options)


if __name__ == "__main__":
    sys.exit(command.run(main, FLAGS, __doc__, passed_on_with="runner"))
