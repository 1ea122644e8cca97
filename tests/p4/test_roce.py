# SPDX-License-Identifier: Apache-2.0
"""The switches need not know: a ring allreduce over queue pairs through the compiled P4 program."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from netfold.controller.paths.steering import Steering
from netfold.controller.switch import fold_tables, tables
from netfold.fabric.folding import slots, trees
from netfold.fabric.generate import leafspine
from netfold.host.native.library import Origin
from netfold.host.roce.endpoint import Connection, Endpoint
from netfold.host.roce.native import ARRIVED, BROKEN, SENT
from netfold.host.roce.queue_pairs import CONNECTION_BIT
from netfold.wire import roce
from support.models.slot_model import MICROSECOND, SECOND, TerribleNetwork
from support.p4.wires import Wires
from support.sandboxes.tshark import dissect
from switch_support.checksum import checksum

PORT = 50_000
Lanes = NDArray[np.int32]


class Ring:
    """A ring allreduce of one rank on writes alone: reduce-scatter through staging memory, then all-gather in place.

    Regions: 0 .. n-2 stage the steps of the reduce-scatter, n-1 is the data.
    """

    def __init__(self, endpoint: Endpoint, rank: int, world: int, data: Lanes) -> None:
        self.endpoint, self.rank, self.world, self.data = endpoint, rank, world, data
        self.chunk = data.size // world
        self.staging = [np.zeros(self.chunk, np.int32) for _ in range(world - 1)]
        for array in [*self.staging, data]:
            endpoint.register(array.ctypes.data, array.nbytes)
        self.sums, self.unsent = 0, 0
        self._write(rank, key=0, offset=0)

    def _piece(self, chunk: int) -> slice:
        return slice(chunk * self.chunk, (chunk + 1) * self.chunk)

    def _write(self, chunk: int, *, key: int, offset: int) -> None:
        piece = self.data[self._piece(chunk)]
        assert self.endpoint.write(0, piece.ctypes.data, piece.nbytes, key=key, offset=offset, id=chunk)
        self.unsent += 1

    def _pass_on(self, chunk: int, owner: int) -> None:
        self.sums += 1
        if (self.rank + 1) % self.world != owner:
            self._write(chunk, key=self.world - 1, offset=chunk * self.chunk * 4)

    def step(self) -> None:
        """Does what the events ask for."""
        for event in self.endpoint.events():
            assert event.what != BROKEN
            if event.what == SENT:
                self.unsent -= 1
            elif event.what == ARRIVED and event.key < self.world - 1:
                chunk = (self.rank - 1 - event.key) % self.world
                self.data[self._piece(chunk)] += self.staging[event.key]
                if event.key < self.world - 2:
                    self._write(chunk, key=event.key + 1, offset=0)
                else:
                    self._pass_on(chunk, self.rank)
            elif event.what == ARRIVED:
                chunk = event.offset // 4 // self.chunk
                self._pass_on(chunk, (chunk - 1) % self.world)

    @property
    def done(self) -> bool:
        """All sums are here, and all that this rank sent is acknowledged."""
        return self.sums == self.world and not self.unsent


class RoutedFabric(Wires):
    """Leaf-spine switches that route, and fold for a job of all hosts if asked to; endpoints at their ports in a ring.

    of_tree  the ring's connections are those of the job's first tree: what folds with its entries
    """

    def __init__(
        self, leaves: int, spines: int, hosts: int, network: TerribleNetwork, *, folding: bool, of_tree: bool = False
    ) -> None:
        super().__init__(leafspine(leaves, spines, hosts, path_mtu=roce.PATH_MTU), network)
        graph = self.fabric.graph()
        planned = trees.plan(graph, [host.name for host in self.hosts])
        allocator = slots.Allocator(self.engines, slots.Sizes(data=64, agreement=16), random.Random(5))
        streams = allocator.admit(planned, [range(hosts)])
        folds = [fold_tables.fold_entries(self.fabric, self.hosts, stream) for stream in streams] if folding else []
        guards = tables.guard_entries(self.fabric)
        self.write(tables.merge([guards, Steering(self.fabric).base(graph), *folds]))
        # queue pair 0 to the right neighbour, 1 from the left one; first PSNs shortly before the wrap
        to_right = [CONNECTION_BIT | rank << 4 for rank in range(hosts)]
        from_left, psn = [qp | 1 for qp in to_right], 0xFFFFF0
        source_ports = (PORT,) * hosts
        if of_tree:
            from_left, psn = [number << roce.OPERATION_BITS for number in streams[0].connections], streams[0].psn
            source_ports = streams[0].source_ports
        self.endpoints = [Endpoint(host.address, window=128) for host in self.hosts]
        for rank, endpoint in enumerate(self.endpoints):
            right, left = (rank + 1) % hosts, (rank - 1) % hosts
            endpoint.connect(Connection(
                self.hosts[right].address, from_left[right], to_right[rank], source_ports[rank], psn, 5))
            endpoint.connect(Connection(self.hosts[left].address, to_right[left], from_left[rank], PORT, 5, psn))

    def hear(self, rank: int, payload: bytes, origin: Origin, *, marked: bool) -> None:
        """Hand a UDP payload that reached a host to that host's endpoint."""
        self.endpoints[rank].receive(payload, self.network.now, origin, marked=marked)

    def drain(self, rank: int) -> None:
        """Frames as the host's kernel makes them of an endpoint's runs."""
        endpoint = self.endpoints[rank]
        endpoint.tick(self.network.now)
        while run := endpoint.send(self.network.now):
            for ip_id, payload in enumerate(run.packets()):
                self.send(rank, ip_id, payload, run.source_port, run.destination)

    def allreduce(self, arrays: list[Lanes]) -> None:
        """Sum the ranks' arrays in place, all ranks at once, in simulated time."""
        world = len(self.hosts)
        rings = [Ring(self.endpoints[rank], rank, world, arrays[rank]) for rank in range(world)]
        while True:
            for rank, ring in enumerate(rings):
                ring.step()
                self.drain(rank)
            if all(ring.done for ring in rings):
                return
            then = min([self.network.next_time(), *(endpoint.deadline() for endpoint in self.endpoints)])
            assert then < 60 * SECOND, f"stuck: {[(ring.sums, ring.unsent) for ring in rings]}"
            self.network.step(max(then, self.network.now))


