# SPDX-License-Identifier: Apache-2.0
"""Serves faults and captures of a running fabric at a unix socket, for this user alone (rpc/local.py).

A fault with a time is undone by the server, whatever becomes of the command that asked for it; all that is left when
the fabric ends goes with it.
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from netfold.rpc import local
from netfold.topo.faults import targets as fault_targets
from netfold.topo.faults.board import FaultBoard, FaultRefused
from netfold.topo.faults.controller_calls import connections
from netfold.topo.faults.link_plans import LinkFaultPlans
from netfold.topo.faults.targets import FaultyFabric
from netfold.topo.processes.failures import FabricFailed
from netfold.wire import faults
from netfold.wire.operator import QueuePairUse


class FaultServer(ABC):
    """Serves faults and captures of a running fabric, or of several planes that share their hosts.

    fabrics  the planes; those that have not started yet answer that they are not up
    plans    makes the plans of faults
    path     of the socket
    """

    def __init__(self, fabrics: Sequence[FaultyFabric], plans: LinkFaultPlans, path: Path) -> None:
        self._fabrics, self.path = list(fabrics), path
        self._board = FaultBoard(plans.plan, time.monotonic)
        self._server: local.Server[faults.Request] | None = None
        self._changed = threading.Condition()
        self._ended = False

    def __enter__(self) -> Self:
        # Ctrl-C is for the launcher's main thread.  The kernel gives it to no thread that blocks it, as these threads
        # do now.  Where it interrupts the start of a thread, threading raises another error.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._server = local.Server(self.path, faults.Request, self._answer, faults.Refused)
            threading.Thread(target=self._run, name="fault timers", daemon=True).start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()
        if self._server is not None:
            self._server.close()
        self._board.close()

    @contextlib.contextmanager
    def while_up(self) -> Iterator[None]:
        """To be entered once the fabric is up, and left before it stops: what its end would wait for, such as a switch
        that stands still, is undone then, and no fault is undone in a fabric that has gone."""
        try:
            yield
        finally:
            self._board.close()

    @abstractmethod
    def tap(self, request: faults.Tap) -> tuple[faults.Answer, Sequence[int]]:
        """The answer to a request for captures, with its open files.  Raises FaultRefused."""

    @abstractmethod
    def record(self, request: faults.RecordPacket) -> faults.RecordedPacket:
        """The way of one packet of a host.  Raises FaultRefused."""

    def names(self) -> list[QueuePairUse]:
        """The meaning of queue pairs on the links of all planes, with the link names that captures use."""
        names: dict[str, str] = {}
        for at in fault_targets.links(self._fabrics, "all"):
            names |= {at.link.a: at.name, at.link.b: at.name}
        return [msgspec.structs.replace(use, link=names[use.link])
                for fabric in self._fabrics for use in connections(fabric) if use.link in names]

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
            if not all(fabric.is_up for fabric in self._fabrics):
                raise FaultRefused("the fabric is not up yet, or not any more: try again", conflict=True)
            if isinstance(request, faults.Tap):
                return self.tap(request)
            if isinstance(request, faults.RecordPacket):
                return self.record(request), ()
            return self._act(request), ()
        except (FaultRefused, FabricFailed) as error:
            return faults.Refused(str(error), getattr(error, "conflict", False)), ()

    def _act(self, request: faults.Inject | faults.Undo | faults.Active | faults.AskNames) -> faults.Answer:
        if isinstance(request, faults.Inject):
            number, text = self._board.inject(request)
            with self._changed:
                self._changed.notify_all()
            return faults.Injected(number, text)
        if isinstance(request, faults.Undo):
            return faults.Undone(self._board.undo(request.number))
        if isinstance(request, faults.AskNames):
            return faults.Names(self.names())
        fabrics = [fabric.fabric for fabric in self._fabrics]
        return faults.ActiveFaults(" ".join(fabric.name for fabric in fabrics), self._board.active(),
                                   all(fabric.faulty for fabric in fabrics),
                                   [faults.PlaneOf(str(plane.file), plane.jobs) for plane in self._fabrics])
