"""Brings the weights of other programs in as a preset, and takes presets out again.

    python -m kzoo.convert --from hugging_face --input google_rembert --output presets/rembert
    python -m kzoo.convert --from preset --to hugging_face --input runs/mini/preset --output hf

Every tensor and every key of a configuration is used, or left out for a reason that is printed, or
the command ends with an error that names it, and writes nothing.
"""

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from absl import flags

from kzoo import command
from kzoo.errors import KzooError
from kzoo.storage import files
from kzoo.storage.fetching import fetch, fetch_folder
from kzoo.storage.listing import LISTING_FILE
from kzoo.storage.paths import clean, folder_name, is_remote, real_path
from kzoo.storage.publishing import made_folder

if TYPE_CHECKING:
    from kzoo.interchange.source_model import BuiltModel, SourceModel
    from kzoo.text.vocabulary import Vocabulary

FLAGS = flags.FlagValues()

flags.DEFINE_string("from", None, "What the input is: {sources}.", flag_values=FLAGS)
flags.DEFINE_string("to", "preset", "What to write: {targets}.", flag_values=FLAGS)
flags.DEFINE_string(
    "input",
    None,
    "The model to convert: its folder, or the prefix of a checkpoint.",
    flag_values=FLAGS,
)
flags.DEFINE_string("output", None, "Folder to write.", flag_values=FLAGS)
flags.DEFINE_string(
    "vocabulary",
    None,
    "SentencePiece model, or a folder that has one; default the one in the input.",
    flag_values=FLAGS,
)
flags.DEFINE_string(
    "config",
    None,
    "Of a checkpoint of TensorFlow: the bert_config.json, or the YAML file with Model Garden's "
    "encoder; default what its tensors say, and for Model Garden the encoder.yaml beside it.",
    flag_values=FLAGS,
)
flags.DEFINE_string(
    "mapping",
    None,
    "Of a checkpoint of TensorFlow: YAML file that says what tensors are, a line each: "
    "`NAME: PATH`, the path of our variable, or `NAME: {ignore: REASON}`.",
    flag_values=FLAGS,
)
flags.DEFINE_integer(
    "num_heads",
    None,
    "Attention heads of a checkpoint of TensorFlow 1; default what --config says, or else one for "
    "64 columns.",
    lower_bound=1,
    flag_values=FLAGS,
)
flags.DEFINE_enum(
    "activation",
    None,
    ["gelu", "gelu_approximate"],
    "The activation, whatever the input says: the exact GELU, or its tanh form.",
    flag_values=FLAGS,
)
flags.DEFINE_multi_string(
    "allow_missing",
    [],
    "What may be missing, and is made anew from a fixed seed: masked_lm_head, pooler, or the path "
    "of a variable; may be repeated.",
    flag_values=FLAGS,
)
flags.DEFINE_integer(
    "output_embedding_dim",
    None,
    "Width of an output table that is made anew, where the input does not say it.",
    lower_bound=1,
    flag_values=FLAGS,
)
flags.DEFINE_bool(
    "keep_pooler",
    False,
    "Write the pooler beside a masked-LM head for Hugging Face, whose class for masked LM has no "
    "place for it and says so.",
    flag_values=FLAGS,
)
flags.DEFINE_string(
    "add_pieces",
    None,
    "File of new pieces for the vocabulary, one a line, with ▁ at the front of those that start a "
    "word.",
    flag_values=FLAGS,
)
flags.DEFINE_multi_string(
    "keep_pieces_from",
    [],
    "Pattern of a corpus, with {lang} where the language code stands: the pieces that it does not "
    "use are taken out of the vocabulary; may be repeated.",
    flag_values=FLAGS,
)
flags.DEFINE_integer(
    "embedding_dim",
    None,
    "Make the input table so narrow: a start for further pre-training, and not the same model.",
    lower_bound=2,
    flag_values=FLAGS,
)
flags.DEFINE_string(
    "text",
    None,
    "Text on which --embedding_dim measures the masked-LM loss before and after.",
    flag_values=FLAGS,
)
flags.DEFINE_string(
    "text_field",
    "text",
    "Key or column of the text, in .jsonl and .parquet, for --keep_pieces_from and --text.",
    flag_values=FLAGS,
)
flags.DEFINE_enum(
    "on_bad_text",
    "error",
    ["error", "replace", "skip"],
    "What --keep_pieces_from does with text that cannot be read, as in `python -m kzoo.prepare`.",
    flag_values=FLAGS,
)
command.define_cache_dir(FLAGS)
flags.DEFINE_bool("overwrite", False, "Replace the output if it is there.", flag_values=FLAGS)


