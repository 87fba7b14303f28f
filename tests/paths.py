"""Where tests find what they did not write themselves."""

from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
SHARED = REPOSITORY.parent / "shared"

needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="needs the reference data, which is not part of the project"
)
