# SPDX-License-Identifier: Apache-2.0
"""Silence that no rail is to blame for: machines that stand still lose no rail, and the last rail is not given up."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import suppress

import pytest

from netfold.host.errors import NetFoldError, PeerLost, RailDown
from netfold.host.rails.missing_ranks import MissingRankDetector
from netfold.host.rails.rail_set import STALL_SECONDS, RailSet, RankLabel
from netfold.host.rails.rank_state import MAX_LOOK_GAP, AgreementOutcome, Question, QuestionKind, RankState
from support.hosts.rails import FakeChannels, Plane
from support.hosts.rails import FakeRail as Fake

TIMEOUT = 10.0
EVERY = 0.01
"""Seconds between two looks at a rail that waits."""


class Machine:
    """Ranks in the stripes of one long call, on a clock that only tests advance; every rail of every rank waits."""

    def __init__(self, world: int, rails: int) -> None:
        self.now = 100.0
        self.channels = FakeChannels(world, clock=lambda: self.now)
        self.sets = [
            RailSet(
                [Fake(Plane(world), rank) for _ in range(rails)],
                [f"rail{i}" for i in range(rails)],
                self.channels.states[rank],
                MissingRankDetector(
                    self.channels.states[rank], self.channels, [r for r in range(world) if r != rank], timeout=TIMEOUT
                ),
                None,
                place=RankLabel(rank, "run", f"job 'run', rank {rank}", ["10.0.1.1", "10.0.1.2", "10.0.1.3"]),
                stall=STALL_SECONDS,
                clock=lambda: self.now,
            )
            for rank in range(world)
        ]
        self.moved = {(rank, rail): self.now for rank in range(world) for rail in range(rails)}
        self.lost: dict[tuple[int, int], NetFoldError] = {}
        """(rank, rail) -> the error with which the rail was given up there."""
        for rails_ in self.sets:
            rails_.advance()
        for state in self.channels.states:
            state.enter_stripes(1, range(rails))

    def look(self, order: Callable[[Collection[tuple[int, int]]], list[tuple[int, int]]] = sorted) -> None:
        """Lets every waiting rail of every rank look once."""
        for rank, rail in order([key for key in self.moved if key not in self.lost]):
            watch = self.sets[rank][rail].watch
            assert watch is not None
            try:
                watch(self.moved[rank, rail])
            except NetFoldError as error:
                self.lost[rank, rail] = error
                self.channels.states[rank].leave_rail(rail, failure=error)

    def passes(self, seconds: float, moving: Collection[int] = ()) -> None:
        """Advances the clock while all look every 10 ms, with progress on these rails of every rank."""
        end = self.now + seconds
        while self.now < end - 1e-9:
            self.now += EVERY
            for key in self.moved:
                if key[1] in moving:
                    self.moved[key] = self.now
            self.look()


@pytest.mark.parametrize("seconds", [0.1, 0.5, 1.0, 30.0])
def test_ranks_that_stood_still_give_up_nothing(seconds: float) -> None:
    """No rank looked meanwhile, so no rank has observed silence, however often they look at once afterwards."""
    machine = Machine(4, 2)
    machine.passes(0.05, moving=[0, 1])
    for _ in range(5):
        machine.now += seconds
        machine.look()
        machine.passes(0.02, moving=[0, 1])
    assert machine.lost == {}
    assert all(state.quiet_seconds(rail) <= MAX_LOOK_GAP for state in machine.channels.states for rail in (0, 1))


def test_some_ranks_that_stood_still_give_up_nothing() -> None:
    """Rank 2 was stopped and the others were not: they wait for it, and it gives no rail up when it goes on."""
    machine = Machine(3, 2)
    machine.passes(0.05, moving=[0, 1])
    machine.channels.deaf.add(2)
    for _ in range(100):
        machine.now += EVERY
        machine.look(lambda keys: [key for key in keys if key[0] != 2])
    machine.channels.deaf.clear()
    machine.look()
    machine.passes(0.05, moving=[0, 1])
    assert machine.lost == {}


def test_a_rail_that_falls_silent_beside_one_that_moves_is_given_up_at_once() -> None:
    """It is given up after one STALL on every rank, and the other rail carries on."""
    machine = Machine(4, 2)
    machine.passes(0.05, moving=[0, 1])
    machine.passes(STALL_SECONDS + 0.03, moving=[0])
    assert sorted(machine.lost) == [(rank, 1) for rank in range(4)]
    assert all(isinstance(error, RailDown) for error in machine.lost.values())


@pytest.mark.parametrize("rails", [2, 3])
@pytest.mark.parametrize("backwards", [False, True])
def test_when_all_is_silent_one_rail_is_kept_until_the_timeout(rails: int, backwards: bool) -> None:
    """Ranks look while nothing moves anywhere: they may give rails up, but never the last one before the call's
    timeout."""
    machine = Machine(4, rails)
    for _ in range(round((TIMEOUT - 1) / EVERY)):
        machine.now += EVERY
        machine.look(lambda keys: sorted(keys, key=lambda key: (key[0], key[1] if key[0] % 2 else -key[1]),
                                         reverse=backwards))
    dead = {rail for _, rail in machine.lost}
    assert len(dead) == rails - 1, machine.lost
    (last,) = set(range(rails)) - dead
    for key in machine.moved:  # what carries on is used again
        machine.moved[key] = machine.now
    machine.look()
    assert last not in {rail for _, rail in machine.lost}
    with suppress(NetFoldError):
        machine.passes(TIMEOUT + 1)
    assert {rail for _, rail in machine.lost} == set(range(rails)), "the timeout ends the call"


def test_the_first_rank_that_is_there_says_once_for_whom_all_wait(caplog: pytest.LogCaptureFixture) -> None:
    """After ten seconds, once an operation, though both rails of three ranks wait; the others log the same at level
    INFO."""
    caplog.set_level("INFO", "netfold")
    machine = Machine(3, 2)
    for rails_ in machine.sets:
        rails_.number = 17
        rails_.detector.timeout = 60.0
    del machine.moved[0, 0], machine.moved[0, 1]
    machine.channels.deaf.add(0)
    machine.passes(9.5)
    assert caplog.messages == []
    machine.passes(4.0)
    assert machine.lost == {}
    said = "operation 17: nothing has moved for 10 s: waiting for rank 0 (10.0.1.1); `netfold stall run` shows where"
    assert sorted((record.levelname, record.getMessage()) for record in caplog.records) == [
        ("INFO", f"job 'run', rank 2, {said}"), ("WARNING", f"job 'run', rank 1, {said}")]


def test_the_arbiter_grants_all_rails_but_the_last() -> None:
    """A grant stays until every rank has reported what it gave up, and does not outlive the rail."""
    state = RankState()
    state.set_live([0, 1, 2])

    def may(rail: int) -> bool:
        return state.answer(Question(QuestionKind.GIVE_UP, 1, rail)).outcome is AgreementOutcome.ABORTED

    assert [may(1), may(1), may(0), may(2)] == [True, True, True, False]
    state.set_live([1, 2])
    assert [may(2), may(1)] == [False, True], "rail 1 stays granted"
    state.set_live([1, 2], exchanged=True)
    assert [may(2), may(1)] == [True, False]
    assert may(0), "it is down already"
    state.set_live([0, 1, 2])
    assert may(1), "rail 0 is back, and counts"


def test_what_no_rail_carries_with_all_ranks_ends_when_all_controllers_have_lost_one() -> None:
    """An operation of some ranks, or between two, waits on a rail's mesh, where nobody is asked for: the controllers'
    word ends it all the same, once nothing has moved for a while.  One that has left in order may be none of them."""
    told: list[NetFoldError] = []
    left = PeerLost("rank 1 left")
    channels = FakeChannels(2)
    detector = MissingRankDetector(
        channels.states[0], channels, [1], timeout=TIMEOUT,
        job_error=lambda ranks_left: told[0] if told else left if ranks_left else None,
    )
    rails = RailSet(
        [Fake(Plane(2), 0)], ["rail0"], channels.states[0], detector, None, place=RankLabel(0, "run", "rank 0"),
        stall=STALL_SECONDS, clock=lambda: 100.0,
    )
    watch = rails[0].watch
    assert watch is not None
    watch(90.0)
    told.append(PeerLost("lost rank 1"))
    watch(99.9)
    with pytest.raises(PeerLost, match="lost rank 1"):
        watch(99.0)
