# SPDX-License-Identifier: Apache-2.0
"""The page's data, as JSON: the fabric, its present state, and its history over the last minutes.

Unknown rates are null: at the first reading after a pause, if a switch did not answer, and if it counts from 0 again
after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from netfold.controller.operations.history import STEP, Sample
from netfold.controller.operations.rates import FabricRates
from netfold.fabric.graph import Fabric, bits_per_second
from netfold.wire.operator import (
    FabricEvent,
    JobStatus,
    LinkStatus,
    PinnedPath,
    RoundStatus,
    Status,
    SwitchStatus,
    TreeStatus,
)
from netfold.wire.stalls import SwitchSlots

MAX_HOSTS: Final = 4096
"""Most names of hosts that a job lists: one for each of its ranks, and a job may have many."""


class NodeView(msgspec.Struct, frozen=True):
    """A switch or host; ``role`` is leaf, agg, spine or host."""

    name: str
    role: str
    rank_of_row: int
    """Its place among those of its role, from 0, in the fabric's order."""
    address: str
    place: tuple[int, int] | None = None
    """Row and column of a switch in a mesh or torus, from 0; null: it is in none."""


class LinkView(msgspec.Struct, frozen=True):
    """A link; its ends are ``node:port``."""

    a: str
    b: str
    rate: float | None
    """bit/s of each direction; null: not limited."""


class FabricView(msgspec.Struct, frozen=True):
    """GET /fabric.json: what does not change while the controller runs."""

    name: str
    engine: str
    nodes: list[NodeView]
    links: list[LinkView]
    faults: bool
    """True if this viewer may inject faults here."""


class SwitchLive(msgspec.Struct, frozen=True):
    """The state of one switch."""

    name: str
    up: bool
    drained: bool
    problem: str
    slots_used: int
    slots: int
    folded_per_s: float | None
    repeats_per_s: float | None
    entries: int


class LinkLive(msgspec.Struct, frozen=True):
    """The state of one link, in the order of FabricView.links; "there" is from its first end to its second."""

    there_bps: float | None
    back_bps: float | None
    there_pps: float | None
    back_pps: float | None
    lost_per_s: float | None
    """Packets that injected faults dropped, both ways."""
    up: bool
    drained: bool
    problem: str


class TreeLive(msgspec.Struct, frozen=True):
    """One aggregation tree; links by their place in FabricView.links."""

    root: str
    weight: float
    links: list[int]
    """Between switches."""
    hosts: list[int]
    """Numbers of the hosts' links."""


class RailLive(msgspec.Struct, frozen=True):
    """The bytes of a job that one rail carried."""

    name: str
    share: float
    """0..1, over all ranks that have reported."""


class RecoveryLive(msgspec.Struct, frozen=True):
    """The last time that a job's trees were planned anew."""

    number: int
    why: str
    took: float | None
    """Seconds from the failure's notice until the ranks went on; null while they stand still."""


class JobLive(msgspec.Struct, frozen=True):
    """One incarnation of a job; what its ranks count is summed over those that have reported."""

    name: str
    state: str
    tenant: str
    epoch: int
    world: int
    joined: int
    """Ranks that have joined."""
    left: int
    lost: list[int]
    hosts: list[str]
    """Names of the ranks' hosts, in the order of ranks that have joined."""
    operations: int
    """Collectives that a rank has finished: the most of any rank."""
    bytes: int
    """Payload of each rank that was reduced, the mean of those that have reported."""
    folded: int
    """The part of it that switches have folded: about what its host's link carried each way."""
    bps: float | None
    """Payload bit/s of each rank."""
    retransmissions: int
    trees: list[TreeLive]
    rails: list[RailLive]
    recovery: RecoveryLive | None
    reason: str
    """Why it does not fold, or is broken; or why its trees were not moved."""


class PathLive(msgspec.Struct, frozen=True):
    """One path on which a job's flow between two hosts was pinned."""

    job: str
    source: str
    destination: str
    links: list[int]
    share: float
    """Share of the bytes of that flow, 0..1."""


class Live(msgspec.Struct, frozen=True):
    """GET /live.json: the state of all, and the events after number ``since``."""

    time: float
    uptime: float
    switches: list[SwitchLive]
    links: list[LinkLive]
    jobs: list[JobLive]
    paths: list[PathLive]
    events: list[FabricEvent]


class HistoryView(msgspec.Struct, frozen=True):
    """GET /history.json: the last samples, the oldest first; all lists of numbers are as long as ``times``.

    Samples are taken while somebody looks, so that times may have gaps of any length.
    """

    step_s: float
    times: list[float]
    links: list[list[float | None]]
    """bit/s by link: of the busier of its two directions."""
    there: list[list[float | None]]
    """bit/s by link, from its first end to its second."""
    back: list[list[float | None]]
    switches: list[list[float | None]]
    """Contributions and results folded per second, by switch."""
    jobs: dict[str, list[float | None]]
    """Payload bit/s of each rank, by job; null while it was not there."""


class OpenSlotView(msgspec.Struct, frozen=True):
    """A slot that waits."""

    slot: int
    psn: int
    tree: str
    operation: str
    present: list[str]
    missing: list[str]


class JobSlotsView(msgspec.Struct, frozen=True):
    """The slots that a job holds on the switch: ``count`` of them from slot ``first``, not necessarily in one row."""

    job: str
    epoch: int
    first: int
    count: int
    open: list[OpenSlotView]


class SlotsView(msgspec.Struct, frozen=True):
    """GET /slots.json: the slots of one switch."""

    switch: str
    slots: int
    jobs: list[JobSlotsView]


