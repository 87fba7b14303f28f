"""The names of all keys, and which of them an unknown one was meant to be."""

import difflib
from collections.abc import Iterator

from kzoo.config.schema import Config, Section

SECTIONS: dict[str, type[Section]] = {
    name: field.annotation for name, field in Config.model_fields.items()
}


def dotted() -> Iterator[str]:
    """Every key with its section, e.g. `data.seed`, in the order of the schema."""
    for name, section in SECTIONS.items():
        yield from (f"{name}.{key}" for key in section.model_fields)


def advice(word: str, section: str | None = None) -> str:
    """What a message says after an unknown section, or after an unknown key of a section."""
    siblings = list(SECTIONS[section].model_fields) if section else list(SECTIONS)
    elsewhere = [key for key in dotted() if key.endswith(f".{word}")]
    near_siblings = difflib.get_close_matches(word, siblings, n=1)
    if elsewhere:
        nearest = elsewhere[0]
    elif near_siblings:
        nearest = f"{section}.{near_siblings[0]}" if section else near_siblings[0]
    else:
        full_name = f"{section}.{word}" if section else word
        near = difflib.get_close_matches(full_name, list(dotted()), n=1, cutoff=0.8)
        nearest = near[0] if near else None
    return f"the nearest known is {nearest}" if nearest else f"known are {', '.join(siblings)}"
