# SPDX-License-Identifier: Apache-2.0
"""The report of `netfold run` on standard error: a line for each stage, and finally the bytes that the network
carried."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence

from netfold.controller import client
from netfold.fabric.generate import PLANE_NAMES
from netfold.fabric.graph import Fabric
from netfold.rpc.rpc import Unreachable
from netfold.wire.operator import JobStatus, Status


class RunReport:
    """The lines of one run.

    job    its name
    quiet  to say nothing
    clock  monotonic seconds
    """

    def __init__(self, job: str, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self._job, self._quiet, self._clock = job, quiet, clock
        self._began = clock()
        self._before: list[Status] = []

    def say(self, what: str) -> None:
        """Print a line."""
        if not self._quiet:
            print(f"netfold: run: {what}", file=sys.stderr, flush=True)

    def starting(self, fabrics: Sequence[Fabric]) -> None:
        """Say which fabrics are brought up."""
        for number, fabric in enumerate(fabrics):
            plane = f", plane {PLANE_NAMES[number]}" if len(fabrics) > 1 else ""
            switches = f"{len(fabric.switches)} switch{'' if len(fabric.switches) == 1 else 'es'}"
            self.say(f"{fabric.name}{plane}: starting {switches} ({fabric.engine}) and "
                     f"{_count(len(fabric.hosts), 'host')}")

    def begins(self, fabrics: Sequence[Fabric], hosts: Sequence[str]) -> None:
        """Say where the ranks start, and remember what the fabrics have carried until now."""
        places = f"{hosts[0]} to {hosts[-1]}" if len(set(hosts)) > 1 else hosts[0]
        self.say(f"after {self._clock() - self._began:.1f} s: starting {_count(len(hosts), 'rank')} on {places}")
        self._before = [] if self._quiet else self._read(fabrics)

    def ended(self, fabrics: Sequence[Fabric], hosts: Sequence[str]) -> None:
        """Say what the network has carried for the ranks."""
        if self._before and (now := self._read(fabrics)):
            self.say(f"{summary(self._job, hosts, self._before, now)}; {self._clock() - self._began:.1f} s in all")

    def _read(self, fabrics: Sequence[Fabric]) -> list[Status]:
        async def read() -> list[Status]:
            return [await client.status(fabric.controllers) for fabric in fabrics]

        try:
            return asyncio.run(read())
        except Unreachable as error:
            self.say(f"what the network carries is not known: {error}")
            return []


def summary(job: str, hosts: Sequence[str], before: Sequence[Status], after: Sequence[Status]) -> str:
    """The bytes that the network has carried for the ranks of a job, and the bytes that they reduced with these,
    between two statuses of each of its fabrics.

    hosts  of the ranks, by name
    """
    ranks = _count(len(hosts), "rank")
    old = {(each.name, each.epoch) for status in before for each in status.jobs if each.state == "finished"}
    new = [each for status in after for each in status.jobs if (each.name, each.epoch) not in old]
    rails = [each for each in new if each.name.startswith(f"{job}+")]  # of the planes after the first
    ours = [each for each in new if each.name == job or each.name.startswith(f"{job}.") or each.group_of == job]
    ours += rails
    if not ours:
        return f"{ranks}; none of them joined the job {job!r}"
    reports = [report for each in ours for report in each.reports]
    operations = sum(map(_operations, (each for each in ours if each not in rails)))
    if several := [each for each in ours if any(report.by_rail for report in each.reports)]:
        # each rail's job, also that of a later life, knows the operations of all; the first life of the first is one a
        # program that joins
        operations = max(sum(_operations(each) for each in several if each.name == job), *map(_operations, several))
    folded: dict[str, int] = {}
    for report in reports:
        for tree, count in report.by_tree.items():
            folded[tree] = folded.get(tree, 0) + count
    roots = [tree for tree, count in folded.items() if count]
    payload = sum(folded.values()) / len(hosts)
    again = sum(report.retransmissions for report in reports)
    words = [ranks, _count(operations, "operation"),
             f"{_megabytes(payload)} of each rank folded by {_all(roots)}" if roots else "nothing folded by switches",
             f"{_count(again, 'packet')} sent again"]
    if roots and len(new) == len(ours) and len(set(hosts)) == len(hosts) > 1:
        words.append(_links(hosts, before, after, payload))
    return ", ".join(words)


def _operations(job: JobStatus) -> int:
    return max((report.operations for report in job.reports), default=0)


def _links(hosts: Sequence[str], before: Sequence[Status], after: Sequence[Status], payload: float) -> str:
    """The bytes that a host's link has carried each way, beside the minimum for a ring of these ranks."""
    carried = sum(_carried(new, hosts) - _carried(old, hosts) for old, new in zip(before, after, strict=True))
    each, ring = carried / len(hosts), 2 * (len(hosts) - 1) / len(hosts) * payload
    beside = f"where a ring sends {_megabytes(ring)}" if each < ring else "with what they measured and sent beside that"
    return f"each host's links {_megabytes(each)} each way, {beside}"


def _carried(status: Status, hosts: Sequence[str]) -> float:
    """Bytes of the links of these hosts, the mean of both ways."""
    return sum((link.a_to_b.bytes + link.b_to_a.bytes) / 2 for link in status.links
               if not {end.partition(":")[0] for end in (link.a, link.b)}.isdisjoint(hosts))


def _all(names: Sequence[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _megabytes(count: float) -> str:
    return f"{count / 1e6:.1f} MB" if count < 1e7 else f"{count / 1e6:.0f} MB"
