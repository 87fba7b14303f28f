"""Exports a trained model as SavedModels, without the output table of pre-training.

    python -m kzoo.export --model runs/sample --output export

writes export/encoder (to fine-tune), export/preprocessor (texts to the encoder's inputs),
export/serving/1 (texts to vectors, for TensorFlow Serving) and export/MANIFEST.json. A run that has
not finished is exported from its newest checkpoint. All of it is checked before it takes its place.

    python -m kzoo.export --check export

checks an export that is there; with --model it is compared with that model too.
"""

import os
import sys
from typing import TYPE_CHECKING, Any

from absl import flags

from kzoo import command
from kzoo.errors import KzooError
from kzoo.saved_model.manifest import PRECISIONS

if TYPE_CHECKING:
    from kzoo.saved_model.source import Source

FLAGS = flags.FlagValues()
flags.DEFINE_string(
    "model", None, "Folder of a run, or a preset; here or on object storage.", flag_values=FLAGS
)
flags.DEFINE_string("output", "export", "Folder that gets the export.", flag_values=FLAGS)
flags.DEFINE_integer("keep_layers", None, "Only the lowest N layers.", flag_values=FLAGS)
flags.DEFINE_float(
    "dropout",
    None,
    "Rate in training, hidden and attention; by default that of pre-training.",
    flag_values=FLAGS,
)
flags.DEFINE_integer(
    "seq_length",
    None,
    "Most tokens of a text, in preprocessor and server; by default 128, or as many positions as "
    "the model has if these are fewer.",
    flag_values=FLAGS,
)
flags.DEFINE_enum(
    "precision",
    "float32",
    list(PRECISIONS),
    "Of the weights and products of the server; the encoder is always float32.",
    flag_values=FLAGS,
)
flags.DEFINE_bool("masked_lm", False, "Export the output table too.", flag_values=FLAGS)
flags.DEFINE_bool(
    "serving_only", False, "Add the next version for the server, only.", flag_values=FLAGS
)
flags.DEFINE_bool("overwrite", False, "Replace an export that is there.", flag_values=FLAGS)
flags.DEFINE_bool(
    "archive", False, "Also write encoder.tar.gz and preprocessor.tar.gz.", flag_values=FLAGS
)
command.define_cache_dir(FLAGS)
flags.DEFINE_string(
    "check", None, "Check the export in this folder, and export nothing.", flag_values=FLAGS
)


def main() -> None:
    from kzoo.storage.paths import folder_name, is_remote

    # An export computes little; the check's process must find room and the same arithmetic, and a
    # training run on the GPU is left alone.
    os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
    if FLAGS.check is not None:
        used = ("check", "model", "cache_dir")
        others = [name for name in FLAGS if FLAGS[name].present and name not in used]
        if others:
            raise KzooError(f"--check exports nothing: leave out --{' and --'.join(others)}")
        _print_check(folder_name(FLAGS.check))
        return
    if FLAGS.model is None:
        raise KzooError("--model is missing: the folder of a run, or a preset")
    output = folder_name(FLAGS.output)
    # Before TensorFlow, which takes seconds.
    model = folder_name(FLAGS.model)
    if not is_remote(model) and not os.path.isdir(model):
        raise KzooError(f"--model: there is no folder {model}")
    source, step = _open_source()

    from kzoo.saved_model.export import ExportOptions, export
    from kzoo.saved_model.remote_export import export_folder

    names = ("keep_layers", "dropout", "precision", "masked_lm")
    names += ("serving_only", "overwrite", "archive")
    options = {name: FLAGS[name].value for name in names}
    options = ExportOptions(sequence_length=FLAGS.seq_length, **options)
    with export_folder(output, options, FLAGS.cache_dir) as folder:
        manifest = export(source, folder, options, step)
    _describe(manifest, output)


def _open_source() -> tuple["Source", int | None]:
    """The preset, and the step of the unfinished run that it was made of."""
    from kzoo.config.model_on_disk import is_run
    from kzoo.models.preset_files import CONFIG_FILE
    from kzoo.saved_model.source import Source
    from kzoo.storage.fetching import fetch_folder
    from kzoo.storage.paths import folder_name
    from kzoo.training.run_preset import write_preset_of_run

    folder, step = folder_name(FLAGS.model), None
    if is_run(folder):
        folder, step = write_preset_of_run(folder, FLAGS.cache_dir)
        if step is not None:
            print(f"the run has not finished: exporting its step {step:,}", file=sys.stderr)
    return Source.open(fetch_folder(folder, FLAGS.cache_dir, last=CONFIG_FILE)), step


def _print_check(folder: str) -> None:
    """Prints a table of what is in an export; problems are an error."""
    from kzoo.corpora.table import format_table
    from kzoo.saved_model.export import self_check
    from kzoo.saved_model.manifest import MANIFEST_FILE
    from kzoo.storage.fetching import fetch_folder

    folder = fetch_folder(folder, FLAGS.cache_dir, last=MANIFEST_FILE)
    report = self_check(folder, _expected(folder) if FLAGS.model else None)
    rows = [
        (
            *("module", "signatures", "operations outside of core", "kinds of operations"),
            *("variables", "parameters", "MB", "largest difference"),
        )
    ]
    for module in report["modules"]:
        rows.append(
            (
                module["module"],
                ", ".join(module["signatures"]) or module.get("note", "–"),
                ", ".join(module["outside_core"]) or "none",
                f"{module['operations']}",
                f"{module['tensors']:,}",
                f"{module['parameters']:,}",
                f"{module['bytes'] / 1e6:,.1f}",
                _largest(module["differences"]),
            )
        )
    print(format_table(rows, names=3))
    if report["problems"]:
        raise KzooError(f"{folder} is not what it should be:\n  " + "\n  ".join(report["problems"]))
    print("no problems")


def _expected(folder: str) -> dict[str, Any]:
    """What the model of `--model` must compute in each module."""
    from kzoo.saved_model.expected import expected_of_export
    from kzoo.saved_model.manifest import read_manifest

    manifest = read_manifest(folder)
    return expected_of_export(_open_source()[0], manifest)


def _describe(manifest: dict[str, Any], output: str) -> None:
    """Says what was written and what was left out."""
    modules = manifest["largest_difference"]
    if FLAGS.serving_only:
        # The manifest is that of all modules: the highest version is the new one.
        modules = {f"serving/{max(manifest['serving'], key=int)}": None}
    else:
        encoder = manifest["encoder"]
        before, after = encoder["parameters_before"], encoder["parameters_after"]
        print(
            f"kept {after:,} of {before:,} parameters; {len(encoder['stripped'])} tensors were "
            "left out"
        )
        print(f"pooler: {encoder['pooler']}")
    for module in modules:
        differences = manifest["largest_difference"][module]
        print(f"{module}: largest difference from the source {_largest(differences)}")
    print(f"exported to {output}")


def _largest(differences: dict[str, dict[str, float]]) -> str:
    """The largest difference of a module's outputs, and of how large values."""
    if not differences:
        return "–"
    worst = max(differences.values(), key=lambda found: found["difference"])
    return f"{worst['difference']:.1e} (values up to {worst['largest_value']:.2g})"


if __name__ == "__main__":
    sys.exit(command.run(main, FLAGS, __doc__))
