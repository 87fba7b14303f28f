"""`MANIFEST.json`: what an export was made of, what was left out, and what its files must be."""

import concurrent.futures
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kzoo.errors import KzooError

MANIFEST_FILE = "MANIFEST.json"
FORMAT_VERSION = 1
# What belongs to an export as a whole, and is replaced as a whole.
MODULE_FOLDERS = ("encoder", "preprocessor", "serving", "masked_lm")
ARCHIVES = ("encoder.tar.gz", "preprocessor.tar.gz")
MODELS_CONFIG, BATCHING_PARAMETERS = "models.config", "batching_parameters.txt"
# In `serving/`, but for people to edit: no check may complain about them.
EDITABLE_FILES = (f"serving/{MODELS_CONFIG}", f"serving/{BATCHING_PARAMETERS}")
PRECISIONS = {"float32": 1.0, "bfloat16": 0.5, "int8": 0.3}
"""Of a version in `serving/` → about how large it is, as a share of the first."""

_PACKAGES = ("tensorflow", "keras", "keras-hub", "tensorflow-text")


def read_manifest(folder: str | os.PathLike[str]) -> dict[str, Any]:
    """The manifest of an export.

    Raises:
        KzooError: if there is none, or it cannot be understood.
    """
    path = Path(folder, MANIFEST_FILE)
    try:
        manifest = json.loads(path.read_text("utf-8"))
        _check_parts(manifest)
        if manifest["format_version"] != FORMAT_VERSION:
            raise KzooError(
                f"{path} has format version {manifest['format_version']}, and this version of "
                f"kzoo reads {FORMAT_VERSION}"
            )
    except FileNotFoundError as error:
        raise KzooError(
            f"{folder} is no complete export: it has no {MANIFEST_FILE}; `python -m kzoo.export` "
            "makes one"
        ) from error
    except (OSError, ValueError, RecursionError) as error:
        raise KzooError(f"{path} is damaged: {error}") from error
    return manifest


def _check_parts(manifest: Any) -> None:
    """Raises a ValueError unless a manifest has what those who read it take for granted."""
    if not isinstance(manifest, dict) or "format_version" not in manifest:
        raise ValueError("it has no format_version")
    if manifest["format_version"] != FORMAT_VERSION:
        return
    parts = dict.fromkeys(("files", "serving", "source", "largest_difference"))
    parts |= {name: None for name in ("encoder", "preprocessor", "masked_lm") if name in manifest}
    for name in parts:
        if not isinstance(manifest.get(name), dict):
            raise ValueError(f"{name} is to be an object. Received: {manifest.get(name)!r}")
    needed = {
        "source": ("config",),
        "encoder": ("config", "keep_layers", "kept", "input_table"),
        "preprocessor": ("sequence_length",),
        "masked_lm": ("sequence_length",),
    }
    for name in needed.keys() & parts.keys():
        _check_keys(name, manifest[name], needed[name])
    for version, served in manifest["serving"].items():
        _check_keys(f"serving.{version}", served, ["precision", "sequence_length", "keep_layers"])


def _check_keys(name: str, part: Any, keys: Iterable[str]) -> None:
    for key in keys:
        if not isinstance(part, dict) or key not in part:
            raise ValueError(f"{name} has no {key}")


def write_manifest(folder: Path, manifest: dict[str, Any]) -> None:
    """Writes a manifest into the folder of an export."""
    text = json.dumps(manifest, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    (folder / MANIFEST_FILE).write_text(text, "utf-8")


def refuse_to_replace(output: str | os.PathLike[str], there: list[str]) -> None:
    """Raises a KzooError if parts of an export are in a folder, where nobody asked to replace it.

    Args:
        output: the folder.
        there: the names of the parts.
    """
    if there:
        raise KzooError(
            f"{output} has {', '.join(there)} already; --overwrite replaces it, --serving_only "
            "adds a version for a server"
        )


def versions() -> dict[str, str]:
    """The versions that decide what is in an export."""
    from kzoo.version import __version__

    found = {"kzoo": __version__}
    return found | {package: importlib.metadata.version(package) for package in _PACKAGES}


def describe_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Size and sha256 of every file of an export, by its path in the folder."""
    names = sorted(files_of(folder))
    # Nothing is left to the interpreter, so threads share the work.
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        digests = pool.map(file_sha256, [folder / name for name in names])
        return {
            name: {"bytes": (folder / name).stat().st_size, "sha256": digest}
            for name, digest in zip(names, digests, strict=True)
        }


def files_of(folder: Path) -> Iterator[str]:
    """The files of an export which a manifest lists, as paths relative to the folder."""
    for name in MODULE_FOLDERS:
        for path in (folder / name).rglob("*"):
            relative = path.relative_to(folder).as_posix()
            if path.is_file() and relative not in EDITABLE_FILES:
                yield relative
    yield from (name for name in ARCHIVES if (folder / name).is_file())


def file_sha256(path: Path) -> str:
    """The sha256 of a file of any size."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def variable_specs(variables: Iterable) -> list[dict[str, Any]]:
    """Name, shape and bytes of Keras variables, as float32."""
    specs = []
    for variable in variables:
        count = 1
        for size in variable.shape:
            count *= size
        specs.append({"name": variable.path, "shape": list(variable.shape), "bytes": 4 * count})
    return specs


def bytes_by_part(variables: list[dict[str, Any]]) -> dict[str, int]:
    """The bytes of `variable_specs`, by the first part of their names."""
    sizes: dict[str, int] = {}
    for variable in variables:
        part = variable["name"].split("/")[0]
        sizes[part] = sizes.get(part, 0) + variable["bytes"]
    return sizes
