# SPDX-License-Identifier: Apache-2.0
"""A recorded training, replayed: times that are computed by hand, and what holds of every program."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

from netfold.fabric.generate import parse
from netfold.sim.engines.packet import Transport, simulate
from netfold.sim.engines.placement import SCHEMES
from netfold.sim.engines.topology import Topology
from netfold.sim.whatif.costs import HostCosts
from netfold.sim.whatif.program import Operation, TraceError, TrainingProgram, program_of
from netfold.sim.whatif.replay import ReplayOutcome, replay
from netfold.sim.whatif.report import draw, lines, what_if
from netfold.sim.whatif.ways import WAYS, RankFabric
from netfold.sim.workloads.workload import ring
from netfold.wire.training_trace import FORMAT, RankTrace, TracedCall, TracedEvent, TracedGroup, TracedStep, TracedWait

RATE = 100e6
M = 1_000_000
COSTS = HostCosts(path_mtu=4096, link_mtu=4200, message=0.0)
FOLD, TCP = 8 * COSTS.fold_bytes / RATE, 8 * COSTS.tcp_bytes / RATE
"""Seconds of a byte on a link."""
WORLD = TracedGroup("0", (0, 1, 2, 3))


def call(number: int, begin: float, kind: str = "all_reduce", nbytes: int = M, *, group: int = 0,
         waits: bool = False, dtype: str = "float32", peer: int = 0) -> TracedCall:
    """A call that returns at once."""
    return TracedCall(begin, begin, number, kind, group, nbytes, dtype, not waits, peer)  # type: ignore[arg-type]


def traced(events: list[TracedEvent], end: float, *, rank: int = 0, world: int = 4,
           groups: tuple[TracedGroup, ...] = (WORLD,)) -> RankTrace:
    """A recording of one step, from 0 to ``end``."""
    return RankTrace(FORMAT, rank, world, "gloo", list(groups), [TracedStep(0, 0), *events, TracedStep(end, end)])


def ran(program: TrainingProgram, way: str, *, topo: str = "leafspine,1,0,4", rate: float = RATE, per_host: int = 1,
        costs: HostCosts = COSTS) -> ReplayOutcome:
    """The outcome on a fabric without latency."""
    fabric = RankFabric(parse(topo), rate, len(program.ranks), per_host=per_host, costs=costs, delay=0.0)
    return replay(program, fabric, WAYS[way])


@pytest.mark.parametrize(("way", "seconds"), [
    ("gloo", 1.5 * M * TCP), ("ring", 1.5 * M * TCP), ("halving-doubling", 1.5 * M * TCP), ("planned", 1.5 * M * TCP),
    ("innet", M * FOLD), ("innet-16", M / 2 * FOLD), ("innet-8", M / 4 * FOLD), ("two-planes", M / 2 * FOLD)])
def test_an_allreduce_takes_what_its_bytes_take_on_a_hosts_link(way: str, seconds: float) -> None:
    """A second of computing, and then an allreduce of 1 MB among 4 ranks that all wait for."""
    outcome = ran(program_of([traced([call(1, 1.0, waits=True)], 1.0)]), way)
    assert outcome.compute == pytest.approx(1)
    assert outcome.exposed["all_reduce"] == pytest.approx(seconds, rel=1e-5)
    assert outcome.step == pytest.approx(1 + seconds, rel=1e-5)


@pytest.mark.parametrize(("kind", "way", "seconds", "link"), [
    ("all_gather", "ring", 0.75 * TCP, 0.75), ("all_gather", "innet", 0.75 * FOLD, 0.75),
    ("reduce_scatter", "ring", 0.75 * TCP, 0.75), ("reduce_scatter", "gloo", 1.5 * TCP, 1.5),
    ("reduce_scatter", "innet", 0.75 * FOLD, 0.75), ("reduce_scatter", "innet-16", 0.375 * FOLD, 0.375),
    ("all_gather", "innet-8", 0.75 * FOLD, 0.75), ("broadcast", "innet", FOLD, 1), ("reduce", "innet", FOLD, 1),
    ("broadcast", "ring", 2 * TCP, 2), ("all_to_all", "innet", 0.75 * TCP, 0.75), ("gather", "gloo", 0.75 * TCP, 0.75),
    ("barrier", "innet", 0, 0), ("barrier", "gloo", 0, 0)])
def test_other_collectives_take_theirs(kind: str, way: str, seconds: float, link: float) -> None:
    """By the table of docs/collectives.md; a broadcast's binomial tree has two levels among 4 ranks."""
    outcome = ran(program_of([traced([call(1, 0.5, kind, waits=True)], 0.5)]), way)
    assert outcome.step - outcome.compute == pytest.approx(seconds * M, rel=1e-5, abs=1e-12)
    bytes_of = TCP if way in ("ring", "gloo") or kind in ("all_to_all", "gather") else FOLD
    assert outcome.link_bytes.max() == pytest.approx(link * M * bytes_of * RATE / 8, rel=1e-5)


