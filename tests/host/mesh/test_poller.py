# SPDX-License-Identifier: Apache-2.0
"""The poller whose one descriptor stands for all that it watches."""

from __future__ import annotations

import select
import socket

import pytest

from netfold.host.mesh.poller import Poller


def readable(poller: Poller) -> bool:
    """True if the poller's own descriptor is ready."""
    return bool(select.select([poller.fileno()], [], [], 0)[0])


def test_its_descriptor_is_ready_while_a_watched_one_is() -> None:
    """It turns readable with a byte for a watched socket, and is not once the byte is read."""
    poller = Poller()
    a, b = socket.socketpair()
    with a, b:
        poller.register(a, select.POLLIN)
        assert not readable(poller)
        b.send(b"x")
        assert readable(poller)
        assert list(poller.poll(0)) == [(a.fileno(), select.POLLIN)]
        a.recv(1)
        assert not readable(poller)


def test_events_follow_the_last_call() -> None:
    """Registering again, as with select.poll, and modifying replace the events; unregistering ends them."""
    poller = Poller()
    a, b = socket.socketpair()
    with a, b:
        poller.register(a, select.POLLIN)
        poller.register(a, select.POLLOUT)
        assert list(poller.poll(0)) == [(a.fileno(), select.POLLOUT)]
        poller.modify(a, select.POLLIN)
        assert list(poller.poll(0)) == []
        poller.modify(a, select.POLLOUT)
        poller.unregister(a)
        assert list(poller.poll(0)) == []
        with pytest.raises(KeyError):
            poller.unregister(a)


def test_a_descriptor_that_was_closed_first_can_be_taken_off() -> None:
    """Its number may then be watched anew for another file."""
    poller = Poller()
    a, b = socket.socketpair()
    number = a.fileno()
    poller.register(number, select.POLLIN)
    a.close()
    poller.unregister(number)
    b.close()
    assert list(poller.poll(0)) == []


def test_a_peer_that_hangs_up_is_seen_without_any_event_asked_for() -> None:
    """POLLHUP is told always, as by select.poll."""
    poller = Poller()
    a, b = socket.socketpair()
    with a:
        poller.register(a, select.POLLOUT)
        b.close()
        ((_, event),) = poller.poll(0)
        assert event & select.POLLHUP