# ---- made from what the controller knows ---------------------------------------------------------------------------


def of_fabric(fabric: Fabric, *, faults: bool) -> FabricView:
    """The fabric; ``faults``: whether the viewer may inject them."""
    roles: dict[str, int] = {}
    nodes = []
    for node in fabric.nodes:
        role = getattr(node, "role", "host")
        nodes.append(NodeView(node.name, role, roles.get(role, 0), node.address,
                              getattr(node, "place", None)))
        roles[role] = roles.get(role, 0) + 1
    links = [LinkView(link.a, link.b, None if link.rate is None else float(bits_per_second(link.rate)))
             for link in fabric.links]
    return FabricView(fabric.name, fabric.engine, nodes, links, faults)


class LinkFinder:
    """Finds the links of a fabric by what a status says of them."""

    def __init__(self, fabric: Fabric) -> None:
        self.host_at = {host.address: host.name for host in fabric.hosts}
        self._by_end = {end: number for number, link in enumerate(fabric.links) for end in (link.a, link.b)}
        self._of_host = {end.node: number for number, link in enumerate(fabric.links) for end in link.ends
                         if end.node in set(self.host_at.values())}

    def of_tree(self, tree: TreeStatus) -> TreeLive:
        """A tree with its links by their places."""
        uplinks = [self._by_end[lower] for link in tree.links if (lower := link.partition(" - ")[0]) in self._by_end]
        hosts = [self._of_host[child] for children in tree.switches.values() for child in children
                 if child in self._of_host]
        return TreeLive(tree.root, tree.weight, uplinks, hosts)


def live(finder: LinkFinder, status: Status, sample: Sample, paths: Sequence[PinnedPath]) -> Live:
    """The state of all, of one moment, without events."""
    rates = sample.rates
    return Live(
        sample.time, status.uptime,
        [_switch(switch, rates, number) for number, switch in enumerate(status.switches)],
        [_link(link, rates, number) for number, link in enumerate(status.links)],
        [_job(finder, job, sample.jobs.get(job.name)) for job in status.jobs],
        [PathLive(path.job, path.source, path.destination, path.links, path.share) for path in paths],
        [],
    )


def with_events(state: bytes, events: Sequence[FabricEvent]) -> bytes:
    """The JSON of a Live without events, with these: the state is encoded once for all viewers, who have seen different
    events."""
    end = b"[]}"
    assert state.endswith(b'"events":' + end)
    return state.removesuffix(end) + msgspec.json.encode(events) + b"}"


def _switch(switch: SwitchStatus, rates: FabricRates, number: int) -> SwitchLive:
    rate = rates.switches[number]
    return SwitchLive(switch.name, switch.up, switch.drained, switch.problem, switch.slots_used, switch.slots,
                      rate.folded, rate.repeats, switch.entries)


def _link(link: LinkStatus, rates: FabricRates, number: int) -> LinkLive:
    there, back = rates.links[number]
    lost = None if there.lost is None or back.lost is None else there.lost + back.lost
    return LinkLive(there.bits, back.bits, there.packets, back.packets, lost, link.up, link.drained, link.problem)


def _job(finder: LinkFinder, job: JobStatus, bps: float | None) -> JobLive:
    reports, each = job.reports, max(1, len(job.reports))
    return JobLive(
        job.name, job.state, job.tenant, job.epoch, job.world, len(job.joined), len(job.left), job.lost,
        [finder.host_at.get(address, address) for address in job.hosts[:MAX_HOSTS]],
        max((report.operations for report in reports), default=0),
        sum(report.bytes_reduced for report in reports) // each,
        sum(sum(report.by_tree.values()) for report in reports) // each, bps,
        sum(report.retransmissions for report in reports),
        [finder.of_tree(tree) for tree in job.trees], _rails(job),
        None if job.round is None else _recovery(job.round), job.reason or job.stays,
    )


def _rails(job: JobStatus) -> list[RailLive]:
    carried: dict[str, int] = {}
    for report in job.reports:
        for name, count in report.by_rail.items():
            carried[name] = carried.get(name, 0) + count
    total = sum(carried.values())
    return [RailLive(name, count / total) for name, count in sorted(carried.items())] if total else []


def _recovery(last: RoundStatus) -> RecoveryLive:
    return RecoveryLive(last.number, last.why, last.took)


def history(samples: Sequence[Sample], links: int, switches: int) -> HistoryView:
    """The samples by link, switch and job."""
    there = [[sample.rates.links[number].there.bits for sample in samples] for number in range(links)]
    back = [[sample.rates.links[number].back.bits for sample in samples] for number in range(links)]
    return HistoryView(
        STEP, [sample.time for sample in samples],
        [[_more(a, b) for a, b in zip(ways, others, strict=True)] for ways, others in zip(there, back, strict=True)],
        there, back,
        [[sample.rates.switches[number].folded for sample in samples] for number in range(switches)],
        {name: [sample.jobs.get(name) for sample in samples]
         for name in dict.fromkeys(name for sample in samples for name in sample.jobs)},
    )


def _more(a: float | None, b: float | None) -> float | None:
    return max((rate for rate in (a, b) if rate is not None), default=None)


def slots(switch: SwitchStatus, held: SwitchSlots) -> SlotsView:
    """The slots of one switch."""
    return SlotsView(switch.name, switch.slots, [
        JobSlotsView(job.job, job.epoch, job.first, job.probed,
                     [OpenSlotView(slot.slot, slot.psn, slot.tree, slot.operation, slot.present, slot.missing)
                      for slot in job.open])
        for job in held.jobs
    ])
