# SPDX-License-Identifier: Apache-2.0
"""Packets without lanes (docs/protocol.md), packet by packet: the compiled program with the controller's own entries,
and BMv2 beside it; what each link carries of each collective; and what nobody may send."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from netfold.controller.jobs import plans
from netfold.controller.switch import fold_tables, tables
from netfold.controller.switch.probe import PROBE, SlotState, answer, question
from netfold.fabric.folding import slots, trees
from netfold.fabric.generate import parse
from netfold.fabric.graph import CPU_PORT, End
from netfold.host.native.library import Origin
from netfold.wire import roce
from netfold.wire.plan import RankStream
from support.models.nic_packets import SEQUENCE, Packet, Rc, Reth
from support.models.slot_model import SECOND, TerribleNetwork
from support.p4.scene import FULL, TOTAL, Out, Scene, compare_with_bmv2, lanes
from support.p4.wires import Wires
from switch_support.checksum import checksum

ADDRESS = 7 << 32 | 0x4000
"""Of an operation's presence: its number and an offset."""
MISMATCHED = 8
HEADERS = roce.ETHERNET_BYTES + roce.IPV4_BYTES + roce.UDP_BYTES
PRESENCE = HEADERS + roce.PRESENCE_BYTES
"""Bytes of a frame of presence, and of one with lanes and no RETH."""
LANES = HEADERS + roce.data_packet_bytes(roce.Opcode.WRITE_MIDDLE)


def present(s: Scene, place: int, psn: int, *, content: bool = False, **fields: object) -> Out:
    """A rank is there and has no lanes."""
    fields = {"opcode": Rc.WRITE_ONLY, "reth": Reth(ADDRESS, 0, 0), "solicited": content, **fields}
    return s.send(place, psn, b"", **fields)


def contribute(s: Scene, place: int, psn: int, *, content: bool = False, **fields: object) -> Out:
    """A rank has lanes, which hold its place."""
    return s.send(place, psn, opcode=Rc.WRITE_MIDDLE, solicited=content, **fields)


def result(s: Scene, psn: int, payload: bytes = TOTAL, **fields: object) -> Out:
    """The parent's result, with or without lanes."""
    opcode, reth = (Rc.WRITE_MIDDLE, None) if payload else (Rc.WRITE_ONLY, Reth(0, 0, 0))
    return s.parent(psn, payload, opcode=opcode, reth=reth, **fields)


def shown(out: Out) -> list[tuple[int, int, bytes, Reth | None, bool]]:
    """The relevant fields of the packets that left, by port."""
    return [(to, packet.opcode, packet.payload, packet.reth, packet.solicited) for to, packet in out]


def acknowledgement(s: Scene, place: int, address: int = 0) -> tuple[int, int, bytes, Reth, bool]:
    """Presence, to a rank."""
    return s.ports[place], Rc.WRITE_ONLY, b"", Reth(address, 0, 0), False


def sums(s: Scene, place: int, payload: bytes = TOTAL) -> tuple[int, int, bytes, None, bool]:
    """The lanes, to a rank."""
    return s.ports[place], Rc.WRITE_MIDDLE, payload, None, False


def udp_sum(frame: bytes) -> int:
    """0 where a frame's UDP checksum is right."""
    ip = roce.ETHERNET_BYTES
    datagram = frame[ip + roce.IPV4_BYTES :]
    return checksum(frame[ip + 12 : ip + 20] + bytes([0, 17]) + len(datagram).to_bytes(2, "big") + datagram)


def upwards(s: Scene, payload: bytes, *, content: bool, address: int | None = None) -> list[object]:
    """The one packet that goes up, as it is shown."""
    reth = None if address is None else Reth(address, 0, 0)
    return [(s.fold.parent_port, Rc.WRITE_MIDDLE if payload else Rc.WRITE_ONLY, payload, reth, content)]


# ---- rules: each takes PSNs of its own, and leaves nothing open ---------------------------------------------------


def a_barrier_is_presence_alone(s: Scene) -> None:
    """Nobody has lanes: presence goes up, presence comes down, in 74 bytes, with every header of a result."""
    barrier(s, s.take())