def main() -> None:
    """Checks the flags, before TensorFlow, which costs seconds; then converts."""
    open_source = _chosen("from", _SOURCES)
    write = _chosen("to", _TARGETS)
    for name in ("input", "output"):
        if FLAGS[name].value is None:
            raise KzooError(f"--{name} is missing; see --help")
    _check_flags_of_routes()

    # TensorFlow's memory for oneDNN keeps all that it ever had: half as much again as the weights.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")

    output, given = folder_name(FLAGS.output), clean(FLAGS.input)
    if not (files.exists(given) or files.exists(f"{given}.index")):
        raise KzooError(f"--input: there is no {given}")
    _check_output(output)
    _use_local_copies()

    from kzoo.interchange.report import report

    built = _built(_changed(open_source()))
    with (
        made_folder(output, _LAST_FILES[FLAGS.to], FLAGS.cache_dir) as folder,
        _sole_writer(built, folder),
    ):
        notes = write(built, folder)
    print(f"{given} ({FLAGS['from'].value}) → {output} ({FLAGS.to})\n")
    print(report(built, notes))


def _use_local_copies() -> None:
    """Puts local copies of what is remote in the place of URLs: weights are read at random."""
    given = clean(FLAGS.input)
    if is_remote(given) and not files.is_folder(given):
        # A checkpoint by its prefix, and what may stand beside it.
        folder, _, prefix = given.removesuffix(".index").rpartition("/")
        beside = (".model", ".json", ".yaml")
        copy = fetch_folder(
            folder,
            FLAGS.cache_dir,
            chosen=lambda name: name.startswith(f"{prefix}.") or name.endswith(beside),
        )
        FLAGS.input = os.path.join(copy, prefix)
    else:
        FLAGS.input = fetch(given, FLAGS.cache_dir)
    for name in ("vocabulary", "config", "mapping", "text", "add_pieces"):
        if FLAGS[name].value is not None:
            FLAGS[name].value = fetch(FLAGS[name].value, FLAGS.cache_dir)


def _chosen(flag: str, routes: dict[str, Callable]) -> Callable:
    value = FLAGS[flag].value
    if value not in routes:
        received = "nothing" if value is None else repr(value)
        raise KzooError(f"--{flag} is one of {', '.join(routes)}. Received: {received}")
    return routes[value]


def _check_flags_of_routes() -> None:
    """Refuses a flag that would do nothing."""
    if FLAGS.keep_pooler and FLAGS.to != "hugging_face":
        raise KzooError("--keep_pooler is for --to hugging_face; a preset keeps its pooler anyway")
    if FLAGS.num_heads is not None and FLAGS["from"].value != "tf1":
        raise KzooError("--num_heads is for --from tf1; elsewhere the input says it")
    for name in ("config", "mapping"):
        if FLAGS[name].value is not None and FLAGS["from"].value not in ("tf1", "model_garden"):
            raise KzooError(f"--{name} is for --from tf1 and --from model_garden")
    if FLAGS.text is not None and FLAGS.embedding_dim is None:
        raise KzooError("--text is for --embedding_dim, whose loss it measures")
    if FLAGS.text is not None and not files.exists(clean(FLAGS.text)):
        raise KzooError(f"--text: there is no file {FLAGS.text}")
    if FLAGS["text_field"].present and FLAGS.text is None and not FLAGS.keep_pieces_from:
        raise KzooError("--text_field is for --keep_pieces_from and --text")
    if FLAGS["on_bad_text"].present and not FLAGS.keep_pieces_from:
        raise KzooError("--on_bad_text is for --keep_pieces_from")


def _check_output(output: str) -> None:
    """Raises a KzooError if the output may not be written."""
    from kzoo.folders import restore_folder

    if not is_remote(output):
        restore_folder(output)
    is_there = files.exists(output) or os.path.islink(output)
    if is_there and not FLAGS.overwrite:
        raise KzooError(f"{output} is there already; --overwrite replaces it")
    if is_there and not _is_model(output):
        raise KzooError(f"--output: {output} holds other things than a model; choose another")
    if f"{real_path(clean(FLAGS.input))}/".startswith(f"{real_path(output)}/"):
        raise KzooError(
            f"--output: {output} holds the input, which would be replaced; choose another folder"
        )


def _is_model(output: str) -> bool:
    """Whether a folder holds what a conversion leaves, or nothing."""
    if not files.is_folder(output):
        return False
    names = files.names(output)
    # A listing alone is of a model that did not get there as a whole.
    return not names or bool({"config.json", "encoder.yaml", LISTING_FILE} & {*names})


@contextlib.contextmanager
def _sole_writer(built: "BuiltModel", output: str) -> Iterator[None]:
    """Keeps other conversions from the same output, and says what the disk has against it."""
    from kzoo.folders import check_room
    from kzoo.storage.lock_file import sole_maker

    try:
        with sole_maker(output):
            # Another process may have made it while we computed.
            _check_output(output)
            check_room(output, 4 * built.model.count_params(), "the model")
            yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise KzooError(f"cannot write {error.filename or output}: {reason}") from error


