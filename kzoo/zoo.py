"""Lists the models whose shapes kzoo knows, and what is in one of them.

    python -m kzoo.zoo
    python -m kzoo.zoo --preset rembert

The first prints every preset with its parameters, beside those that its source prints. The second
prints every tensor of one, and whether it is kept for fine-tuning.
"""

import difflib
import math
import sys

from absl import flags

from kzoo import command
from kzoo.corpora.table import format_table
from kzoo.errors import KzooError
from kzoo.models.presets import PRESETS, Preset

FLAGS = flags.FlagValues()

flags.DEFINE_string("preset", None, "Print the tensors of this preset.", flag_values=FLAGS)
flags.DEFINE_boolean(
    "markdown", False, "Print the table of presets as Markdown.", flag_values=FLAGS
)

_COLUMNS = (
    "preset",
    "V",
    "L",
    "H",
    "E_in",
    "E_out",
    "encoder",
    "printed",
    "pre-training",
    "printed",
    "all",
)
_LEGEND = (
    "V: rows of the tables. L: layers, and how many are kept for fine-tuning. H: their width; heads"
    " are 64 wide, feed-forward parts 4 H. E_in, E_out: widths of the input and the output table.",
    "encoder: millions of parameters that are fine-tuned, without the pooler. pre-training: those,"
    " the layers that are thrown away, and the output table, which is how the paper counts."
    " printed: what the source says, rounded up or down. all: every parameter, with the pooler and"
    " the whole head.",
)


def main() -> None:
    """Prints the table of presets, or the tensors of one."""
    if FLAGS.preset is None:
        print(_markdown() if FLAGS.markdown else _text())
        return
    if FLAGS.markdown:
        raise KzooError("--markdown is for the table of presets; leave out --preset or --markdown")
    if FLAGS.preset not in PRESETS:
        near = difflib.get_close_matches(FLAGS.preset, PRESETS, n=3)
        advice = f"near it: {', '.join(near)}" if near else "python -m kzoo.zoo lists all"
        raise KzooError(f"--preset: no preset is {FLAGS.preset!r}; {advice}")
    print(_tensors(PRESETS[FLAGS.preset]))


def _text() -> str:
    table = format_table([_COLUMNS, *map(_row, PRESETS.values())], names=1)
    about = format_table([(preset.name, _about(preset)) for preset in PRESETS.values()], names=2)
    about = "\n".join(line.rstrip() for line in about.split("\n"))
    return "\n\n".join((table, *_LEGEND, about))


def _markdown() -> str:
    header = ("preset", "what it is", *_COLUMNS[1:])
    lines = [header, ("---", "---", *["--:"] * len(_COLUMNS[1:]))]
    for preset in PRESETS.values():
        name, *numbers = _row(preset)
        lines.append((f"`{name}`", _about(preset), *numbers))
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return "\n\n".join((table, *_LEGEND))


def _row(preset: Preset) -> tuple[str, ...]:
    shape, counts = preset.backbone, preset.pretraining_counts
    layers = str(shape["num_layers"])
    if preset.fine_tuning_layers is not None:
        layers += f"→{preset.fine_tuning_layers}"
    return (
        preset.name,
        f"{shape['vocabulary_size']:,}",
        layers,
        str(shape["hidden_dim"]),
        str(shape["embedding_dim"]),
        str(preset.output_embedding_dim),
        _millions(preset.finetuning_counts.encoder),
        _printed(preset.paper_finetuning_millions),
        _millions(counts.encoder + counts.output_table),
        _printed(preset.paper_pretraining_millions),
        f"{counts.total:,}",
    )


def _about(preset: Preset) -> str:
    note = f"; {preset.note}" if preset.note else ""
    return f"{preset.description} ({preset.source}){note}"


def _millions(count: int) -> str:
    return f"{count / 1e6:.1f}"


def _printed(millions: int | None) -> str:
    return "–" if millions is None else str(millions)


def _tensors(preset: Preset) -> str:
    import tensorflow as tf

    from kzoo.models.by_shape import build_by_shape

    model = build_by_shape(preset.backbone, preset.output_embedding_dim)
    rows = [("tensor", "shape", "dtype", "bytes", "fine-tuning")]
    totals = {"kept": (0, 0), "dropped": (0, 0)}
    for variable in model.variables:
        count = math.prod(variable.shape)
        size_bytes = count * tf.as_dtype(variable.dtype).size
        fate = "kept" if _is_kept(variable.path, preset) else "dropped"
        totals[fate] = totals[fate][0] + count, totals[fate][1] + size_bytes
        shape = " × ".join(map(str, variable.shape))
        rows.append((variable.path, shape, variable.dtype, f"{size_bytes:,}", fate))
    table = format_table(rows, names=3)
    return "\n\n".join((f"{preset.name}: {_about(preset)}", table, _sums(totals)))


def _is_kept(path: str, preset: Preset) -> bool:
    """Whether a variable outlives pre-training: not the head, nor a layer above the last kept."""
    part = path.split("/")[0]
    if part.startswith("encoder_block_") and preset.fine_tuning_layers is not None:
        return int(part.removeprefix("encoder_block_")) < preset.fine_tuning_layers
    return part != "masked_lm_head"


def _sums(totals: dict[str, tuple[int, int]]) -> str:
    everything = tuple(map(sum, zip(*totals.values(), strict=True)))
    rows = [("", "parameters", "bytes")]
    for fate, (count, size_bytes) in {**totals, "all": everything}.items():
        rows.append((fate, f"{count:,}", f"{size_bytes:,}"))
    return format_table(rows, names=1)


if __name__ == "__main__":
    sys.exit(command.run(main, FLAGS, __doc__))
