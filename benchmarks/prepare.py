"""Measures preparation against the bare encoding of the same text by SentencePiece.

    python benchmarks/prepare.py --corpus 'corpus/train-{lang}.jsonl.gz' --vocabulary VOCABULARY
    python benchmarks/prepare.py        # the sample corpus, and a vocabulary trained on it
    python benchmarks/prepare.py --beam --megabytes 20 --megabytes 400

Makes one compressed file for each size, of real lines cut and joined anew, and prepares it by the
command, start-up and all. Beside it, as many processes as it has workers encode the same lines and
throw the ids away: in a pool, which sends them the lines, and without one, each holding its lines
in memory before the time begins. Peak memory is the sum over all processes of the most that each
has held.

Prints megabytes of text (10^6 bytes of UTF-8) per second of time and per second of all processes'
computing, which others on the same machine disturb less; and writes the same as JSON.
"""

import functools
import gzip
import json
import multiprocessing
import os
import pathlib
import platform
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

import sentencepiece
from absl import flags

from kzoo import command
from kzoo.errors import KzooError
from kzoo.text.vocabulary import Vocabulary

FLAGS = flags.FlagValues()
flags.DEFINE_string("corpus", None, "Pattern of real text, with {lang}.", flag_values=FLAGS)
flags.DEFINE_string("vocabulary", None, "Folder or SentencePiece .model.", flag_values=FLAGS)
flags.DEFINE_string("output", None, "Write the results to this file.", flag_values=FLAGS)
flags.DEFINE_multi_integer(
    "megabytes", [30, 600], "Size of the text; may be repeated.", 1, flag_values=FLAGS
)
flags.DEFINE_integer(
    "workers", None, "Processes that encode; default: cores.", 1, flag_values=FLAGS
)
flags.DEFINE_integer(
    "repeats", 3, "Measurements, of which the median counts.", 1, flag_values=FLAGS
)

flags.DEFINE_boolean(
    "beam",
    False,
    "Measure the command by Apache Beam, too, on its DirectRunner.",
    flag_values=FLAGS,
)

POOL, MEMORY = "bare, in a pool", "bare, from memory"

_BEAM = ("--runner=DirectRunner", "--direct_running_mode=multi_processing")

_BARE_MEGABYTES = 30
_LINES_OF_A_PART = 4_000
_VOCABULARY_SIZE = 2_000
_LINES_PER_DOCUMENT = 20
_SECONDS_BETWEEN_LOOKS = 0.02


def main() -> None:
    from kzoo.corpora.pool import available_cores
    from kzoo.text.vocabulary_training import train_vocabulary

    files = _files()
    workers = FLAGS.workers or available_cores()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        vocabulary = FLAGS.vocabulary
        if vocabulary is None:
            vocabulary = str(folder / "vocabulary")
            train_vocabulary(files, _VOCABULARY_SIZE, vocabulary)
        texts = {size: folder / f"{size}-mul.jsonl.gz" for size in FLAGS.megabytes}
        for size, path in texts.items():
            write_text(path, files, size)
        results = measure(texts, vocabulary, workers)
    print_table(results)
    if FLAGS.output:
        pathlib.Path(FLAGS.output).write_text(json.dumps(results, indent=1) + "\n")


def _files() -> dict[str, list[str]]:
    from kzoo import sample
    from kzoo.corpora.files import find_files

    return find_files(FLAGS.corpus or str(sample.folder() / "train-{lang}.txt"))


