"""From a preset to a folder of SavedModels: written aside, checked, then published."""

import dataclasses
import gc
import gzip
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from kzoo.errors import KzooError
from kzoo.folders import check_room
from kzoo.models.backbone import RemBertBackbone
from kzoo.models.by_shape import build_by_shape
from kzoo.saved_model import manifest as manifests
from kzoo.saved_model import serving_files
from kzoo.saved_model.encoder import EncoderModule
from kzoo.saved_model.expected import (
    expected_of_encoder,
    expected_of_masks,
    expected_of_preprocessor,
    expected_of_serving,
)
from kzoo.saved_model.manifest import ARCHIVES, EDITABLE_FILES, MANIFEST_FILE, MODULE_FOLDERS
from kzoo.saved_model.masked_lm import MaskedLMModule
from kzoo.saved_model.precision import with_precision
from kzoo.saved_model.preprocessor import PreprocessorModule
from kzoo.saved_model.publishing import is_unfinished, publishing
from kzoo.saved_model.serving import ServingModule
from kzoo.saved_model.source import Source
from kzoo.saved_model.text_graph import TextGraph

DEFAULT_SEQUENCE_LENGTH = 128
# Graphs, checkpoints' indices and whatever else is not weights.
_SPARE_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class ExportOptions:
    """What is exported of a preset.

    Attributes:
        keep_layers: how many of the lowest layers; None for all.
        dropout: rate in training, hidden and attention; None for the preset's.
        sequence_length: of text, in tokens; None for 128, or all that the model has if fewer.
        precision: of the serving module.
        masked_lm: whether the output table is exported too.
        serving_only: only the next version of the serving module, beside what is there.
        overwrite: whether an export that is there is replaced.
        archive: whether encoder and preprocessor are packed as well.
    """

    keep_layers: int | None = None
    dropout: float | None = None
    sequence_length: int | None = None
    precision: str = "float32"
    masked_lm: bool = False
    serving_only: bool = False
    overwrite: bool = False
    archive: bool = False


def export(
    source: Source, output: str | os.PathLike[str], options: ExportOptions, step: int | None = None
) -> dict[str, Any]:
    """Exports a preset.

    Args:
        source: the preset.
        output: the folder that gets `encoder/`, `preprocessor/`, `serving/` and `MANIFEST.json`,
            all or none of them; other files in it are left alone.
        options: what is exported.
        step: of the unfinished run that the preset was made of, for the manifest.

    Returns:
        The manifest.

    Raises:
        KzooError: if something is there already, options and model do not fit each other, there is
            no room, or the self-check finds a fault; nothing in `output` has changed then.
    """
    output = Path(output)
    _check_options(source, output, options)
    length = _text_length(source, options)
    with publishing(output) as place:
        _check_nothing_is_replaced(output, options)
        _check_room(source, output, options)
        _keep_edited(output, place.new)
        backbone = source.load_backbone(options.keep_layers, options.dropout)
        version = serving_files.next_version(output / "serving") if options.serving_only else 1
        module = f"serving/{version}"
        try:
            expected = _write_modules(source, backbone, place.new, module, options, length)
        except tf.errors.OpError as error:  # of a disk that is full after all
            raise KzooError(f"cannot export into {output}: {error.message}") from error
        manifest = _manifest(source, backbone, options, step, length, str(version))
        names = _published_names(place.new)
        if options.serving_only and (output / MANIFEST_FILE).exists():
            manifest = _with_new_version(manifests.read_manifest(output), manifest)
        if options.archive:
            names += _write_archives(place.new)
        # The check's process needs as much again. Models and their graphs hold each other.
        del backbone
        gc.collect()
        files = manifests.describe_files(place.new)
        manifest["files"] |= files
        manifest["largest_difference"] |= _checked(place.new, manifest, files, expected)
        manifests.write_manifest(place.new, manifest)
        removed = [] if options.serving_only else [*MODULE_FOLDERS, *ARCHIVES, MANIFEST_FILE]
        place.publish([*names, MANIFEST_FILE], removed)
    return manifest


