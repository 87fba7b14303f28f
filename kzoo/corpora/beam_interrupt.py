"""Ctrl-C while others work for this process, which are to stop in good order."""

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def interrupt_heard(on_interrupt: Callable[[], None]) -> Iterator[threading.Event]:
    """Calls a function at Ctrl-C, in place of tearing this process out of what it does.

    A thread hears of the signal: the main one may be waiting for something that does not come
    before this function has done its work. A second Ctrl-C ends the process at once.

    Args:
        on_interrupt: called in another thread, once.

    Yields:
        What is set when the signal has come.
    """
    interrupted = threading.Event()
    hears, tells = socket.socketpair()
    tells.setblocking(False)

    def hear() -> None:
        while (heard := hears.recv(1)) != b"\0":
            if heard[0] != signal.SIGINT:
                continue
            if interrupted.is_set():
                os._exit(128 + signal.SIGINT)
            interrupted.set()
            on_interrupt()

    thread = threading.Thread(target=hear, daemon=True)
    with hears, tells:
        # Whichever thread the signal comes to, its number is written.
        number_before = signal.set_wakeup_fd(tells.fileno(), warn_on_full_buffer=False)
        handler_before = signal.signal(signal.SIGINT, lambda *_: None)
        thread.start()
        try:
            yield interrupted
        finally:
            signal.signal(signal.SIGINT, handler_before)
            signal.set_wakeup_fd(number_before)
            tells.send(b"\0")
            thread.join()
