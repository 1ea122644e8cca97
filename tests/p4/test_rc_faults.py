# SPDX-License-Identifier: Apache-2.0
"""Fails closed: what NICs on the compiled program take while entries are missing, switches restart, and others attack.

A NIC takes whatever comes from its peer's address with the next PSN.  So nothing may reach it but what a switch has
summed of all ranks: every payload that a NIC takes is compared with the sum at once.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from netfold.controller.switch import tables
from netfold.controller.switch.entities import Entry
from netfold.fabric.graph import End
from netfold.wire import roce
from support.models.nic_packets import ACK, ACKNOWLEDGE, RNR, SEQUENCE, Packet, Rc
from support.models.slot_model import MICROSECOND, MILLISECOND, SECOND, TerribleNetwork
from support.p4.program import mac
from support.p4.rc_fabric import Exact, RcFabric, Sender, allreduce, total

MISMATCHED = 8
"""The outcome of p4src/verdict.p4 that counts contributions with other headers than those before."""


@contextmanager
def fabric_of(leaves: int, spines: int, hosts: int, *, seed: int = 1, loss: float = 0.0, **options: Any
              ) -> Iterator[RcFabric]:
    """A fabric whose hosts' NICs all fold."""
    network = TerribleNetwork(random.Random(seed), loss=loss, packet_time=2 * MICROSECOND)
    made = RcFabric(leaves, spines, hosts, network, **options)
    try:
        yield made
    finally:
        made.close()


def sources(fabric: RcFabric, rng: random.Random, count: int = 4) -> dict[int, list[bytes]]:
    """Messages of each rank, some short."""
    longest = fabric.stream.slots // 4 * fabric.path_mtu
    sizes = [longest if n % 2 == 0 else rng.randrange(1, longest) for n in range(count)]
    return {rank: [rng.randbytes(size) for size in sizes] for rank in fabric.rc_ranks}


def started(fabric: RcFabric, messages: dict[int, list[bytes]]) -> tuple[Exact, list[Sender]]:
    """Every rank has posted what its credits let it; what is taken is compared with the sums."""
    exact = Exact(fabric, messages)
    senders = [Sender(fabric, rank, own) for rank, own in messages.items()]
    for sender in senders:
        sender.step()
    return exact, senders


def let(fabric: RcFabric, senders: list[Sender], until: int) -> None:
    """Time passes until then."""
    while (then := fabric.network.next_time()) <= until:
        fabric.network.step(then)
        for sender in senders:
            sender.step()
    fabric.network.step(until)


def counter(fabric: RcFabric, switch: str, name: str) -> int:
    """All cells of a counter together."""
    engine = fabric.engines[switch]
    return sum(one.packets for one in engine.read_counter(engine.counter(name)))


# ---- entries ---------------------------------------------------------------------------------------------------------


def halves(fabric: RcFabric, which: str) -> dict[str, list[Any]]:
    """Some of the job's entries."""
    rng = random.Random(which)
    made = {switch: list(entities) for switch, entities in fabric.entries().items()}
    keep: dict[str, Callable[[str, Any], bool]] = {
        "none": lambda *_: False,
        "leaves alone": lambda switch, _: switch.startswith("leaf"),
        "spine alone": lambda switch, _: switch.startswith("spine"),
        "one leaf missing": lambda switch, _: switch != "leaf2",
        "contributions alone": lambda _, one: isinstance(one, Entry) and one.table == tables.CONNECTION,
        "no contributions": lambda _, one: not (isinstance(one, Entry) and one.table == tables.CONNECTION),
        "no groups": lambda _, one: isinstance(one, Entry),
        "no replicas": lambda _, one: not (isinstance(one, Entry) and one.table == tables.REPLICA),
        "any half": lambda *_: rng.random() < 0.5,
        "any other half": lambda *_: rng.random() < 0.5,
    }
    return {switch: [one for one in some if keep[which](switch, one)] for switch, some in made.items()}


@pytest.mark.parametrize("which", ["none", "leaves alone", "spine alone", "one leaf missing", "contributions alone",
                                   "no contributions", "no groups", "no replicas", "any half", "any other half"])
