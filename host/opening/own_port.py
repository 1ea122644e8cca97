# SPDX-License-Identifier: Apache-2.0
"""The UDP port of a rank, which it holds before it joins: the others are told it by their plans."""

from __future__ import annotations

import socket
from typing import Final

from cbuild.cc import BuildError
from netfold.host.errors import TransportError
from netfold.host.native.sockets import bind_port
from netfold.wire import roce
from netfold.wire.bounds import MAX_TEXT

FOLDING: Final = ("auto", "innet")
"""Kinds of rails that fold by windowed end points."""


def own_port(rail: str, address: str) -> tuple[socket.socket | None, str]:
    """A socket bound to the UDP port of a rank at this address, and what the rank lacks to fold; empty: nothing.

    The socket is None for rails that need none: "tcp", and "verbs", whose NIC receives at RoCEv2's own port.
    Raises TransportError for rail "roce", which can do nothing without one.
    """
    if rail == "roce":
        return bind_port(address), ""
    if rail not in FOLDING:
        return None, ""
    from netfold.host.innet import native

    try:
        native.library()  # so that no rank waits for another one's compiler once all have joined
        return bind_port(address), ""
    except (TransportError, BuildError) as error:
        return None, str(error)[:MAX_TEXT]


def udp_port_of(receiver: socket.socket | None) -> int:
    """The port that a socket is bound to; without one RoCEv2's, which stands for it in a request to join."""
    return roce.UDP_PORT if receiver is None else int(receiver.getsockname()[1])
