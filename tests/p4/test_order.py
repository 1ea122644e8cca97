# SPDX-License-Identifier: Apache-2.0
"""p4src/order.p4 and flow.p4 on a leaf of two ranks below a spine: what packets say of the one that left before them,
and what a switch takes for lost."""

from __future__ import annotations

import random
from collections.abc import Iterator

import numpy as np
import pytest

from netfold.controller.jobs import plans
from netfold.controller.switch import fold_tables, tables
from netfold.controller.switch.entities import Entry
from netfold.fabric.folding import slots, trees
from netfold.fabric.generate import parse
from netfold.host.innet.slot_switch import Nak, Packet
from netfold.host.innet.slot_switch import parse as packet_of
from netfold.wire import roce
from softswitch.engine import local
from support.models.nic_packets import icrc_holds
from support.p4.program import library
from support.p4.wires import as_sent, write

FIRST = roce.PSN_MASK - 1
"""PSN of the first packet: the others are around the wrap."""
ALWAYS = 0xFFFFFFFF
"""Limit of the draw by which each packet meets a fault."""


class Leaf:
    """A leaf, its two ranks at ports 1 and 2, and its spine at ``up``."""

    def __init__(self, engine: local.LocalEngine) -> None:
        fabric = parse("leafspine,2,1,4", path_mtu=roce.PATH_MTU)
        planned = trees.plan(fabric.graph(), [host.name for host in fabric.hosts])
        switches = [switch.name for switch in fabric.switches]
        allocator = slots.Allocator(switches, slots.Sizes(data=16, agreement=1), random.Random(5))
        stream = allocator.admit(planned[:1], [range(4)])[0]
        fold = next(fold for fold in stream.tree.folds if not fold.is_root)
        entries = tables.merge([tables.clone_sessions(fabric), fold_tables.fold_entries(fabric, fabric.hosts, stream)])
        self.engine, self.up = engine, fold.parent_port
        for entity in entries[fold.switch]:
            write(engine, entity)
        self.hosts = fabric.hosts
        self.ports = {child.rank: child.port for child in fold.children}
        self.streams = [plans.rank_trees(fabric, [(stream, rank)] * 2, fabric.hosts)[0].data for rank in range(4)]
        spine = fabric.switch(stream.tree.root)
        self.down = (spine, fabric.switch(fold.switch), stream.source_ports[0], stream.down[fold.switch])

    def contribute(self, rank: int, number: int, order: int = 0) -> dict[int, Packet | Nak]:
        """A rank's packet comes in.  Returns what leaves, by port."""
        stream, host = self.streams[rank], self.hosts[rank]
        payload = self.packet(number, order).build(stream.peer_qp)
        whole = as_sent(host.mac, host.address, 0, payload, stream.source_port, stream.peer)
        return self.inject(self.ports[rank], whole)

    def result(self, number: int, order: int = 0) -> dict[int, Packet | Nak]:
        """The spine's result comes in.  Returns what leaves, by port."""
        above, here, port, connection = self.down
        payload = self.packet(number, order).build(connection * roce.QUEUE_PAIRS)
        return self.inject(self.up, as_sent(above.mac, above.address, 0, payload, port, here.address))

    def packet(self, number: int, order: int) -> Packet:
        psn = (FIRST + number) & roce.PSN_MASK
        lanes = np.full(roce.LANES, number, np.uint32)
        return Packet(roce.LaneOperation.SUM32, roce.Opcode.WRITE_MIDDLE, 0, psn, b"", lanes, order=order)

    def inject(self, port: int, whole: bytes) -> dict[int, Packet | Nak]:
        out = self.engine.inject(port, whole[:-4] + roce.icrc(whole[14:-4]))
        assert all(icrc_holds(frame) for _, frame in out), "ICRC"
        assert len({to for to, _ in out}) == len(out), "two packets to one neighbour"
        return {to: packet_of(frame[42:]) for to, frame in out}


def lost(first: int, end: int) -> Nak:
    """The NAK for packets from number ``first`` to before ``end``."""
    return Nak((FIRST + first) & roce.PSN_MASK, (FIRST + end) & roce.PSN_MASK)


@pytest.fixture
def leaf() -> Iterator[Leaf]:
    engine = local.LocalEngine.open(library(), cpu_port=510)
    yield Leaf(engine)
    engine.close()


@pytest.fixture
def faulty() -> Iterator[Leaf]:
    """One to which faults can be done (fault.p4)."""
    engine = local.LocalEngine.open(library(faults=True), cpu_port=510)
    yield Leaf(engine)
    engine.close()


