# SPDX-License-Identifier: Apache-2.0
"""The UDP port at which a rank receives: RoCEv2's for the first one of an address, one of a range for all others."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from netfold.host.errors import TransportError
from netfold.host.native import sockets
from netfold.host.native.sockets import bind_port, copy_of, open_sockets
from netfold.testing import subnet
from netfold.wire import roce


@pytest.fixture
def opened() -> Iterator[ExitStack]:
    """Closes at the end what a test has opened."""
    with ExitStack() as stack:
        yield stack


def port_of(sock: socket.socket) -> int:
    """The port that a socket is bound to."""
    return int(sock.getsockname()[1])


def test_the_first_rank_of_an_address_has_rocev2s_port_and_others_have_their_own(opened: ExitStack) -> None:
    """Each gets the first one that is free; what was closed is given again; other addresses have ports of their own."""
    address, other = (f"{subnet()}.1" for _ in range(2))
    bound = [opened.enter_context(bind_port(address)) for _ in range(3)]
    assert [port_of(sock) for sock in bound] == [roce.UDP_PORT, *roce.UDP_PORTS[:2]]
    bound[1].close()
    assert port_of(opened.enter_context(bind_port(address))) == roce.UDP_PORTS[0]
    assert port_of(opened.enter_context(bind_port(other))) == roce.UDP_PORT


def test_nobody_else_can_bind_a_ranks_port(opened: ExitStack) -> None:
    """Neither with SO_REUSEADDR nor with SO_REUSEPORT, and neither its address nor all: for UDP both sides must set
    these, and a rank's sockets set neither."""
    address = f"{subnet()}.1"
    receiver = opened.enter_context(bind_port(address))
    sockets = open_sockets(receiver, [0], room=1 << 16)
    opened.callback(sockets.close)
    for port in (port_of(receiver), *sockets.senders):
        for option in (socket.SO_REUSEADDR, socket.SO_REUSEPORT):
            for where in (address, "0.0.0.0"):
                with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as thief:
                    thief.setsockopt(socket.SOL_SOCKET, option, 1)
                    with pytest.raises(OSError, match="Address already in use"):
                        thief.bind((where, port))


def test_a_port_is_kept_while_one_incarnation_of_a_job_follows_another(opened: ExitStack) -> None:
    """A rail closes its copy of the socket, and the port stays this rank's."""
    address = f"{subnet()}.1"
    receiver = opened.enter_context(bind_port(address))
    for _ in range(2):
        open_sockets(copy_of(receiver), [0], room=1 << 16).close()
        with pytest.raises(TransportError, match="Address already in use"):
            bind_port(address, port_of(receiver))


def test_an_address_without_a_free_port_is_an_error_that_says_so(
    opened: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It names the address and the ports; one that the host does not have is named at once."""
    address = f"{subnet()}.1"
    monkeypatch.setattr(sockets.roce, "UDP_PORTS", roce.UDP_PORTS[:2])
    for _ in range(3):
        opened.enter_context(bind_port(address))
    with pytest.raises(TransportError, match=rf"no UDP port of {address} is free.*4791 or one of 18432") as full:
        bind_port(address)
    assert full.value.errno == errno.EADDRINUSE
    with pytest.raises(TransportError, match=r"192\.0\.2\.1:4791.*no such address"):
        bind_port("192.0.2.1")


def test_a_source_port_that_another_program_has_is_named(opened: ExitStack) -> None:
    """The error says what the port was drawn for, and what to do; the receiver is closed."""
    address = f"{subnet()}.1"
    other = opened.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
    other.bind((address, 50_001))
    receiver = bind_port(address)
    with pytest.raises(TransportError, match=rf"{address}:50001.*it was drawn for what this rank sends.*by chance"):
        open_sockets(receiver, [50_000, 50_001], room=1 << 16)
    assert receiver.fileno() == -1
    opened.enter_context(bind_port(address, roce.UDP_PORT))
