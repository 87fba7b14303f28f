"""Types and values in words, for error messages and for the reference of keys."""

import reprlib
import types
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from kzoo.config.schema import Described

_BOUNDS = {
    annotated_types.Ge: ("of at least", "ge"),
    annotated_types.Gt: ("above", "gt"),
    annotated_types.Le: ("at most", "le"),
    annotated_types.Lt: ("below", "lt"),
}
_NOUNS = {bool: "true or false", int: "an integer", float: "a number", str: "a string"}
_KINDS = {
    str: "a string",
    int: "an integer",
    float: "a number",
    list: "a list",
    dict: "a mapping",
}


def expected(field: FieldInfo) -> str:
    """What a field accepts, e.g. `an integer of at least 1, or tied`."""
    return _in_words(field.annotation, field.metadata)


def received(value: Any) -> str:
    """A value from YAML with its kind, shortened, e.g. `received '12' (a string)`."""
    if value is None or isinstance(value, bool):
        return f"received {str(value).lower().replace('none', 'null')}"
    short = reprlib.Repr()
    short.maxlevel, short.maxstring, short.maxother = 2, 60, 60
    return f"received {short.repr(value)} ({_KINDS[type(value)]})"


def _in_words(annotation: Any, metadata: Sequence[Any]) -> str:
    described = next((item.text for item in metadata if isinstance(item, Described)), None)
    if described:
        return described
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _in_words(arguments[0], annotation.__metadata__)
    if origin in (Union, types.UnionType):
        return ", or ".join(_in_words(argument, ()) for argument in arguments)
    if origin is Literal:
        return _listed(["true" if argument is True else argument for argument in arguments])
    if origin is list:
        return "a list of strings"
    if annotation is types.NoneType:
        return "null"
    return " ".join([_NOUNS[annotation], *_bounds(metadata)])


def _bounds(metadata: Sequence[Any]) -> list[str]:
    """The bounds of a number as words, whether pydantic keeps them bare or inside a field."""
    items = [inner for item in metadata for inner in getattr(item, "metadata", [item])]
    words = [
        f"{_BOUNDS[type(item)][0]} {getattr(item, _BOUNDS[type(item)][1])}"
        for item in items
        if type(item) in _BOUNDS
    ]
    return [" and ".join(words)] if words else []


def _listed(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
