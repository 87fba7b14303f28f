"""Trains a vocabulary on multilingual text: a SentencePiece unigram model.

    python -m kzoo.vocabulary --input 'corpus/train-{lang}.jsonl.gz' --size 8000 \\
        --output data/vocabulary

Languages give sentences to the sample that it is trained on by p ∝ n^α, so that small ones get
pieces too. Reads .txt (a blank line ends a document), .jsonl and .parquet, each also .gz, .xz or
.zst.
"""

import sys

from absl import flags

from kzoo import command

FLAGS = flags.FlagValues()

flags.DEFINE_multi_string(
    "input",
    None,
    "Pattern of the text, with {lang} where the language code stands; *, ?, [] and ** are globs.",
    flag_values=FLAGS,
)
flags.DEFINE_integer("size", None, "Number of pieces.", lower_bound=7, flag_values=FLAGS)
flags.DEFINE_string("output", None, "Folder to make.", flag_values=FLAGS)
flags.DEFINE_float(
    "sampling_exponent",
    0.5,
    "α: 1 samples languages by their size, 0 samples them all alike.",
    lower_bound=0.0,
    upper_bound=1.0,
    flag_values=FLAGS,
)
flags.DEFINE_integer(
    "max_sentences",
    1_000_000,
    "Sentences in the sample at most, all languages together. The trainer holds them in memory.",
    lower_bound=1,
    flag_values=FLAGS,
)
flags.DEFINE_float(
    "character_coverage",
    0.9995,
    "Share of the text whose characters become pieces; the rarest others are unknown.",
    lower_bound=0.98,
    upper_bound=1.0,
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
flags.DEFINE_integer("seed", 0, "Of the sample.", flag_values=FLAGS)
flags.DEFINE_boolean(
    "overwrite", False, "Replace a vocabulary that was made from something else.", flag_values=FLAGS
)
command.define_cache_dir(FLAGS)
flags.mark_flags_as_required(["input", "size", "output"], flag_values=FLAGS)


def main() -> None:
    """Trains a vocabulary and prints what each language gave to it."""
    from kzoo.corpora.files import find_files
    from kzoo.storage.paths import folder_name
    from kzoo.text.vocabulary_info import VocabularyInfo
    from kzoo.text.vocabulary_training import train_vocabulary

    vocabulary = train_vocabulary(
        find_files(FLAGS.input),
        FLAGS.size,
        FLAGS.output,
        sampling_exponent=FLAGS.sampling_exponent,
        max_sentences=FLAGS.max_sentences,
        character_coverage=FLAGS.character_coverage,
        text_field=FLAGS.text_field,
        on_bad_text=FLAGS.on_bad_text,
        seed=FLAGS.seed,
        overwrite=FLAGS.overwrite,
        cache_dir=FLAGS.cache_dir,
    )
    info = VocabularyInfo.load(folder_name(FLAGS.output))
    print(info.table())
    print(
        f"{info.characters:,} different characters became pieces; they make up {info.covered:.3%}"
        " of the sample, the others are unknown."
    )
    if info.lines_lost:
        print(f"The trainer left out {info.lines_lost:,} lines of the sample.")
    print(f"The vocabulary of {vocabulary.size:,} pieces is in {FLAGS.output}.")


if __name__ == "__main__":
    sys.exit(command.run(main, FLAGS, __doc__))
