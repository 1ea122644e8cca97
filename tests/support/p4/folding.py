# SPDX-License-Identifier: Apache-2.0
"""Native hosts on the compiled program within one process, with the controller's own entries and real frames."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from netfold.controller.jobs import plans
from netfold.controller.switch import fold_tables, tables
from netfold.fabric.folding import slots, trees
from netfold.fabric.folding.slots import Stream
from netfold.fabric.generate import leafspine
from netfold.host.innet.core import Core, Credits
from netfold.host.native.library import Origin
from netfold.host.operation.coding import PLAIN, Coding
from netfold.host.operation.rail import Op
from netfold.wire import roce
from support.models.slot_model import Call, TerribleNetwork, run
from support.p4.wires import Wires


class P4Fabric(Wires):
    """Leaf-spine switches with hosts' cores at their ports; stands in for slot_model.Fabric.

    apart    the places of the hosts of each job; by default one job has all
    credits  of each host
    ports    UDP ports at which the hosts receive; default: all at RoCEv2's
    """

    def __init__(
        self, leaves: int, spines: int, hosts: int, network: TerribleNetwork, *, apart: Sequence[Sequence[int]] = (),
        credits: Sequence[Credits | None] = (), ports: Sequence[int] = (),
    ) -> None:
        super().__init__(leafspine(leaves, spines, hosts, path_mtu=1024), network)
        sizes = slots.Sizes(data=64, agreement=16)
        self.allocator = slots.Allocator(self.engines, sizes, random.Random(5))
        self.frozen: set[int] = set()
        self.reached: set[int] = set()
        self.credits = credits or [None] * hosts
        self.ports = ports or [roce.UDP_PORT] * hosts
        self.write(tables.guard_entries(self.fabric))
        self._core: dict[int, Core] = {}
        for members in apart or [range(hosts)]:
            self.admit(members)

    @property
    def cores(self) -> list[Core]:
        """The core of each host, in the order of ``hosts``."""
        return [self._core[place] for place in range(len(self.hosts))]

    def admit(
        self, members: Sequence[int], agreed: Callable[[Stream], Stream] = lambda stream: stream
    ) -> None:
        """Admits a job of these hosts, which then have no other; ``agreed`` may change its streams before anybody uses
        them."""
        mine = [self.hosts[place] for place in members]
        planned = trees.plan(self.fabric.graph(), [host.name for host in mine])
        streams = self.allocator.admit(planned, [range(len(mine))],
                                       udp_ports=[self.ports[place] for place in members])
        self.streams = streams = [agreed(stream) for stream in streams]
        self.write(tables.merge(fold_tables.fold_entries(self.fabric, mine, stream) for stream in streams))
        for rank, place in enumerate(members):
            planned_trees = plans.rank_trees(self.fabric, [(stream, rank) for stream in streams], mine)
            self._core[place] = Core(
                self.hosts[place].address, len(mine), planned_trees, port=self.ports[place],
                credits=self.credits[place],
            )

    def udp_port(self, rank: int) -> int:
        return self.ports[rank]

    def drain(self, rank: int, source: str) -> None:
        """The frames that the host's kernel would make of a core's runs."""
        while out := self._core[rank].send(self.network.now):
            for ip_id, payload in enumerate(out.packets()):
                self.send(rank, ip_id, payload, out.source_port, out.destination, out.destination_port)

    def hear(self, rank: int, payload: bytes, origin: Origin, *, marked: bool) -> None:
        """Passes what arrived to a host's core."""
        self.reached.add(rank)
        self._core[rank].receive(payload, self.network.now, origin, marked=marked)


def reduce(
    fabric: P4Fabric, sources: Sequence[NDArray[Any]], number: int, *, op: Op = "sum", coding: Coding = PLAIN
) -> list[NDArray[Any]]:
    """Runs one allreduce on every host, each in its job."""
    outs = [np.empty_like(source) for source in sources]
    calls = [[Call(s, o, 1.0, number, op, coding)] for s, o in zip(sources, outs, strict=True)]
    for _ in run(fabric, calls):  # type: ignore[arg-type]  # has what run() uses
        pass
    return outs
