"""YAML 1.2's core schema, lines of keys, and text that is not YAML."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kzoo import KzooError
from kzoo.config import yaml_core


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("no", "no"),
        ("Yes", "Yes"),
        ("on", "on"),
        ("true", True),
        ("FALSE", False),
        ("null", None),
        ("~", None),
        ("", None),
        ("nULL", "nULL"),
        ("12", 12),
        ("+12", 12),
        ("010", 10),
        ("0o17", 15),
        ("0x1F", 31),
        ("0b1", "0b1"),
        ("1_000", "1_000"),
        ("12:30", "12:30"),
        ("1e-4", 1e-4),
        ("1.0e-6", 1e-6),
        ("1E5", 1e5),
        (".5", 0.5),
        ("5.", 5.0),
        ("-.inf", -math.inf),
        ("1.2.3", "1.2.3"),
        ("e5", "e5"),
        (".", "."),
        ("'12'", "12"),
        ("!!str 12", "12"),
        ("2001-01-01", "2001-01-01"),
        ("<<", "<<"),
        ("[1, no]", [1, "no"]),
        ("corpus/{lang}.txt", "corpus/{lang}.txt"),
    ],
)
def test_scalars_are_read_by_the_core_schema(text, value):
    read = yaml_core.parse(text, "a.yaml").value
    assert (read, type(read)) == (value, type(value))


def test_not_a_number_is_read():
    assert math.isnan(yaml_core.parse(".NaN", "a.yaml").value)


def test_every_key_has_its_line():
    text = "model:\n  preset: mini\n\ncorpus: {train_files:\n  {de: x,\n   'no': y}}\n"
    assert yaml_core.parse(text, "a.yaml").lines == {
        ("model",): 1,
        ("model", "preset"): 2,
        ("corpus",): 4,
        ("corpus", "train_files"): 4,
        ("corpus", "train_files", "de"): 5,
        ("corpus", "train_files", "no"): 6,
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3", "a.yaml:3: the key 'a' stands twice, first on line 1"),
        ("a:\n  b: {c: 1,\n   c: 2}", "a.yaml:3: the key 'c' stands twice, first on line 2"),
        ("a: 1\n[b]: 2", "a.yaml:2: a key must be a word, not a list or a mapping"),
        ("a:\n\tb: 1", "a.yaml:2: not valid YAML: a tab where only spaces may stand"),
        (
            "a: [1,\nb: 2",
            r"a.yaml:2: not valid YAML: while parsing a flow sequence \(from line 1\)",
        ),
        ("a: 'x\n\n", r"a.yaml:3: not valid YAML: while scanning a quoted scalar \(from line 1\)"),
        ("a: 1\nb: c: d", "a.yaml:2: not valid YAML: mapping values are not allowed here"),
        ("a: *b", "a.yaml:1: not valid YAML: found undefined alias 'b'"),
        ("a: 1\n---\nb: 1", "a.yaml:2: not valid YAML: expected a single document"),
        ("a: 1\nb: \x07", r"a.yaml:2: the character U\+0007 may not stand in YAML"),
        ("\n!!int twelve", "a.yaml:2: 'twelve' cannot be read as int"),
        ("!!bool no", "a.yaml:1: 'no' cannot be read as bool"),
        ("9" * 5000, "a.yaml:1: '9{40}' cannot be read as int"),
        ("[" * 1000, "a.yaml: lists or mappings are nested too deeply"),
        ("!!python/object/apply:os.getcwd []", "a.yaml:1: could not determine a constructor"),
        ("!!timestamp 2001-01-01", "a.yaml:1: could not determine a constructor"),
    ],
)
def test_what_cannot_be_read_is_one_error_with_its_line(text, message):
    with pytest.raises(KzooError, match=f"^{message}"):
        yaml_core.parse(text, "a.yaml")


_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.sampled_from(["no", "1e-4", "1_000", "12:30", "0o17", "~", "", "null", "=", "<<", "- a"])
    | st.text("a \n\t'\"\\\r\x85\u2028\u2029\ufeff:#-"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@settings(deadline=None)
@given(_VALUES)
def test_what_is_written_is_read_back(value):
    assert yaml_core.parse(yaml_core.to_yaml(value), "a.yaml").value == value
