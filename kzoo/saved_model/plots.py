"""Draws what an export leaves out: `python -m kzoo.saved_model.plots --output FILE`.

The bytes of a model in float32, part by part, in pre-training and as exported, for three presets.
Counted from their shapes alone. The output is an SVG or PNG.
"""

import dataclasses
import os
import sys
from typing import TYPE_CHECKING

from absl import flags

from kzoo import command
from kzoo.errors import KzooError
from kzoo.models.parameter_counts import ParameterCounts
from kzoo.models.presets import PRESETS
from kzoo.picture import write_picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FLAGS = flags.FlagValues()
flags.DEFINE_string("output", None, "The picture: NAME.svg or NAME.png.", flag_values=FLAGS)
flags.DEFINE_bool("overwrite", False, "Replace the picture if it is there.", flag_values=FLAGS)
flags.mark_flags_as_required(["output"], flag_values=FLAGS)

_DRAWN = ("rembert", "rembert_12", "small")
_FLOAT32_BYTES = 4


@dataclasses.dataclass(frozen=True)
class Part:
    """A part of a model.

    Attributes:
        name: what the legend calls it.
        color: as matplotlib takes it.
        is_kept: whether an export has it.
    """

    name: str
    color: str
    is_kept: bool


# What is kept is blue, what is left out is orange.
INPUT_TABLE = Part("input table", "#9ecae1", True)
LAYERS = Part("layers", "#3182bd", True)
POOLER = Part("pooler", "#08306b", True)
MLM_TRANSFORM = Part("masked-LM transform", "#8c2d04", False)
OUTPUT_TABLE = Part("output table", "#fdae6b", False)


def main() -> None:
    if os.path.exists(FLAGS.output) and not FLAGS.overwrite:
        raise KzooError(f"{FLAGS.output} is there already; --overwrite replaces it")
    plot_stripped_bytes(FLAGS.output)


def plot_stripped_bytes(path: str | os.PathLike[str]) -> None:
    """Draws the parts of three presets; what was at the path is replaced.

    Args:
        path: a `.svg` or `.png`.

    Raises:
        KzooError: if the picture cannot be written.
    """
    write_picture(_draw, path)


def bytes_by_part(counts: ParameterCounts) -> dict[Part, int]:
    """The bytes of each part in float32, in the order in which a token meets them.

    The position and segment table and their LayerNorm count as input table, the projection to the
    width of the layers counts as layer, the output bias as output table.
    """
    parameters = {
        INPUT_TABLE: counts.embeddings,
        LAYERS: counts.projection + counts.layers,
        POOLER: counts.pooler,
        MLM_TRANSFORM: counts.head_transform,
        OUTPUT_TABLE: counts.output_table + counts.output_bias,
    }
    return {part: _FLOAT32_BYTES * count for part, count in parameters.items()}


def _draw() -> "Figure":
    """Two bars a preset, the first with every part, the second with those that are kept."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.8), layout="constrained")
    axes = figure.add_subplot()
    ticks = {}
    for index, name in enumerate(_DRAWN):
        sizes = bytes_by_part(PRESETS[name].pretraining_counts)
        kept = {part: size for part, size in sizes.items() if part.is_kept}
        before, after = sum(sizes.values()), sum(kept.values())
        change = f"  (−{1 - after / before:.0%})"
        for place, label, parts, note in (
            (3 * index, f"{name}\npre-training", sizes, ""),
            (3 * index + 1, "exported", kept, change),
        ):
            _draw_bar(axes, place, parts, note)
            ticks[place] = label
    axes.set_yticks(list(ticks), list(ticks.values()))
    axes.invert_yaxis()
    axes.set_xlabel("GB in float32")
    axes.set_xlim(right=axes.get_xlim()[1] * 1.08)
    axes.spines[["top", "right"]].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    entries = dict(zip(labels, handles, strict=True))
    figure.legend(entries.values(), entries.keys(), loc="outside upper center", ncols=5, fontsize=9)
    return figure


def _draw_bar(axes, place: int, parts: dict[Part, int], note: str) -> None:
    end = 0.0
    for part, size_bytes in parts.items():
        width = size_bytes / 1e9
        axes.barh(place, width, left=end, height=0.85, color=part.color, label=part.name)
        end += width
    axes.text(end, place, f" {end:.2f} GB{note}", va="center", fontsize=9)


if __name__ == "__main__":
    sys.exit(command.run(main, FLAGS, __doc__))