def test_without_its_entries_no_contribution_reaches_a_nic(which: str) -> None:
    """Routes and guards are there, and some of the job's entries: no NIC takes a word.  Where groups alone are missing,
    sums are made, and go onward with the NICs' repeats: then what a NIC takes is the sum."""
    with fabric_of(2, 1, 4) as fabric:
        fabric.allocator.release(fabric.epoch)
        for switch in fabric.engines:
            fabric.restart(switch)
            fabric.route_again(switch)
        fabric.admit(entries=False)
        fabric.write(halves(fabric, which))
        exact, senders = started(fabric, sources(fabric, random.Random(2)))
        let(fabric, senders, 200 * MILLISECOND)
        assert exact.taken == 0 or which == "no groups"
        assert all(sender.results() == 0 == sender.sent() for sender in senders) or which == "no groups"
        if which in ("none", "no contributions", "spine alone"):
            unfolded = sum(counter(fabric, leaf, tables.UNFOLDED) for leaf in ("leaf1", "leaf2"))
            assert unfolded >= sum(mine.out.counts["sent"] for mine in fabric.ranks.values())


def test_what_a_nic_sends_to_a_fold_address_dies_at_its_first_switch() -> None:
    """Any queue pair, opcode, P_Key, length and source of its own: a host's port takes nothing that is addressed so,
    unless it is folded."""
    with fabric_of(2, 1, 4) as fabric:
        rng = random.Random(3)
        host = fabric.hosts[0]
        own = (host.address, fabric.fold_address_of(0))
        sent = 0
        for victim in (2, 3):  # not the successor: what goes there is folded
            for _ in range(60):
                packet = Packet(
                    rng.choice(own), fabric.fold_address_of(victim), rng.choice([*Rc, 0x81, 0x64]),
                    rng.choice([fabric.ranks[victim].into.number, rng.randrange(1 << 24)]),
                    rng.randrange(1 << 24), rng.randbytes(4 * rng.randrange(0, 300)),
                    pkey=rng.choice([0xFFFF, roce.PKEY_WINDOWED, 0x7FFF]), ttl=rng.choice([64, 255]))
                fabric.transmit(End(host.name, 0), packet.frame(mac(host.mac)))
                sent += 1
        let(fabric, [], 10 * MILLISECOND)
        assert {node for node, _ in fabric.seen} == {"leaf1"}
        assert counter(fabric, "leaf1", tables.UNFOLDED) > sent // 2


# ---- restarts --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("switch", ["leaf1", "leaf2", "spine1"])
@pytest.mark.parametrize("seed", range(3))
def test_a_switch_that_restarts_in_the_middle_delivers_no_wrong_sum(switch: str, seed: int) -> None:
    """State and tables are lost in the middle of a job; its routes and guards come first, while NICs repeat all the
    time; then the job goes on under another epoch with queue pairs made anew, and its sums are exact."""
    print(f"seed {seed}")
    with fabric_of(2, 1, 4, seed=seed, loss=0.01) as fabric:
        rng = random.Random(seed)
        exact, senders = started(fabric, sources(fabric, rng, 10))
        let(fabric, senders, fabric.network.now + rng.randrange(200 * MICROSECOND, 1500 * MICROSECOND))
        assert exact.taken > 0
        fabric.restart(switch)
        let(fabric, senders, fabric.network.now + 20 * MILLISECOND)
        fabric.route_again(switch)
        let(fabric, senders, fabric.network.now + 50 * MILLISECOND)
        assert not all(sender.done for sender in senders)
        fabric.withdraw()
        let(fabric, senders, fabric.network.now + 10 * MILLISECOND)
        fabric.admit()
        allreduce(fabric, sources(fabric, rng, 6), limit=fabric.network.now + 20 * SECOND)


def test_packets_of_the_epoch_before_do_nothing_under_the_new_one() -> None:
    """Everything that was ever sent on any host link comes again under the new epoch, from the ports that it came
    from: the new job's sums are exact, and its queue pairs live."""
    with fabric_of(2, 1, 4) as fabric:
        rng = random.Random(6)
        allreduce(fabric, sources(fabric, rng, 4))
        old = [(end, frame) for end, frame in fabric.sent if end.node.startswith("h")]
        fabric.withdraw()
        fabric.admit()
        for when, (end, frame) in enumerate(old):
            fabric.network.at(fabric.network.now + when * MICROSECOND, lambda e=end, f=frame: fabric.transmit(e, f))  # type: ignore[misc]
        allreduce(fabric, sources(fabric, rng, 6), limit=fabric.network.now + 20 * SECOND)


