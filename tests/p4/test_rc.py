# SPDX-License-Identifier: Apache-2.0
"""NICs with reliable connections as children of the compiled program, over networks that lose, repeat, delay and bend.

Each NIC is one of tests/support/models/nic.py, which knows nothing of switches that fold.  What it takes into memory is
compared with the sum as it takes it, so no word that is not the sum passes, not even one that is overwritten later.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import pytest

from netfold.fabric.graph import End
from netfold.wire import roce
from support import needs
from support.models.nic import FOREVER
from support.models.nic_packets import ACK, ACKNOWLEDGE, RNR, SEQUENCE, Packet, icrc_holds
from support.models.slot_model import MICROSECOND, MILLISECOND, SECOND, TerribleNetwork
from support.p4.rc_fabric import RcFabric, allreduce, total
from support.sandboxes.tshark import dissect

LIMIT = 20 * SECOND
"""Simulated time by which everything must be done."""


@contextmanager
def fabric_of(leaves: int, spines: int, hosts: int, network: TerribleNetwork, **options: Any) -> Iterator[RcFabric]:
    """A fabric whose hosts' NICs all fold."""
    made = RcFabric(leaves, spines, hosts, network, **options)
    try:
        yield made
    finally:
        made.close()


def messages(fabric: RcFabric, rng: random.Random, *, whole: int, short: int = 0) -> dict[int, list[bytes]]:
    """Messages of each rank: some as long as credits allow, and some of any length from one byte on."""
    longest = fabric.stream.slots // 4 * fabric.path_mtu
    sizes = [longest] * whole + [rng.choice([rng.randrange(1, 9), rng.randrange(1, longest)]) for _ in range(short)]
    return {rank: [rng.randbytes(size) for size in sizes] for rank in fabric.rc_ranks}


def count(fabric: RcFabric, what: str) -> int:
    """A counter of all queue pairs that send."""
    return sum(mine.out.counts[what] for mine in fabric.ranks.values())


SHAPES = [(1, 0, 2), (1, 0, 4), (2, 1, 4), (2, 2, 5)]


@pytest.mark.parametrize("verb", ["send", "write"])
@pytest.mark.parametrize("loss", [0.0, 0.01, 0.05])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rings_of_nics_get_exact_sums_on_terrible_networks(
    shape: tuple[int, int, int], loss: float, verb: Literal["send", "write"]
) -> None:
    """The same share of packets is lost, repeated, late and bent, each; messages have any length, and slots are used
    again many times.  Without a fault no NIC repeats anything."""
    rng = random.Random(int(loss * 1000) + len(verb) + shape[2])
    network = TerribleNetwork(rng, loss=loss, duplicate=loss, reorder=loss, packet_time=2 * MICROSECOND)
    with fabric_of(*shape, network, corrupt=loss) as fabric:
        allreduce(fabric, messages(fabric, rng, whole=10, short=10), verb=verb, immediate=loss > 0.005, limit=LIMIT)
        assert (count(fabric, "repeated") > 0) == (loss > 0)


@pytest.mark.parametrize("path_mtu", roce.PATH_MTUS)
@pytest.mark.parametrize("shared", [False, True])
def test_regions_of_their_own_or_one_shared_address_and_both_path_mtus(path_mtu: int, shared: bool) -> None:
    """Remote keys and addresses differ by rank, or the address is the same for all: each word lands in its place."""
    rng = random.Random(path_mtu + shared)
    network = TerribleNetwork(rng, loss=0.01, duplicate=0.01, reorder=0.01, packet_time=2 * MICROSECOND)
    with fabric_of(2, 1, 3, network, path_mtu=path_mtu, shared=shared) as fabric:
        sources = messages(fabric, rng, whole=3, short=4)
        allreduce(fabric, sources, verb="write", limit=LIMIT)
        sums = b"".join(total(parts) for parts in zip(*sources.values(), strict=True))
        for mine in fabric.ranks.values():
            assert mine.region.memory[: len(sums)] == sums


def test_a_nic_with_a_path_mtu_of_1024_folds_on_a_program_for_4096() -> None:
    """Its packets are short ones there."""
    rng = random.Random(8)
    network = TerribleNetwork(rng, loss=0.01, packet_time=2 * MICROSECOND)
    with fabric_of(1, 0, 3, network, path_mtu=4096) as fabric:
        fabric.path_mtu = 1024
        for nic in fabric.nics.values():
            nic.path_mtu = 1024
        allreduce(fabric, messages(fabric, rng, whole=6, short=4), limit=LIMIT)