def barrier(s: Scene, psn: int) -> None:
    """All are present."""
    assert present(s, 0, psn) == present(s, 1, psn, content=True) == []
    out = present(s, 2, psn, ack_req=True)
    if not s.root:
        assert out == s.up(psn, opcode=Rc.WRITE_ONLY, reth=Reth(ADDRESS, 0, 0), ack_req=True)
        out = result(s, psn, b"")
    assert [len(frame) for _, frame in s.sent[-1]] == [PRESENCE] * 3
    if s.grows:  # right UDP checksums let runs travel as super-packets
        assert {udp_sum(frame) for _, frame in s.sent[-1]} == {0}
    before = s.hosts[1]
    there = next(packet for to, packet in out if to == s.ports[2])
    assert there == Packet(before.address, s.hosts[2].address, Rc.WRITE_ONLY, s.stream.connections[2] << 3, psn,
                           reth=there.reth, pkey=roce.PKEY_WINDOWED, ttl=255, ip_id=psn & 0xFFFF, ack_req=True,
                           source_port=s.stream.source_ports[1])
    assert {packet.reth for _, packet in out} == {Reth(ADDRESS if s.root else 0, 0, 0)}
    assert present(s, 0, psn) == [(to, dataclasses.replace(packet, reth=Reth(ADDRESS, 0, 0)))
                                  for to, packet in out if to == s.ports[0]]


def content_goes_up_if_all_are(s: Scene) -> None:
    """With lanes or without; a repeat that a child makes says nothing new."""
    for all_content in (True, False):
        for lanes_too in (True, False):
            psn = s.take()
            send = contribute if lanes_too else present
            for place in range(3):
                out = send(s, place, psn, content=all_content or place != 1)
            if s.root:
                continue
            expected = upwards(s, TOTAL if lanes_too else b"", content=all_content,
                               address=None if lanes_too else ADDRESS)
            assert shown(out) == expected
            assert shown(send(s, 1, psn, content=not all_content)) == expected
            out = result(s, psn, TOTAL if lanes_too and not all_content else b"")
            wanting = [place for place in range(3) if lanes_too and not all_content and place == 1]
            assert shown(out) == sorted(sums(s, p) if p in wanting else acknowledgement(s, p) for p in range(3))


def lanes_reach_who_wants_them(s: Scene) -> None:
    """A full packet, and ones with a tail: who is content gets presence, when the result comes, when it repeats its
    contribution and when it asks; the others get the lanes, whatever it was that completed the slot."""
    for size in (FULL, 100, 4):
        for wanting in ({0}, {2}, {0, 1}):
            psn = s.take()
            mine = [lanes(1 << 8 * place, size) for place in range(3)]
            total = lanes(0x010101, size)
            for place in range(3):
                out = contribute(s, place, psn, payload=mine[place], content=place not in wanting)
            if not s.root:
                assert shown(out) == upwards(s, total, content=False)
                out = result(s, psn, total)
            expected = {p: sums(s, p, total) if p in wanting else acknowledgement(s, p) for p in range(3)}
            assert shown(out) == sorted(expected.values())
            for place in range(3):
                repeated = contribute(s, place, psn, payload=mine[place], content=place in wanting)
                assert shown(repeated) == [expected[place]]
                asked = s.ask(place, psn)
                assert shown(asked) == [expected[place]] if s.grows else asked[0][1].syndrome == SEQUENCE


def what_says_it_has_none_has_none(s: Scene) -> None:
    """A child that was present and has lanes later is not heard: they are in no sum."""
    psn = s.take()
    present(s, 0, psn)
    before = s.outcomes()[MISMATCHED]
    assert contribute(s, 0, psn) == []
    assert s.outcomes()[MISMATCHED] == before + 1
    for place in (1, 2):
        out = present(s, place, psn)
    if not s.root:
        out = result(s, psn, b"")
    assert [packet.payload for _, packet in out] == [b""] * 3


def what_is_malformed_does_not_fold(s: Scene) -> None:
    """A RETH with a length and no payload, one byte too many or too few, a wrong ICRC, another port: none of it counts.
    What is well-formed afterwards does."""
    psn = s.take()
    at = s.outcomes()
    for place, fields in ((0, {"reth": Reth(ADDRESS, 0, 4)}), (1, {"reth": Reth(ADDRESS, 0, 1 << 31)})):
        routed = present(s, place, psn, **fields)
        assert [packet.ttl for _, packet in routed] == [63]  # to the next rank, who takes nothing of that TTL
    for change in (b"\0", b"\0\0\0"):
        packet = s.contribution(0, psn, change, opcode=Rc.WRITE_ONLY, reth=Reth(ADDRESS, 0, 0))
        assert [left.ttl for _, left in s.inject(s.ports[0], packet.frame())] == [63]
    frame = bytearray(s.contribution(0, psn, b"", opcode=Rc.WRITE_ONLY, reth=Reth(ADDRESS, 0, 0)).frame())
    assert s.inject(s.ports[1], bytes(frame)) == []  # from another one's port
    frame[-1] ^= 1
    assert s.inject(s.ports[0], bytes(frame)) == []
    assert s.outcomes() == at
    barrier(s, psn)


