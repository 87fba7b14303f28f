"""Kills pre-training runs at random moments, and compares what they end in bit by bit.

    python benchmarks/kill_runs.py --runs 100 --output kill_runs.json

A run on the sample's text, small, with a checkpoint after every other step, is killed (SIGKILL) and
started again until it ends by itself. Then its last checkpoint (every weight, both moments of every
weight, step and position), its metrics and its preset must be those of a run that nothing
disturbed. The moments of the kills are drawn from a seed: a third of them from the time before the
first step, the others just after a step that is drawn, when a save or the preset may be under way.

Some runs are `python -m kzoo.pretrain` each time, and make their own examples first. The others are
forks of one process that has imported TensorFlow but computed nothing, which spares the seconds of
the imports; they share their examples. Exit status 1 if any run ended in other bits.
"""

import dataclasses
import importlib
import json
import multiprocessing
import os
import pathlib
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import measuring
from absl import flags

from kzoo import command, sample
from kzoo.errors import KzooError

LANGUAGES = ("de", "en")
# Most of the life of a new Python is imports, so that few kills find more.
MOST_FRESH_KILLS = 3
LONGEST_ATTEMPT_SECONDS = 300
POLLING_SECONDS = 0.005
REPOSITORY = pathlib.Path(__file__).resolve().parent.parent

FLAGS = flags.FlagValues()
flags.DEFINE_integer("runs", 100, "Runs to kill.", lower_bound=1, flag_values=FLAGS)
flags.DEFINE_integer(
    "fresh_runs",
    5,
    "How many of them start a new Python each time and make their own examples.",
    lower_bound=0,
    flag_values=FLAGS,
)
flags.DEFINE_integer(
    "most_kills",
    20,
    "A run that was killed so often is let live.",
    lower_bound=1,
    flag_values=FLAGS,
)
flags.DEFINE_integer("steps", 40, "Steps of a run.", lower_bound=2, flag_values=FLAGS)
flags.DEFINE_integer("seed", 0, "Decides the moments of the kills.", flag_values=FLAGS)
flags.DEFINE_string("output", None, "File for the results as JSON.", flag_values=FLAGS)


class Attempt(Protocol):
    """A started process of `kzoo.pretrain`."""

    def wait(self, seconds: float) -> int | None:
        """Its exit status, or None if it still runs after so many seconds."""

    def kill(self) -> None:
        """Sends SIGKILL, and returns when it is dead."""


Start = Callable[[Sequence[str], pathlib.Path], Attempt]  # takes flags, and a file for its output


class FreshAttempt:
    """The command, as a user starts it."""

    def __init__(self, arguments: Sequence[str], log: pathlib.Path):
        with open(log, "ab") as file:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kzoo.pretrain", *arguments],
                cwd=REPOSITORY,
                stdout=file,
                stderr=file,
            )

    def wait(self, seconds: float) -> int | None:
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class ForkedAttempt:
    """The command in a fork of this process, which has imported what it needs."""

    def __init__(self, arguments: Sequence[str], log: pathlib.Path):
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_pretrain, args=(arguments, log))
        self._process.start()

    def wait(self, seconds: float) -> int | None:
        self._process.join(seconds)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()
        self._process.join()


def _pretrain(arguments: Sequence[str], log: pathlib.Path) -> None:
    from kzoo import pretrain

    with open(log, "ab") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(command.run(pretrain.main, pretrain.FLAGS, "", arguments))


@dataclasses.dataclass
class Ended:
    """How a run came to its end.

    Attributes:
        kills: during what each kill came.
        differences: what is not as in the undisturbed run; nothing, if all is well.
        seconds: from the first start to the end.
    """

    is_fresh: bool
    kills: list[str] = dataclasses.field(default_factory=list)
    differences: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True)
class Life:
    """When an undisturbed run made its first step, and when it ended, in seconds."""

    first_step: float
    end: float

    def moment(self, generator: random.Random, first: int, last: int) -> "Moment":
        """A moment to kill at, of an attempt that begins at one step and would end at another."""
        if first >= last or generator.random() < 1 / 3:
            return Moment(0, generator.uniform(0, self.first_step))
        step = generator.randint(first + 1, last)
        # A save takes about as long as a step; the preset is written after the last one.
        a_step = (self.end - self.first_step) / last
        return Moment(step, generator.uniform(0, 1.0 if step == last else 2 * a_step))


@dataclasses.dataclass(frozen=True)
class Moment:
    """So many seconds after the metrics of a step, or after the start for step 0."""

    step: int
    seconds: float


