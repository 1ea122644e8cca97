# SPDX-License-Identifier: Apache-2.0
"""Jobs over several rails that lose ranks and let others in: one controller decides, and all rails are opened anew.

The controllers are real, and the ranks are threads of this process that end wherever a test says."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from netfold.host.api.communicator import Communicator
from netfold.host.client.jobs import JobClient
from netfold.host.client.membership import Membership
from netfold.host.errors import Aborted, Closed, JoinRefused, PeerLost, RailDown
from netfold.host.opening.planes import RailSpec
from netfold.host.rails import joining
from netfold.host.rails.multirail import MultiRail
from netfold.host.rails.open_rail import OpenRail
from netfold.wire.plan import Plan
from support.hosts.controlled_planes import Controlled, Killed, at_once, controlled_job, controlled_planes
from support.hosts.loopback_rails import even, loopback_rails

pytestmark = [pytest.mark.timeout(150), pytest.mark.slow]
PATIENCE = 10.0
LONG = 200_000


@pytest.fixture(scope="module")
def specs() -> Iterator[list[list[RailSpec]]]:
    """Two planes of four hosts, for all tests of this file."""
    with controlled_planes(2, 4) as made:
        yield made


@pytest.fixture
def planes(specs: list[list[RailSpec]], request: pytest.FixtureRequest) -> Iterator[Controlled]:
    """A job's place on these planes."""
    with controlled_job(specs, f"job-{zlib.crc32(request.node.name.encode())}") as made:
        yield made


def give(comm: Communicator, host: int, elements: int = 1000) -> int:
    """One sum, in which each host gives a power of two of its own: tells whose parts are in it."""
    total = comm.allreduce(np.full(elements, 1 << host, np.int32))
    assert (total == total[0]).all()
    return int(total[0])


def parts(*hosts: int) -> int:
    return sum(1 << host for host in hosts)


# ---- a loss ----------------------------------------------------------------------------------------------------------
def test_a_sum_goes_on_without_a_lost_rank_over_all_rails(planes: Controlled) -> None:
    """By itself; the ranks that are left have new numbers, all rails are up, and the next long sum is right, too."""
    comms = planes.join(range(3), on_loss="shrink", timeout=PATIENCE)
    calls = [lambda host=host: give(comms[host], host) for host in range(3)]
    assert at_once(calls) == [parts(0, 1, 2)] * 3
    group = comms[0].group([0, 2])
    planes.kill(comms[1])
    left = {0: comms[0], 2: comms[2]}
    assert at_once([lambda host=host: give(left[host], host) for host in left]) == [parts(0, 2)] * 2
    assert [(comm.rank, comm.size) for comm in left.values()] == [(0, 2), (1, 2)]
    assert at_once([lambda host=host: give(left[host], host, LONG) for host in left]) == [parts(0, 2)] * 2
    for comm in left.values():
        assert comm.rails is not None
        assert [use.state for use in comm.rails.use()] == ["up", "up"]
        assert "tcp@a" in comm.explain(LONG)
    with pytest.raises(Closed, match="make the group anew"):
        group.allreduce(np.ones(3, np.int32))
    groups = [comm.group([0, 1]) for comm in left.values()]
    sums = at_once([lambda group=group: group.allreduce(np.ones(3, np.int32)).tolist() for group in groups])
    assert sums == [[2, 2, 2]] * 2
    at_once([comm.close for comm in left.values()])


def test_ranks_that_shrink_by_hand_learn_who_is_lost(planes: Controlled) -> None:
    """The error names the rank, and ``shrink`` returns the same change on all; the last one that is left goes on
    alone."""
    comms = planes.join(range(3), timeout=PATIENCE)
    planes.kill(comms[2])
    lost = at_once([lambda host=host: give(comms[host], host) for host in (0, 1)])
    assert all(isinstance(error, PeerLost) and "rank 2" in str(error) for error in lost), lost
    changes = at_once([comm.shrink for comm in comms[:2]])
    assert [(change.lost, change.ranks, change.last) for change in changes] == [((2,), {0: 0, 1: 1}, 0)] * 2
    assert at_once([lambda host=host: give(comms[host], host) for host in (0, 1)]) == [parts(0, 1)] * 2
    planes.kill(comms[0])
    with pytest.raises(PeerLost):
        give(comms[1], 1)
    assert comms[1].shrink().lost == (0,)
    assert (comms[1].size, comms[1].rails, give(comms[1], 1)) == (1, None, parts(1))
    comms[1].close()


def test_where_no_rank_is_lost_all_begin_anew(planes: Controlled) -> None:
    """After an error that no controller knows of: the rails are those of the next incarnation."""
    comms = planes.join(range(2), timeout=PATIENCE)
    before = comms[0].plan.epoch
    changes = at_once([comm.shrink for comm in comms])
    assert not any(changes)
    assert comms[0].plan.epoch != before
    assert at_once([lambda host=host: give(comms[host], host, LONG) for host in range(2)]) == [parts(0, 1)] * 2
    at_once([comm.close for comm in comms])


