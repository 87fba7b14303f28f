"""Worker processes of Apache Beam on this machine, whose death is noticed.

Beam's own local runner waits for ever for a worker that has been killed, as the kernel does where
memory runs out. What it offers for this is not public: `apache-beam` is pinned in `setup.cfg`.
"""

import contextlib
import os
import shlex
import sys
import threading
from collections.abc import Callable, Iterator

from apache_beam.portability import python_urns
from apache_beam.portability.api import beam_fn_api_pb2
from apache_beam.runners.portability.fn_api_runner import FnApiRunner
from apache_beam.runners.portability.fn_api_runner.worker_handlers import (
    SubprocessSdkWorkerHandler,
    WorkerHandler,
)
from apache_beam.runners.portability.local_job_service import SubprocessSdkWorker
from apache_beam.transforms.environments import SubprocessSDKEnvironment

_SECONDS_BETWEEN_LOOKS = 0.5


def multi_process_runner(worker_log: str, on_death: Callable[[], None]) -> FnApiRunner:
    """Beam's runner for this machine, with worker processes.

    Args:
        worker_log: a file for what the processes say.
        on_death: called when one of them ends before its time.
    """

    class Handler(_WatchedWorkerHandler):
        died = staticmethod(on_death)

    WorkerHandler.register_environment(python_urns.SUBPROCESS_SDK, bytes)(Handler)
    command = [sys.executable, "-m", "kzoo.corpora.beam_worker", str(os.getpid()), worker_log]
    # Without `exec`, a shell would stand between, and hear Ctrl-C.
    environment = SubprocessSDKEnvironment.from_command_string(f"exec {shlex.join(command)}")
    return FnApiRunner(environment)


class _WatchedWorkerHandler(SubprocessSdkWorkerHandler):
    """Answers in the place of a worker that has died, so that nobody waits for it."""

    died: Callable[[], None]

    def start_worker(self) -> None:
        self._stopped = threading.Event()
        self.worker = SubprocessSdkWorker(
            self._worker_command_line, self.control_address, self.provision_info, self.worker_id
        )
        # A daemon: what comes before `stop_worker` fails where the worker has died.
        self.worker_thread = threading.Thread(target=self._run, daemon=True)
        self.worker_thread.start()

    def stop_worker(self) -> None:
        self._stopped.set()
        super().stop_worker()

    def _run(self) -> None:
        try:
            self.worker.run()
        except RuntimeError as error:
            self.died()
            while True:
                for identifier, future in list(self.control_conn._futures_by_id.items()):
                    future.set(
                        beam_fn_api_pb2.InstructionResponse(
                            instruction_id=identifier, error=str(error)
                        )
                    )
                if self._stopped.wait(_SECONDS_BETWEEN_LOOKS):
                    return


@contextlib.contextmanager
def silent_threads() -> Iterator[None]:
    """Lets no thread print a traceback: those that talk to a worker fail when it has died."""
    before = threading.excepthook
    threading.excepthook = lambda _: None
    try:
        yield
    finally:
        threading.excepthook = before