def self_check(
    folder: str | os.PathLike[str], expected: Mapping[str, np.ndarray] | None = None
) -> dict[str, Any]:
    """Checks an export in a fresh process that has TensorFlow alone: see `self_check.check`.

    Raises:
        KzooError: if there is no export, or the process cannot be run.
    """
    manifests.read_manifest(folder)  # What is no export is told at once.
    with tempfile.TemporaryDirectory() as temporary:
        arguments = [os.fspath(folder)]
        if expected is not None:
            arguments.append(os.path.join(temporary, "expected.npz"))
            np.savez(arguments[-1], **expected)
        command = [sys.executable, "-m", "kzoo.saved_model.self_check", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = done.stderr.strip().rpartition("\n")[2].removeprefix("error: ")
        raise KzooError(f"the self-check of {folder} failed: {last or done.returncode}")
    return json.loads(done.stdout)


def _check_options(source: Source, output: Path, options: ExportOptions) -> None:
    """Raises a KzooError for what can be seen to be wrong before any work."""
    if not options.serving_only:
        _check_nothing_is_replaced(output, options)
    arguments = source.exported_arguments(options.keep_layers, options.dropout)
    if options.masked_lm:
        source.check_head()
        if arguments["num_layers"] < source.num_layers:
            raise KzooError(
                "--masked_lm needs all layers: the output table was trained on the last one's "
                f"output. Received: keep_layers={options.keep_layers}"
            )
    for flag in ("masked_lm", "archive", "overwrite"):
        if options.serving_only and getattr(options, flag):
            raise KzooError(f"--serving_only adds a version and nothing else: leave out --{flag}")


def _text_length(source: Source, options: ExportOptions) -> int:
    """How many tokens a text may have.

    Raises:
        KzooError: if the model has no so many positions.
    """
    length = options.sequence_length
    if length is None:
        return min(DEFAULT_SEQUENCE_LENGTH, source.max_sequence_length)
    # [CLS], [SEP] and [SEP].
    if not 3 <= length <= source.max_sequence_length:
        raise KzooError(
            f"a text has from 3 to {source.max_sequence_length} tokens, as many as the model has "
            f"positions. Received: seq_length={length}"
        )
    return length


def _check_nothing_is_replaced(output: Path, options: ExportOptions) -> None:
    if options.overwrite or options.serving_only or is_unfinished(output):
        return
    parts = (*MODULE_FOLDERS, *ARCHIVES, MANIFEST_FILE)
    manifests.refuse_to_replace(output, [name for name in parts if (output / name).exists()])


def _check_room(source: Source, output: Path, options: ExportOptions) -> None:
    """Raises a KzooError if the disk has no room for what will be written."""
    arguments = source.exported_arguments(options.keep_layers, options.dropout)
    model = build_by_shape(arguments, source.output_embedding_dim or "tied")
    encoder = 4 * model.backbone.count_params()
    needed = (
        manifests.PRECISIONS[options.precision] * encoder
        + 4 * len(source.sentencepiece_model)
        + _SPARE_BYTES
    )
    if not options.serving_only:
        needed += encoder * (2 if options.archive else 1)
    if options.masked_lm:
        needed += 4 * model.count_params()
    check_room(output, needed, "the export")


def _write_modules(
    source: Source,
    backbone: RemBertBackbone,
    new: Path,
    served: str,
    options: ExportOptions,
    length: int,
) -> dict[str, np.ndarray]:
    """Writes every module, the one for the server as `served`; returns what they must compute."""
    text_graph = TextGraph(source.sentencepiece_model)
    expected = expected_of_serving(served, backbone, source.sentencepiece_model, length)
    if not options.serving_only:
        expected |= expected_of_encoder(backbone)
        EncoderModule(backbone).save(new / "encoder")
        expected |= expected_of_preprocessor(source.sentencepiece_model, length)
        PreprocessorModule(text_graph, length).save(new / "preprocessor")
        if options.masked_lm:
            model = source.load_masked_lm(backbone)
            expected |= expected_of_masks(model)
            module = MaskedLMModule(model, text_graph, length)
            module.save(new / "masked_lm")
            serving_files.write_warmup_requests(new / "masked_lm", module)
    module = ServingModule(with_precision(backbone, options.precision), text_graph, length)
    module.save(new / served)
    serving_files.write(new / "serving", new / served, module)
    return expected


def _keep_edited(output: Path, new: Path) -> None:
    """Takes the server's settings over: they are there to be edited."""
    (new / "serving").mkdir()
    for name in EDITABLE_FILES:
        if (output / name).exists():
            shutil.copyfile(output / name, new / name)


def _published_names(new: Path) -> list[str]:
    """What is published: the modules' folders; of `serving`, which may stay, what is in it."""
    names = [name for name in MODULE_FOLDERS if (new / name).exists() and name != "serving"]
    return names + [f"serving/{path.name}" for path in sorted((new / "serving").iterdir())]


def _manifest(
    source: Source,
    backbone: RemBertBackbone,
    options: ExportOptions,
    step: int | None,
    length: int,
    version: str,
) -> dict[str, Any]:
    """The manifest of a whole export, without its files and differences."""
    served = {"precision": options.precision, "sequence_length": length}
    manifest = {
        "format_version": manifests.FORMAT_VERSION,
        "versions": manifests.versions(),
        "source": {
            "step_of_unfinished_run": step,
            "config": source.arguments,
            "output_embedding_dim": source.output_embedding_dim,
            "never_trained": sorted(source.made_anew),
            "vocabulary_sha256": hashlib.sha256(source.sentencepiece_model).hexdigest(),
        },
        "serving": {version: {**served, "keep_layers": backbone.num_layers}},
        "files": {},
        "largest_difference": {},
    }
    if options.serving_only:
        return manifest
    model = build_by_shape(source.arguments, source.output_embedding_dim or "tied")
    whole = model if source.output_embedding_dim is not None else model.backbone
    before = manifests.variable_specs(whole.variables)
    kept = manifests.variable_specs(backbone.variables)
    names = {variable["name"] for variable in kept}
    stripped = [variable for variable in before if variable["name"] not in names]
    table = backbone.token_embedding.embeddings
    manifest["encoder"] = {
        "config": source.exported_arguments(options.keep_layers, options.dropout),
        "keep_layers": backbone.num_layers,
        "dropout": backbone.dropout,
        "attention_dropout": backbone.attention_dropout,
        "pooler": source.pooler_note or f"as trained: {backbone.pooler or 'none, mean is taken'}",
        "parameters_before": sum(variable["bytes"] for variable in before) // 4,
        "parameters_after": sum(variable["bytes"] for variable in kept) // 4,
        "bytes_before": manifests.bytes_by_part(before),
        "bytes_after": manifests.bytes_by_part(kept),
        "input_table": {
            "name": table.path,
            "sha256": hashlib.sha256(np.ascontiguousarray(table.numpy())).hexdigest(),
        },
        "kept": kept,
        "stripped": stripped,
    }
    manifest["preprocessor"] = {"sequence_length": length}
    if options.masked_lm:
        manifest["masked_lm"] = {"sequence_length": length}
    return manifest


def _with_new_version(there: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The manifest of an export, with the version that is added to it."""
    made_of = {"source": new["source"], "versions": new["versions"]}
    there["serving"] |= {name: served | made_of for name, served in new["serving"].items()}
    return there


def _checked(
    new: Path,
    manifest: dict[str, Any],
    files: dict[str, Any],
    expected: Mapping[str, np.ndarray],
) -> dict[str, dict[str, Any]]:
    """Has the new files checked, and returns the differences from the source by module.

    Raises:
        KzooError: if a problem is found.
    """
    # What is not made anew stays where it is, and is not looked at.
    own = manifest | {"files": files}
    for name in MODULE_FOLDERS:
        if name != "serving" and not (new / name).exists():
            own.pop(name, None)
    manifests.write_manifest(new, own)
    report = self_check(new, expected)
    if report["problems"]:
        raise KzooError(
            "the export is not what it should be, and was not put in place:\n  "
            + "\n  ".join(report["problems"])
        )
    return {row["module"]: row["differences"] for row in report["modules"]}


def _write_archives(new: Path) -> list[str]:
    """Packs encoder and preprocessor as TensorFlow Hub takes them; the same bytes each time."""
    for name in ARCHIVES:
        folder = new / name.removesuffix(".tar.gz")
        with (
            open(new / name, "wb") as raw,
            gzip.GzipFile("", "wb", compresslevel=1, fileobj=raw, mtime=0) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
        ):
            for path in sorted(folder.rglob("*")):
                archive.add(path, str(path.relative_to(folder)), False, filter=_anonymous)
    return list(ARCHIVES)


def _anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
    """Without what differs from one machine and moment to the next."""
    entry.mtime = entry.uid = entry.gid = 0
    entry.uname = entry.gname = ""
    entry.mode = 0o755 if entry.isdir() else 0o644
    return entry
