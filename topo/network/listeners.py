# SPDX-License-Identifier: Apache-2.0
"""TCP listeners of the machine itself, for a controller inside a sandbox whose network nobody else reaches.

    launcher: open_listeners --exec, unshare, fork--> inside: inherited --Popen--> controller: adopted

A socket stays in the network namespace in which it was made, wherever its descriptor goes.  So the launcher opens the
listener before it makes namespaces, where an address in use is told before anything starts, and VARIABLE names the
descriptor to the processes inside.  They keep it open while the controller is started anew, and connections wait.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from typing import Final

import msgspec

from netfold.controller.web.listeners import BACKLOG, VARIABLE, inherited
from netfold.fabric.graph import Fabric, FabricError
from netfold.rpc.certificates import is_local
from netfold.topo.network import sandbox
from netfold.wire.faults import KEY_VARIABLE

KEY_BYTES: Final = 24
"""Random bytes of the key in the address of a fabric's page."""


def enter(fabrics: Sequence[Fabric]) -> None:
    """Enter the sandbox (`sandbox.enter`) with the listeners of all fabrics that have a page.  Raises FabricError where
    one cannot be opened."""
    if not sandbox.inside():
        open_listeners([fabric.metrics for fabric in fabrics if fabric.metrics is not None])
    sandbox.enter()


def open_listeners(addresses: Sequence[str]) -> None:
    """Open a listener at each ``host:port`` for this process and those that it becomes or starts.  Raises FabricError
    where an address is in use or not of this machine; none is open then."""
    opened: dict[str, socket.socket] = {}
    try:
        for address in addresses:
            opened[address] = _listen(address)
    except FabricError:
        for listener in opened.values():
            listener.close()
        raise
    words = []
    for address, listener in opened.items():
        number = listener.detach()
        os.set_inheritable(number, True)
        words.append(f"{address}={number}")
    if words:
        os.environ[VARIABLE] = " ".join(words)


def numbers(fabric: Fabric) -> tuple[int, ...]:
    """Descriptors that this fabric's controller is to inherit."""
    found = inherited()
    return (found[fabric.metrics],) if fabric.metrics in found else ()


def url(fabric: Fabric) -> str:
    """Where the fabric's page is, with the key that lets its reader inject faults where there is a fault service; empty
    without a page.  A browser keeps what follows the # to itself: it is in no request but those that the page makes."""
    if fabric.metrics is None:
        return ""
    key = os.environ.get(KEY_VARIABLE)
    rest = f"/#key={key}" if key else ""
    found = inherited().get(fabric.metrics)
    if found is None:
        return f"http://{fabric.metrics}{rest}"
    with socket.socket(fileno=os.dup(found)) as listener:
        return f"http://{fabric.metrics.rpartition(':')[0]}:{listener.getsockname()[1]}{rest}"


def with_pages(planes: Sequence[Fabric], metrics: str) -> list[Fabric]:
    """The planes with a page each: the first one's at this ``host:port``, the others' at the ports after it.  Raises
    FabricError for an address that is none, or that other machines reach: a fabric of the launcher has no tokens."""
    host, _, port = metrics.rpartition(":")
    if not (port.isascii() and port.isdecimal() and int(port) + len(planes) <= 65536):
        raise FabricError(f"--metrics: expected HOST:PORT, such as 127.0.0.1:9464, got {metrics!r}")
    if len(planes) > 1 and int(port) == 0:
        raise FabricError(f"--metrics {metrics}: expected a port above 0: each of {len(planes)} planes has a page, at "
                          "this port and those after it")
    if not is_local(metrics):
        raise FabricError(f"--metrics {metrics}: expected an address of this machine alone, 127.0.0.1:PORT, since this "
                          "fabric has no tokens, and whoever reaches its page may look. From elsewhere: "
                          "ssh -L 9464:127.0.0.1:9464 THIS-MACHINE")
    return [msgspec.structs.replace(fabric, metrics=f"{host}:{int(port) + number}")
            for number, fabric in enumerate(planes)]


def _listen(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen(BACKLOG)
        listener.setblocking(False)  # of two controllers, the one that is slower to accept must not wait
    except OSError as error:
        listener.close()
        raise FabricError(f"metrics: cannot listen at {address}: {error.strerror or error}. Is the address in use, or "
                          "not of this machine? Nothing was started") from error
    return listener
