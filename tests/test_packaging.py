"""What is declared of the project's requirements goes together."""

import configparser
import re

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.paths import REPOSITORY


def requirements() -> list[Requirement]:
    """Those of kzoo and of all its extras, as `setup.cfg` declares them."""
    setup = configparser.ConfigParser()
    setup.read(REPOSITORY / "setup.cfg")
    groups = [setup["options"]["install_requires"], *setup["options.extras_require"].values()]
    lines = [line for group in groups for line in group.splitlines()]
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def constraints() -> dict[str, str]:
    """The version that `constraints.txt` allows of each package."""
    lines = (REPOSITORY / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line.split("==") for line in lines if not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pins}


def test_constraints_are_versions_and_nothing_else():
    lines = (REPOSITORY / "constraints.txt").read_text("utf-8").splitlines()
    pins = [line for line in lines if not line.startswith("#")]
    # No local version such as +cpu, which other indexes do not have; no path and no option.
    assert [line for line in pins if not re.fullmatch(r"[\w.-]+==[\w.]+", line)] == []
    assert len(constraints()) == len(pins)


@pytest.mark.parametrize("requirement", requirements(), ids=str)
def test_what_is_required_is_pinned_within_its_range(requirement):
    assert requirement.specifier.contains(constraints()[canonicalize_name(requirement.name)])