# ---- attacks ---------------------------------------------------------------------------------------------------------


def flood(fabric: RcFabric, place: int, make: Callable[[], Packet], times: int = 400, every: int = 5 * MICROSECOND,
          bent: bool = False) -> None:
    """A host sends packets of its making, beside what its NIC sends."""
    host = fabric.hosts[place]

    def one() -> None:
        frame = bytearray(make().frame(mac(host.mac)))
        frame[-1] ^= bent
        fabric.transmit(End(host.name, 0), bytes(frame))

    for number in range(times):
        fabric.network.at(fabric.network.now + number * every, one)


@pytest.mark.parametrize("attacker", [2, 4])
def test_acknowledgements_and_naks_that_a_host_forges_move_nothing(attacker: int) -> None:
    """A host under the victim's leaf, or another one, claims to be rank 0's successor and acknowledges what it likes,
    with a right ICRC, while packets are lost: no switch takes note of it, else rank 0 would be told that its successor
    has what it lacks, and the job would stand still."""
    with fabric_of(2, 1, 6, loss=0.02) as fabric:
        rng = random.Random(attacker)
        victim = fabric.ranks[0]

        def forged() -> Packet:
            psn = fabric.stream.psn + victim.out.req - rng.randrange(1, 4) & roce.PSN_MASK
            return Packet(fabric.fold_address_of(1), fabric.hosts[0].address, ACKNOWLEDGE, victim.out.number, psn,
                          syndrome=rng.choice([ACK, SEQUENCE, RNR | 14]))

        flood(fabric, attacker, forged, times=3000, every=50 * MICROSECOND)
        allreduce(fabric, sources(fabric, rng, 12))
        assert counter(fabric, "leaf1" if attacker == 2 else "leaf2", tables.SPOOFED) > 50


def test_an_acknowledgement_with_a_wrong_icrc_moves_nothing() -> None:
    """The true successor's port, address and numbers, but a bit of the ICRC is wrong: neither the switch nor the NIC
    takes note."""
    with fabric_of(1, 0, 3) as fabric:
        rng = random.Random(7)
        victim = fabric.ranks[0]

        def forged() -> Packet:
            psn = fabric.stream.psn + victim.out.comp + rng.randrange(60) & roce.PSN_MASK
            return Packet(fabric.fold_address_of(1), fabric.hosts[0].address, ACKNOWLEDGE, victim.out.number, psn,
                          syndrome=rng.choice([ACK, SEQUENCE, RNR | 14]))

        flood(fabric, 1, forged, bent=True)
        allreduce(fabric, sources(fabric, rng, 8))
        assert sum(mine.out.counts["repeated"] for mine in fabric.ranks.values()) == 0
        assert counter(fabric, "leaf1", tables.CORRUPT) > 50


@pytest.mark.parametrize("pkey", [roce.PKEY_WINDOWED, 0x7FFF, 0x8002])
def test_another_partition_key_makes_no_contribution_of_another_kind(pkey: int) -> None:
    """A NIC's contributions with another P_Key under its own numbers: a key of the windowed partition makes them miss
    their entry, and they die; any other is none of a windowed end point's, and counts as a NIC's."""
    with fabric_of(1, 0, 3) as fabric:
        rng = random.Random(pkey)
        attacker = fabric.ranks[1]

        def forged() -> Packet:
            psn = fabric.stream.psn + attacker.out.req + rng.randrange(1, 40) & roce.PSN_MASK
            return Packet(attacker.out.local, attacker.out.peer, Rc.SEND_MIDDLE, attacker.out.peer_number, psn,
                          rng.randbytes(1024), pkey=pkey)

        flood(fabric, 1, forged)
        exact, senders = started(fabric, sources(fabric, rng, 6))
        let(fabric, senders, 300 * MILLISECOND)
        assert all(sender.done for sender in senders)
        assert exact.taken > 0
        assert (counter(fabric, "leaf1", tables.UNFOLDED) == 400) == (pkey == roce.PKEY_WINDOWED)


