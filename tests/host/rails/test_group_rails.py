# SPDX-License-Identifier: Apache-2.0
"""Groups of some ranks of a job that has several rails: trees of their own on each plane, and what happens without."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import numpy as np
import pytest

from netfold.host.api.communicator import Communicator
from netfold.host.api.group import Group
from netfold.host.api.group_folds import RETRY
from netfold.host.errors import Aborted, Closed, RailDown
from netfold.host.mesh.sockets import listen
from netfold.host.opening.planes import Kind
from netfold.host.operation.request import AllreduceRequest
from netfold.host.rails.multirail import MultiRail
from netfold.host.rails.open_rail import OpenRail
from netfold.host.rails.shares import Figure, RailShares
from netfold.testing import on_every_rank
from netfold.wire.plan import Peer, Plan, Secret
from support.hosts.group_jobs import GroupJobs
from support.hosts.insides import ranks_of
from support.hosts.loopback_rails import even, loopback_planes

pytestmark = pytest.mark.slow

WORLD = 4
MEMBERS = (3, 0, 1)
LONG = 300_000
"""Elements of a tensor that two rails share."""


@dataclass
class Job:
    """A job over several rails, and one group of its ranks.

    services  of the planes that fold, by plane
    """

    comms: list[Communicator]
    groups: dict[int, Group]
    services: list[GroupJobs]

    def each(self, work: Callable[[Group], Any]) -> list[Any]:
        """The results of ``work`` on all ranks of the group."""
        results = on_every_rank([self.comms[rank] for rank in MEMBERS], lambda comm: work(self.groups[comm.rank]))
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    def sums(self, elements: int = LONG) -> list[str]:
        """Sums in place, checked on all ranks.  Returns the ranks' paths."""

        def work(group: Group) -> None:
            array = np.full(elements, group.rank + 1, np.float32)
            group.allreduce(array, out=array)
            assert (array == 6).all()

        self.each(work)
        return [self.comms[rank].flight()[-1].path for rank in MEMBERS]

    def team(self, rank: int) -> MultiRail:
        """The rails of a rank's group."""
        found = ranks_of(self.groups[rank]).dispatch.rails
        assert isinstance(found, MultiRail)
        return found

    def kill(self, place: int, *, rank: int = 0, after: int = 0) -> None:
        """Ends a rail of the group on one rank, when it has carried so many allreduces more."""
        rail, left = self.team(rank).track(place), [after]
        assert isinstance(rail, OpenRail)
        carry = rail.allreduce

        def dies(request: AllreduceRequest) -> int:
            if left[0] <= 0:
                raise RailDown("a test ends this rail")
            left[0] -= 1
            return carry(request)

        rail.allreduce = dies  # type: ignore[method-assign]

    def close(self) -> None:
        on_every_rank(self.comms, lambda comm: comm.close())


@contextmanager
def job(kinds: Sequence[Kind] = ("innet", "innet")) -> Iterator[Job]:
    """A job over rails of these kinds, and a group of its ranks."""
    learn = RailShares.learn

    def once(shares: RailShares, fresh: Sequence[Figure], live: Sequence[int]) -> bool:
        return any(shares.figures[rail].bandwidth is None for rail in live) and learn(shares, fresh, live)

    with (loopback_planes(kinds, WORLD, groups=True) as planes, mock.patch.object(RailShares, "learn", once),
          mock.patch.object(RailShares, "adopt_cut_seconds")):
        comms = planes.join(timeout=20.0)
        even(comms)  # a group begins with its job's figures, and keeps them here, whatever this machine is doing
        services = [service for service in planes.jobs if isinstance(service, GroupJobs)]
        made = Job(comms, {rank: comms[rank].group(MEMBERS) for rank in MEMBERS}, services)
        try:
            yield made
        finally:
            made.close()


def test_a_group_folds_on_every_plane_and_gives_its_slots_back() -> None:
    """A long sum is cut over both planes' trees, which are the group's own; the job folds beside it as before.  Closed,
    the group leaves both planes."""
    with job() as here:
        here.sums()
        paths = here.sums()
        assert all("innet@a" in path and "innet@b" in path for path in paths), paths
        assert all(use.nbytes > 0 for use in here.team(0).use()[:2])
        said = here.each(lambda group: group.explain(1 << 20))
        for name in ("'rails+0#3-0-1.1' on innet@a", "'rails+1#3-0-1.1' on innet@b"):
            assert all(name in one for one in said), said
        assert all((total == 10).all() for total in on_every_rank(
            here.comms, lambda comm: comm.allreduce(np.full(9, comm.rank + 1, np.int32))))
        here.each(lambda group: group.close())
        assert [service.left for service in here.services] == [
            ["rails+0#3-0-1.1"] * len(MEMBERS), ["rails+1#3-0-1.1"] * len(MEMBERS)]
        with pytest.raises(Closed):
            here.groups[0].allreduce(np.ones(3, np.float32))
        assert not any(isinstance(one, BaseException) for one in on_every_rank(
            here.comms, lambda comm: comm.allreduce(np.ones(9, np.int32))))