@pytest.mark.parametrize("shape", SHAPES[1:3], ids=str)
@pytest.mark.parametrize("lost", ["acknowledgements", "results", "contributions"])
def test_one_kind_of_packet_is_lost(shape: tuple[int, int, int], lost: str) -> None:
    """A fifth of all acknowledgements on host links, or of results, or of contributions."""
    rng = random.Random(len(lost))
    with fabric_of(*shape, TerribleNetwork(rng, packet_time=2 * MICROSECOND)) as fabric:
        dropped = 0

        def bend(end: End, data: bytes) -> bytes | None:
            nonlocal dropped
            packet = Packet.parse(data)
            assert packet is not None
            from_host, to_host = end.node.startswith("h"), fabric.ends[end].node.startswith("h")
            kind = {
                "acknowledgements": packet.opcode == ACKNOWLEDGE, "results": packet.opcode != ACKNOWLEDGE and to_host,
                "contributions": packet.opcode != ACKNOWLEDGE and from_host,
            }[lost]
            if kind and rng.random() < 0.2:
                dropped += 1
                return None
            return data

        fabric.bend = bend  # type: ignore[method-assign]
        allreduce(fabric, messages(fabric, rng, whole=6, short=6), limit=LIMIT)
        assert dropped > 10


@pytest.mark.parametrize("retries", [1, FOREVER])
@pytest.mark.parametrize("shape", SHAPES[1:3], ids=str)
def test_a_straggler_breaks_no_queue_pair(shape: tuple[int, int, int], retries: int) -> None:
    """A rank comes a quarter of a second late, many times the others' retransmission timer.  They are told to wait by
    RNR NAKs, which NICs take for ever, so a NIC that survives a single time-out lives as well."""
    rng = random.Random(4)
    with fabric_of(*shape, TerribleNetwork(rng, packet_time=2 * MICROSECOND), retries=retries) as fabric:
        allreduce(fabric, messages(fabric, rng, whole=4), late={2: 250 * MILLISECOND}, limit=LIMIT)
        others = [mine.out.counts for rank, mine in fabric.ranks.items() if rank != 2]
        assert all(counts["rnrs"] > 0 for counts in others)
        assert all(counts["timeouts"] <= 1 for counts in others) or retries == FOREVER


def test_every_packet_on_every_link_is_valid_roce() -> None:
    """ICRC and lengths of all packets hold, and none of a NIC's contributions reaches a host."""
    rng = random.Random(5)
    network = TerribleNetwork(rng, loss=0.02, duplicate=0.02, packet_time=2 * MICROSECOND)
    with fabric_of(2, 1, 4, network) as fabric:
        allreduce(fabric, messages(fabric, rng, whole=4, short=8), verb="write", immediate=True, limit=LIMIT)
        kinds = set()
        for _, frame in fabric.seen:
            packet = Packet.parse(frame)
            assert packet is not None
            assert icrc_holds(frame)
            kinds.add((packet.opcode, packet.syndrome))
        assert {opcode for opcode, _ in kinds} >= {0x06, 0x07, 0x09, 0x0B, ACKNOWLEDGE}


@pytest.mark.needs("tshark")
def test_tshark_and_scapy_agree_with_every_packet(tmp_path: Path) -> None:
    """Two implementations that know nothing of us dissect what is on the links of a run with losses: opcodes, queue
    pairs, PSNs, RETH and AETH are what our own parser says, and scapy makes the same ICRC anew, of some
    of each kind."""
    scapy = pytest.importorskip("scapy.all", reason=needs.reason("scapy"))
    from scapy.contrib.roce import BTH

    rng = random.Random(6)
    network = TerribleNetwork(rng, loss=0.05, duplicate=0.02, packet_time=2 * MICROSECOND)
    with fabric_of(2, 1, 4, network) as fabric:
        allreduce(fabric, messages(fabric, rng, whole=2, short=6), verb="write", immediate=True,
                  late={1: 3 * MILLISECOND}, limit=LIMIT)
        frames = [frame for _, frame in fabric.seen]
    fields = ["opcode", "destqp", "psn", "a"]
    names = [f"infiniband.bth.{field}" for field in fields] + [
        "infiniband.reth.dmalen", "infiniband.aeth.syndrome", "infiniband.aeth.msn"]
    syndromes, kinds = set(), set()
    for frame, row in zip(frames, dissect(frames, names, tmp_path), strict=True):
        packet = Packet.parse(frame)
        assert packet is not None
        values = [int(field, 0) if field not in ("", "True", "False") else field for field in row]
        assert values[:3] == [packet.opcode, packet.queue_pair, packet.psn]
        assert row[3] in (("1", "True") if packet.ack_req else ("0", "False"))
        assert values[4] == (packet.reth.length if packet.reth else "")
        assert values[5:] == ([packet.syndrome, packet.msn] if packet.syndrome is not None else ["", ""])
        syndromes.add(packet.syndrome)
        kind = packet.opcode, packet.syndrome, packet.ack_req, len(packet.payload), packet.psn % 16
        if kind in kinds:  # scapy takes a millisecond for each of thousands
            continue
        kinds.add(kind)
        seen = scapy.Ether(frame)
        assert (seen[BTH].opcode, seen[BTH].psn, seen[BTH].dqpn) == (packet.opcode, packet.psn, packet.queue_pair)
        wire = seen[BTH].icrc
        seen[BTH].icrc = None
        assert scapy.Ether(bytes(seen))[BTH].icrc == wire
    assert syndromes == {None, ACK, SEQUENCE, RNR | 14}