def presence_from_above_is_no_result(s: Scene) -> None:
    """To a leaf with lanes of which a child wants the sum; the result itself is one.  A leaf without lanes takes
    both."""
    psn = s.take(3)
    for place in range(3):
        contribute(s, place, psn, content=place > 0)
    before = s.outcomes()[MISMATCHED]
    assert result(s, psn, b"") == []
    assert s.outcomes()[MISMATCHED] == before + 1
    assert shown(result(s, psn)) == sorted([sums(s, 0), acknowledgement(s, 1), acknowledgement(s, 2)])
    for step, payload in ((1, b""), (2, TOTAL)):
        for place in range(3):
            present(s, place, psn + step, content=place > 0)
        out = result(s, psn + step, payload)
        first = sums(s, 0) if payload else acknowledgement(s, 0)
        assert shown(out) == sorted([first, acknowledgement(s, 1), acknowledgement(s, 2)])
        if s.grows:
            assert shown(s.ask(0, psn + step))[0][:3] == first[:3]
            assert shown(present(s, 0, psn + step))[0][:3] == first[:3]


def a_slot_says_what_it_holds(s: Scene) -> None:
    """The controller's probe: whether lanes have come, and whether the acknowledgement is enough for anybody."""
    psn = s.take()
    index = s.stream.bases[s.here.name] + (psn & s.stream.slots - 1)

    def state() -> SlotState:
        s.engine.packet_out((CPU_PORT << 7 | PROBE).to_bytes(2, "big") + question(index, s.children))
        assert s.engine.take() == []
        return answer(s.engine.events.pop().data[2:], s.children)[1]

    present(s, 0, psn)
    assert (state().bitmap.bit_count(), state().presence, state().content) == (1, True, False)
    present(s, 1, psn, content=True)
    assert (state().bitmap.bit_count(), state().presence, state().content) == (2, True, True)
    present(s, 2, psn)
    if not s.root:
        result(s, psn, b"")
    assert state().done
    assert state().presence


ANYWHERE: list[Callable[[Scene], None]] = [
    a_barrier_is_presence_alone,
    content_goes_up_if_all_are,
    lanes_reach_who_wants_them,
    what_says_it_has_none_has_none,
    what_is_malformed_does_not_fold,
]


def lanes_and_presence_meet(s: Scene) -> None:
    """In any order: the first lanes are stored, over whatever the slot had before, and who completes it without lanes
    carries them on, with headers of the contribution that had some."""
    for size in (FULL, 260, 8):
        for owner in range(3):
            for order in ((0, 1, 2), (2, 0, 1), (1, 2, 0)):
                psn = s.take()
                payload = lanes(0xABCD + owner, size)
                for place in order:
                    if place == owner:
                        out = contribute(s, place, psn, payload=payload, content=True)
                    else:
                        out = present(s, place, psn)
                if not s.root:
                    assert shown(out) == upwards(s, payload, content=False)
                    assert shown(present(s, order[2], psn) if order[2] != owner else out) == shown(out)
                    assert shown(s.parent(psn, b"", opcode=roce.Opcode.ACKNOWLEDGE, syndrome=SEQUENCE,
                                          msn=psn + 1 & roce.PSN_MASK)) == shown(out)
                    out = result(s, psn, payload)
                expected = {p: acknowledgement(s, p) if p == owner else sums(s, p, payload) for p in range(3)}
                assert shown(out) == sorted(expected.values())
                for place in range(3):
                    assert shown(s.ask(place, psn)) == [expected[place]]


def a_slots_packets_keep_their_reth(s: Scene) -> None:
    """Contributions with a RETH: what presence completes has theirs, and so has presence in the place of lanes."""
    psn = s.take()
    reth = Reth(9 << 32 | 64, 0, FULL)
    present(s, 0, psn)
    s.send(1, psn, opcode=Rc.WRITE_FIRST, reth=reth, solicited=True)
    out = present(s, 2, psn)
    if not s.root:
        assert shown(out)[0][1:4] == (Rc.WRITE_FIRST, lanes(0x100), reth)
        out = s.parent(psn, lanes(0x100), opcode=Rc.WRITE_FIRST, reth=reth)
    assert {to: packet.reth for to, packet in out} == {
        s.ports[0]: reth, s.ports[1]: Reth(reth.address, 0, 0), s.ports[2]: reth}