def test_ranks_that_others_have_planned_fold_as_a_group_of_several_rails() -> None:
    """As torch's groups do, which have connections of their own; aborted, they end soon."""
    with job() as here:
        listeners = [listen(here.comms[rank].plan.peers[rank].address) for rank in MEMBERS]
        tcp = ["{}:{}".format(*listener.getsockname()) for listener in listeners]
        peers = [Peer(place, at.partition(":")[0], at) for place, at in enumerate(tcp)]

        def work(comm: Communicator) -> None:
            place = MEMBERS.index(comm.rank)
            plan = Plan("rails.1", 7, place, len(MEMBERS), peers, [], "planned by the store", secret=Secret("ab" * 32))
            with Communicator.of_plan(plan, address=peers[place].address, listener=listeners[place], timeout=20.0,
                                      group_of=(comm, MEMBERS)) as own:
                for _ in range(2):
                    assert (own.allreduce(np.ones(LONG, np.float32)) == len(MEMBERS)).all()
                assert "'rails+1#3-0-1.1' on innet@b" in own.explain(1 << 20)
                assert "innet@a" in own.flight()[-1].path
                own.barrier()
                own.abort("a test has seen enough")
                with pytest.raises(Aborted):
                    own.barrier()

        for result in on_every_rank([here.comms[rank] for rank in MEMBERS], work):
            assert result is None, result


def test_a_short_reduce_scatter_and_all_gather_are_one_operation() -> None:
    """Both fold within it, as sums, and no operation is recorded that carried nothing."""
    with job() as here:
        here.sums()

        def work(group: Group) -> None:
            with group.together() as both:
                sums, rows = both.reduce_scatter(np.full(6, 1.0, np.float32)), both.all_gather(np.array([group.rank]))
            assert (sums == 3).all()
            assert rows.tolist() == [0, 1, 2]

        before = [len(here.comms[rank].flight()) for rank in MEMBERS]
        here.each(work)
        for rank, seen in zip(MEMBERS, before, strict=True):
            (record,) = here.comms[rank].flight()[seen:]
            assert (record.name, "innet" in record.path) == ("together", True)


def test_a_group_that_loses_a_plane_goes_on_over_the_other_and_gets_it_back() -> None:
    """In the same call, with exact sums; the plane's trees come back under a number of their own."""
    with job() as here:
        here.sums()
        here.kill(1)
        assert all("died: innet@b" in path for path in here.sums())
        assert [[use.deaths for use in here.team(rank).use()] for rank in MEMBERS] == [[0, 1, 0]] * 3
        for _ in range(400):
            here.sums(20_000)
            if here.team(0).use()[1].state == "up":
                break
        assert [[use.state for use in here.team(rank).use()] for rank in MEMBERS] == [["up", "up", "spare"]] * 3
        assert all("innet@a" in path and "innet@b" in path for path in here.sums())


def test_a_group_that_loses_all_planes_goes_on_between_the_hosts() -> None:
    """In the same call, whether the rails die in a long sum or in a short one; nothing is lost."""
    for elements in (LONG, 600):
        with job() as here:
            here.sums()
            for service in here.services:
                service.refusal = "no slots"
            here.kill(0)
            here.kill(1, rank=3)
            for _ in range(3):
                paths = here.sums(elements)
            assert all(path.startswith("tcp") or "TCP" in path for path in paths), paths
            assert [[use.state for use in here.team(rank).use()] for rank in MEMBERS] == [["down", "down", "up"]] * 3
            sums = here.each(lambda group: group.reduce_scatter(np.full(6, group.rank + 1, np.float32)))
            assert all((mine == 6).all() for mine in sums)


def test_an_idle_group_gives_its_slots_to_whoever_needs_them() -> None:
    """Where the controller takes its trees back, its ranks leave at once, before their next operation, which is exact
    all the same: over the other plane, or between the hosts."""
    with job() as here:
        here.sums()
        for plane, service in enumerate(here.services):
            name = f"rails+{plane}#3-0-1.1"
            service.refusal = "the slots are another's"
            service.halt(name)
            with service.changed:
                assert service.changed.wait_for(lambda: service.left == [name] * 3, 20), service.left  # noqa: B023
            for _ in range(3):
                paths = here.sums()
            assert all(("innet@b" in path) == (plane == 0) and "innet@a" not in path for path in paths), paths


def test_a_group_folds_on_the_planes_that_have_trees_for_it() -> None:
    """One plane's refusal keeps none from folding on the other; a rail over TCP is no plane of a group."""
    with job() as here:
        here.services[0].refusal = "the switches are full"
        here.sums()
        assert all("innet@b" in path and "innet@a" not in path for path in here.sums())
    with job(("tcp", "innet")) as here:
        here.sums()
        assert all(path.startswith("innet@b") for path in here.sums())


def test_a_group_that_no_plane_has_trees_for_says_why_and_asks_again() -> None:
    """Its operations go between the hosts meanwhile."""
    with job() as here:
        for service in here.services:
            service.refusal = "the switches are full"
        for _ in range(RETRY):
            assert all("TCP" in path for path in here.sums())
        said = here.each(lambda group: group.explain(1 << 20))
        assert all("rank 3: the switches are full; it asks again after" in one for one in said), said
        with pytest.raises(ValueError, match="nothing folds for this job: this group does not fold"):
            here.each(lambda group: group.allreduce(np.ones(3, np.float32), algorithm="innet"))
        for service in here.services:
            service.refusal = ""
        here.sums()
        assert all("innet@a" in path for path in here.sums())
