"""Every preset has the parameters of its source, by arithmetic and as a model."""

import functools
import json
import math
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from kzoo.models.by_shape import build_by_shape
from kzoo.models.parameter_counts import count_parameters
from kzoo.models.presets import PRESETS

GOLDEN = Path(__file__).parent / "golden"

# encoder, pooler, Dense and LayerNorm of the head, output table, output bias: computed by hand
# from L·(12H² + 13H) for the layers, and so on.
EXPECTED = {
    "coupled": (177_610_752, 590_592, 592_128, 0, 120_000),
    "decoupled": (177_610_752, 590_592, 592_128, 92_160_000, 120_000),
    "in768_out128": (177_610_752, 590_592, 98_688, 15_360_000, 120_000),
    "in128_out128": (100_579_584, 590_592, 98_688, 15_360_000, 120_000),
    "in128_out768": (100_579_584, 590_592, 592_128, 92_160_000, 120_000),
    "in128_out3072": (100_579_584, 590_592, 2_368_512, 368_640_000, 120_000),
    "discard_11_layers": (100_579_584, 590_592, 98_688, 15_360_000, 120_000),
    "reinvest_width": (166_712_832, 1_049_600, 788_736, 92_160_000, 120_000),
    "reinvest_depth": (178_546_176, 590_592, 592_128, 92_160_000, 120_000),
    "coupled_128": (100_579_584, 590_592, 98_688, 0, 120_000),
    "rembert": (574_592_128, 1_328_256, 1_921_920, 416_499_200, 250_300),
    "rembert_paper": (574_515_328, 1_328_256, 1_774_080, 384_000_000, 250_000),
    "rembert_12": (166_751_232, 1_049_600, 2_103_296, 246_374_400, 120_300),
    "xlm_indic": (93_608_192, 590_592, 592_128, 50_331_648, 65_536),
}


@functools.cache
def built_by_shape(name):
    return build_by_shape(PRESETS[name].backbone, PRESETS[name].output_embedding_dim)


@pytest.mark.parametrize("name", EXPECTED)
def test_counts_are_those_computed_by_hand(name):
    counts = PRESETS[name].finetuning_counts
    assert EXPECTED[name] == (
        counts.encoder,
        counts.pooler,
        counts.head_transform,
        counts.output_table,
        counts.output_bias,
    )


def test_rembert_has_576_million_parameters_and_995_with_its_head():
    counts = PRESETS["rembert"].pretraining_counts
    assert counts.encoder + counts.pooler == 575_920_384
    assert counts.total == 994_591_804


@pytest.mark.parametrize("name", PRESETS)
def test_a_model_has_the_parameters_that_were_counted(name):
    counts = PRESETS[name].pretraining_counts
    parts = {
        "encoder": counts.encoder,
        "pooler": counts.pooler,
        "masked_lm_head": counts.head,
    }
    built = dict.fromkeys(parts, 0)
    for variable in built_by_shape(name).variables:
        part = variable.path.split("/")[0]
        built[part if part in built else "encoder"] += math.prod(variable.shape)
    assert built == parts


@pytest.mark.parametrize(
    "changes",
    [
        {"pooler": "mean"},
        {"pooler": None, "num_segments": 5, "max_sequence_length": 40},
        {"embedding_dim": 128, "project_embeddings": True, "output_embedding_dim": "tied"},
        {"embedding_dim": 128, "intermediate_dim": 100},
    ],
)
def test_a_changed_model_has_the_parameters_that_were_counted(changes):
    arguments = {**PRESETS["sample"].backbone, "output_embedding_dim": 24, **changes}
    total = count_parameters(**arguments).total
    output_embedding_dim = arguments.pop("output_embedding_dim")
    assert build_by_shape(arguments, output_embedding_dim).count_params() == total


def test_counts_are_those_printed_or_a_note_says_why_not():
    differing = {
        name
        for name, preset in PRESETS.items()
        if preset.paper_pretraining_millions is not None
        and not _is_printed(preset, math.floor)
        and not _is_printed(preset, round)
    }
    assert differing == {"rembert", "rembert_paper", "reinvest_width", "english_coupled"}
    assert all(PRESETS[name].note for name in differing)


def _is_printed(preset, rounded) -> bool:
    """The paper leaves the pooler out, and all of the head but its table."""
    pretraining, finetuning = preset.pretraining_counts, preset.finetuning_counts
    return (
        rounded((pretraining.encoder + pretraining.output_table) / 1e6)
        == preset.paper_pretraining_millions
        and rounded(finetuning.encoder / 1e6) == preset.paper_finetuning_millions
    )


def test_every_preset_has_heads_of_the_papers_width_and_says_what_it_is():
    for preset in PRESETS.values():
        assert preset.backbone["hidden_dim"] == 64 * preset.backbone["num_heads"]
        assert preset.description
        assert preset.source


@pytest.mark.parametrize("name", ["sample", "rembert"])
def test_names_and_shapes_on_disk_stay_as_they_are(name):
    variables = built_by_shape(name).variables
    shapes = {variable.path: list(variable.shape) for variable in variables}
    golden = json.loads((GOLDEN / f"{name}.json").read_text())
    assert list(shapes.items()) == list(golden.items()), (
        "checkpoints and presets that exist would not load any more"
    )


def test_a_model_built_by_shape_takes_no_memory():
    code = """
        import resource
        from kzoo.models.by_shape import build_by_shape
        from kzoo.models.presets import PRESETS

        def peak_megabytes():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

        for name in ("sample", "rembert"):
            build_by_shape(PRESETS[name].backbone, PRESETS[name].output_embedding_dim)
            print(peak_megabytes())
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    output = subprocess.run(command, check=True, capture_output=True)
    before, after = map(float, output.stdout.split())
    assert after - before < 400  # of 4,000 that the weights would take


def test_presets_need_no_tensorflow():
    code = "import sys, kzoo.models.presets; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
