# SPDX-License-Identifier: Apache-2.0
"""Fails closed, read as an attacker would: frames of a run come again from hosts that have no business with them, as
they were and with their fields changed, on fabrics of NICs and windowed ranks, also while a switch has lost all it had.

What reaches a rank is judged at once: a NIC takes sums alone, a windowed rank what has the TTL of switches alone, and
on the links to hosts no frame to a fold address has lanes that are no sum.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import pytest

from netfold.controller.switch import tables
from netfold.fabric.folding.slots import Stream
from netfold.fabric.graph import End
from netfold.wire import roce
from support.models.nic import QueuePair
from support.models.nic_packets import ACK, ACKNOWLEDGE, CNP, RNR, SEQUENCE, Packet, Rc, Reth, opcode_of
from support.models.slot_model import MICROSECOND, MILLISECOND, TerribleNetwork
from support.p4.modelled import ModelledFabric, WindowedRank
from support.p4.program import mac
from support.p4.rc_fabric import RcFabric, Sender

PACKETS = 24
"""Packets that each rank sends: slots are used again."""


class Attacked(ModelledFabric):
    """A job of NICs and windowed ranks, not compared with the model, whose end points judge what they get."""

    def __init__(self, shape: tuple[int, int, int], rc: Sequence[int], seed: int, loss: float = 0.01) -> None:
        network = TerribleNetwork(random.Random(seed), loss=loss, packet_time=2 * MICROSECOND)
        super().__init__(*shape, network, rc=rc, size=16)
        self.models.clear()
        self.taken = self.unfolded = 0
        self.payloads = [[network.rng.randbytes(1024) for _ in range(PACKETS)] for _ in range(shape[2])]
        self.give(self.payloads, 2)
        for rank, mine in self.ranks.items():
            mine.nic.watch = partial(self._judge, rank)
        whole = {rank: [b"".join(own[at : at + 2]) for at in range(0, PACKETS, 2)]
                 for rank, own in enumerate(self.payloads)}
        self.senders = [Sender(self, rank, whole[rank]) for rank in rc]
        for rank in self.windowed:
            self.windowed[rank].opcodes = [opcode_of("send", first=n % 2 == 0, last=n % 2 == 1, immediate=False)
                                           for n in range(PACKETS)]

    def _judge(self, rank: int, _pair: QueuePair, psn: int, _opcode: Rc, payload: bytes) -> None:
        number = psn - self.stream.psn & roce.PSN_MASK
        assert number < PACKETS, f"rank {rank} took PSN {psn}, which nobody sent"
        assert payload == self.sums[number], f"rank {rank} took packet {number}, which is no sum"
        self.taken += 1

    def deliver(self, end: End, data: bytes) -> None:
        if end.node in self.engines:
            super().deliver(end, data)
            return
        packet = Packet.parse(data)
        if packet is not None and packet.dst.startswith("198.1") and packet.opcode <= max(Rc):
            number = packet.psn - self.stream.psn & roce.PSN_MASK
            assert number < PACKETS, f"{end.node}: {packet}"
            assert packet.payload == self.sums[number], f"{end.node}: {packet} is no sum"
        rank = next(rank for rank, host in enumerate(self.hosts) if host.name == end.node)
        if rank in self.windowed:
            if packet is None or packet.ttl != roce.RESULT_TTL or packet.pkey != roce.PKEY_WINDOWED:
                self.unfolded += 1  # host/native/fold_receive.c drops these
            else:
                self._heard(self.windowed[rank], packet)
            return
        super().deliver(end, data)

    def _heard(self, rank: WindowedRank, packet: Packet) -> None:
        number = packet.psn - self.stream.psn & roce.PSN_MASK
        assert number < PACKETS or packet.syndrome is not None, f"rank {rank.rank} got PSN {packet.psn}"
        rank.hear(packet)

    def act(self) -> None:
        """All ranks send what they may, and windowed ones ask for what they lack."""
        for sender in self.senders:
            sender.step()
        for rank in self.windowed.values():
            rank.send()
            if self.network.rng.random() < 0.2:
                rank.ask()

    def let(self, span: int) -> None:
        """Time passes, and ranks act."""
        end = self.network.now + span
        while self.network.now < end:
            until = min(end, self.network.now + 100 * MICROSECOND)
            while (then := self.network.next_time()) <= until:
                self.network.step(then)
            self.network.step(until)
            self.act()

    @property
    def done(self) -> bool:
        """True if all ranks have all results."""
        return all(sender.done for sender in self.senders) and all(
            len(rank.has) == PACKETS for rank in self.windowed.values())


@contextmanager
def attacked(shape: tuple[int, int, int], rc: Sequence[int], seed: int) -> Iterator[Attacked]:
    """Such a fabric, closed at the end."""
    made = Attacked(shape, rc, seed)
    try:
        yield made
    finally:
        made.close()


def mutated(fabric: RcFabric, packet: Packet, rng: random.Random) -> Packet:
    """A packet with one to three of its fields changed, to values that others have or to any."""
    addresses = [host.address for host in fabric.hosts] + [fabric.fold_address_of(rank) for rank in fabric.rc_ranks]
    numbers = [n for mine in fabric.ranks.values() for n in (mine.out.number, mine.into.number)]
    numbers += [(connection << roce.OPERATION_BITS) + rng.randrange(8) for connection in fabric.stream.connections]
    changes: dict[str, Callable[[], object]] = {
        "src": lambda: rng.choice(addresses), "dst": lambda: rng.choice(addresses),
        "queue_pair": lambda: rng.choice([*numbers, rng.randrange(1 << 24)]),
        "opcode": lambda: rng.choice([*Rc, ACKNOWLEDGE, CNP, 0x64, 0xFF]),
        "psn": lambda: packet.psn + rng.randrange(-20, 20) & roce.PSN_MASK,
        "pkey": lambda: rng.choice([0xFFFF, 0x7FFF, roce.PKEY_WINDOWED, 0x0001]),
        "ttl": lambda: rng.choice([1, 2, 64, 254, 255]), "tos": lambda: rng.randrange(256),
        "source_port": lambda: rng.choice([0, rng.randrange(1 << 16), *fabric.stream.source_ports]),
        "payload": lambda: rng.choice([b"", bytes(1024), rng.randbytes(4 * rng.randrange(1, 256))]),
        "syndrome": lambda: rng.choice([None, ACK, SEQUENCE, RNR | 14]), "msn": lambda: rng.randrange(1 << 24),
        "reth": lambda: rng.choice([None, Reth(rng.randrange(1 << 48), 0x1A5, 0)]),
        "solicited": lambda: True, "ack_req": lambda: True, "becn": lambda: 0x40, "pad": lambda: rng.randrange(4),
        "immediate": lambda: rng.choice([None, 7]),
    }
    names = rng.sample(sorted(changes), rng.randrange(0, 4))
    return replace(packet, **{name: changes[name]() for name in names})  # type: ignore[arg-type]


def belongs(fabric: RcFabric, place: int, packet: Packet) -> bool:
    """True if a host may say such a thing: it carries the addresses of its own contributions, results or answers.  What
    a rank says of itself is its own affair."""
    own = {fabric.hosts[place].address} | ({fabric.fold_address_of(place)} if place in fabric.rc_ranks else set())
    return packet.src in own


def attack(fabric: Attacked, rng: random.Random, times: int) -> int:
    """Frames that were on links before come again from other hosts, changed; how many were sent."""
    seen = [one for one in (Packet.parse(frame) for _, frame in rng.sample(fabric.sent, min(len(fabric.sent), 400)))
            if one is not None]
    sent = 0
    for number in range(times):
        place = rng.randrange(len(fabric.hosts))
        packet = mutated(fabric, rng.choice(seen), rng)
        if belongs(fabric, place, packet):
            continue
        sent += 1
        frame = packet.frame(mac(fabric.hosts[place].mac))
        fabric.network.at(fabric.network.now + number * 2 * MICROSECOND,
                          partial(fabric.transmit, End(fabric.hosts[place].name, 0), frame))
    return sent


class Lied(Attacked):
    """A job in which rank 0 tells of queue pairs, a key and a region that are another rank's."""

    def __init__(self, shape: tuple[int, int, int], rc: Sequence[int], seed: int, lie: str) -> None:
        self.lie = lie
        super().__init__(shape, rc, seed, 0.0)

    def _connected(self, stream: Stream) -> Stream:
        honest = super()._connected(stream)
        if stream.kind != "data":
            return honest
        other = honest.rc[max(honest.rc)]
        return replace(honest, rc={**honest.rc, 0: replace(honest.rc[0], **{self.lie: getattr(other, self.lie)})})