def no_lanes_and_some_do_not_meet(s: Scene) -> None:
    """Where no packet can grow (BMv2): whichever comes first, the other is dropped and counted."""
    for first, second in ((present, contribute), (contribute, present)):
        psn = s.take()
        first(s, 0, psn)
        before = s.outcomes()[MISMATCHED]
        assert second(s, 1, psn) == []
        assert s.outcomes()[MISMATCHED] == before + 1
        for place in (1, 2):
            out = first(s, place, psn)
        if not s.root:
            out = result(s, psn, TOTAL if first is contribute else b"")
        assert len(out) == 3


@pytest.fixture
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Parameters: True if the switch is the tree's root; True if packets may grow; bits of the program's bitmaps."""
    root, grows, children = request.param
    made = Scene(root=root, nics=False, grows=grows, children=children)
    yield made
    made.close()


@pytest.mark.parametrize("scene", [(True, True, 64), (False, True, 64), (False, True, 256)],
                         ids=["root", "leaf", "leaf of many"], indirect=True)
@pytest.mark.parametrize(
    "rule", [*ANYWHERE, lanes_and_presence_meet, a_slots_packets_keep_their_reth, a_slot_says_what_it_holds],
    ids=lambda rule: rule.__name__)
def test_a_switch_keeps_its_rules_without_lanes(scene: Scene, rule: Callable[[Scene], None]) -> None:
    """The rule's docstring says which."""
    rule(scene)


@pytest.mark.parametrize("scene", [(False, True, 64)], ids=["leaf"], indirect=True)
def test_a_leaf_takes_presence_only_where_nobody_wants_lanes(scene: Scene) -> None:
    """Whatever its parent says, no child gets a partial sum for the result."""
    presence_from_above_is_no_result(scene)


@pytest.mark.parametrize("scene", [(True, False, 64), (False, False, 64), (False, False, 256)],
                         ids=["root", "leaf", "leaf of many"], indirect=True)
@pytest.mark.slow
def test_where_no_packet_can_grow_some_lanes_and_none_do_not_meet(scene: Scene) -> None:
    """The program as it is compiled for BMv2."""
    for rule in [*ANYWHERE, no_lanes_and_some_do_not_meet]:
        rule(scene)


@pytest.mark.needs("bmv2")
@pytest.mark.parametrize("scene", [(True, False, 64), (False, False, 64), (False, False, 256)],
                         ids=["root", "leaf", "leaf of many"], indirect=True)
def test_bmv2_keeps_the_same_rules_without_lanes(scene: Scene, tmp_path: Path) -> None:
    """All rules one after another on one switch; the same frames leave BMv2's ports."""
    below = [] if scene.root else [presence_from_above_is_no_result]
    for rule in [*ANYWHERE, *below, no_lanes_and_some_do_not_meet]:
        rule(scene)
    compare_with_bmv2(scene, tmp_path)


def test_a_nic_contributes_lanes_always() -> None:
    """A write of no bytes of a NIC is not folded, moves its flow nowhere, and does not leave: what it sends afterwards
    counts, and what it says of solicited events does not."""
    s = Scene(root=True)
    psn = s.take(2)
    unfolded = s.engine.counter(tables.UNFOLDED)
    before = s.engine.read_counter(unfolded)[s.ports[0]].packets
    at = s.outcomes()
    assert present(s, 0, psn) == []
    assert present(s, 0, psn, pkey=roce.PKEY_WINDOWED) == []
    assert s.outcomes() == at
    assert s.engine.read_counter(unfolded)[s.ports[0]].packets == before + 2
    for step in range(2):
        for place in range(3):
            out = s.send(place, psn + step, solicited=True)
        content = {to for to, packet in out if not packet.payload}
        assert content == {s.ports[2]}
    s.close()


# ---- what links carry ---------------------------------------------------------------------------------------------


