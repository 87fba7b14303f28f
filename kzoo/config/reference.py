"""The tables of keys in `configs/README.md`, written from the schema.

After a change of the schema, from the root of the repository:

    python -m kzoo.config.reference
"""

from pathlib import Path

from pydantic.fields import FieldInfo

from kzoo.config import keys, wording, yaml_core

README = Path("configs/README.md")
_BEGIN = "<!-- Written by python -m kzoo.config.reference; do not edit by hand. -->\n"
_END = "<!-- End of the written part. -->\n"


def with_tables(readme: str) -> str:
    """Puts the current tables between the two marks of a README's text."""
    before, _, rest = readme.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    tables = "\n".join(_table(name) for name in keys.SECTIONS)
    return f"{before}{_BEGIN}\n{tables}\n{_END}{after}"


def _table(section: str) -> str:
    """One section as Markdown: a heading, what it is for, and a row for each key."""
    schema = keys.SECTIONS[section]
    lines = [f"### `{section}`", "", schema.__doc__, "", "| key | value | default | meaning |"]
    lines += ["|---|---|---|---|"]
    lines += [_row(key, field) for key, field in schema.model_fields.items()]
    return "\n".join(lines) + "\n"


def _row(key: str, field: FieldInfo) -> str:
    default = "none" if field.is_required() else f"`{_scalar(field.default)}`"
    meaning = " ".join(field.description.split())
    return f"| `{key}` | {wording.expected(field)} | {default} | {meaning} |"


def _scalar(value: object) -> str:
    return yaml_core.to_yaml(value).split("\n")[0]


if __name__ == "__main__":
    README.write_text(with_tables(README.read_text("utf-8")), "utf-8")