def test_computing_hides_a_collective_that_is_waited_for_later() -> None:
    """Of two buckets the first is hidden, and the second partly: DistributedDataParallel's backward pass."""
    fold = M * FOLD
    trace = traced([call(1, 0.1), call(2, 0.3), TracedWait(0.32, 0.5, 1), TracedWait(0.5, 0.5, 2)], 0.6)
    outcome = ran(program_of([trace]), "innet")
    assert outcome.compute == pytest.approx(0.42)
    assert outcome.step == pytest.approx(0.3 + fold + 0.1, rel=1e-5)
    assert outcome.exposed["all_reduce"] == pytest.approx(0.3 + fold - 0.32, rel=1e-5)
    assert outcome.communication == pytest.approx(2 * fold, rel=1e-5)


def test_a_collective_waits_for_its_slowest_rank() -> None:
    """The recordings of all ranks count: three ranks wait for the one that computes for longer."""
    traces = [traced([call(1, seconds, waits=True)], seconds, rank=rank) for rank, seconds in
              enumerate((0.1, 0.1, 0.1, 0.4))]
    outcome = ran(program_of(traces), "innet")
    assert outcome.step == pytest.approx(0.4 + M * FOLD, rel=1e-5)
    assert outcome.exposed["all_reduce"] == pytest.approx(0.75 * 0.3 + M * FOLD, rel=1e-5)


def test_groups_share_links_and_those_of_one_group_take_turns() -> None:
    """Two groups, HSDP's shards and replicas, reduce at the same time over the same link of each host; the second
    allreduce of a group begins when the first has ended."""
    groups = tuple(TracedGroup(name, ranks) for name, ranks in
                   (("rows", (0, 1)), ("columns", (0, 2))))
    trace = traced([call(1, 0.0), call(2, 0.0, group=1), call(3, 0.0), *(TracedWait(0, 0, n) for n in (1, 2, 3))], 0.0,
                   groups=groups)
    outcome = ran(program_of([trace]), "innet")
    assert outcome.step == pytest.approx(3 * M * FOLD, rel=1e-5)
    alone = traced([call(1, 0.0), TracedWait(0, 0, 1)], 0.0, groups=groups)
    assert ran(program_of([alone]), "innet").step == pytest.approx(M * FOLD, rel=1e-5)


def test_ranks_of_a_machine_share_its_link() -> None:
    """With two ranks a machine, a fold sends M from each machine, and rings between machines M in all."""
    program = program_of([traced([call(1, 0.0, waits=True)], 0.0)])
    fast = HostCosts(4096, 4200, message=0.0, memory=1e15)
    folded = ran(program, "innet", topo="leafspine,1,0,2", per_host=2, costs=fast)
    assert folded.step == pytest.approx(M * FOLD, rel=1e-4)
    nested = ran(program, "hierarchical", topo="leafspine,1,0,2", per_host=2, costs=fast)
    assert nested.step == pytest.approx(M * TCP, rel=1e-4)
    slow = HostCosts(4096, 4200, message=0.0, memory=RATE)
    inside = 2 * M * 8 / RATE  # a reduce-scatter and an all-gather of two ranks
    assert ran(program, "innet", topo="leafspine,1,0,2", per_host=2, costs=slow).step == pytest.approx(
        M * FOLD + inside, rel=1e-4)


def test_collectives_of_several_phases_of_one_group_take_turns() -> None:
    """What machines reduce inside for the second of two begins when the first has ended, not its first phase alone."""
    slow = HostCosts(4096, 4200, message=0.0, memory=RATE)
    one, two = (program_of([traced([*(call(number, 0.0) for number in range(1, many + 1)),
                                    *(TracedWait(0, 0, number) for number in range(1, many + 1))], 0.0)])
                for many in (1, 2))
    alone, both = (ran(program, "innet", topo="leafspine,1,0,2", per_host=2, costs=slow) for program in (one, two))
    assert both.step == pytest.approx(2 * alone.step, rel=1e-5)