class Links(Wires):
    """Two leaves with two hosts each below a spine; nothing is lost, and ranks only listen."""

    def __init__(self) -> None:
        super().__init__(parse("leafspine,2,1,4", path_mtu=roce.PATH_MTU), TerribleNetwork(random.Random(1)))
        allocator = slots.Allocator([s.name for s in self.fabric.switches], slots.Sizes(16, 1), random.Random(5))
        planned = trees.plan(self.fabric.graph(), [host.name for host in self.hosts])[:1]
        stream = allocator.admit(planned, [range(len(self.hosts))])[0]
        self.streams: list[RankStream] = [
            plans.rank_trees(self.fabric, [(stream, rank)] * 2, self.hosts)[0].data for rank in range(len(self.hosts))]
        self.write(tables.merge([tables.clone_sessions(self.fabric),
                                 fold_tables.fold_entries(self.fabric, self.hosts, stream)]))
        self.carried: Counter[End] = Counter()
        """Bytes of frames that left each end of a link."""
        self.heard: list[dict[int, bytes]] = [{} for _ in self.hosts]
        """For each rank: PSN -> payload."""

    def transmit(self, end: End, data: bytes) -> None:
        """Counts what leaves."""
        self.carried[end] += len(data)
        super().transmit(end, data)

    def hear(self, rank: int, payload: bytes, origin: Origin, *, marked: bool) -> None:
        """Keeps what a rank gets."""
        psn = int.from_bytes(payload[9:12], "big")
        begin = roce.BTH_BYTES + (roce.RETH_BYTES if roce.Opcode(payload[0]).has_reth else 0)
        self.heard[rank][psn] = payload[begin : -roce.ICRC_BYTES]

    def contribute(self, rank: int, psn: int, *, has: bool, wants: bool) -> None:
        """A rank's contribution, with lanes or without."""
        stream, address = self.streams[rank], self.hosts[rank].address
        opcode, rest = roce.Opcode.WRITE_ONLY, roce.RETH.pack(ADDRESS, 0, 0)
        if has:
            opcode, rest = roce.Opcode.WRITE_MIDDLE, lanes(1 << 8 * rank)
        packet = Packet(address, stream.peer, opcode, stream.peer_qp, psn, rest, pkey=roce.PKEY_WINDOWED,
                        solicited=not wants, source_port=stream.source_port)
        self.transmit(End(self.hosts[rank].name, 0), packet.frame())


def everybody(_rank: int, _owner: int) -> bool:
    return True


def nobody(_rank: int, _owner: int) -> bool:
    return False


def owner_alone(rank: int, owner: int) -> bool:
    return rank == owner


def all_but_the_owner(rank: int, owner: int) -> bool:
    return rank != owner


@pytest.mark.parametrize(
    ("has", "wants", "up", "down"),
    [
        pytest.param(everybody, everybody, 4, 4, id="allreduce"),
        pytest.param(everybody, owner_alone, 4, 1, id="reduce-scatter"),
        pytest.param(all_but_the_owner, owner_alone, 3, 1, id="reduce-scatter, own rows kept"),
        pytest.param(owner_alone, all_but_the_owner, 1, 3, id="all-gather"),
        pytest.param(nobody, nobody, 0, 0, id="barrier"),
    ],
)
def test_links_carry_what_theory_says(
    has: Callable[[int, int], bool], wants: Callable[[int, int], bool], up: int, down: int
) -> None:
    """Four pieces, one owned by each of four ranks: on each host's link, in each direction, as many packets with lanes
    as the collective needs, and presence for the others; between switches a packet with lanes where any host below has
    or wants some.  The sums are exact."""
    links = Links()
    ranks = range(4)
    for psn in ranks:
        for rank in ranks:
            links.contribute(rank, psn, has=has(rank, psn), wants=wants(rank, psn))
    links.network.step(SECOND)
    for rank, host in enumerate(links.hosts):
        ((_, leaf),) = [(end, far) for end, far in links.ends.items() if end.node == host.name]
        assert links.carried[End(host.name, 0)] == up * LANES + (4 - up) * PRESENCE
        assert links.carried[leaf] == down * LANES + (4 - down) * PRESENCE
        for psn in ranks:
            total = sum(1 << 8 * other for other in ranks if has(other, psn))
            assert links.heard[rank][psn] == (lanes(total) if wants(rank, psn) else b"")
    hosts_of = {leaf: [rank for rank, host in enumerate(links.hosts) if links.fabric.leaf_of()[host.name] == leaf]
                for leaf in set(links.fabric.leaf_of().values())}
    spines = [switch.name for switch in links.fabric.switches if switch.name not in hosts_of]
    between = [(end, far) for end, far in links.ends.items() if end.node in hosts_of and far.node in spines]
    assert len(between) == 2
    for end, far in between:
        below = hosts_of[end.node]
        risen = sum(any(has(rank, psn) for rank in below) for psn in ranks)
        fallen = sum(any(wants(rank, psn) for rank in below) and any(has(rank, psn) for rank in ranks) for psn in ranks)
        assert links.carried[end] == risen * LANES + (4 - risen) * PRESENCE
        assert links.carried[far] == fallen * LANES + (4 - fallen) * PRESENCE
    links.close()