# ---- further losses on the way ---------------------------------------------------------------------------------------
def while_it_asks(planes: Controlled, victim: int, patch: pytest.MonkeyPatch) -> None:
    """The controller has its request, and it has no answer."""
    real = JobClient.reform

    def reform(client: JobClient, plan: Plan, *given: Any, **named: Any) -> Plan | None:
        answer = real(client, plan, *given, **named)
        if planes.host_of(Membership(plan)) == victim:
            planes.dies(victim)
        return answer

    patch.setattr(JobClient, "reform", reform)


def before_its_rails(planes: Controlled, victim: int, patch: pytest.MonkeyPatch) -> None:
    """It has its new plan, and the others wait for it on every plane."""
    real = joining.join_rails

    def join_rails(specs: Any, membership: Membership, *given: Any, **named: Any) -> Any:
        if planes.host_of(membership) == victim:
            planes.dies(victim)
        return real(specs, membership, *given, **named)

    patch.setattr("netfold.host.api.several_rails.join_rails", join_rails)


def on_one_rail(planes: Controlled, victim: int, patch: pytest.MonkeyPatch) -> None:
    """It has joined the first plane and not the second."""

    class Dies(OpenRail):
        def __init__(self, spec: Any, *given: Any, **named: Any) -> None:
            if spec is planes.specs[victim][1]:
                planes.dies(victim)
            super().__init__(spec, *given, **named)

    patch.setattr(joining, "OpenRail", Dies)


def before_it_tells(planes: Controlled, victim: int, patch: pytest.MonkeyPatch) -> None:
    """Its rails are open, and the others wait until it says so."""
    real = Membership.opened

    def opened(membership: Membership, *given: Any) -> Any:
        if planes.host_of(membership) == victim:
            planes.dies(victim)
        return real(membership, *given)

    patch.setattr(Membership, "opened", opened)


def before_the_first_exchange(planes: Controlled, victim: int, patch: pytest.MonkeyPatch) -> None:
    """All have all rails, and begin to measure them."""
    real = MultiRail._begin

    def begin(rails: MultiRail, *given: Any) -> None:
        if rails.world == 3 and rails.rank == victim - 1:  # rank 0 was lost first
            planes.dies(victim)
        real(rails, *given)

    patch.setattr(MultiRail, "_begin", begin)


@pytest.mark.parametrize(("dies", "victim"), [
    (while_it_asks, 1), (before_its_rails, 3), (on_one_rail, 1), (before_it_tells, 3), (before_the_first_exchange, 1)])
