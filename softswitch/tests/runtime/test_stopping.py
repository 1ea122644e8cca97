# SPDX-License-Identifier: Apache-2.0
"""The signals that end a switch."""

from __future__ import annotations

import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from softswitch.runtime.stopping import Stop


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """The handlers of the test run are back afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_the_wait_ends_it(number: signal.Signals) -> None:
    """A signal that was handled before wait() is called ends the wait, which would else last for ever."""
    with closing(Stop()) as stop:
        os.kill(os.getpid(), number)
        stop.wait()


def test_a_signal_that_another_thread_takes_ends_the_wait() -> None:
    """The kernel may give a signal to any thread: the main thread wakes all the same, and for no other signal."""
    signal.signal(signal.SIGUSR1, lambda *_: seen.append("another signal"))
    seen: list[str] = []

    def send() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        seen.append("before")
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    with closing(Stop()) as stop:
        other = threading.Thread(target=send)
        other.start()
        stop.wait()
        other.join()
    assert "before" in seen


def test_it_leaves_the_wakeup_descriptor_as_it_was() -> None:
    """After close() signals are written to no file of it."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        before = signal.set_wakeup_fd(theirs.fileno())
        Stop().close()
        assert signal.set_wakeup_fd(before) == theirs.fileno()
