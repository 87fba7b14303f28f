"""Preparing examples by real processes: the same result however it comes about."""

import gzip
import hashlib
import itertools
import os
import pathlib
import pkgutil
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import time

import pytest

from kzoo import KzooError, sample
from kzoo.corpora.examples import ExampleFiles
from kzoo.corpora.files import find_files
from kzoo.corpora.prepare import prepare
from tests.corpora.text_files import write_documents

NUM_SHARDS = 60


def run(folder: pathlib.Path, *arguments: str, **options) -> subprocess.CompletedProcess:
    """Runs the command in `folder`."""
    return subprocess.run(
        [sys.executable, "-m", "kzoo.prepare", *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        **options,
    )


def digests(folder: pathlib.Path) -> dict[str, str]:
    """Every file of a folder, with the sha256 of its content."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.fixture
def corpus(tmp_path, vocabulary_folder) -> pathlib.Path:
    """A folder with text in three languages and formats, and a vocabulary."""
    for language, name in (("de", "txt.gz"), ("en", "jsonl.zst"), ("hi", "parquet")):
        for split in ("train", "dev"):
            text = (sample.folder() / f"{split}-{language}.txt").read_text(encoding="utf-8")
            documents = [document.split("\n") for document in text.strip().split("\n\n")]
            write_documents(tmp_path, f"{split}-{language}.{name}", documents)
    shutil.copytree(vocabulary_folder, tmp_path / "vocabulary")
    return tmp_path


ALL = (
    "--input=train-{lang}.*",
    "--held_out=dev-{lang}.*",
    "--vocabulary=vocabulary",
    "--sequence_length=32",
    "--output=examples",
)


def test_the_command_makes_examples_and_says_what_they_are(corpus):
    done = run(corpus, *ALL)
    assert (done.returncode, done.stderr) == (0, "")
    info = ExampleFiles.open(corpus / "examples").info
    rows = [line.split() for line in done.stdout.splitlines()]
    for language, entry in info.splits["train"].items():
        [row] = [row for row in rows if row[:2] == ["train", language]]
        numbers = (entry.documents, entry.sentences, entry.windows, entry.tokens)
        assert row[2:-1] == [f"{number:,}" for number in numbers]
        assert entry.sentences == 96
    assert sorted(os.listdir(corpus / "examples")) == [
        "dataset.json",
        "held_out",
        "piece_counts.npz",
        "train",
        "vocabulary",
    ]


def test_run_again_it_changes_nothing_and_other_settings_need_overwrite(corpus):
    assert run(corpus, *ALL).returncode == 0
    before = {path: path.stat().st_mtime_ns for path in corpus.rglob("examples/**/*")}
    assert run(corpus, *ALL).returncode == 0
    assert {path: path.stat().st_mtime_ns for path in corpus.rglob("examples/**/*")} == before

    other = (*ALL, "--sequence_length=16")
    refused = run(corpus, *other)
    assert refused.returncode == 2
    assert "sequence_length is 16, was 32" in refused.stderr
    assert "--overwrite" in refused.stderr
    assert {path: path.stat().st_mtime_ns for path in corpus.rglob("examples/**/*")} == before

    assert run(corpus, *other, "--overwrite").returncode == 0
    assert ExampleFiles.open(corpus / "examples").info.settings.sequence_length == 16
    assert sorted(path.name for path in corpus.glob("examples*")) == ["examples"]


def test_the_number_of_workers_leaves_no_trace(corpus, monkeypatch):
    monkeypatch.chdir(corpus)
    for workers in (1, 3):
        prepare(
            find_files("train-{lang}.*"),
            None,
            "vocabulary",
            32,
            f"by-{workers}",
            workers=workers,
            shard_bytes=1500,
        )
    assert digests(corpus / "by-1") == digests(corpus / "by-3")
    assert len(list((corpus / "by-1/train/hi").iterdir())) > 3


def wait_for(condition, seconds=60):
    """Polls until a condition holds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "this takes too long"
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    """The child processes of a process."""
    tasks = pathlib.Path(f"/proc/{pid}/task")
    return [
        int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()
    ]


def is_running(pid: int) -> bool:
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


@pytest.fixture
def long_text(tmp_path, vocabulary_folder) -> tuple[str, ...]:
    """A compressed file of one language that takes a few seconds, and the command for it."""
    text = (sample.folder() / "train-en.txt").read_text(encoding="utf-8")
    documents = [
        [f"{number} {line}" for line in text.split("\n") if line] for number in range(2000)
    ]
    size = os.path.getsize(write_documents(tmp_path, "train-en.txt", documents))
    write_documents(tmp_path, "train-en.txt.gz", documents)
    os.remove(tmp_path / "train-en.txt")
    return (
        "--input=train-{lang}.txt.gz",
        f"--vocabulary={vocabulary_folder}",
        "--workers=2",
        f"--shard_megabytes={size / NUM_SHARDS / 1e6}",
    )


@pytest.mark.skipif(not pathlib.Path("/proc/self/task").exists(), reason="needs Linux's /proc")
def test_a_killed_preparation_goes_on_where_it_was(tmp_path, long_text):
    assert run(tmp_path, *long_text, "--output=whole").returncode == 0
    command = [sys.executable, "-m", "kzoo.prepare", *long_text, "--output=killed"]
    partial = tmp_path / "killed.partial"

    def finished() -> list[pathlib.Path]:
        return list(partial.rglob("*.npz"))

    written = {}
    for least in (3, 9):
        process = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
        wait_for(lambda least=least: len(finished()) >= least)
        workers = children(process.pid)
        assert not any(
            "libtensorflow" in pathlib.Path(f"/proc/{pid}/maps").read_text() for pid in workers
        )
        process.send_signal(signal.SIGKILL)
        process.wait()
        wait_for(lambda workers=workers: not any(map(is_running, workers)))
        assert not (tmp_path / "killed").exists()
        with pytest.raises(KzooError, match="not complete; run the same"):
            ExampleFiles.open(tmp_path / "killed")
        # What the earlier attempt had finished was not made again.
        assert written.items() <= {path: path.stat().st_mtime_ns for path in finished()}.items()
        written = {path: path.stat().st_mtime_ns for path in finished()}
        # As a worker leaves it that dies while it writes.
        [shards] = partial.glob("making-*/train/en")
        (shards / "00059.arrayrecord.1.tmp").write_bytes(b"half a shard")
    assert len(written) < NUM_SHARDS

    assert run(tmp_path, *long_text, "--output=killed").returncode == 0
    assert digests(tmp_path / "killed") == digests(tmp_path / "whole")
    assert not partial.exists()


class Killed(BaseException):
    """Ends the process as far as the code is concerned."""


def prepare_all(corpus: pathlib.Path, output: str, **options):
    """What the command does with `ALL`, in this process."""
    return prepare(
        find_files(str(corpus / "train-{lang}.*")),
        find_files(str(corpus / "dev-{lang}.*")),
        corpus / "vocabulary",
        32,
        corpus / output,
        workers=1,
        **options,
    )


def kill_at(monkeypatch, step: str, call: int) -> None:
    """Makes a step of `kzoo.corpora.partial` the last thing that happens, when it is called."""
    owner, name = f"kzoo.corpora.partial.{step}".rsplit(".", 1)
    original = getattr(pkgutil.resolve_name(owner), name)
    calls = itertools.count(1)

    def killed(*arguments):
        if next(calls) == call:
            raise Killed
        return original(*arguments)

    monkeypatch.setattr(f"{owner}.{name}", killed)


@pytest.mark.parametrize(
    ("step", "call"),
    [
        ("save_record", 1),
        ("examples.shard_path", 3),
        ("save_record", 2),
        ("_remove", 1),
        ("replace_folder", 1),
    ],
)
def test_killed_while_it_begins_or_finishes(corpus, step, call, monkeypatch):
    prepare_all(corpus, "whole")
    kill_at(monkeypatch, step, call)
    with pytest.raises(Killed):
        prepare_all(corpus, "killed")
    monkeypatch.undo()
    prepare_all(corpus, "killed")
    assert digests(corpus / "killed") == digests(corpus / "whole")
    assert not (corpus / "killed.partial").exists()


def test_text_that_changes_while_a_preparation_is_interrupted(corpus, monkeypatch):
    kill_at(monkeypatch, "examples.shard_path", 3)
    with pytest.raises(Killed):
        prepare_all(corpus, "examples")
    monkeypatch.undo()
    changed = corpus / "train-de.txt.gz"
    os.utime(changed, (0, 0))
    with pytest.raises(KzooError, match=r"train-de\.txt\.gz has been changed.*--overwrite"):
        prepare_all(corpus, "examples")
    with open(changed, "ab") as stream:
        stream.write(gzip.compress(b"\n\nNoch ein Satz.\n"))
    with pytest.raises(KzooError, match=r"files of text are others .*train-de\.txt\.gz"):
        prepare_all(corpus, "examples")
    info = prepare_all(corpus, "examples", overwrite=True)
    assert info.splits["train"]["de"].sentences == 97


def test_a_bad_line_is_named_or_counted(corpus):
    with open(corpus / "train-fr.txt", "wb") as stream:
        stream.write(b"bonjour\ncaf\xe9 ok\nau revoir\n")
    failed = run(corpus, *ALL)
    assert failed.returncode == 2
    assert failed.stderr.count("\n") == 1
    assert "train-fr.txt, line 2: byte 0xe9" in failed.stderr
    for policy, sentences in (("replace", 3), ("skip", 2)):
        done = run(corpus, *ALL, f"--on_bad_text={policy}", "--overwrite")
        assert done.returncode == 0
        assert "1 line of fr (train)" in done.stderr
        assert "train-fr.txt, line 2" in done.stderr
        entry = ExampleFiles.open(corpus / "examples").info.splits["train"]["fr"]
        assert entry.sentences == sentences
        assert entry.replaced_lines == (policy == "replace")
        assert entry.skipped_lines == (policy == "skip")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-xx.txt", b"\n \n\n", "no text in train-xx.txt"),
        ("train-xx.jsonl", b'{"text": ""}\n', "nothing is left of the 'train' text of 'xx'"),
        ("train-xx.txt.gz", gzip.compress(b"some words " * 99)[:40], "train-xx.txt.gz ends in the"),
        ("train-xx.csv", b"a,b\n", "its name must end in"),
        ("dev-xx.txt", b"some words\n", "no training text in: xx"),
        ("examples/notes.txt", b"mine", "holds other things than examples"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_become_examples_is_one_clear_error(corpus, name, content, message):
    (corpus / name).parent.mkdir(exist_ok=True)
    (corpus / name).write_bytes(content)
    failed = run(corpus, *ALL)
    assert failed.returncode == 2
    assert message in failed.stderr
    assert failed.stderr.splitlines()[-1].startswith("error: ")
    assert "Traceback" not in failed.stderr


def test_training_text_cannot_be_held_out_text_too(corpus):
    failed = run(corpus, *ALL, "--held_out=train-{lang}.txt.gz")
    assert "is both in the training and in the held-out text" in failed.stderr


def test_a_disk_that_is_full(corpus):
    disk = corpus / "disk"
    disk.mkdir()
    mount = f"mount -t tmpfs -o size=300k tmpfs {disk}"
    namespace = ["unshare", "--map-root-user", "--mount", "sh", "-c"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*namespace, mount], check=False).returncode
    ):
        pytest.skip("may not mount a small disk here")
    command = [sys.executable, "-m", "kzoo.prepare", *ALL[:-1], "--output=disk/examples"]
    failed = subprocess.run(
        [*namespace, f"{mount} && {shlex.join(command)}; status=$?; ls disk; exit $status"],
        cwd=corpus,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (failed.returncode, failed.stdout) == (2, "examples.partial\n")
    [message] = failed.stderr.splitlines()
    assert message.startswith("error: cannot write disk/examples.partial/making-")
    assert message.endswith("No space left on device")


def test_a_file_that_cannot_be_written_and_then_can(corpus):
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    failed = run(corpus, *ALL, preexec_fn=limit)
    assert failed.returncode == 2
    [message] = failed.stderr.splitlines()
    assert re.match(
        r"error: cannot write examples\.partial/making-\w+/train/de/00000\.arrayrecord", message
    )
    assert not (corpus / "examples").exists()
    assert run(corpus, *ALL).returncode == 0
