"""The picture of what an export leaves out."""

import subprocess
import sys

import matplotlib
import pytest

from kzoo import KzooError
from kzoo.models.presets import PRESETS
from kzoo.saved_model.plots import bytes_by_part, plot_stripped_bytes
from tests.paths import REPOSITORY


@pytest.mark.parametrize("name", PRESETS)
def test_parts_are_the_whole_model_and_those_that_are_kept_the_encoder(name):
    counts = PRESETS[name].pretraining_counts
    sizes = bytes_by_part(counts)
    assert sum(sizes.values()) == 4 * counts.total
    kept = sum(size for part, size in sizes.items() if part.is_kept)
    assert kept == 4 * (counts.encoder + counts.pooler)


def test_the_picture_has_each_preset_with_its_sizes(tmp_path):
    with matplotlib.rc_context({"svg.fonttype": "none"}):
        plot_stripped_bytes(tmp_path / "bytes.svg")
    picture = (tmp_path / "bytes.svg").read_text()
    # 994,591,804 parameters before, 575,920,384 after.
    for text in ("rembert", "rembert_12", "small", "3.98 GB", "2.30 GB", "−42%", "output table"):
        assert text in picture


def test_the_picture_of_the_documents_is_the_one_that_is_drawn(tmp_path):
    plot_stripped_bytes(tmp_path / "bytes.svg")
    shipped = REPOSITORY / "docs" / "images" / "stripped_bytes.svg"
    assert _paths(tmp_path / "bytes.svg") == _paths(shipped)


def test_the_command_overwrites_only_when_told(tmp_path):
    picture = tmp_path / "bytes.png"
    command = [sys.executable, "-m", "kzoo.saved_model.plots", f"--output={picture}"]
    subprocess.run(command, check=True)
    assert picture.read_bytes().startswith(b"\x89PNG")
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 2
    assert again.stderr == f"error: {picture} is there already; --overwrite replaces it\n"


def test_a_picture_of_another_kind_is_a_clear_error(tmp_path):
    with pytest.raises(KzooError, match=r"received .*bytes\.jpg"):
        plot_stripped_bytes(tmp_path / "bytes.jpg")


def _paths(picture) -> list[str]:
    """The bars of a picture: what has their colours, whatever version of matplotlib drew it."""
    lines = picture.read_text().splitlines()
    return [line for line in lines if 'style="fill: #' in line]