@pytest.mark.parametrize("lie", ["out_qp", "in_qp", "address", "rkey"])
def test_a_rank_that_lies_of_its_queue_pairs_fools_nobody(lie: str) -> None:
    """What its NIC is said to have goes into packets to its own addresses alone: others take sums, or nothing."""
    fabric = Lied((2, 1, 5), (0, 3, 4), 5, lie)
    try:
        fabric.act()
        for _ in range(20):
            fabric.let(MILLISECOND)
        assert fabric.done == (lie != "in_qp")  # nothing is lost, so that nobody is answered; and SENDs need no key
    finally:
        fabric.close()


CASES = [((1, 0, 4), (0, 2)), ((2, 1, 4), (0, 1, 2, 3)), ((2, 1, 5), (0, 3))]


@pytest.mark.parametrize(("shape", "rc"), CASES, ids=str)
def test_what_others_say_in_a_ranks_name_is_nothing(shape: tuple[int, int, int], rc: Sequence[int]) -> None:
    """Frames of the job itself, changed or not, from hosts that they are not of, under loss: all sums come, and are
    exact."""
    rng = random.Random(f"{shape} {rc}")
    with attacked(shape, rc, 3) as fabric:
        fabric.act()
        fabric.let(300 * MICROSECOND)
        assert attack(fabric, rng, 1500) > 800
        for _ in range(100):
            fabric.let(5 * MILLISECOND)
            if fabric.done:
                break
        assert fabric.done, fabric.states()
        assert sum(cell.packets for leaf in ("leaf1", "leaf2") if leaf in fabric.engines
                   for cell in fabric.engines[leaf].read_counter(fabric.engines[leaf].counter(tables.SPOOFED))) > 400


@pytest.mark.parametrize("switch", ["leaf1", "leaf2", "spine1"])
@pytest.mark.parametrize("entries", ["none", "fixed", "half"])
def test_nor_is_it_while_a_switch_has_lost_everything(switch: str, entries: str) -> None:
    """A switch restarts in the middle; it has no entries, those that do not depend on jobs, or half of the job's as
    well, under its old epoch: while all go on sending, and others send in their names, nobody takes what is no sum."""
    rng = random.Random(f"{switch} {entries}")
    with attacked((2, 1, 5), (0, 3), 4) as fabric:
        fabric.act()
        fabric.let(300 * MICROSECOND)
        fabric.restart(switch)
        if entries != "none":
            fabric.route_again(switch)
        if entries == "half":
            fabric.write({switch: [one for one in fabric.entries()[switch] if rng.random() < 0.5]})
        sent = attack(fabric, rng, 800)
        fabric.let(10 * MILLISECOND)
        assert sent > 300
        if entries == "none" and switch.startswith("leaf"):
            assert not fabric.done
