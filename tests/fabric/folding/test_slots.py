# SPDX-License-Identifier: Apache-2.0
"""Slots, connections, groups and source ports of jobs: nobody has another's, and too many are refused."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.controller.switch import fold_tables
from netfold.fabric.folding import trees
from netfold.fabric.folding.pools import Exhausted
from netfold.fabric.folding.slots import FLOWS, Allocator, Holding, Sizes, Stream, holdings
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import Fabric, ip_number
from netfold.wire.roce import LaneOperation
from support.fabrics.plans import admitted, allocator_of, fabrics_and_ranks


def test_numbers_of_a_job_cannot_be_told_from_those_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two controllers draw other queue pairs and first PSNs, and no two neighbours follow one another; where no
    generator is injected, it is the operating system's."""
    fabric = leafspine(2, 2, 4)
    names = [switch.name for switch in fabric.switches]
    ranks = [host.name for host in fabric.hosts]
    seen: list[set[int]] = []
    drawn: list[list[Stream]] = []
    for seed in range(2):
        streams = admitted(fabric, ranks, Allocator(names, Sizes(64, 8), random.Random(seed)))
        numbers = [number for stream in streams for number in (*stream.connections, *stream.up.values())]
        assert not any(b - a == 1 for a, b in itertools.pairwise(numbers))
        assert len({stream.psn for stream in streams}) == len(streams)
        seen.append({*numbers, *(stream.psn for stream in streams)})
        drawn.append(streams)
    assert not seen[0] & seen[1]
    monkeypatch.setattr(random, "SystemRandom", lambda: random.Random(1))
    assert admitted(fabric, ranks, Allocator(names, Sizes(64, 8))) == drawn[1]


@given(fabrics_and_ranks(), st.integers(1, 4), st.integers(0, 2**32))
def test_jobs_share_no_slot_group_or_connection(case: tuple[Fabric, list[str]], jobs: int, seed: int) -> None:
    """Streams of all jobs have slot ranges, groups and connections of their own; a job has one epoch, none twice."""
    fabric, ranks = case
    allocator = allocator_of(fabric, seed=seed)
    streams = [stream for _ in range(jobs) for stream in admitted(fabric, ranks, allocator)]
    cells: list[tuple[str, int]] = []
    groups: list[tuple[str, int]] = []
    connections: list[int] = []
    for stream in streams:
        cells += [(s, cell) for s, base in stream.bases.items() for cell in range(base, base + stream.slots)]
        groups += list(stream.groups.items())
        connections += [*stream.connections, *stream.up.values(), *stream.down.values()]
        assert all(base % stream.slots == 0 for base in stream.bases.values())
        assert 0 <= stream.psn < 2**24
        assert all(0xC000 <= port <= 0xFFFF for port in stream.source_ports)
    assert len(cells) == len(set(cells))
    assert len(groups) == len(set(groups))
    assert all(1 <= group <= 4095 for _, group in groups)
    assert len(connections) == len(set(connections))
    assert all(0 < number < 2**21 for number in connections)
    assert len({stream.epoch for stream in streams}) == jobs * len({stream.tree.root for stream in streams})
    assert len({(stream.epoch, stream.tree.root) for stream in streams}) == len({stream.epoch for stream in streams})
    assert all(1 <= stream.epoch < 2**31 for stream in streams)
    for epoch in {stream.epoch for stream in streams}:
        allocator.release(epoch)
    assert set(allocator.used().values()) == {0}


def test_a_job_too_many_is_refused_with_figures_and_leaves_nothing() -> None:
    """When a switch is full the refusal names it and its figures; what the job got elsewhere goes back."""
    fabric = leafspine(2, 1, 4)
    allocator = allocator_of(fabric, Sizes(data=4096, agreement=128, quota=16384))
    epochs = [admitted(fabric, ["h1", "h3"], allocator)[0].epoch for _ in range(3)]
    before = allocator.used()
    with pytest.raises(Exhausted, match=r"spine1 has no 4096 slots in a row, 3712 of 16384 are free"):
        allocator.admit(trees.plan(fabric.graph(), ["h1", "h3"]), [range(2)])
    assert allocator.used() == before
    allocator.release(epochs[0])
    assert admitted(fabric, ["h1", "h3"], allocator)


def test_many_trees_get_smaller_ranges_within_the_quota() -> None:
    """A job's trees through one switch keep to the quota; where even the least is too much, it is refused."""
    fabric = leafspine(2, 8, 4)
    allocator = allocator_of(fabric, Sizes(data=2048, agreement=128, quota=8192))
    streams = admitted(fabric, ["h1", "h3"], allocator)
    assert {stream.slots for stream in streams[::2]} == {512}
    assert max(allocator.used().values()) <= 8192
    with pytest.raises(Exhausted, match=r"8 trees through one switch need 256 slots at the least, a job may have 100"):
        admitted(fabric, ["h1", "h3"], allocator_of(fabric, Sizes(data=64, agreement=16, quota=100)))


@pytest.mark.parametrize("seed", range(3))
def test_nobody_can_count_until_an_epochs_turn_comes(seed: int) -> None:
    """A tenant that has used an epoch and starts one job after the other does not have the next job get it; it comes
    again no sooner than after 65,536 others."""
    allocator = Allocator(["leaf1"], Sizes(64, 16), random.Random(seed))
    first = allocator.draw()
    drawn = [allocator.draw() for _ in range(2**16 - 2)]
    assert first not in drawn
    assert not any(b == a + 1 for a, b in itertools.pairwise(drawn)), "a circle would have dealt them in order"


