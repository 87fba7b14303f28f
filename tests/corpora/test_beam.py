"""Preparing by Apache Beam, in real worker processes: the same files, the same messages."""

import os
import pathlib
import resource
import shutil
import signal
import subprocess
import sys

import pytest

from kzoo import sample
from tests.corpora.test_prepare import children, digests, is_running, run, wait_for
from tests.corpora.text_files import write_documents

pytest.importorskip("apache_beam", reason="apache-beam is not installed (extra `beam`)")

TWO_WORKERS = (
    "--runner=DirectRunner",
    "--direct_num_workers=2",
    "--direct_running_mode=multi_processing",
)
ONE_PROCESS = ("--runner=DirectRunner", "--direct_running_mode=in_memory")
ALL = (
    "--input=train.{lang}.*",
    "--held_out=dev.{lang}.*",
    "--vocabulary=vocabulary",
    "--sequence_length=32",
    "--on_bad_text=skip",
    "--shard_megabytes=0.02",
)


def documents_of(split: str, language: str) -> list[list[str]]:
    text = (sample.folder() / f"{split}-{language}.txt").read_text("utf-8")
    return [document.split("\n") for document in text.strip().split("\n\n")]


@pytest.fixture
def corpus(tmp_path, vocabulary_folder) -> pathlib.Path:
    """Languages of very different sizes, in all formats, one with bad lines; a vocabulary."""
    large = [
        [f"{number} {line}" for line in document]
        for number in range(30)
        for document in documents_of("train", "en")
    ]
    write_documents(tmp_path, "train.en.jsonl.gz", large)
    write_documents(tmp_path, "train.hi.parquet", documents_of("train", "hi"))
    write_documents(tmp_path, "train.de.0.txt.zst", documents_of("train", "de")[:5])
    write_documents(tmp_path, "train.de.1.txt", documents_of("train", "de")[5:])
    (tmp_path / "train.fr.0.txt").write_bytes(b"bonjour\ncaf\xe9 ok\nau revoir\n")
    (tmp_path / "train.fr.1.txt").write_bytes(b" \n")
    for language, name in (("de", "txt.xz"), ("hi", "parquet.gz")):
        write_documents(tmp_path, f"dev.{language}.{name}", documents_of("dev", language))
    shutil.copytree(vocabulary_folder, tmp_path / "vocabulary")
    return tmp_path


def test_two_workers_give_the_files_and_warnings_of_a_pool(corpus):
    by_pool = run(corpus, *ALL, "--output=pool")
    by_beam = run(corpus, *ALL, "--output=beam", *TWO_WORKERS)
    assert (by_pool.returncode, by_beam.returncode) == (0, 0), by_beam.stderr
    assert digests(corpus / "beam") == digests(corpus / "pool")
    assert len(list((corpus / "beam/train/en").iterdir())) > 10
    start, *warnings = by_beam.stderr.splitlines()
    assert start.startswith("prepare: ")
    assert start.endswith(" in 6 languages and splits, by Apache Beam's DirectRunner")
    assert len(warnings) == 2
    assert warnings == by_pool.stderr.splitlines()
    assert by_beam.stdout == by_pool.stdout.replace("in pool.", "in beam.")
    assert sorted(path.name for path in corpus.glob("beam*")) == ["beam"]


def test_a_bad_line_is_one_message_as_from_a_pool(corpus):
    strict = (*ALL, "--on_bad_text=error")
    by_pool = run(corpus, *strict, "--output=pool")
    by_beam = run(corpus, *strict, "--output=beam", *TWO_WORKERS)
    assert by_beam.returncode == 2
    start, message = by_beam.stderr.splitlines()
    assert start.startswith("prepare: ")
    assert message == by_pool.stderr.splitlines()[-1]
    assert "train.fr.0.txt, line 2: byte 0xe9" in message
    assert not (corpus / "beam").exists()


@pytest.fixture
def long_text(tmp_path, vocabulary_folder) -> tuple[str, ...]:
    """A compressed file of one language that takes some seconds, and the command for it."""
    documents = [
        [f"{number} {line}" for line in document]
        for number in range(1500)
        for document in documents_of("train", "en")
    ]
    write_documents(tmp_path, "train-en.txt.gz", documents)
    return (
        "--input=train-{lang}.txt.gz",
        f"--vocabulary={vocabulary_folder}",
        "--shard_megabytes=0.3",
    )


def test_a_file_that_cannot_be_written(tmp_path, long_text):
    def limit():
        # The vocabulary and the compressed text of a shard fit, its examples do not.
        resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, 600_000))

    larger = (*long_text, "--shard_megabytes=3", "--output=beam", *TWO_WORKERS)
    failed = run(tmp_path, *larger, preexec_fn=limit)
    assert failed.returncode == 2
    _, message = failed.stderr.splitlines()
    assert message.startswith("error: cannot write beam.partial/making-")
    assert "File too large" in message