@pytest.mark.parametrize("other", ["longer", "shorter", "verb", "immediate"])
def test_contributions_that_disagree_are_not_summed(other: str) -> None:
    """One rank's messages have another length, verb or immediate: nothing that is no sum is taken, and where the first
    packet already differs, nothing at all."""
    with fabric_of(2, 1, 4) as fabric:
        rng = random.Random(8)
        messages = {rank: [rng.randbytes(2000)] * 4 for rank in range(4)}
        messages[2] = [rng.randbytes({"longer": 2004, "shorter": 1996}.get(other, 2000))] * 4
        exact = Exact(fabric, {rank: [own[0][:1024]] for rank, own in messages.items()})
        senders = [
            Sender(fabric, rank, own, verb="write" if rank == 2 and other == "verb" else "send",
                   immediate=rank == 2 and other == "immediate")
            for rank, own in messages.items()
        ]
        for sender in senders:
            sender.step()
        let(fabric, senders, 300 * MILLISECOND)
        assert exact.taken == (0 if other == "verb" else 4)
        assert all(sender.results() == 0 for sender in senders)
        outcomes = [fabric.engines[leaf].read_counter(fabric.engines[leaf].counter(tables.OUTCOMES), MISMATCHED, 1)
                    for leaf in ("leaf1", "leaf2")]
        assert sum(one.packets for (one,) in outcomes) > 0


def test_a_rank_that_sends_far_ahead_starves_others_but_fools_none() -> None:
    """A rank of the same job contributes to PSNs far ahead of its credits, out of order and in order, with numbers of
    its choice.  What it contributes is its own affair, which no protocol can tell from gradients; but every sum that a
    NIC takes for a PSN is the sum of one contribution of each rank to that very PSN."""
    with fabric_of(1, 0, 3) as fabric:
        rng = random.Random(9)
        attacker = fabric.ranks[2]
        contributed: dict[int, set[bytes]] = {}

        def forged() -> Packet:
            number = rng.choice([rng.randrange(0, 300), rng.randrange(1 << 22)])
            payload = bytes([rng.randrange(1, 4)]) * 1024
            contributed.setdefault(number, set()).add(payload)
            return Packet(attacker.out.local, attacker.out.peer, Rc.SEND_MIDDLE, attacker.out.peer_number,
                          fabric.stream.psn + number & roce.PSN_MASK, payload)

        honest = {rank: [rng.randbytes(16 * 1024) for _ in range(4)] for rank in (0, 1)}
        taken = []
        for rank in (0, 1):
            def watch(_pair: object, psn: int, _opcode: Rc, payload: bytes) -> None:
                number = psn - fabric.stream.psn & roce.PSN_MASK
                parts = [honest[r][number // 16][number % 16 * 1024 : (number % 16 + 1) * 1024] for r in (0, 1)]
                sums = {total([*parts, third]) for third in contributed.get(number, ())}
                assert payload in sums, f"packet {number} is no sum of one contribution of each"
                taken.append(number)

            fabric.nics[rank].watch = watch
        flood(fabric, 2, forged, times=2000, every=MICROSECOND)
        in_order = iter(range(64))

        def next_one() -> Packet:
            number = next(in_order)
            payload = bytes([number]) * 1024
            contributed.setdefault(number, set()).add(payload)
            place = number % 16
            opcode = Rc.SEND_FIRST if place == 0 else Rc.SEND_LAST if place == 15 else Rc.SEND_MIDDLE
            return Packet(attacker.out.local, attacker.out.peer, opcode, attacker.out.peer_number,
                          fabric.stream.psn + number & roce.PSN_MASK, payload)

        flood(fabric, 2, next_one, times=64, every=7 * MICROSECOND)
        senders = [Sender(fabric, rank, own) for rank, own in honest.items()]
        for sender in senders:
            sender.step()
        let(fabric, senders, 300 * MILLISECOND)
        assert taken
