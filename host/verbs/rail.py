# SPDX-License-Identifier: Apache-2.0
"""The rail "verbs": the switches fold the packets of an RDMA NIC, over RC queue pairs by libibverbs.

It is the fold of the rail "innet" in everything but what carries the packets (``innet.fold``): the same engine agrees
on scales, and makes and reads lanes, so that both kinds of ranks can take part in one job.  native/verbs.h describes
what is different: whole messages, two of them outstanding, which the NIC cuts, repeats and acknowledges.
"""

from __future__ import annotations

import logging
import select
import socket
import time
from dataclasses import replace
from typing import Final

from netfold.host.client.fold_control import FoldControl
from netfold.host.errors import NetFoldError, PlanError, TransportError
from netfold.host.innet.core import Core
from netfold.host.innet.fold import FoldRail
from netfold.host.innet.fold_loop import SLICE_SECONDS
from netfold.host.innet.packet_link import PacketLink
from netfold.host.innet.repeated import RepeatedFold
from netfold.host.operation.coding import LaneBits
from netfold.host.operation.rail import RailStats
from netfold.host.operation.request import Request
from netfold.host.tracing.timeline import Timeline
from netfold.host.verbs import native
from netfold.host.verbs.devices import RETRANSMISSIONS, RocePort, fold_gid, port_of
from netfold.host.verbs.native import VerbsIo
from netfold.wire.plan import Plan

KEPT: Final = 2
"""Ratio of the packets kept for retransmission to the slots: one message is prepared ahead (native/verbs.h)."""
MAX_BREAKS: Final = 3
"""Most queue pairs that may break in one operation before it fails."""

log = logging.getLogger("netfold")


def check_host(address: str) -> RocePort:
    """Checks what a rank can know before it joins: libibverbs is installed, and a device has this address.  Raises
    TransportError, cbuild.cc.BuildError."""
    port = port_of(address)
    native.library(native.LIBRARY)  # named, so that the rail finds it loaded
    return port


class VerbsRail(FoldRail):
    """Allreduce over the trees of a plan, by the queue pairs of the RDMA device that has this rank's address.

    port     that device's port, as ``check_host`` finds it
    libs     linker flags that bring libibverbs
    The other arguments are those of ``FoldRail``.  If no trees are left, the rail ends.
    """

    name = "verbs"

    def __init__(
        self,
        plan: Plan,
        address: str,
        port: RocePort,
        *,
        timeout: float,
        control: FoldControl,
        timeline: Timeline | None = None,
        lane_bits: LaneBits = 32,
        libs: tuple[str, ...] = native.LIBRARY,
    ) -> None:
        self._port = port
        self._libs = libs
        self._verbs: VerbsIo | None = None
        self._connected = False
        self._breaks = 0
        self._broke_in = -1
        self._first_counters = port.counters()
        super().__init__(plan, address, timeout=timeout, control=control, timeline=timeline, lane_bits=lane_bits)
        try:
            self._connect()
        except BaseException:
            self.close()
            raise

    def _open(self, address: str, receiver: socket.socket | None) -> tuple[Core, PacketLink]:
        plan = self._plan
        own = self._port.gids[address].index
        fold = fold_gid(self._port, address, plan.fold_address).index
        core = Core(
            address, self.members, plan.trees, path_mtu=plan.path_mtu, message=plan.message, kept=KEPT,
            lib=native.library(self._libs),
        )
        try:
            self._verbs = VerbsIo(core, self._port, own, fold, libs=self._libs)
        except BaseException:
            core.close()
            raise
        return core, self._verbs

    def _connect(self) -> None:
        """Creates queue pairs, reports them to the controller, and connects them once the switches know them.  If the
        trees have changed meanwhile, it waits for `Halt`.  Raises TransportError, PlanError."""
        assert self._verbs is not None
        self._connected = False
        if self.control.connect is None:
            raise PlanError(f"job {self._plan.job!r}, rank {self._plan.rank}: rail='verbs' needs a controller")
        connected = self.control.connect(self._plan, self._verbs.make())
        if connected is None:
            return
        if not connected.pairs:
            raise PlanError(
                f"job {self._plan.job!r}, rank {self._plan.rank}: rail='verbs': nothing folds: "
                f"{connected.reason or 'the controller gave no reason'}"
            )
        if len(connected.pairs) != 2 * len(self._plan.trees):
            raise PlanError(
                f"job {self._plan.job!r}, rank {self._plan.rank}: rail='verbs': the controller named the neighbours of "
                f"{len(connected.pairs)} streams: expected {2 * len(self._plan.trees)}, data and agreement of each tree"
            )
        self._verbs.connect(connected.pairs)
        self._connected = True

    def _broken(self, request: Request | RepeatedFold, error: int) -> None:
        """Handles a queue pair in error, or missing queue pairs: waits for `Halt`, after which all ranks create theirs
        anew."""
        assert self._verbs is not None
        why = self._verbs.why
        who = self._who(request)
        if self._connected:
            if request.number != self._broke_in:
                self._broke_in, self._breaks = request.number, 0
            self._breaks += 1
            if self.control.resume is None or self._breaks > MAX_BREAKS:
                raise TransportError(f"{who}: {self._port.device}: {why} ({self._breaks} times in this operation)")
            log.warning("%s: %s: %s; the controller is asked to let all ranks begin anew", who, self._port.device, why)
            self.control.broken(self._waits(), why)
        until = time.monotonic() + self.timeout
        while not self._rounds.pending:
            news: NetFoldError | None = self.control.job_error()
            if news is not None:
                raise type(news)(f"{who}: {self._port.device}: {why}; {news}")
            left = until - time.monotonic()
            if left <= 0:
                raise TransportError(
                    f"{who}: {self._port.device}: {why or 'its queue pairs are not connected'}; the controller did not "
                    f"let the ranks begin anew within {self.timeout:g} s"
                )
            select.select([self._rounds.fd], [], [], min(left, SLICE_SECONDS))

    @property
    def retransmissions(self) -> int:
        """Number of the device's retransmissions, as its driver counts them, over all of its queue pairs, since the
        rail was created."""
        now = self._port.counters()
        return sum(now.get(name, 0) - self._first_counters.get(name, 0) for name in RETRANSMISSIONS)

    def stats(self) -> RailStats:
        """Totals as every rail has them, with ``retransmissions`` as above."""
        return replace(super().stats(), retransmissions=self.retransmissions)

    def describe(self, nbytes: int, lane_bits: LaneBits = 32) -> str:
        longest = max(min(self._plan.message, stream.slots // 4) for tree in self._plan.trees
                      for stream in (tree.data, tree.agreement))
        return (
            f"{super().describe(nbytes, lane_bits)}, sent by {self._port.device} in messages of up to {longest} "
            "packets, two of them outstanding"
        )

    def counters(self) -> dict[str, int]:
        """The device's packet counters since the rail was created, over all of its queue pairs."""
        return {name: value - self._first_counters.get(name, 0) for name, value in self._port.counters().items()}