def test_a_rank_that_dies_while_the_others_change_is_left_behind_too(
    planes: Controlled, dies: Callable[[Controlled, int, pytest.MonkeyPatch], None], victim: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Wherever it is then: the sum of those that are left is right, and none of them hangs."""
    comms = planes.join(range(4), on_loss="shrink", timeout=PATIENCE)
    planes.kill(comms[0])
    dies(planes, victim, monkeypatch)
    hosts = [host for host in range(4) if host not in (0, victim)]
    results = at_once([lambda host=host: give(comms[host], host) for host in (1, 2, 3)])
    assert isinstance(results[victim - 1], Killed)
    assert [result for result in results if not isinstance(result, Killed)] == [parts(*hosts)] * 2, results
    assert at_once([lambda host=host: give(comms[host], host, LONG) for host in hosts]) == [parts(*hosts)] * 2
    at_once([comms[host].close for host in hosts])


def test_changes_that_follow_each_other_are_told_as_one(
    planes: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank is lost while the others open their rails: ``shrink`` tells of both by the numbers from before."""
    comms = planes.join(range(4), timeout=PATIENCE)
    planes.kill(comms[0])
    before_it_tells(planes, 2, monkeypatch)
    results = at_once([comms[host].shrink for host in (1, 2, 3)])
    assert isinstance(results[1], Killed)
    assert [(change.lost, change.former) for change in (results[0], results[2])] == [((0, 2), (1, 3))] * 2
    at_once([comms[host].close for host in (1, 3)])


# ---- rails that are lost with a rank ---------------------------------------------------------------------------------
def test_a_rail_that_one_rank_cannot_open_is_lost_by_name_and_comes_back(
    planes: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All others go on over the other rails; as soon as the rank can open it, all use it again."""
    closed = [True]

    class Refused(OpenRail):
        def __init__(self, spec: Any, job: str, *given: Any, **named: Any) -> None:
            if closed[0] and spec is planes.specs[1][1] and ":" in job:
                raise RailDown("a test has cut its cable")
            super().__init__(spec, job, *given, **named)

    comms = planes.join(range(3), on_loss="shrink", timeout=PATIENCE)
    monkeypatch.setattr(joining, "OpenRail", Refused)
    planes.kill(comms[2])
    assert at_once([lambda host=host: give(comms[host], host) for host in range(2)]) == [parts(0, 1)] * 2
    for comm in comms[:2]:
        assert comm.rails is not None
        assert [use.state for use in comm.rails.use()] == ["up", "down"]
        assert "tcp@b is down: rank 1 could not open tcp@b: a test has cut its cable" in comm.explain(LONG)
    closed[0] = False

    def back(host: int) -> None:
        rails = comms[host].rails
        assert rails is not None
        while rails.use()[1].state == "down":
            assert give(comms[host], host, LONG) == parts(0, 1)
        assert give(comms[host], host, LONG) == parts(0, 1)

    assert at_once([lambda host=host: back(host) for host in range(2)]) == [None] * 2
    at_once([comm.close for comm in comms[:2]])


# ---- ranks that come -------------------------------------------------------------------------------------------------
def test_a_rank_that_comes_sums_over_all_rails(planes: Controlled) -> None:
    """It has the last number, and the others keep theirs."""
    comms = planes.join((0, 2), timeout=PATIENCE)
    at_once([lambda comm=comm, host=host: give(comm, host) for comm, host in zip(comms, (0, 2), strict=True)])

    def grows(comm: Communicator, host: int) -> list[int]:
        while not comm.grow():
            pass
        return [give(comm, host), give(comm, host, LONG), comm.rank]

    def comes() -> list[int]:
        comms.append(planes.come(1, timeout=PATIENCE))
        return [give(comms[2], 1), give(comms[2], 1, LONG), comms[2].rank]

    right = [parts(0, 1, 2)] * 2
    assert at_once([lambda: grows(comms[0], 0), lambda: grows(comms[1], 2), comes]) == [
        [*right, rank] for rank in range(3)]
    at_once([comm.close for comm in comms])


def test_a_rank_that_dies_while_another_one_comes_is_left_behind(
    planes: Controlled, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one that comes goes on with those that are left."""
    comms = planes.join((0, 2), timeout=PATIENCE)
    before_its_rails(planes, 0, monkeypatch)

    def grows(comm: Communicator, host: int) -> int:
        while not comm.grow():
            pass
        return give(comm, host)

    def comes() -> int:
        comms.append(planes.come(1, timeout=PATIENCE))
        return give(comms[2], 1)

    results = at_once([lambda: grows(comms[0], 0), lambda: grows(comms[1], 2), comes])
    assert isinstance(results[0], Killed)
    assert results[1:] == [parts(1, 2)] * 2, results
    at_once([comm.close for comm in comms[1:]])


def test_a_rank_with_other_rails_is_refused_by_name(planes: Controlled) -> None:
    """At the start, and where it comes to a running job: the others go on as they were."""
    comms = planes.join((0, 1), timeout=PATIENCE)
    plane = planes.specs[2][0].plane

    def comes() -> None:
        with pytest.raises(JoinRefused, match=r"rails: expected tcp\+tcp, as rank 0 has said, got one rail"):
            Communicator.join_running(planes.job, address=plane.address, controller=plane.controller, rail="tcp")
        done.append(True)

    done: list[bool] = []

    def grows(comm: Communicator, host: int) -> int:
        while not comm.allreduce(np.array([len(done)], np.int32))[0]:
            assert not comm.grow()
        return give(comm, host)

    assert at_once([lambda: grows(comms[0], 0), lambda: grows(comms[1], 1), comes]) == [parts(0, 1)] * 2 + [None]
    at_once([comm.close for comm in comms])


# ---- a program that gives up -----------------------------------------------------------------------------------------
@pytest.mark.parametrize(("elements", "carrying"), [(8, 1), (LONG, 2)], ids=["an agreement", "stripes"])
def test_several_rails_are_aborted_soon(elements: int, carrying: int) -> None:
    """What waits for another rank ends with the words, as does every later call, long before the timeout; closing waits
    for nobody."""
    with loopback_rails(["tcp", "tcp"], 2, timeout=300.0) as comms:
        at_once([lambda host=host: give(comms[host], host) for host in range(2)])
        even(comms)
        rails = comms[0].rails
        assert rails is not None
        work = comms[0].iallreduce(np.ones(elements, np.int32))
        while sum(map(rails.state.carries, rails.live)) != carrying:
            assert not work.done()
        comms[0].abort("the test says so")
        with pytest.raises(Aborted, match="the test says so"):
            work.wait(60)
        with pytest.raises(Aborted):
            comms[0].allreduce(np.ones(3, np.int32))