class Runs:
    """The folder of all runs, and what they share."""

    def __init__(self, folder: pathlib.Path, steps: int):
        self._folder = folder
        self._steps = steps
        self.reference = folder / "reference"

    def undisturbed(self, name: str, attempt: Start) -> Life:
        """Lets a run be, in the folder of that name, and takes its times."""
        started = time.time()
        model_dir = self._folder / name
        status = attempt(self._arguments(name, None), self._log(name)).wait(LONGEST_ATTEMPT_SECONDS)
        if status != 0:
            raise KzooError(f"a run that nothing disturbs fails: {self._last_words(name)}")
        first = min(line["time"] for line in _metrics(model_dir) if line["split"] == "train")
        return Life(first - started, time.time() - started)

    def killed(self, name: str, attempt: Start, life: Life, generator: random.Random) -> Ended:
        """Kills and restarts a run until it ends, and compares it with the reference."""
        ended = Ended(is_fresh=attempt is FreshAttempt)
        most_kills = min(FLAGS.most_kills, MOST_FRESH_KILLS if ended.is_fresh else sys.maxsize)
        examples = f"{name}-examples" if ended.is_fresh else None
        started = time.monotonic()
        while True:
            before = self._changes(name)
            moment = life.moment(generator, self._saved_step(name), self._steps)
            if len(ended.kills) >= most_kills:
                moment = Moment(0, LONGEST_ATTEMPT_SECONDS)
            running = attempt(self._arguments(name, examples), self._log(name))
            status = self._wait(running, name, moment, before)
            if status is not None:
                break
            running.kill()
            ended.kills.append(self._phase(name, examples, before))
        ended.seconds = time.monotonic() - started
        if status != 0:
            ended.differences = [f"status {status}: {self._last_words(name)}"]
        else:
            ended.differences = list(differences(self._folder / name, self.reference))
        if not ended.differences:
            self._remove(name, examples)
        return ended

    def _wait(self, running: Attempt, name: str, moment: Moment, before: int) -> int | None:
        """The exit status of an attempt that ends before a moment, or None at that moment."""
        written, mark = self._folder / name / "metrics.jsonl", f'{{"step": {moment.step}, '
        deadline = time.monotonic() + LONGEST_ATTEMPT_SECONDS
        while moment.step and (self._changes(name) == before or mark not in written.read_text()):
            status = running.wait(POLLING_SECONDS)
            if status is not None or time.monotonic() > deadline:
                return status
        return running.wait(moment.seconds)

    def _saved_step(self, name: str) -> int:
        """The step of a run's newest checkpoint; 0 without any."""
        steps = (self._folder / name / "checkpoints").glob("step-*")
        return max((int(path.name.removeprefix("step-")) for path in steps), default=0)

    def _arguments(self, name: str, examples: str | None) -> list[str]:
        files = {
            split: {
                language: f"{sample.folder()}/{prefix}-{language}.txt" for language in LANGUAGES
            }
            for split, prefix in (("train_files", "train"), ("held_out_files", "dev"))
        }
        settings = {
            "model.num_layers": 1,
            "model.dropout": 0.1,
            "model.attention_dropout": 0.1,
            "corpus.train_files": json.dumps(files["train_files"]),
            "corpus.held_out_files": json.dumps(files["held_out_files"]),
            "corpus.vocabulary_size": 1000,
            "data.examples": self._folder / (examples or "examples"),
            "data.sequence_length": 32,
            "data.global_batch_size": 8,
            "optimizer.warmup_steps": 4,
            "runtime.threads": 1,
            "trainer.train_steps": self._steps,
            "trainer.log_interval": 1,
            "trainer.checkpoint_interval": 2,
            "trainer.keep_checkpoints": 2,
            "trainer.validation_interval": 5,
            "trainer.validation_steps": 1,
        }
        return [
            f"--config={REPOSITORY / 'configs' / 'sample.yaml'}",
            f"--model_dir={self._folder / name}",
            *(f"--set={key}={value}" for key, value in settings.items()),
        ]

    def _log(self, name: str) -> pathlib.Path:
        return self._folder / f"{name}.log"

    def _last_words(self, name: str) -> str:
        lines = self._log(name).read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def _changes(self, name: str) -> int:
        """A number that is another one once a run has come to its first step."""
        metrics = self._folder / name / "metrics.jsonl"
        return metrics.stat().st_mtime_ns if metrics.exists() else 0

    def _phase(self, name: str, examples: str | None, before: int) -> str:
        """What a killed run was doing, by what it has left behind."""
        model_dir = self._folder / name
        left = os.listdir(model_dir / "checkpoints") if (model_dir / "checkpoints").exists() else []
        if any(entry.startswith(".step-") for entry in left):
            return "saving"
        if (model_dir / ".preset.partial").exists():
            return "writing the preset"
        if examples and not (self._folder / examples / "dataset.json").exists():
            return "preparing"
        return "training" if self._changes(name) != before else "starting"

    def _remove(self, name: str, examples: str | None) -> None:
        shutil.rmtree(self._folder / name)
        self._log(name).unlink()
        if examples:
            for path in self._folder.glob(f"{examples}*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()


def differences(model_dir: pathlib.Path, reference: pathlib.Path) -> Iterable[str]:
    """What a finished run has otherwise than another one, in words.

    Byte by byte and without TensorFlow: a process that it has set up cannot be forked any more.
    """
    import h5py

    newest = [max((folder / "checkpoints").glob("step-*")) for folder in (model_dir, reference)]
    if newest[0].name != newest[1].name:
        yield f"the last checkpoint is {newest[0].name} instead of {newest[1].name}"
        return
    names = sorted(path.name for path in newest[1].glob("variables.*"))
    if not names:
        raise KzooError(f"{newest[1]} holds no values")
    for name in names:
        if (newest[0] / name).read_bytes() != (newest[1] / name).read_bytes():
            yield f"{newest[0] / name} has other bytes"
    states = [json.loads((folder / "state.json").read_text()) for folder in newest]
    if states[0] != states[1]:
        yield f"{newest[0]}/state.json says something else"
    if _metrics(model_dir, timed=False) != _metrics(reference, timed=False):
        yield f"{model_dir}/metrics.jsonl has other values"
    for name in ("model.weights.h5", "task.weights.h5"):
        with (
            h5py.File(model_dir / "preset" / name) as ours,
            h5py.File(reference / "preset" / name) as theirs,
        ):
            if _arrays(ours) != _arrays(theirs):
                yield f"{model_dir}/preset/{name} has other values"


def _metrics(model_dir: pathlib.Path, *, timed: bool = True) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (model_dir / "metrics.jsonl").read_text().splitlines()]
    if not timed:
        for line in lines:
            for name in ("time", "tokens_per_second", "peak_share"):
                line.pop(name, None)
    return lines


