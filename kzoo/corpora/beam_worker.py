"""A worker process of Apache Beam on the machine of the process that launches the work.

    python -m kzoo.corpora.beam_worker LAUNCHER_PID LOG_FILE

Beam's own, but it says what it says into a file (a user would read page after page of addresses
and threads), and it ends when its launcher is gone. Else it would finish the whole of what it was
given, hours later perhaps, beside the workers of the same command that has been started again.
"""

import os
import signal
import sys
import threading
import time

_SECONDS_BETWEEN_LOOKS = 0.5


def main() -> None:
    """Does what the launcher, whose address is in the environment, asks for."""
    # A terminal's Ctrl-C is for the launcher, which tells its workers to stop.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    launcher, log_file = int(sys.argv[1]), sys.argv[2]
    descriptor = os.open(log_file, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    threading.Thread(target=_end_with, args=(launcher,), daemon=True).start()

    from apache_beam.runners.worker import sdk_worker_main

    sdk_worker_main.main(sys.argv[:1])


def _end_with(launcher: int) -> None:
    # Its parent, and so this process is somebody else's child when it is gone.
    while os.getppid() == launcher:
        time.sleep(_SECONDS_BETWEEN_LOOKS)
    os._exit(1)


if __name__ == "__main__":
    main()
