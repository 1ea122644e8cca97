# SPDX-License-Identifier: Apache-2.0
"""Communicators over several real rails in one process: each plane has loopback addresses, a switch in plain Python and
a job service of its own."""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any, Final
from unittest import mock

from netfold.host.api.communicator import Communicator
from netfold.host.opening.planes import Kind, Plane, RailSpec
from netfold.host.rails import policy
from netfold.host.rails.joining import STALL_VARIABLE
from netfold.host.rails.shares import LONG_BYTES, Figure
from netfold.host.selection.chooser import Chooser
from netfold.host.selection.cost import LinkCost
from netfold.host.selection.measure import Measured
from netfold.testing import LoopbackSwitch, subnet
from support.hosts.group_jobs import GroupJobs
from support.hosts.torch import LoopbackJobs, loopback_jobs
from support.hosts.verbs_jobs import VerbsJobs

NAMES = "abcdef"
STALL = "5"
LINKS: Final = Measured(LinkCost(1e-4, 1e-9, 1e-10), 1.0)
"""The cost that every link counts as.  A job would need more time to measure its links than for all else here."""


def known_links() -> AbstractContextManager[object]:
    """A context in which links are known and none is measured."""
    return mock.patch.object(Chooser, "_measured", return_value=LINKS)


class LoopbackPlanes:
    """Planes of so many ranks.

    jobs   the job service of each
    specs  by rank: its rails
    """

    def __init__(self, kinds: Sequence[Kind], world: int, stack: ExitStack, *, groups: bool = False) -> None:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        self.world = world
        self.jobs: list[LoopbackJobs] = []
        self.specs: list[list[RailSpec]] = [[] for _ in range(world)]
        for kind, name in zip(kinds, NAMES, strict=False):
            net, where = subnet(), f"unix:{folder}/{name}"
            addresses = [f"{net}.{rank + 1}" for rank in range(world)]
            make: Callable[[LoopbackSwitch, int], LoopbackJobs] | None = VerbsJobs if kind == "verbs" else None
            if groups and kind == "innet":
                make = functools.partial(GroupJobs, net=net)
            self.jobs.append(stack.enter_context(loopback_jobs(f"{net}.200", addresses, where, make)))
            for rank, address in enumerate(addresses):
                self.specs[rank].append(RailSpec(kind, Plane(address, where), f"{kind}@{name}"))

    def join(self, **settings: Any) -> list[Communicator]:
        """All ranks' communicators, by rank; the caller closes them.  A rail is silent for seconds before it is given
        up, so that a busy machine is no fault."""
        with mock.patch.dict(os.environ, {STALL_VARIABLE: STALL}), ThreadPoolExecutor(self.world) as pool:
            made = [
                pool.submit(Communicator.join, "rails", rank, self.world, rails=self.specs[rank], **settings)
                for rank in range(self.world)
            ]
        return [future.result() for future in made]


@contextmanager
def loopback_planes(kinds: Sequence[Kind], world: int, *, groups: bool = False) -> Iterator[LoopbackPlanes]:
    """Planes for rails of these kinds, whose switches and services end with the context.  A rail's rate is measured by
    the shortest call that does: the usual ones would take longer than all else here.

    groups  one group of the ranks may fold, too
    """
    with ExitStack() as stack:
        stack.enter_context(known_links())
        stack.enter_context(mock.patch.object(policy, "RATE", (LONG_BYTES,)))
        planes = LoopbackPlanes(kinds, world, stack, groups=groups)
        yield planes
        for jobs in planes.jobs:
            if isinstance(jobs, GroupJobs):
                jobs.close()


@contextmanager
def loopback_rails(
    kinds: Sequence[Kind], world: int, *, groups: bool = False, **settings: Any
) -> Iterator[list[Communicator]]:
    """The communicators of all ranks over rails of these kinds; ``groups`` as of ``loopback_planes``, ``settings`` of
    ``Communicator.join``."""
    with loopback_planes(kinds, world, groups=groups) as planes, ThreadPoolExecutor(world) as pool:
        comms = planes.join(**settings)
        try:
            yield comms
        finally:
            list(pool.map(lambda comm: comm.close(), comms))


def even(comms: Sequence[Communicator]) -> None:
    """Rails that count as equally fast whatever is measured, so that each carries a part of what is long."""
    for comm in comms:
        assert comm.rails is not None
        comm.rails.shares.figures = [Figure(1e-4, 1e6)] * len(comm.rails.live)
        comm.rails.shares.learn = lambda fresh, live: False  # type: ignore[method-assign]
        comm.rails.shares.adopt_cut_seconds = lambda seconds: None  # type: ignore[method-assign]


def carried(comms: Sequence[Communicator]) -> list[int]:
    """Bytes that each rail has carried for rank 0."""
    assert comms[0].rails is not None
    return [use.nbytes for use in comms[0].rails.use()]