def _arrays(file: Any) -> dict[str, bytes]:
    found = {}

    def visit(name: str, item: Any) -> None:
        if hasattr(item, "dtype"):
            found[name] = item[()].tobytes()

    file.visititems(visit)
    return found


def main() -> int:
    fresh_runs = min(FLAGS.fresh_runs, FLAGS.runs)
    generator = random.Random(FLAGS.seed)
    with tempfile.TemporaryDirectory(prefix="kill_runs-") as folder:
        runs = Runs(pathlib.Path(folder), FLAGS.steps)
        measuring.say("a run that nothing disturbs")
        fresh_life = runs.undisturbed("reference", FreshAttempt)
        ended = [
            _say(runs.killed(f"fresh-{number}", FreshAttempt, fresh_life, generator))
            for number in range(fresh_runs)
        ]
        if fresh_runs < FLAGS.runs:
            # Imports, and computes nothing: TensorFlow's runtime would not survive a fork.
            importlib.import_module("kzoo.training.pretraining")
            forked_life = runs.undisturbed("forked-reference", ForkedAttempt)
            differs = list(differences(pathlib.Path(folder, "forked-reference"), runs.reference))
            if differs:
                raise KzooError(f"without any kill two runs differ: {differs[0]}")
            ended += [
                _say(runs.killed(f"run-{number}", ForkedAttempt, forked_life, generator))
                for number in range(FLAGS.runs - fresh_runs)
            ]
    results = summary(ended)
    measuring.write_results({"machine": measuring.machine(), **results}, FLAGS.output)
    print_table(results)
    return 0 if results["survivors"] == results["runs"] else 1


def _say(ended: Ended) -> Ended:
    outcome = "; ".join(ended.differences) or "the same bits"
    measuring.say(f"{len(ended.kills)} kills in {ended.seconds:.0f} s: {outcome}")
    return ended


def summary(ended: Sequence[Ended]) -> dict[str, Any]:
    """The counts of all runs, and the runs themselves."""
    kills = [phase for run in ended for phase in run.kills]
    return {
        "runs": len(ended),
        "fresh_runs": sum(run.is_fresh for run in ended),
        "kills": len(kills),
        "kills_while": {phase: kills.count(phase) for phase in sorted(set(kills))},
        "survivors": sum(not run.differences for run in ended),
        "seconds": sum(run.seconds for run in ended),
        "each": [dataclasses.asdict(run) for run in ended],
    }


def print_table(results: dict[str, Any]) -> None:
    print(f"{results['runs']} runs, {results['fresh_runs']} of them in a new Python each time")
    print(f"{results['kills']} kills, and as many restarts:")
    for phase, count in results["kills_while"].items():
        print(f"  {count:5d} while {phase}")
    print(f"{results['survivors']} runs ended in the bits of the undisturbed run")


if __name__ == "__main__":
    sys.exit(command.run(main, FLAGS, __doc__))
