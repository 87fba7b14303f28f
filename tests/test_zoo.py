"""The command that lists presets, as a user runs it."""

import subprocess
import sys

from kzoo.models.presets import PRESETS


def zoo(*arguments: str) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", "kzoo.zoo", *arguments]
    return subprocess.run(command, capture_output=True, encoding="utf-8")


def test_the_table_has_a_line_for_every_preset():
    lines = zoo().stdout.splitlines()[1 : len(PRESETS) + 1]
    assert [line.split()[0] for line in lines] == list(PRESETS)
    released, printed = lines[0].split(), lines[1].split()
    assert released[1:] == (
        ["250,300", "32", "1152", "256", "1664", "574.6", "575", "991.1", "995", "994,591,804"]
    )
    assert printed[5:] == ["1536", "574.5", "575", "958.5", "995", "961,867,664"]


def test_where_the_paper_contradicts_itself_the_table_says_so():
    lines = zoo().stdout.splitlines()[-len(PRESETS) :]
    about = dict(line.split(maxsplit=1) for line in lines)
    assert "995M fit only E_out 1664" in about["rembert"]
    assert "33M short" in about["rembert_paper"]
    assert "with the pooler" in about["reinvest_width"]


def test_markdown_rows_have_as_many_cells_as_the_header():
    table = zoo("--markdown").stdout.split("\n\n")[0].splitlines()
    assert len(table) == len(PRESETS) + 2
    assert {line.count("|") for line in table} == {13}
    assert table[0].startswith("| preset | what it is | V | L |")
    assert set(table[1]) == set("| -:")


def test_the_table_needs_no_tensorflow():
    code = """
import sys
from kzoo import zoo
zoo.FLAGS(["zoo"])
zoo.main()
sys.exit("tensorflow" in sys.modules or "keras" in sys.modules)
"""
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


def test_tensors_add_up_and_layers_above_the_last_kept_are_dropped():
    lines = zoo("--preset", "discard_11_layers").stdout.splitlines()
    fates = {line.split()[0]: line.split()[-1] for line in lines if "/" in line.split(" ")[0]}
    dropped = {path.split("/")[0] for path, fate in fates.items() if fate == "dropped"}
    assert dropped == {"masked_lm_head", *(f"encoder_block_{index}" for index in range(12, 23))}
    assert {fate for path, fate in fates.items() if "encoder_block_11/" in path} == {"kept"}
    sums = {line.split()[0]: line.split()[1:] for line in lines[-3:]}
    assert sums == {
        "kept": ["101,170,176", "404,680,704"],
        "dropped": ["93,545,280", "374,181,120"],
        "all": ["194,715,456", "778,861,824"],
    }
    table = next(line for line in lines if line.startswith("masked_lm_head/table"))
    assert table.split()[1:] == ["120000", "×", "128", "float32", "61,440,000", "dropped"]


def test_an_unknown_preset_is_an_error_that_names_near_ones():
    completed = zoo("--preset", "rmbert")
    assert completed.returncode == 2
    assert completed.stdout == ""
    assert completed.stderr.startswith("error: --preset: no preset is 'rmbert'; near it: rembert")


def test_markdown_of_one_preset_is_refused():
    completed = zoo("--preset=sample", "--markdown")
    assert completed.returncode == 2
    assert completed.stderr.startswith("error: --markdown is for the table of presets")
