"""Checks an export as a stranger would use it: `python -m kzoo.saved_model.self_check FOLDER`.

To be run in a process of its own: it imports TensorFlow, and for modules that take text its
operations for text, but neither kzoo's models nor KerasHub. Prints a report as JSON; its `problems`
are empty if all is well.
"""

import gc
import importlib.util
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from kzoo.errors import KzooError
from kzoo.saved_model.graph_safety import check_graph, kinds_of_operations
from kzoo.saved_model.loading import UNUSABLE, load_saved_model, reason
from kzoo.saved_model.manifest import (
    MANIFEST_FILE,
    MODULE_FOLDERS,
    describe_files,
    read_manifest,
)
from kzoo.saved_model.signature_names import INPUT_NAMES, MASKED_LM, SERVING
from kzoo.saved_model.tensor_checks import (
    Comparison,
    check_encoder,
    compare,
    sha256_of_table,
)

TOLERANCE = 1e-4
"""The largest difference between float32 outputs of source and export that is no problem.

As a share of the largest value, or of 1. A graph rounds elsewhere than the source, which gives 1e-6
to 3e-6; a wrong weight gives far more.
"""

LEAST_COSINE = 0.9
"""Between outputs of the source and of an export in a narrower precision."""

_SIGNATURES = {
    "encoder": {"serving_default": (INPUT_NAMES, ("sequence_output", "pooled_output", "default"))},
    "preprocessor": {"serving_default": (("text",), INPUT_NAMES)},
    "serving": SERVING,
    "masked_lm": MASKED_LM,
}
_TEXT_OPERATIONS = frozenset({"SentencepieceOp", "SentencepieceTokenizeOp"})
_HEAD = "masked_lm_head/"


def check(folder: Path, expected: Mapping[str, np.ndarray] | None = None) -> dict[str, Any]:
    """Checks every module of an export, and its manifest.

    Args:
        folder: the export.
        expected: what the source model computes, as `kzoo.saved_model.expected` has it.

    Returns:
        `modules`: for each its `module`, `signatures`, `operations` (how many kinds),
        `outside_core`, `tensors`, `parameters`, `bytes`, `note` if it was not run, and
        `differences`: by output the largest `difference` from the source, and the source's
        `largest_value`; and `problems`, sentences.

    Raises:
        KzooError: if there is no manifest.
    """
    manifest = read_manifest(folder)
    wrong_files = _wrong_files(folder, manifest["files"])
    problems = list(wrong_files.values())
    rows = {name: _row(name) for name in _modules(folder, manifest)}
    for name, row in rows.items():
        if any(file.startswith(f"{name}/") for file in wrong_files):
            # A SavedModel is a program: one that somebody has changed is not run.
            row["note"] = "not run: its files are not those that were written"
            continue
        # Of all of them first: what is imported for text registers operations.
        try:
            graph = (folder / name / "saved_model.pb").read_bytes()
            operations = kinds_of_operations(graph, name)
        except (OSError, KzooError) as error:
            row["note"] = "not run: it has no graph"
            problems.append(f"{name}: saved_model.pb cannot be read: {error}")
            continue
        row["operations"] = len(operations)
        row["outside_core"] = sorted(op for op in operations if op_def_registry.get(op) is None)
    for row in rows.values():
        if "note" in row:
            continue
        found = []
        try:
            # One by one: what is found before a module proves to be unusable may be why it is.
            for problem in _problems_of_module(folder, row, manifest, expected or {}):
                found.append(problem)
        except (KzooError, *UNUSABLE) as error:
            found.append(f"cannot be used: {reason(error)}")
        problems += [f"{row['module']}: {problem}" for problem in found]
        # Functions and what they are of hold each other; a module may be larger than what is free.
        gc.collect()
    return {"modules": list(rows.values()), "problems": problems}


def _row(name: str) -> dict[str, Any]:
    counts = dict.fromkeys(("operations", "tensors", "parameters", "bytes"), 0)
    return {"module": name, "signatures": [], "outside_core": [], "differences": {}, **counts}


def _modules(folder: Path, manifest: Mapping[str, Any]) -> list[str]:
    """The modules that are there, and those that the manifest has."""
    names = [name for name in MODULE_FOLDERS if name in manifest or (folder / name).exists()]
    versions = {path.name for path in (folder / "serving").glob("*")}
    # An export that is not in its place yet has the versions that are added.
    versions |= {file.split("/")[1] for file in manifest["files"] if file.startswith("serving/")}
    # Whatever else is there, a server takes no notice of it.
    versions = {name for name in versions if name.isascii() and name.isdecimal()}
    names = [name for name in names if name != "serving"]
    return names + [f"serving/{version}" for version in sorted(versions, key=int)]


def _wrong_files(folder: Path, listed: Mapping[str, Any]) -> dict[str, str]:
    """Files that are not what the manifest says, and what is wrong with them."""
    found = describe_files(folder)
    wrong = {
        name: f"{name}, which {MANIFEST_FILE} lists, is missing" for name in listed - found.keys()
    }
    wrong |= {name: f"{name} is not listed in {MANIFEST_FILE}" for name in found.keys() - listed}
    wrong |= {
        name: f"{name} has changed since it was written: its sha256 is another"
        for name in listed.keys() & found.keys()
        if listed[name] != found[name]
    }
    return dict(sorted(wrong.items()))


