"""Imports go one way, as docs/how_it_works.md says, and what must start quickly stays light."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import REPOSITORY

PACKAGE = REPOSITORY / "kzoo"
SOURCES = sorted(PACKAGE.rglob("*.py"))
EVERYWHERE = {"environment", "errors", "folders", "picture", "version"}
# What stands in the package's folder without being a command.
SHARED = {"__init__", "command", *EVERYWHERE}
COMMANDS = sorted({path.stem for path in PACKAGE.glob("*.py")} - SHARED)
FOLDERS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))


def allowed_imports() -> dict[str, set[str]]:
    """The table in docs/how_it_works.md: each folder, and the parts of kzoo that it may import."""
    text = (REPOSITORY / "docs" / "how_it_works.md").read_text("utf-8")
    section = text.partition("## Which folder may know which")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)/` \|[^|]*\|([^|]*)\|$", section, re.MULTILINE)
    return {folder: set(re.findall(r"`([\w.]+)`", parts)) for folder, parts in rows}


def imported_modules(path: Path) -> Iterator[str]:
    """The modules of kzoo that a file imports anywhere in it, without the leading `kzoo.`."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import"
            # `from kzoo.corpora import files`: the name may be the module.
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name.removeprefix("kzoo.") for name in names if name.startswith("kzoo."))


def is_within(module: str, part: str) -> bool:
    return module == part or module.startswith(f"{part}.")


def test_the_table_has_every_folder():
    assert sorted(allowed_imports()) == FOLDERS


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_folder_imports_only_what_the_table_allows(folder):
    allowed = allowed_imports()[folder] | EVERYWHERE | {folder}
    wrong = [
        f"{path.relative_to(REPOSITORY)} imports kzoo.{module}"
        for path in SOURCES
        if path.is_relative_to(PACKAGE / folder)
        for module in imported_modules(path)
        if not any(is_within(module, part) for part in allowed)
    ]
    assert not wrong


def test_nothing_imports_a_command():
    wrong = [
        f"{path.relative_to(REPOSITORY)} imports kzoo.{module}"
        for path in SOURCES
        for module in imported_modules(path)
        if module.split(".")[0] in COMMANDS
    ]
    assert COMMANDS
    assert not wrong


@pytest.mark.parametrize(
    "module",
    [
        *(f"kzoo.{command}" for command in COMMANDS),
        "kzoo.saved_model.plots",
        "kzoo.training.plots",
        "kzoo.config",
        "kzoo.models.presets",
        # What worker processes import.
        "kzoo.corpora.prepare",
    ],
)
def test_importing_it_does_not_import_tensorflow(module):
    code = f"import sys, {module}; sys.exit('tensorflow' in sys.modules or 'keras' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
