# SPDX-License-Identifier: Apache-2.0
"""The fault service of a local fabric: faults by command, held by the launcher, and packet sockets on its links.

    with FaultService(networks, sandbox.rundir()) as service, planes, service.while_up():
        ...                                     # in the process that starts the fabric

It serves the unix socket `wire.faults.SOCKET` in the fabric's folder.
"""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from netfold.fabric.graph import bits_per_second
from netfold.rpc import local
from netfold.topo import fault_targets
from netfold.topo.fault_board import FaultRefused
from netfold.topo.fault_plans import FaultPlans
from netfold.topo.fault_server import FaultServer
from netfold.topo.net import Network
from netfold.wire import faults

KEY_BYTES: Final = 24
"""Random bytes of the key in the address of the fabric's page."""
_PACKET_VNET_HDR: Final = 15
_SO_RCVBUFFORCE: Final = 33
_SO_TIMESTAMPNS: Final = 35
_SOL_PACKET: Final = 263
_ETH_P_ALL: Final = 3


class FaultService(FaultServer):
    """Serves faults and captures of networks of this process: a fabric, or several planes that share their hosts.

    folder  where the socket is made
    name    of the socket
    tells   whether the environment names it, and a key for the page, to what this process starts
    """

    def __init__(self, networks: Sequence[Network], folder: Path, name: str = faults.SOCKET, *,
                 tells: bool = True) -> None:
        super().__init__(networks, FaultPlans(networks), folder / name)
        self._tells = tells

    def __enter__(self) -> Self:
        if self._tells:
            os.environ[faults.FAULTS_VARIABLE] = str(self.path)
            os.environ[faults.KEY_VARIABLE] = secrets.token_urlsafe(KEY_BYTES)
        return super().__enter__()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tells:
            for variable in (faults.FAULTS_VARIABLE, faults.KEY_VARIABLE):
                os.environ.pop(variable, None)
        super().__exit__(kind, error, trace)

    def tap(self, request: faults.Tap) -> tuple[faults.Answer, Sequence[int]]:
        """Packet sockets on links, at their switch ends, which are in this process's namespace."""
        links = fault_targets.links(self._fabrics, request.target)
        if len(links) > local.MAX_FILES:
            raise FaultRefused(f"{request.target}: {len(links)} links: expected at most {local.MAX_FILES} at once: "
                               "name a switch")
        files: list[int] = []
        try:
            for at in links:
                files.append(_packet_socket(f"{at.end.node}-eth{at.end.port}", request.buffer))
        except OSError as error:
            for file in files:
                os.close(file)
            raise FaultRefused(f"{request.target}: the kernel gives no packet socket: {error}") from error
        told = [faults.TapLink(at.name, f"{at.far.node}:{at.far.port}",
                               None if at.link.rate is None else bits_per_second(at.link.rate)) for at in links]
        name = " ".join(network.fabric.name for network in self._fabrics)
        return faults.Tapped(name, told, self.names()), files


def _packet_socket(interface: str, buffer: int) -> int:
    """A socket that gets every frame of an interface, both ways, with a virtio-net header that says what of it is
    still to be cut into segments.  Raises OSError."""
    packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 0)
    try:
        packets.setsockopt(_SOL_PACKET, _PACKET_VNET_HDR, 1)
        try:
            packets.setsockopt(socket.SOL_SOCKET, _SO_RCVBUFFORCE, buffer)
        except PermissionError:  # of an ordinary user: as much as net.core.rmem_max allows
            packets.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        packets.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        packets.bind((interface, _ETH_P_ALL))
        return packets.detach()
    finally:
        packets.close()