def _tensors(folder: Path) -> dict[str, Any]:
    """How much there is in a SavedModel's checkpoint, and under which names."""
    prefix = folder / "variables" / "variables"
    if not prefix.with_suffix(".index").exists():
        return {"tensors": 0, "parameters": 0, "bytes": 0, "names": {}}
    reader = tf.train.load_checkpoint(str(prefix))
    dtypes = reader.get_variable_to_dtype_map()
    names, parameters, size_bytes = {}, 0, 0
    for key, shape in reader.get_variable_to_shape_map().items():
        if key.startswith(("_CHECKPOINTABLE", "save_counter")):
            continue
        count = int(np.prod(shape, dtype=np.int64))
        names[_path_of(key)] = list(shape)
        parameters += count
        size_bytes += count * dtypes[key].size
    return {"tensors": len(names), "parameters": parameters, "bytes": size_bytes, "names": names}


def _path_of(key: str) -> str:
    """A variable's path, from its key in a checkpoint."""
    name = key.removesuffix("/.ATTRIBUTES/VARIABLE_VALUE")
    return name.removeprefix("named_variables/").replace(".S", "/")


def _problems_of_module(
    folder: Path, row: dict[str, Any], manifest: Mapping[str, Any], expected: Mapping[str, Any]
) -> Iterator[str]:
    """The problems of one module; its row is completed."""
    name = row["module"]
    kind = name.split("/")[0]
    path = folder / name
    counts = _tensors(path)
    names = counts.pop("names")
    row.update(counts)
    allowed = frozenset() if kind == "encoder" else _TEXT_OPERATIONS
    if wrong := sorted({*row["outside_core"]} - allowed):
        yield f"has operations that TensorFlow does not know: {', '.join(wrong)}"
    if kind != "masked_lm" and any(_HEAD in variable for variable in names):
        yield "has weights of the masked-LM head"
    graph = (path / "saved_model.pb").read_bytes()
    if os.fsencode(folder.resolve()) in graph:
        yield "names the folder in which it is"
    if kind == "encoder":
        check_graph(graph, name)
        yield from _weight_problems(path, names, manifest["encoder"])
    elif importlib.util.find_spec("tensorflow_text") is None:
        row["note"] = "not run: tensorflow_text is not installed"
        return
    else:
        import tensorflow_text  # noqa: F401  its operations
    module = load_saved_model(path)
    row["signatures"] = sorted(module.signatures)
    yield from _signature_problems(module, _SIGNATURES[kind])
    compared = compare(module, name, expected)
    row["differences"] = {
        output: {"difference": found.difference, "largest_value": found.largest_value}
        for output, found in compared.items()
    }
    is_narrow = _precision(name, manifest) != "float32"
    for output, found in compared.items():
        if not _is_near(found, is_narrow):
            yield (
                f"`{output}` differs from the source model's by {found.difference:.2g} where the "
                f"largest value is {found.largest_value:.2g}"
            )
    if kind == "encoder":
        yield from check_encoder(module)


def _precision(name: str, manifest: Mapping[str, Any]) -> str:
    kind, _, version = name.partition("/")
    return manifest["serving"][version]["precision"] if kind == "serving" else "float32"


def _is_near(found: Comparison, is_narrow: bool) -> bool:
    """Whether an output is what it must be; what is not finite never is."""
    if found.is_exact:
        return found.difference == 0
    if is_narrow:
        return found.cosine >= LEAST_COSINE
    return found.difference <= TOLERANCE * max(1.0, found.largest_value)


def _weight_problems(
    path: Path, names: Mapping[str, list[int]], encoder: Mapping[str, Any]
) -> list[str]:
    """Whether an encoder has the variables that its manifest lists, and no other."""
    kept = {variable["name"]: variable["shape"] for variable in encoder["kept"]}
    problems = []
    for what, wrong in (
        ("lacks", kept.keys() - names),
        ("has, beyond what it must have,", names.keys() - kept),
        ("has of another shape", {name for name in kept if names.get(name) != kept[name]}),
    ):
        if wrong:
            problems.append(f"{what} {', '.join(sorted(wrong)[:3])}")
    rows = encoder["config"]["vocabulary_size"]
    tables = [name for name, shape in names.items() if len(shape) == 2 and shape[0] == rows]
    expected_tables = [name for name, shape in kept.items() if len(shape) == 2 and shape[0] == rows]
    if sorted(tables) != sorted(expected_tables):
        problems.append(f"has other tables of {rows:,} rows than the input table: {tables}")
    elif sha256_of_table(path, encoder["input_table"]["name"]) != encoder["input_table"]["sha256"]:
        problems.append("its table of input embeddings is not the source's")
    return problems


def _signature_problems(
    module: Any, documented: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]
) -> list[str]:
    if sorted(module.signatures) != sorted(documented):
        return [f"has the signatures {sorted(module.signatures)} instead of {sorted(documented)}"]
    problems = []
    for name, (inputs, outputs) in documented.items():
        signature = module.signatures[name]
        found = (signature.structured_input_signature[1], signature.structured_outputs)
        for what, has, must in zip(("inputs", "outputs"), found, (inputs, outputs), strict=True):
            if sorted(has) != sorted(must):
                problems.append(f"{name} has the {what} {sorted(has)} instead of {sorted(must)}")
        problems += [
            f"{name}: TensorFlow Serving would take {output} for base64"
            for output in signature.structured_outputs
            if output.endswith("_bytes")
        ]
    return problems


def main(arguments: list[str]) -> int:
    """Prints the report on a folder; a second argument is a file of `expected` arrays."""
    try:
        expected = dict(np.load(arguments[1])) if len(arguments) > 1 else None
        print(json.dumps(check(Path(arguments[0]), expected)))
    except KzooError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