def test_messages_between_two_ranks_take_one_link_each_way() -> None:
    """A pipeline's activations: rank 0 sends, rank 1 waits for them."""
    pair = TracedGroup("0", (0, 1))
    traces = [traced([call(1, 0.2, "send", peer=1, waits=True)], 0.2, world=2, groups=(pair,)),
              traced([call(1, 0.0, "recv", peer=0, waits=True)], 0.1, rank=1, world=2, groups=(pair,))]
    outcome = ran(program_of(traces), "ring", topo="leafspine,1,0,2")
    assert outcome.step == pytest.approx(0.5 * (0.2 + M * TCP) + 0.5 * (0.3 + M * TCP), rel=1e-5)


def test_half_precision_is_summed_as_float32_but_by_gloo() -> None:
    """What NetFold reduces has 4 bytes an element, gloo's has 2, and lanes of 16 bits are as many bytes as it had."""
    program = program_of([traced([call(1, 0.0, waits=True, dtype="bfloat16")], 0.0)])
    assert ran(program, "innet").step == pytest.approx(2 * M * FOLD, rel=1e-5)
    assert ran(program, "innet-16").step == pytest.approx(M * FOLD, rel=1e-5)
    assert ran(program, "ring").step == pytest.approx(3 * M * TCP, rel=1e-5)
    assert ran(program, "gloo").step == pytest.approx(1.5 * M * TCP, rel=1e-5)
    doubles = program_of([traced([call(1, 0.0, waits=True, dtype="float64")], 0.0)])
    assert ran(doubles, "innet-16").step == ran(doubles, "ring").step


def test_planned_paths_load_uplinks_evenly_where_hashed_ones_collide() -> None:
    """Halving-doubling among 16 ranks under 4 leaves: as fast as the hosts' links by planned paths, slower by hashed
    ones."""
    group = TracedGroup("0", tuple(range(16)))
    program = program_of([traced([call(1, 0.0, waits=True)], 0.0, world=16, groups=(group,))])
    planned, hashed = (ran(program, way, topo="leafspine,4,4,16").step for way in ("planned", "halving-doubling"))
    assert planned == pytest.approx(2 * 15 / 16 * M * TCP, rel=1e-3)
    assert hashed > 1.2 * planned


def test_a_processor_is_the_limit_where_the_link_is_not() -> None:
    """On links of 400 Gb/s a rank's core makes lanes more slowly than the link takes them."""
    program = program_of([traced([call(1, 0.0, waits=True)], 0.0)])
    assert ran(program, "innet", rate=400e9).step == pytest.approx(1.28e-9 * M, rel=1e-3)
    assert ran(program, "gloo", rate=400e9).step == pytest.approx(1.24e-9 * M, rel=1e-3)


def test_a_ring_takes_as_long_as_in_the_packet_simulator() -> None:
    """8 hosts under 4 leaves, 4 MB, 1 Gb/s: within 1 %, packet by packet."""
    n, size, rate = 8, 4 << 20, 1e9
    topology = Topology(hosts=2, leaves=4, aggs=2, host_rate=rate, leaf_rate=rate, delay=500e-9)
    transport = Transport(mtu=4148, header=66)
    packets = simulate(topology, ring(range(n), size), SCHEMES["netfold"], transport=transport).time
    group = TracedGroup("0", tuple(range(n)))
    program = program_of([traced([call(1, 0.0, nbytes=size, waits=True)], 0.0, world=n, groups=(group,))])
    outcome = ran(program, "ring", topo="leafspine,4,2,8", rate=rate)
    latency = 2 * (n - 1) * (4 * 500e-9 + 3 * 4214 * 8 / rate)  # a step's last packet is stored at three switches
    assert outcome.step + latency == pytest.approx(packets, rel=0.01)


def drawn(seed: int) -> TrainingProgram:
    """A program of 4 ranks by chance: computing, calls in three groups, and waits in any order."""
    rng = random.Random(seed)
    groups = (WORLD, TracedGroup("rows", (0, 1)), TracedGroup("columns", (0, 2)))
    now = 0.0
    events: list[TracedEvent] = []
    pending: list[int] = []
    for number in range(1, 25):
        now += rng.choice((0.0, rng.random() / 50))
        if pending and rng.random() < 0.4:
            events.append(TracedWait(now, now, pending.pop(rng.randrange(len(pending)))))
        else:
            kind = rng.choice(("all_reduce", "all_gather", "reduce_scatter", "broadcast", "barrier"))
            waits = rng.random() < 0.4
            events.append(call(number, now, kind, rng.choice((0, 1000, M)), group=rng.randrange(3), waits=waits))
            pending += [] if waits else [number]
    events += [TracedWait(now, now, number) for number in pending]
    return program_of([traced(events, now + 0.01, groups=groups)])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("way", WAYS)