@pytest.fixture
def start():
    """Starts the command in a session of its own, as a terminal does; none outlives the test."""
    started = []

    def popen(*arguments: str, folder: pathlib.Path) -> subprocess.Popen:
        command = [sys.executable, "-m", "kzoo.prepare", *arguments]
        process = subprocess.Popen(
            command, cwd=folder, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        started.append(process)
        return process

    yield popen
    for process in started:
        process.kill()


def finished(partial: pathlib.Path) -> dict[pathlib.Path, int]:
    return {path: path.stat().st_mtime_ns for path in partial.rglob("*.npz")}


@pytest.mark.skipif(not pathlib.Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_interrupted_or_killed_it_goes_on_where_it_was(tmp_path, long_text, start):
    assert run(tmp_path, *long_text, "--output=whole").returncode == 0
    partial = tmp_path / "beam.partial"
    written = {}
    for signal_number, status in ((signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)):
        process = start(*long_text, "--output=beam", *TWO_WORKERS, folder=tmp_path)
        least = len(written) + 3
        wait_for(lambda least=least: len(finished(partial)) >= least)
        workers = children(process.pid)
        assert len(workers) == 2
        assert not any(
            "libtensorflow" in pathlib.Path(f"/proc/{pid}/maps").read_text() for pid in workers
        )
        if signal_number == signal.SIGINT:
            # As a terminal does, to all processes of the command.
            os.killpg(process.pid, signal_number)
            assert process.communicate(timeout=60)[1].splitlines()[1:] == ["interrupted"]
        else:
            process.send_signal(signal_number)
        assert process.wait() == status
        wait_for(lambda workers=workers: not any(map(is_running, workers)), seconds=20)
        assert written.items() <= finished(partial).items()
        written = finished(partial)
        assert not (tmp_path / "beam").exists()
    assert len(written) < len(list((tmp_path / "whole/train/en").iterdir()))

    assert run(tmp_path, *long_text, "--output=beam", *TWO_WORKERS).returncode == 0
    assert digests(tmp_path / "beam") == digests(tmp_path / "whole")
    assert not partial.exists()


def test_a_worker_that_dies_is_an_error(tmp_path, long_text, start):
    process = start(*long_text, "--output=beam", *TWO_WORKERS, folder=tmp_path)
    wait_for(lambda: len(finished(tmp_path / "beam.partial")) >= 3)
    os.kill(children(process.pid)[0], signal.SIGKILL)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 2
    assert len(said.splitlines()) == 2
    assert "error: a worker process died, most likely because memory ran out" in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--sequence_lenght=64", *ONE_PROCESS], "--sequence_lenght=64 is neither a flag of"),
        (["--direct_num_wokers=2", *ONE_PROCESS], "did you mean --direct_num_workers?"),
        (["--direct_num_workers=two", *ONE_PROCESS], "invalid int value: 'two'"),
        (["stray", *ONE_PROCESS], "stray is neither a flag of"),
        (["--runner=CloudRunner"], "Unexpected pipeline runner: CloudRunner"),
        (["--runner=nowhere.Runner"], "--runner=nowhere.Runner: No module named 'nowhere'"),
        (["--runner=DirectRunner", "--workers=2"], "--workers is for preparing without --runner"),
        (["--direct_num_workers=2"], "Unknown command line flag 'direct_num_workers'"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_wrong_options_are_one_clear_error(corpus, arguments, message):
    failed = run(corpus, *ALL, "--output=beam", *arguments)
    assert failed.returncode == 2
    [line] = failed.stderr.splitlines()
    assert line.startswith("error: ")
    assert message in line
    assert not list(corpus.glob("beam*"))


def test_values_that_stand_by_themselves_and_what_is_not_checked_reach_beam(corpus):
    options = ("--direct_running_mode", "in_memory", "--output=beam", "--", "--parallelism=2")
    done = run(corpus, *ALL, "--runner", "DirectRunner", *options)
    assert done.returncode == 0, done.stderr
    assert (corpus / "beam" / "dataset.json").exists()


def test_beam_is_not_needed_without_a_runner_and_named_with_one(corpus):
    hidden = "import runpy, sys; sys.modules['apache_beam'] = None; "
    code = hidden + "sys.argv[0] = 'prepare'; runpy.run_module('kzoo.prepare', run_name='__main__')"
    for runner, status in (((), 0), (("--runner=DirectRunner",), 2)):
        done = subprocess.run(
            [sys.executable, "-c", code, *ALL, "--output=examples", *runner],
            cwd=corpus,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status
    assert done.stderr == (
        "error: --runner needs Apache Beam, which is not installed: pip install 'kzoo[beam]'\n"
    )
