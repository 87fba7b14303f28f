"""Draws the losses of a run: `python -m kzoo.training.plots --metrics FILE --output FILE`.

The held-out loss of each language over the steps, and as a dashed line the loss of a unigram
model on the same targets, which a model that uses context must beat. The output is an SVG or PNG.
"""

import os
import sys

from absl import flags

from kzoo import command
from kzoo.errors import KzooError
from kzoo.picture import write_picture

FLAGS = flags.FlagValues()
flags.DEFINE_string("metrics", None, "A run's metrics.jsonl.", flag_values=FLAGS)
flags.DEFINE_string("output", None, "The picture: NAME.svg or NAME.png.", flag_values=FLAGS)
flags.DEFINE_bool("overwrite", False, "Replace the picture if it is there.", flag_values=FLAGS)
flags.mark_flags_as_required(["metrics", "output"], flag_values=FLAGS)

LOSS_PREFIX = "loss/"
UNIGRAM_PREFIX = "unigram_loss/"


def main() -> None:
    if os.path.exists(FLAGS.output) and not FLAGS.overwrite:
        raise KzooError(f"{FLAGS.output} is there already; --overwrite replaces it")
    plot_losses(FLAGS.metrics, FLAGS.output)


def plot_losses(metrics_path: str | os.PathLike[str], output_path: str | os.PathLike[str]) -> None:
    """Draws the held-out losses by language; what was at the output path is replaced.

    Args:
        metrics_path: a `metrics.jsonl` (see `MetricWriter`), whose `held_out` lines have
            `loss/LANGUAGE` and, in one of them at least, `unigram_loss/LANGUAGE`, in nats.
        output_path: a `.svg` or `.png`. The same metrics give the same SVG, byte for byte.

    Raises:
        KzooError: if there is nothing to draw, or the picture cannot be written.
    """
    write_picture(lambda: _draw(*_read_losses(metrics_path)), output_path)


def _read_losses(
    path: str | os.PathLike[str],
) -> tuple[dict[str, list[tuple[int, float]]], dict[str, float]]:
    """Per language the (step, loss) points, and the unigram loss."""
    from kzoo.training.writers import read_metrics

    losses: dict[str, list[tuple[int, float]]] = {}
    unigram: dict[str, float] = {}
    for line in read_metrics(path):
        if line["split"] != "held_out":
            continue
        for name, value in line.items():
            if name.startswith(LOSS_PREFIX):
                language = name.removeprefix(LOSS_PREFIX)
                losses.setdefault(language, []).append((line["step"], value))
            elif name.startswith(UNIGRAM_PREFIX):
                unigram[name.removeprefix(UNIGRAM_PREFIX)] = value
    if not losses:
        raise KzooError(f"{os.fspath(path)} has no held-out loss of any language to draw yet")
    return losses, unigram


def _draw(losses: dict[str, list[tuple[int, float]]], unigram: dict[str, float]):
    """One colour a language; the legend is in the order of the lines' ends, top to bottom."""
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    languages = sorted(losses, key=lambda language: -losses[language][-1][1])
    many = len(languages) > 10
    palette = colormaps["turbo" if many else "tab10"]
    columns = 1 + len(languages) // 24
    figure = Figure(figsize=(6.5 + 1.5 * columns, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for index, language in enumerate(languages):
        color = palette(index / (len(languages) - 1)) if many else palette(index)
        steps, values = zip(*losses[language], strict=True)
        axes.plot(
            steps,
            values,
            color=color,
            linewidth=1.0 if many else 1.6,
            marker="" if many else "o",
            markersize=3,
            label=f"{language}  {values[-1]:.2f}",
        )
        if language in unigram:
            axes.axhline(
                unigram[language],
                color=color,
                linestyle="--",
                linewidth=0.8,
                alpha=0.4 if many else 0.7,
            )
    if unigram:
        axes.plot([], [], color="gray", linestyle="--", linewidth=0.8, label="unigram model")
    axes.set_xlabel("step")
    axes.set_ylabel("held-out loss (nats per target)")
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.legend(loc="outside right upper", frameon=False, fontsize=9, ncols=columns)
    return figure


if __name__ == "__main__":
    sys.exit(command.run(main, FLAGS, __doc__))
