# SPDX-License-Identifier: Apache-2.0
"""Helpers for tests of communicators: short timeouts, and a signal that arrives while they wait."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from netfold.host.api.communicator import Communicator


@contextmanager
def interrupted_by(error: type[BaseException], comm: Communicator) -> Iterator[None]:
    """A context in which a signal handler raises ``error`` in this thread, the main one, while the communicator
    waits."""

    def handler(number: int, frame: object) -> None:
        raise error

    def interrupt() -> None:
        while not comm.flight() and not over.wait(0.01):
            pass
        if not over.wait(0.2):  # it has begun, and by now it waits
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGALRM)

    over, before = threading.Event(), signal.signal(signal.SIGALRM, handler)
    thread = threading.Thread(target=interrupt, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGALRM, before)


def impatient(comms: Sequence[Communicator], seconds: float) -> None:
    """Sets the communicators' timeouts to so many seconds, also of a fold that is under way.  While they come together
    the timeout is long, so that a machine that stands still is no fault."""
    for comm in comms:
        dispatch = comm._parts.dispatch
        operations = dispatch.hosts.mesh.operations  # type: ignore[attr-defined]
        operations.timeout = operations._slice = seconds
        if dispatch.switches is not None:
            getattr(dispatch.switches, "_fold", dispatch.switches)._timeout = seconds
