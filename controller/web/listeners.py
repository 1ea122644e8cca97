# SPDX-License-Identifier: Apache-2.0
"""Listening sockets that a process inherits from its launcher, by an environment variable."""

from __future__ import annotations

import os
import socket
from typing import Final

VARIABLE: Final = "NETFOLD_LISTENERS"
"""``host:port=NUMBER`` for each listener that is inherited, separated by spaces: where it listens as it was asked for,
and its descriptor."""
BACKLOG: Final = 64
"""Connections that wait while nobody accepts them, as while a controller is started anew."""


def inherited() -> dict[str, int]:
    """The descriptors of inherited listeners by their addresses; those that are no listening sockets are left out."""
    found = {}
    for word in os.environ.get(VARIABLE, "").split():
        address, equals, number = word.rpartition("=")
        if equals and number.isascii() and number.isdecimal() and _listens(int(number), address):
            found[address] = int(number)
    return found


def adopted(address: str) -> socket.socket | None:
    """The inherited listener of this address, as a socket of this process's own; None: there is none."""
    number = inherited().get(address)
    return None if number is None else socket.socket(fileno=os.dup(number))


def _listens(number: int, address: str) -> bool:
    """True if a descriptor is a socket that listens at this port: in a process that did not inherit it, the number may
    be another file's."""
    try:
        with socket.socket(fileno=os.dup(number)) as held:
            port = address.rpartition(":")[2]
            return bool(held.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)) and (
                port == "0" or str(held.getsockname()[1]) == port)
    except OSError:
        return False
