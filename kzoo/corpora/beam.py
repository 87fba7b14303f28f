"""Makes the shards of examples by Apache Beam: on a cluster, or in processes of this machine.

Two steps, each a `Reshuffle` away from what comes before, so that it is spread over all workers:
languages are cut, and shards are made (`kzoo.corpora.shared_work`). Only names pass between them.
"""

import contextlib
import re
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence

import apache_beam as beam
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.runners import PipelineRunner, PipelineState
from apache_beam.runners.runner import PipelineResult

from kzoo.corpora import beam_messages
from kzoo.corpora.beam_interrupt import interrupt_heard
from kzoo.corpora.beam_local import silent_threads
from kzoo.corpora.beam_options import is_local, make_runner, pipeline_options
from kzoo.corpora.dataset_info import Split
from kzoo.corpora.partial import PartialFolder
from kzoo.corpora.request import Request
from kzoo.corpora.shared_work import Shard, SharedWork
from kzoo.errors import KzooError
from kzoo.text.vocabulary import Vocabulary

_SECONDS_BETWEEN_LINES = 30.0


class BeamEngine:
    """Makes the shards by a pipeline; an `Engine` of `kzoo.corpora.prepare`."""

    def __init__(self, runner: str, arguments: Sequence[str]):
        """
        Args:
            runner: one of Beam's, such as `DirectRunner`, or the path of a class.
            arguments: Beam's pipeline options, as on a command line; what stands behind `--` is
                for the runner alone and not checked.

        Raises:
            KzooError: there is no such runner, or it lacks a package; or an option is wrong.
        """
        self._name = runner
        self._options = pipeline_options(runner, arguments)

    def __call__(
        self, folder: PartialFolder, request: Request, vocabulary: Vocabulary
    ) -> dict[tuple[Split, str], int]:
        """Makes the shards that are missing.

        Args:
            folder: where they go; all workers must see it at the same path, and the text too.
            request, vocabulary: what they are made from.

        Raises:
            KzooError: text cannot be read, the disk is full, or the runner has failed.
        """
        work = SharedWork.begin(folder, request, vocabulary)
        languages = work.languages()
        print(
            f"prepare: {request.total_bytes() / 1e6:,.1f} MB of text in {len(languages)} languages"
            f" and splits, by Apache Beam's {self._name}",
            file=sys.stderr,
            flush=True,
        )
        with _watched(work):
            self._run(work)
        return work.num_shards()

    def _run(self, work: SharedWork) -> None:
        running: list[PipelineResult] = []

        def interrupt() -> None:
            work.stop("interrupted")
            for result in running:
                with contextlib.suppress(Exception):
                    result.cancel()

        def worker_died() -> None:
            work.stop(
                "a worker process died, most likely because memory ran out; run the same command"
                " again with fewer workers: what is finished is kept"
            )

        failure = None
        messages = beam_messages.kept() if is_local(self._name) else beam_messages.shown()
        with (
            tempfile.NamedTemporaryFile("r", suffix=".log") as worker_log,
            messages as said,
            silent_threads(),
            interrupt_heard(interrupt) as interrupted,
        ):
            try:
                runner = make_runner(self._name, self._options, worker_log.name, worker_died)
                running.append(_pipeline(runner, self._options, work).run())
                state = running[0].wait_until_finish()
                if state not in (None, PipelineState.DONE):
                    failure = RuntimeError(f"the job ended in the state {state}")
            except Exception as error:  # Whatever a runner may raise.
                failure = error
            if interrupted.is_set():
                raise KeyboardInterrupt
            if failure is not None or work.failure() is not None:
                raise KzooError(self._why(work, failure, [*said, worker_log.read()])) from failure

    def _why(self, work: SharedWork, failure: Exception | None, said: Sequence[str]) -> str:
        """What to tell of a failure: what a worker said if one did, else all that Beam says."""
        if why := work.failure() or _said_by_worker(f"{type(failure).__name__}: {failure}"):
            return why
        if failure is None:
            return "a worker failed and could not write why, as where a disk is full"
        print(*said, failure, sep="\n", file=sys.stderr)
        lines = str(failure).strip().splitlines() or [type(failure).__name__]
        return f"Apache Beam's {self._name} failed, as printed above: {lines[-1].strip()}"


class _Step(beam.DoFn):
    """A step of the shared work, which a worker joins when the first element comes."""

    def __init__(self, output: str, digest: str):
        self._output = output
        self._digest = digest
        self._joined: SharedWork | None = None

    def __getstate__(self) -> dict:
        return {"_output": self._output, "_digest": self._digest, "_joined": None}

    @property
    def _work(self) -> SharedWork:
        if self._joined is None:
            self._joined = SharedWork.join(self._output, self._digest)
        return self._joined


class _Cut(_Step):
    """From a split and a language to the names of its shards."""

    def process(self, element: tuple[str, str]) -> Iterator[tuple[str, str, int]]:
        for shard in self._work.cut(*element):
            yield tuple(shard)


class _Make(_Step):
    """Makes a shard."""

    def process(self, element: tuple[str, str, int]) -> None:
        self._work.make(Shard(*element))


def _pipeline(runner: PipelineRunner, options: PipelineOptions, work: SharedWork) -> beam.Pipeline:
    pipeline = beam.Pipeline(runner=runner, options=options)
    of = (work.folder.output, work.request.digest())
    _ = (
        pipeline
        | "Languages" >> beam.Create(work.languages())
        | "SpreadLanguages" >> beam.Reshuffle()
        | "Cut" >> beam.ParDo(_Cut(*of))
        | "SpreadShards" >> beam.Reshuffle()
        | "Make" >> beam.ParDo(_Make(*of))
    )
    return pipeline


def _said_by_worker(text: str) -> str | None:
    """The message of a `KzooError` in a traceback that came from a worker, if there is one."""
    found = re.findall(r"KzooError: (.+?)(?: \[while running .*)?$", text, re.MULTILINE)
    return found[-1] if found else None


@contextlib.contextmanager
def _watched(work: SharedWork) -> Iterator[None]:
    """Says now and then how far the work is."""
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_SECONDS_BETWEEN_LINES):
            print(f"prepare: {work.num_finished():,} shards", file=sys.stderr, flush=True)

    thread = threading.Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
