# SPDX-License-Identifier: Apache-2.0
"""Makes the status of switches, links and jobs from their counters and the controller's records."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple

import msgspec

from netfold.controller.jobs.job import Job
from netfold.controller.jobs.rounds import Round
from netfold.controller.switch import tables
from netfold.controller.switch.codec import Count, Wanted
from netfold.controller.switch.target import Target
from netfold.fabric.folding import pools
from netfold.fabric.graph import End, Link, Switch
from netfold.wire.operator import (
    JobStatus,
    LinkStatus,
    Outcomes,
    Punts,
    RoundStatus,
    Status,
    SwitchStatus,
    Totals,
    Traffic,
    TreeStatus,
)

_BY_PORT: Final = (
    tables.PORT_IN, tables.PORT_OUT, tables.SPOOFED, tables.UNFOLDED, tables.GAPS, tables.REFUSED, tables.OVER_RATE,
    *(tables.fault_counter(control, fault) for control in (tables.FAULT_IN, tables.FAULT_OUT)
      for fault in tables.FAULTS),
)
"""Counters with a cell for each number of a port, of which only those with a link count anything."""
_WHOLE: Final = (tables.CORRUPT, tables.OUTCOMES, tables.UNASSIGNED)
COUNTERS: Final = (*_BY_PORT, *_WHOLE)
"""The counters that a status needs of every switch."""


def wanted(ports: Sequence[int]) -> Wanted:
    """The counters that a status needs of a switch with links at these ports."""
    return {**dict.fromkeys(_BY_PORT, ports), **dict.fromkeys(_WHOLE)}


class SwitchCounters(NamedTuple):
    """Counters of one switch, read at once."""

    cells: Mapping[str, Mapping[int, Count]] = MappingProxyType({})
    """Cells by counter name and index."""
    read: float = 0.0
    """Time of the reading, in monotonic seconds, halfway between question and answer; 0: they were not read."""


_NOTHING: Final = Count(0, 0)


def of_switch(switch: Switch, target: Target, used: int, counters: SwitchCounters, *, drained: bool) -> SwitchStatus:
    """The status of one switch; ``used``: its allocated slots."""
    return SwitchStatus(
        switch.name, switch.role, switch.grpc, target.is_up, target.problem or target.silence, target.entries,
        target.pushes, used, pools.SLOTS, counters.cells.get(tables.CORRUPT, {}).get(0, _NOTHING).packets,
        _outcomes(counters), drained,
        switch.device_id, _punts(target, counters), _total(counters, tables.SPOOFED),
        _total(counters, tables.UNASSIGNED), _total(counters, tables.UNFOLDED), _total(counters, tables.GAPS),
        counters.read,
    )


def _punts(target: Target, counters: SwitchCounters) -> Punts:
    return Punts(_total(counters, tables.REFUSED), _total(counters, tables.OVER_RATE), target.packets_dropped)


def _total(counters: SwitchCounters, name: str) -> int:
    return sum(count.packets for count in counters.cells.get(name, {}).values())


def _outcomes(counters: SwitchCounters) -> Outcomes:
    cells = counters.cells.get(tables.OUTCOMES, {})
    return Outcomes(*(cells.get(index, _NOTHING).packets for index in range(len(Outcomes.__struct_fields__))))


def of_link(link: Link, counters: Mapping[str, SwitchCounters], *, up: bool, problem: str, drained: bool) -> LinkStatus:
    """The status of one link; ``counters``: those of all switches, by switch."""
    a, b = link.ends
    return LinkStatus(link.a, link.b, link.rate, link.loss, _traffic(counters, a, b), _traffic(counters, b, a), up,
                      duplicate=link.duplicate, reorder=link.reorder, corrupt=link.corrupt, drained=drained,
                      problem=problem)


def _traffic(counters: Mapping[str, SwitchCounters], sender: End, receiver: End) -> Traffic:
    """Traffic of one direction.  A switch counts what it sends, after injected faults; a host does not count, so its
    switch counts what arrives from it, before injected faults."""
    counted, port, counter = (
        (counters[sender.node], sender.port, tables.PORT_OUT) if sender.node in counters
        else (counters[receiver.node], receiver.port, tables.PORT_IN))
    count = counted.cells.get(counter, {}).get(port, _NOTHING)
    at, control = (receiver, tables.FAULT_IN) if receiver.node in counters else (sender, tables.FAULT_OUT)
    names = (*(tables.fault_counter(control, fault) for fault in tables.FAULTS), tables.SPOOFED, tables.GAPS)
    if at == sender:
        names = names[:-2]  # a switch refuses, and misses, what arrives
    done = (counters[at.node].cells.get(name, {}) for name in names)
    return msgspec.structs.replace(
        Traffic(count.packets, count.bytes, *(cells.get(at.port, _NOTHING).packets for cells in done)),
        read=counted.read,
    )


def of_job(job: Job) -> JobStatus:
    """The status of one incarnation of a job."""
    joined = sorted(job.joins)
    return JobStatus(
        name=job.name,
        state=job.state,
        epoch=job.epoch,
        world=job.world,
        joined=joined,
        left=sorted(job.left),
        hosts=[job.joins[rank].address for rank in joined],
        slots=job.slots,
        trees=[
            TreeStatus(tree.root, tree.weight, {f.switch: [child.node for child in f.children] for f in tree.folds},
                       [f"{f.switch}:{f.parent_port} - {f.parent}" for f in tree.folds if f.parent is not None])
            for tree in job.trees
        ],
        reason=job.reason,
        reports=[job.reports[rank] for rank in sorted(job.reports)],
        lost=sorted(job.lost),
        awaited=sorted(job.awaited),
        round=None if job.round is None else _of_round(job.round),
        stays=job.stay_reason,
        tenant=job.tenant.name,
        group_of=job.parent_name,
        rc=job.rc_ranks,
        unconnected=job.step.missing if job.step is not None and job.step.is_open else [],
    )


def limited(status: Status, tenant: str) -> Status:
    """The status as a tenant may read it: the fabric, and its own jobs.  Totals cover all tenants' jobs, and are left
    out."""
    mine = [job for job in status.jobs if job.tenant == tenant]
    return msgspec.structs.replace(status, jobs=mine, totals=Totals())


def _of_round(last: Round) -> RoundStatus:
    took = last.ended - last.began if last.plans.done() else None
    return RoundStatus(last.number, last.why, time.monotonic() - last.began, took, last.problem)