def test_a_step_is_computing_and_waiting_and_faster_links_never_make_it_longer(way: str, seed: int) -> None:
    """Of any program: step = compute + exposed, and it falls with the rate."""
    program, before = drawn(seed), np.inf
    for rate in (10e6, 100e6, 1e9, 100e9):
        outcome = ran(program, way, topo="leafspine,2,2,4", rate=rate)
        assert outcome.step == pytest.approx(outcome.compute + sum(outcome.exposed.values()))
        assert outcome.step >= outcome.compute
        assert all(seconds >= 0 for seconds in outcome.exposed.values())
        assert outcome.step <= before * (1 + 1e-6)
        before = outcome.step


def test_calls_that_do_not_fit_are_refused_by_rank() -> None:
    """Unlike sizes, a call that one rank lacks, unlike steps, ranks that are missing or twice there."""
    right = [traced([call(1, 0.1)], 0.2, rank=rank) for rank in range(4)]
    other = traced([call(1, 0.1, nbytes=5)], 0.2, rank=2)
    with pytest.raises(TraceError, match=r"rank 2 called all_reduce of 5 bytes .* another rank called .* 1000"):
        program_of([*right[:2], other, right[3]])
    with pytest.raises(TraceError, match="rank 1 did not call all_reduce of 1000000 bytes"):
        program_of([right[0], traced([], 0.2, rank=1), *right[2:]])
    with pytest.raises(TraceError, match=r"recorded \[1, 2\] whole steps"):
        program_of([*right[:3], traced([call(1, 0.1), TracedStep(0.1, 0.1)], 0.2, rank=3)])
    with pytest.raises(TraceError, match=r"recordings of ranks \[0, 1\]: expected one of each of 4"):
        program_of(right[:2])
    with pytest.raises(TraceError, match=r"recordings of ranks \[0, 0, 2, 3\]"):
        program_of([right[0], right[0], *right[2:]])
    with pytest.raises(TraceError, match="no recording"):
        program_of([])
    with pytest.raises(TraceError, match=r"group '0' of ranks \[1, 2\]"):
        program_of([traced([call(1, 0.1)], 0.2, groups=(TracedGroup("0", (1, 2)),))])
    with pytest.raises(TraceError, match="cannot be told"):
        program_of([traced([call(1, 0.1)], 0.2, groups=(TracedGroup("0", (0, 1, 3)),))])


def test_one_recording_stands_for_ranks_that_do_the_same() -> None:
    """The groups of the others are the other rows of the grid that its groups are rows of."""
    groups = (TracedGroup("shards", (2, 3)), TracedGroup("replicas", (0, 2)))
    program = program_of([traced([call(1, 0.1), call(2, 0.2, group=1)], 0.3, rank=2, groups=groups)])
    members = {operation.members for operation in program.operations}
    assert members == {(0, 1), (2, 3), (0, 2), (1, 3)}
    assert program.operations[0] == Operation("all_reduce", (0, 1), M, "float32")


def test_the_report_says_which_way_is_how_many_times_as_fast(tmp_path: Path) -> None:
    """Rows beside the first one, what the busiest link carries, what is left out and why; and a figure of them."""
    program = program_of([traced([call(1, 0.01, waits=True)], 0.01)])
    fabric = RankFabric(parse("leafspine,2,2,4"), RATE, 4, costs=COSTS, delay=0.0)
    report = what_if(program, fabric, ways=[*WAYS], seeds=[1, 2], recorded=0.02)
    assert report.left_out == {"hierarchical": "each rank has a machine of its own"}
    rows = {row.way: row for row in report.rows}
    assert rows["gloo"].beside == 1
    assert rows["innet"].beside == pytest.approx((0.01 + 1.5 * M * TCP) / (0.01 + M * FOLD), rel=1e-4)
    assert rows["innet"].busiest_bytes == pytest.approx(M * COSTS.fold_bytes, rel=1e-5)
    assert rows["innet"].busiest_share == pytest.approx(M * FOLD / (0.01 + M * FOLD), rel=1e-4)
    assert all(row.least <= row.step <= row.most for row in report.rows)
    assert [line.split()[0] for line in lines(report) if not line.startswith("#")] == [*rows]
    pytest.importorskip("matplotlib")
    assert [path.suffix for path in draw(report, tmp_path / "what-if")] == [".svg", ".pdf"]
    with pytest.raises(ValueError, match="no way is called 'best'"):
        what_if(program, fabric, ways=["best"], seeds=[1], recorded=0.02)