def write_text(path: pathlib.Path, files: dict[str, list[str]], megabytes: int) -> None:
    """Writes JSON lines of new lines: the first half of one real line and the second of another."""
    from kzoo.corpora.reading import read_documents

    generator = random.Random(0)
    lines = {
        language: [line for path in paths for document in read_documents(path) for line in document]
        for language, paths in files.items()
    }
    languages = sorted(lines)
    written = 0
    with gzip.open(path, "wt", compresslevel=1, encoding="utf-8", newline="\n") as stream:
        while written < megabytes * 1e6:
            of_language = lines[generator.choice(languages)]
            halves = generator.choices(of_language, k=2 * _LINES_PER_DOCUMENT)
            text = "\n".join(
                first[: len(first) // 2] + second[len(second) // 2 :]
                for first, second in zip(halves[::2], halves[1::2], strict=True)
            )
            stream.write(json.dumps({"text": text}, ensure_ascii=False) + "\n")
            written += len(text.encode())


def measure(texts: dict[int, pathlib.Path], vocabulary: str, workers: int) -> dict:
    """Runs every system once, then all again, so that none has the quiet hour."""
    largest = texts[max(texts)]
    systems = {
        name: functools.partial(encode, largest, vocabulary, workers)
        for name, encode in {POOL: encode_in_pool, MEMORY: encode_from_memory}.items()
    }
    for size, path in texts.items():
        systems[f"kzoo.prepare, {size} MB"] = functools.partial(
            prepare, path, size, vocabulary, ("--workers", str(workers))
        )
        if FLAGS.beam:
            systems[f"by Beam, {size} MB"] = functools.partial(
                prepare, path, size, vocabulary, (*_BEAM, f"--direct_num_workers={workers}")
            )
    measured = {name: [] for name in systems}
    for _ in range(FLAGS.repeats):
        for name, system in systems.items():
            measured[name].append(system())
    return {
        "cores": os.cpu_count(),
        "workers": workers,
        "python": platform.python_version(),
        "measured": measured,
        "medians": {
            name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            for name, runs in measured.items()
        },
    }


def encode_in_pool(path: pathlib.Path, vocabulary: str, workers: int) -> dict[str, float]:
    """Speed of SentencePiece alone, in a pool that sends the lines to its processes."""
    parts = list(_parts(path))
    with multiprocessing.get_context("spawn").Pool(workers, _load, (vocabulary,)) as pool:
        # Until all processes have begun.
        pool.map(time.sleep, [0.5] * workers, chunksize=1)
        cpu_before, started = time.process_time(), time.perf_counter()
        cpu_seconds = sum(pool.imap_unordered(_encode, parts))
        seconds = time.perf_counter() - started
        cpu_seconds += time.process_time() - cpu_before
    return _speed(parts, seconds, cpu_seconds)


def encode_from_memory(path: pathlib.Path, vocabulary: str, workers: int) -> dict[str, float]:
    """Speed of SentencePiece alone, in processes that hold the lines when the time begins."""
    context = multiprocessing.get_context("spawn")
    ready, cpu_seconds = context.Barrier(workers + 1), context.SimpleQueue()
    parts = list(_parts(path))
    processes = [
        context.Process(
            target=_encode_all, args=(parts[worker::workers], vocabulary, ready, cpu_seconds)
        )
        for worker in range(workers)
    ]
    for process in processes:
        process.start()
    ready.wait()
    started = time.perf_counter()
    all_cpu_seconds = sum(cpu_seconds.get() for _ in processes)
    seconds = time.perf_counter() - started
    for process in processes:
        process.join()
    return _speed(parts, seconds, all_cpu_seconds)


def _load(vocabulary: str) -> None:
    global _processor
    _processor = sentencepiece.SentencePieceProcessor(model_proto=Vocabulary.load(vocabulary).model)


def _encode(lines: list[str]) -> float:
    """Encodes lines, and returns the seconds of computing."""
    started = time.process_time()
    _processor.encode(lines, out_type=int, num_threads=1)
    return time.process_time() - started


def _encode_all(parts: list[list[str]], vocabulary: str, ready, cpu_seconds) -> None:
    _load(vocabulary)
    ready.wait()
    cpu_seconds.put(sum(map(_encode, parts)))


def _parts(path: pathlib.Path) -> Iterator[list[str]]:
    """The first lines of a text, some thousand at a time, up to a size that fits into memory."""
    part: list[str] = []
    left = _BARE_MEGABYTES * 1e6
    with gzip.open(path, "rt", encoding="utf-8", newline="\n") as stream:
        for document in stream:
            part += json.loads(document)["text"].split("\n")
            left -= len(document.encode())
            if len(part) >= _LINES_OF_A_PART or left < 0:
                yield part
                part = []
            if left < 0:
                return
    yield part


def _speed(parts: list[list[str]], seconds: float, cpu_seconds: float) -> dict[str, float]:
    megabytes = sum(len(line.encode()) for part in parts for line in part) / 1e6
    return {"mb_per_second": megabytes / seconds, "mb_per_cpu_second": megabytes / cpu_seconds}


def prepare(
    path: pathlib.Path, size: int, vocabulary: str, workers: tuple[str, ...]
) -> dict[str, float]:
    """Speed and peak memory of the command, with the flags that say who works."""
    with tempfile.TemporaryDirectory(dir=path.parent) as output:
        cpu_before, started = _cpu_seconds_of_children(), time.perf_counter()
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "kzoo.prepare", "--vocabulary", vocabulary),
                *("--input", str(path.with_name(path.name.replace("mul", "{lang}")))),
                *("--output", os.path.join(output, "examples"), *workers),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        peaks: dict[int, float] = {}
        while process.poll() is None:
            peaks.update(_peaks(process.pid))
            time.sleep(_SECONDS_BETWEEN_LOOKS)
        seconds = time.perf_counter() - started
    if process.returncode:
        raise KzooError(f"the preparation of {path} failed: {process.stderr.read()}")
    return {
        "mb_per_second": size / seconds,
        "mb_per_cpu_second": size / (_cpu_seconds_of_children() - cpu_before),
        "peak_mb": sum(peaks.values()),
    }


def _cpu_seconds_of_children() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def _peaks(pid: int) -> Iterator[tuple[int, float]]:
    """Process id and peak megabytes of a process and those that it has started."""
    try:
        process = pathlib.Path("/proc") / str(pid)
        status = (process / "status").read_text()
        threads = list((process / "task").iterdir())
        children = [
            child for thread in threads for child in (thread / "children").read_text().split()
        ]
    except (FileNotFoundError, ProcessLookupError):
        return
    for line in status.splitlines():
        if line.startswith("VmHWM:"):
            yield pid, int(line.split()[1]) * 1024 / 1e6
    for child in children:
        yield from _peaks(int(child))


def print_table(results: dict) -> None:
    """One row a system: its speeds, each as a share of both bare ones, and its memory."""
    medians = results["medians"]
    print(f"{results['workers']} processes on {results['cores']} cores")
    shares = f"{'/ pool':>7} {'/ memory':>8}"
    print(f"{'':>22} {'MB/s':>8} {shares} {'MB/CPU s':>8} {shares} {'peak MB':>8}")
    for name, found in medians.items():
        row = f"{name:>22}"
        for column in ("mb_per_second", "mb_per_cpu_second"):
            speed = found[column]
            row += f" {speed:>8.2f} {speed / medians[POOL][column]:>7.2f}"
            row += f" {speed / medians[MEMORY][column]:>8.2f}"
        print(row, f"{found['peak_mb']:>8.0f}" if "peak_mb" in found else "")


if __name__ == "__main__":
    sys.exit(command.run(main, FLAGS, __doc__))
