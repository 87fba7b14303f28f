"""YAML as configurations use it: the core schema of YAML 1.2, and the line of every key.

PyYAML reads YAML 1.1, where `no` is false, `1e-4` a string, `1_000` a number and `12:30` is 750.
Here `no` is a language, `1e-4` a number, and the other two are strings (YAML 1.2.2, section 10.3).
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from kzoo.errors import KzooError

_TAG = "tag:yaml.org,2002:"
_DEEPEST_KEY = 3  # section, key, and the keys of a value that is a mapping


@dataclass(frozen=True)
class _Scalar:
    """A kind of scalar: its whole text, the characters it can begin with, and its value."""

    pattern: re.Pattern[str]
    beginnings: list[str]
    convert: Callable[[str], Any]


_SCALARS = {
    "null": _Scalar(re.compile(r"(~|null|Null|NULL|)\Z"), ["~", "n", "N", ""], lambda text: None),
    "bool": _Scalar(
        re.compile(r"(true|True|TRUE|false|False|FALSE)\Z"),
        list("tTfF"),
        lambda text: text.lower() == "true",
    ),
    "int": _Scalar(
        re.compile(r"([-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)\Z"),
        list("-+0123456789"),
        lambda text: int(text, 0 if text.startswith(("0o", "0x")) else 10),
    ),
    "float": _Scalar(
        re.compile(
            r"([-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
            r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z"
        ),
        list("-+.0123456789"),
        lambda text: float(re.sub(r"\.(inf|nan)", r"\1", text.lower())),
    ),
}


@dataclass(frozen=True)
class Document:
    """One parsed text.

    Attributes:
        value: None, bool, int, float, str, or lists and dicts of these.
        lines: path of keys → the line of its last key, counted from 1.
    """

    value: Any
    lines: dict[tuple[str, ...], int]


class _CoreLoader(yaml.SafeLoader):
    """Builds plain values only, and refuses a mapping that holds a key twice."""

    # Of its own, so that nothing of YAML 1.1 is inherited; filled below.
    yaml_implicit_resolvers = {}  # noqa: RUF012
    yaml_constructors = {}  # noqa: RUF012

    def construct_mapping(self, node: yaml.Node, deep: bool = False) -> dict:
        first_lines = {}
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if not isinstance(key_node, yaml.ScalarNode):
                raise _error(key_node, "a key must be a word, not a list or a mapping")
            key = self.construct_object(key_node)
            if key in first_lines:
                problem = f"the key {key!r} stands twice, first on line {first_lines[key]}"
                raise _error(key_node, problem)
            first_lines[key] = _line(key_node.start_mark)
        return super().construct_mapping(node, deep=deep)

    def construct_core_scalar(self, node: yaml.Node) -> Any:
        """Converts a scalar, which may stand under a wrong explicit tag (`!!int twelve`)."""
        kind = node.tag.removeprefix(_TAG)
        text = self.construct_scalar(node)
        try:
            if _SCALARS[kind].pattern.match(text):
                return _SCALARS[kind].convert(text)
        except ValueError:  # Python reads integers of up to 4,300 digits.
            pass
        raise _error(node, f"{text[:40]!r} cannot be read as {kind}")


class _CoreDumper(yaml.SafeDumper):
    """Quotes every string that YAML 1.1 or 1.2 would read as something else."""

    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        """Escapes Unicode's line ends, which PyYAML would write bare and read as spaces."""
        style = '"' if re.search("[\x85\u2028\u2029]", text) else None
        return self.represent_scalar(_TAG + "str", text, style=style)


for _kind, _scalar in _SCALARS.items():
    _CoreLoader.add_implicit_resolver(_TAG + _kind, _scalar.pattern, _scalar.beginnings)
    _CoreLoader.add_constructor(_TAG + _kind, _CoreLoader.construct_core_scalar)
    _CoreDumper.add_implicit_resolver(_TAG + _kind, _scalar.pattern, _scalar.beginnings)
_CoreDumper.add_representer(str, _CoreDumper.represent_text)
_CoreLoader.add_constructor(_TAG + "str", _CoreLoader.construct_yaml_str)
_CoreLoader.add_constructor(_TAG + "seq", _CoreLoader.construct_yaml_seq)
_CoreLoader.add_constructor(_TAG + "map", _CoreLoader.construct_yaml_map)
_CoreLoader.add_constructor(None, _CoreLoader.construct_undefined)


def parse(text: str, name: str) -> Document:
    """Reads one YAML document.

    Args:
        text: the document; empty text holds None.
        name: how messages call the place it comes from.

    Raises:
        KzooError: it is not YAML, holds a key twice, or holds a tag beyond the core schema.
    """
    try:
        loader = _CoreLoader(text)
        node = loader.get_single_node()
        value = None if node is None else loader.construct_document(node)
    except yaml.MarkedYAMLError as error:
        raise KzooError(_located(error, name)) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        problem = f"the character U+{error.character:04X} may not stand in YAML"
        raise KzooError(f"{name}:{line}: {problem}") from None
    except RecursionError:
        raise KzooError(f"{name}: lists or mappings are nested too deeply") from None
    return Document(value, dict(_key_lines(node, ())))


def to_yaml(value: Any) -> str:
    """Writes plain values as YAML that `parse` reads back as equal ones; keys keep their order."""
    return yaml.dump(value, Dumper=_CoreDumper, sort_keys=False, allow_unicode=True, width=1000)


def _key_lines(node: yaml.Node | None, path: tuple[str, ...]):
    if isinstance(node, yaml.MappingNode) and len(path) < _DEEPEST_KEY:
        for key_node, value_node in node.value:
            key_path = (*path, key_node.value)
            yield key_path, _line(key_node.start_mark)
            yield from _key_lines(value_node, key_path)


def _located(error: yaml.MarkedYAMLError, name: str) -> str:
    """The line, what is wrong there, and where the construct that it breaks began."""
    place = f"{name}:{_line(error.problem_mark or error.context_mark)}"
    problem = error.problem or error.context
    if isinstance(error, yaml.constructor.ConstructorError):
        return f"{place}: {problem}"
    if "'\\t'" in problem:
        problem = "a tab where only spaces may stand"
    if error.context and error.context_mark:
        problem = f"{error.context} (from line {_line(error.context_mark)}), {problem}"
    return f"{place}: not valid YAML: {problem}"


def _line(mark: yaml.Mark) -> int:
    return mark.line + 1


def _error(node: yaml.Node, problem: str) -> yaml.constructor.ConstructorError:
    return yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