@given(fabrics_and_ranks(), st.data())
def test_rc_ranks_have_a_ring_of_their_own_and_every_sender_has_its_flow(
    case: tuple[Fabric, list[str]], data: st.DataObject
) -> None:
    """Each rank is the predecessor of its successor, of its own kind if it is an RC rank; no two senders of all jobs
    on a switch share a flow, and what is released comes back."""
    fabric, ranks = case
    allocator = allocator_of(fabric)
    planned = trees.plan(fabric.graph(), ranks)
    taken: dict[str, list[int]] = {}
    epochs = []
    for bits in (32, 8):
        rc = data.draw(st.sets(st.sampled_from(range(len(ranks)))))
        streams = allocator.admit(planned, [range(len(ranks))], rc=rc, lane_bits=bits)
        epochs += [stream.epoch for stream in streams]
        for stream in streams:
            rings: dict[bool, set[int]] = {True: set(), False: set()}
            assert [stream.ranks[place] for place in stream.rc_ranks] == sorted(rc)
            for place in range(len(stream.ranks)):
                ring = rings[place in stream.rc_ranks]
                ring.add(stream.successor(place))
                if place in stream.rc_ranks:
                    assert stream.predecessor(stream.successor(place)) == place
                else:
                    assert stream.successor(place) == (place + 1) % len(ranks)
                    assert stream.predecessor(place) == (place - 1) % len(ranks)
            assert rings[True] == set(stream.rc_ranks)
            assert stream.operation == (LaneOperation.MAX32 if stream.kind == "agreement" else
                                        {32: LaneOperation.SUM32, 8: LaneOperation.SUM8}[bits])
            for fold in stream.tree.folds:
                first = stream.flows[fold.switch]
                flows = range(first, first + len(fold.children) + (fold.parent is not None))
                assert stream.flows_on(fold.switch) == flows
                taken.setdefault(fold.switch, []).extend(flows)
    for held in taken.values():
        assert len(held) == len(set(held))
        assert max(held) < FLOWS
    for epoch in epochs:
        allocator.release(epoch)
    assert all(not cells.used for cells in allocator.flows.values())


@given(fabrics_and_ranks(), st.integers(1, 4), st.integers(0, 2**32))
def test_no_two_jobs_have_the_same_source_port_of_a_host(
    case: tuple[Fabric, list[str]], jobs: int, seed: int
) -> None:
    """A rank binds its source port, which the kernel gives once: those of all jobs on a host differ, also where a new
    controller has read them off the switches; a job keeps its own with other trees, and they are free after its end."""
    fabric, ranks = case
    allocator = allocator_of(fabric, seed=seed)
    planned = trees.plan(fabric.graph(), ranks)
    hosts = [fabric.host(name) for name in ranks]
    taken: dict[str, set[int]] = {}

    def take(streams: list[Stream]) -> None:
        for stream in streams[::2]:  # both of a tree have the same
            for host, port in zip(ranks, stream.source_ports, strict=True):
                assert port not in taken.setdefault(host, set())
                taken[host].add(port)

    epochs = []
    for _ in range(jobs):
        streams = admitted(fabric, ranks, allocator)
        take(streams)
        again = allocator.admit(planned, [range(len(ranks))], like=streams)
        assert [one.source_ports for one in again] == [one.source_ports for one in streams]
        allocator.release(*(one.epoch for one in streams))
        epochs += [one.epoch for one in again]
    later = allocator_of(fabric, seed=seed + 1)
    names = {ip_number(host.address): host.name for host in fabric.hosts}
    for one in again:
        for switch, entities in fold_tables.fold_entries(fabric, hosts, one).items():
            assert later.reserve(one.epoch, {switch: fold_tables.holding(names, entities)})
    known = {key: set(epochs) for key, epochs in later.bound.items()}
    later.release(*(one.epoch for one in again))
    assert not later.bound
    assert all(later.reserve(one.epoch, holdings([one, other]))  # what an epoch has already is its own
               for _ in range(2) for one, other in zip(again[::2], again[1::2], strict=True))
    assert later.bound == known == {(host, port): {stream.epoch} for stream in again
                                     for host, port in zip(ranks, stream.source_ports, strict=True)}
    taken = {host: {port for name, port in known if name == host} for host in ranks}
    take(admitted(fabric, ranks, later))
    for epoch in epochs:
        allocator.release(epoch)
    assert not allocator.bound


def test_a_part_of_an_epochs_flows_is_not_taken_for_all_of_them() -> None:
    """A switch that was read too early shows some: those that come later are only reserved with the whole range, and
    until then the answer says that they are not."""
    allocator = Allocator(["leaf1"], Sizes(16, 8), random.Random(1))
    part, whole = (Holding(frozenset(), frozenset(), frozenset(), frozenset(range(n))) for n in (2, 5))
    assert allocator.reserve(7, {"leaf1": part})
    assert not allocator.reserve(7, {"leaf1": whole})
    allocator.release(7)
    assert allocator.reserve(7, {"leaf1": whole})
    assert not allocator.reserve(8, {"leaf1": Holding(frozenset(), frozenset(), frozenset(), frozenset({4}))})


def test_a_switch_without_flows_left_refuses_with_figures() -> None:
    """Flows run out as slots do, by name and with figures."""
    allocator = Allocator(["leaf1"], Sizes(16, 8), random.Random(1))
    fabric = leafspine(1, 0, 4)
    allocator.flows["leaf1"].take(0, FLOWS - 5)
    with pytest.raises(Exhausted, match=r"leaf1 has no 4 flows in a row, 1 of 16384 are free in all"):
        admitted(fabric, ["h1", "h2", "h3", "h4"], allocator)