def test_what_was_lost_on_a_link_is_asked_for_with_the_next_packet(leaf: Leaf) -> None:
    """One packet or several, and a repeat that is lost as well: the packet behind it shows it."""
    assert leaf.contribute(0, 0) == {}
    assert leaf.contribute(0, 3) == {leaf.ports[0]: lost(1, 3)}
    assert leaf.contribute(0, 1, order=1 - 1 - 3) == {}
    # the repeat of 2 was lost: 4 left behind it
    assert leaf.contribute(0, 4, order=4 - 1 - 2) == {leaf.ports[0]: lost(2, 3)}


def test_what_comes_twice_or_out_of_turn_is_not_asked_for(leaf: Leaf) -> None:
    """A copy, and two packets that change places: what the second says of the first is here already."""
    leaf.contribute(0, 0)
    assert leaf.contribute(0, 1) == {}
    assert leaf.contribute(0, 1) == {}
    assert leaf.contribute(0, 3) == {leaf.ports[0]: lost(2, 3)}  # nobody can know that 2 is on its way
    assert leaf.contribute(0, 2) == {}
    assert leaf.contribute(0, 4) == {}


def test_a_sum_that_is_late_says_so_and_the_next_one_too(leaf: Leaf) -> None:
    """Rank 0's packet 1 was lost, so that the leaf's sum 2 leaves before its sum 1: both say so, and sum 3."""
    orders = {}
    for number in (0, 1, 2):
        leaf.contribute(1, number)
    arrivals = [(0, 0), (2, 0), (1, 1 - 1 - 2)]
    for number, order in arrivals:
        out = leaf.contribute(0, number, order)
        sent = out[leaf.up]
        assert isinstance(sent, Packet)
        orders[number] = sent.order
    leaf.contribute(1, 3)
    following = leaf.contribute(0, 3, order=3 - 1 - 1)[leaf.up]
    assert isinstance(following, Packet)
    orders[3] = following.order
    assert orders == {0: 0, 2: 2 - 1 - 0, 1: 1 - 1 - 2, 3: 3 - 1 - 1}


def test_a_result_that_its_parent_has_not_sent_yet_is_not_asked_for(leaf: Leaf) -> None:
    """The spine lacks another leaf's sum 1: its result 2 says that it left behind result 0.  Where the spine has sent
    result 1, and it was lost, it is asked for."""
    for number in range(4):
        for rank in (0, 1):
            leaf.contribute(rank, number)
    assert set(leaf.result(0)) == set(leaf.ports.values())
    results = leaf.result(2, order=2 - 1 - 0)
    assert leaf.up not in results
    assert {one.order for one in results.values() if isinstance(one, Packet)} == {1}
    # result 1 has left in the meantime, and was lost
    assert leaf.result(3, order=3 - 1 - 1)[leaf.up] == lost(1, 2)


@pytest.mark.parametrize(
    ("twice", "numbers", "told"), [(ALWAYS, (0, 3), (1, 3)), (0, (0, 1, 2), (-1, 0))], ids=["repeated", "held back"]
)
def test_a_gap_that_a_copy_shows_is_told_of_once(
    faulty: Leaf, twice: int, numbers: tuple[int, ...], told: tuple[int, int]
) -> None:
    """A fault repeats the packets of a rank, or holds them back for two others.  The copy goes round and shows what is
    missing before it; what is cloned to ask for that goes round no more: a switch whose clone did so filled the rank's
    link without end."""
    port = faulty.ports[0]
    fates = Entry("SwitchIngress.fault_in.fault", (("port", port),), "SwitchIngress.fault_in.faulty",
                  (("seed", 1), ("lose", 0), ("flip", 0), ("twice", twice), ("late", ALWAYS), ("by", 2)))
    write(faulty.engine, fates)
    *_, out = [faulty.contribute(0, number) for number in numbers]
    assert out == {port: lost(*told)}
    assert faulty.engine.stats().dropped_passes == 0


def test_an_order_too_far_to_be_said_says_nothing(leaf: Leaf) -> None:
    """A packet that left long after its neighbours is taken as it is."""
    leaf.contribute(0, 0)
    assert leaf.contribute(0, 5000, order=roce.ORDER_UNSAID) == {}
    leaf.contribute(1, 0)
    leaf.contribute(0, 0, order=roce.ORDER_UNSAID)
    sent = leaf.contribute(1, 5000, order=roce.ORDER_UNSAID)[leaf.up]
    assert isinstance(sent, Packet)
    assert sent.order == roce.ORDER_UNSAID
