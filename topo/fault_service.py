# SPDX-License-Identifier: Apache-2.0
"""The fault service of a local fabric: faults by command, held by the launcher, and packet sockets on its links.

    with FaultService(networks, sandbox.rundir()) as service, planes, service.while_up():
        ...                                     # in the process that starts the fabric

It serves the unix socket `wire.faults.SOCKET` in the fabric's folder, for this user alone (rpc/local.py).  A fault
with a time is undone by the service, whatever becomes of the command that asked for it; all that is left when the
fabric ends goes with it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

import msgspec

from netfold.fabric.graph import bits_per_second
from netfold.rpc import local
from netfold.topo import fault_targets
from netfold.topo.controller_calls import connections
from netfold.topo.failures import FabricFailed
from netfold.topo.fault_board import FaultBoard, FaultRefused
from netfold.topo.fault_plans import FaultPlans
from netfold.topo.net import Network
from netfold.wire import faults
from netfold.wire.operator import QueuePairUse

KEY_BYTES: Final = 24
"""Random bytes of the key in the address of the fabric's page."""
_PACKET_VNET_HDR: Final = 15
_SO_RCVBUFFORCE: Final = 33
_SO_TIMESTAMPNS: Final = 35
_SOL_PACKET: Final = 263
_ETH_P_ALL: Final = 3


class FaultService:
    """Serves faults and captures of a running fabric, or of several planes that share their hosts.

    networks  the planes; those that have not started yet answer that they are not up
    folder    where the socket is made
    """

    def __init__(self, networks: Sequence[Network], folder: Path) -> None:
        self._networks = list(networks)
        self._plans = FaultPlans(self._networks)
        self._board = FaultBoard(self._plans.plan, time.monotonic)
        self._path = folder / faults.SOCKET
        self._server: local.Server[faults.Request] | None = None
        self._changed = threading.Condition()
        self._ended = False

    def __enter__(self) -> FaultService:
        os.environ[faults.FAULTS_VARIABLE] = str(self._path)
        os.environ[faults.KEY_VARIABLE] = secrets.token_urlsafe(KEY_BYTES)
        self._server = local.Server(self._path, faults.Request, self._answer, faults.Refused)
        threading.Thread(target=self._run, name="fault timers", daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._server is not None:
            self._server.close()
        for variable in (faults.FAULTS_VARIABLE, faults.KEY_VARIABLE):
            os.environ.pop(variable, None)
        self._board.close()

    @contextlib.contextmanager
    def while_up(self) -> Iterator[None]:
        """To be entered once the fabric is up, and left before it stops: what its end would wait for, such as a switch
        that stands still, is undone then, and no fault is undone in a fabric that has gone."""
        try:
            yield
        finally:
            self._board.close()

    def _run(self) -> None:
        """Undo what is due, until the service ends."""
        while True:
            wait = self._board.tick()
            with self._changed:
                if self._ended:
                    return
                self._changed.wait(wait)

    def _answer(self, request: faults.Request) -> tuple[faults.Answer, Sequence[int]]:
        try:
            if not all(network.is_up for network in self._networks):
                raise FaultRefused("the fabric is not up yet, or not any more: try again", conflict=True)
            if isinstance(request, faults.Tap):
                return self._tap(request)
            return self._act(request), ()
        except (FaultRefused, FabricFailed) as error:
            return faults.Refused(str(error), getattr(error, "conflict", False)), ()

    def _act(self, request: faults.Inject | faults.Undo | faults.Active | faults.AskNames) -> faults.Answer:
        if isinstance(request, faults.Inject):
            number, text = self._board.inject(request)
            self._wake()
            return faults.Injected(number, text)
        if isinstance(request, faults.Undo):
            return faults.Undone(self._board.undo(request.number))
        if isinstance(request, faults.AskNames):
            return faults.Names(self._names())
        fabrics = [network.fabric for network in self._networks]
        return faults.ActiveFaults(" ".join(fabric.name for fabric in fabrics), self._board.active(),
                                   all(fabric.faulty for fabric in fabrics))

    def _wake(self) -> None:
        with self._changed:
            self._changed.notify_all()

    # ---- captures ------------------------------------------------------------------------------------------------

    def _tap(self, request: faults.Tap) -> tuple[faults.Answer, Sequence[int]]:
        """Packet sockets on links, at their switch ends, which are in this process's namespace."""
        links = fault_targets.links(self._networks, request.target)
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
        name = " ".join(network.fabric.name for network in self._networks)
        return faults.Tapped(name, told, self._names()), files

    def _names(self) -> list[QueuePairUse]:
        """What queue pairs mean on the links of all planes, which are named as captures name them."""
        names: dict[str, str] = {}
        for at in fault_targets.links(self._networks, "all"):
            names |= {at.link.a: at.name, at.link.b: at.name}
        return [msgspec.structs.replace(use, link=names[use.link])
                for network in self._networks for use in connections(network)]


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
