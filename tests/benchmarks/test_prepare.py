"""The benchmark of preparation, on text of the smallest size."""

import json
import subprocess
import sys

from tests.paths import REPOSITORY


def test_it_measures_speed_and_memory_beside_bare_encoding(vocabulary_folder, tmp_path):
    done = subprocess.run(
        [
            *(sys.executable, str(REPOSITORY / "benchmarks" / "prepare.py")),
            *("--vocabulary", str(vocabulary_folder), "--output", str(tmp_path / "results.json")),
            *("--megabytes=1", "--megabytes=2", "--repeats=1", "--workers=2", "--beam"),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    medians = json.loads((tmp_path / "results.json").read_text())["medians"]
    assert list(medians) == [
        *("bare, in a pool", "bare, from memory"),
        *("kzoo.prepare, 1 MB", "by Beam, 1 MB", "kzoo.prepare, 2 MB", "by Beam, 2 MB"),
    ]
    for name, found in medians.items():
        assert name in done.stdout
        assert all(value > 0 for value in found.values())
    assert medians["kzoo.prepare, 1 MB"]["peak_mb"] > 50
    # The launching process and two workers, each with Beam.
    assert medians["by Beam, 1 MB"]["peak_mb"] > 3 * 50