@pytest.fixture
def fabric(request: pytest.FixtureRequest) -> Iterator[RoutedFabric]:
    """Parameters: leaves, spines, hosts, loss, folding entries of some other job."""
    leaves, spines, hosts, loss, folding = request.param
    network = TerribleNetwork(random.Random(17), loss=loss, packet_time=2 * MICROSECOND)
    made = RoutedFabric(leaves, spines, hosts, network, folding=folding)
    yield made
    made.close()


FABRICS = [(1, 0, 3, 0.0, False), (2, 2, 4, 0.0, False), (2, 2, 4, 0.02, False), (2, 2, 4, 0.02, True)]


@pytest.mark.parametrize("fabric", FABRICS, indirect=True, ids=str)
def test_a_ring_allreduce_needs_nothing_of_the_switches_but_routes(fabric: RoutedFabric) -> None:
    """Exact sums on every rank over plain IPv4 routing, with loss, and beside another job's folding entries."""
    world = len(fabric.hosts)
    rng = np.random.default_rng(3)
    arrays = [rng.integers(-(2**28), 2**28, world * 5_003).astype(np.int32) for _ in range(world)]
    expected = np.sum(arrays, axis=0, dtype=np.int32)
    fabric.allreduce(arrays)
    for array in arrays:
        assert (array == expected).all()
    if fabric.network.loss:
        assert fabric.network.lost > 0


@pytest.mark.parametrize("folding", [False, True])
@pytest.mark.parametrize("loss", [0.0, 0.02])
def test_the_numbers_of_a_tree_fold_under_its_partition_key_alone(loss: float, folding: bool) -> None:
    """Addresses, source ports, queue pairs and first PSNs are those of contributions to a tree, but the partition key
    is a NIC's: with and without the tree's entries the connections carry a ring allreduce."""
    arrays = [np.arange(4 * 256 * 20, dtype=np.int32) * (rank + 1) for rank in range(4)]
    expected = np.sum(arrays, axis=0, dtype=np.int32)
    network = TerribleNetwork(random.Random(18), loss=loss, packet_time=2 * MICROSECOND)
    fabric = RoutedFabric(2, 2, 4, network, folding=folding, of_tree=True)
    try:
        fabric.allreduce(arrays)
        assert all((array == expected).all() for array in arrays)
    finally:
        fabric.close()


@pytest.mark.parametrize("fabric", [(2, 2, 4, 0.02, False)], indirect=True)
def test_every_link_carries_valid_roce_end_to_end(fabric: RoutedFabric) -> None:
    """ICRC and IPv4 checksum hold on every hop; addresses, queue pairs and PSNs are the sender's everywhere."""
    arrays = [np.full(4 * 3_000, rank, np.int32) for rank in range(4)]
    fabric.allreduce(arrays)
    opcodes = set()
    for _node, frame in fabric.seen:
        ip = frame[14:]
        assert checksum(ip[:20]) == 0
        assert roce.icrc(ip[:-4]) == ip[-4:]
        opcodes.add(ip[28])
    assert opcodes == {roce.Opcode.WRITE_FIRST, roce.Opcode.WRITE_MIDDLE, roce.Opcode.WRITE_LAST, 0x11}


@pytest.mark.needs("tshark")
@pytest.mark.parametrize("fabric", [(2, 1, 4, 0.05, False)], indirect=True)
def test_tshark_dissects_every_frame(fabric: RoutedFabric, tmp_path: Path) -> None:
    """Wireshark's own dissector: InfiniBand headers in every frame, nothing malformed, ACKs and NAKs with AETH."""
    fabric.allreduce([np.full(4 * 3_000, rank, np.int32) for rank in range(4)])
    fields = ["infiniband.bth.opcode", "infiniband.reth.dmalen", "infiniband.aeth.syndrome.opcode"]
    rows = dissect([frame for _, frame in fabric.seen], fields, tmp_path)
    for opcode, length, syndrome in rows:
        assert bool(length) == (int(opcode) == roce.Opcode.WRITE_FIRST)
        assert bool(syndrome) == (int(opcode) == roce.Opcode.ACKNOWLEDGE)
    assert {row[2] for row in rows} == {"", "0", "3"}