def _vocabulary() -> "Vocabulary | None":
    from kzoo.text.vocabulary import Vocabulary

    return None if FLAGS.vocabulary is None else Vocabulary.load(FLAGS.vocabulary)


def _changed(source: "SourceModel") -> "SourceModel":
    """The model with the changes that the flags ask for, but for the width of its table."""
    from kzoo.interchange.source_changes import add_pieces, keep_pieces
    from kzoo.interchange.source_model import with_activation, with_output_width

    if FLAGS.activation is not None:
        source = with_activation(source, FLAGS.activation)
    if FLAGS.output_embedding_dim is not None:
        source = with_output_width(source, FLAGS.output_embedding_dim)
    if FLAGS.keep_pieces_from:
        source = keep_pieces(
            source,
            FLAGS.keep_pieces_from,
            text_field=FLAGS.text_field,
            on_bad_text=FLAGS.on_bad_text,
        )
    if FLAGS.add_pieces is not None:
        source = add_pieces(source, FLAGS.add_pieces)
    return source


def _built(source: "SourceModel") -> "BuiltModel":
    """The model with its weights, and with a narrower input table if one is asked for."""
    from kzoo.interchange.source_changes import build_narrow
    from kzoo.interchange.source_model import build

    if FLAGS.embedding_dim is None:
        return build(source, FLAGS.allow_missing)
    return build_narrow(
        source, FLAGS.embedding_dim, FLAGS.allow_missing, FLAGS.text, FLAGS.text_field
    )


def _from_hugging_face() -> "SourceModel":
    from kzoo.interchange.hugging_face_import import open_hugging_face

    return open_hugging_face(FLAGS.input, _vocabulary())


def _from_coupled() -> "SourceModel":
    from kzoo.interchange.coupled_import import open_coupled

    return open_coupled(FLAGS.input, FLAGS["from"].value, _vocabulary())


def _from_tf1() -> "SourceModel":
    from kzoo.interchange.tf1_checkpoint import open_tf1_checkpoint

    return open_tf1_checkpoint(
        FLAGS.input,
        _vocabulary(),
        config=FLAGS.config,
        mapping=FLAGS.mapping,
        num_heads=FLAGS.num_heads,
        activation=FLAGS.activation,
    )


def _from_model_garden() -> "SourceModel":
    from kzoo.interchange.model_garden import open_model_garden

    return open_model_garden(
        FLAGS.input,
        _vocabulary(),
        config=FLAGS.config,
        mapping=FLAGS.mapping,
        activation=FLAGS.activation,
    )


def _from_preset() -> "SourceModel":
    from kzoo.interchange.preset_source import open_preset

    return open_preset(FLAGS.input, _vocabulary())


def _to_preset(built: "BuiltModel", output: str) -> list[str]:
    from kzoo.models.saving import save_preset
    from kzoo.text.tokenizer import RemBertTokenizer

    vocabulary = built.vocabulary
    tokenizer = None if vocabulary is None else RemBertTokenizer(vocabulary.model)
    save_preset(built.model, tokenizer, output, FLAGS.overwrite, built.made_anew)
    if tokenizer is None:
        return ["no tokenizer: there is no sentencepiece.model, and --vocabulary names none"]
    return []


def _to_hugging_face(built: "BuiltModel", output: str) -> list[str]:
    from kzoo.interchange.hugging_face_export import write_hugging_face

    return write_hugging_face(built, output, FLAGS.overwrite, keep_pooler=FLAGS.keep_pooler)


def _to_model_garden(built: "BuiltModel", output: str) -> list[str]:
    from kzoo.interchange.model_garden import write_model_garden

    return write_model_garden(built, output)


_SOURCES: dict[str, Callable[[], "SourceModel"]] = {
    "hugging_face": _from_hugging_face,
    "tf1": _from_tf1,
    "model_garden": _from_model_garden,
    "preset": _from_preset,
    "bert": _from_coupled,
    "xlm_roberta": _from_coupled,
}
_TARGETS: dict[str, Callable[["BuiltModel", str], list[str]]] = {
    "preset": _to_preset,
    "hugging_face": _to_hugging_face,
    "model_garden": _to_model_garden,
}
# Which says that a folder on object storage is complete.
_LAST_FILES = {
    "preset": "config.json",
    "hugging_face": "config.json",
    "model_garden": "encoder.yaml",
}
FLAGS["from"].help = FLAGS["from"].help.format(sources=", ".join(_SOURCES))
FLAGS["to"].help = FLAGS["to"].help.format(targets=", ".join(_TARGETS))


if __name__ == "__main__":
    sys.exit(command.run(main, FLAGS, __doc__))
