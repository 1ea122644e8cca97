# SPDX-License-Identifier: Apache-2.0
"""The fault service of a local fabric: faults by command, held by the launcher, and packet sockets on its links.

    with FaultService(networks, sandbox.rundir()) as service, planes, service.while_up():
        ...                                     # in the process that starts the fabric

It serves the unix socket `wire.faults.SOCKET` in the fabric's folder.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from netfold.fabric.graph import bits_per_second
from netfold.rpc import local
from netfold.topo.captures import packet_recording, packet_sockets
from netfold.topo.faults import targets as fault_targets
from netfold.topo.faults.board import FaultRefused
from netfold.topo.faults.plans import FaultPlans
from netfold.topo.faults.server import FaultServer
from netfold.topo.faults.targets import FabricLinkAt
from netfold.topo.network.listeners import KEY_BYTES
from netfold.topo.network.net import Network
from netfold.wire import faults


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
        self._recording = threading.Lock()

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
                files.append(_opened(at.name, request.buffer))
        except OSError as error:
            for file in files:
                os.close(file)
            raise FaultRefused(f"{request.target}: the kernel gives no packet socket: {error}") from error
        name = " ".join(network.fabric.name for network in self._fabrics)
        return faults.Tapped(name, [_told(at) for at in links], self.names()), files

    def record(self, request: faults.RecordPacket) -> faults.RecordedPacket:
        """One at a time."""
        if not self._recording.acquire(blocking=False):
            raise FaultRefused("a packet is being recorded already: try again", conflict=True)
        try:
            hosts = {host.name for network in self._fabrics for host in network.fabric.hosts}
            if request.host not in hosts:
                raise FaultRefused(f"{request.host!r}: expected a host of this fabric")
            taps = [_told(at) for at in fault_targets.links(self._fabrics, "all")]
            return packet_recording.record(request, taps, self.names(), lambda link, buffer: _opened(link.name, buffer))
        finally:
            self._recording.release()


def _told(at: FabricLinkAt) -> faults.TapLink:
    return faults.TapLink(at.name, f"{at.far.node}:{at.far.port}",
                          None if at.link.rate is None else bits_per_second(at.link.rate))


def _opened(end: str, buffer: int) -> int:
    """A packet socket at a switch end, "leaf1:3".  Raises OSError."""
    node, _, port = end.rpartition(":")
    return packet_sockets.opened(f"{node}-eth{port}", buffer)
