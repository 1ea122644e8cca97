# SPDX-License-Identifier: Apache-2.0
"""Which faults may be there together, and when each is undone: the state machine, on a clock of the test's own."""

from __future__ import annotations

import pytest

from netfold.topo.faults.board import FaultBoard, FaultPlan, FaultRefused
from netfold.wire.faults import Inject


class Bench:
    """A board whose faults only note what they do."""

    def __init__(self) -> None:
        self.now = 100.0
        self.did: list[str] = []
        self.broken: set[str] = set()
        self.board = FaultBoard(self._plan, lambda: self.now)

    def _plan(self, request: Inject) -> FaultPlan:
        lasting = request.kind != "restart"
        return FaultPlan(
            f"{request.kind} {request.target}", lambda: self._do(f"begin {request.kind} {request.target}"),
            (lambda: self._do(f"end {request.kind} {request.target}")) if lasting else None,
            frozenset([f"{'carrier' if request.kind in ('cut', 'flap') else request.kind} of {request.target}"]),
            request.amount if request.kind == "flap" else None, at_end=request.kind == "stop")

    def _do(self, what: str) -> None:
        if what in self.broken:
            raise OSError(f"{what} is refused")
        self.did.append(what)

    def after(self, seconds: float) -> float | None:
        """Let time pass, do what is due, and return the seconds until the next thing is."""
        self.now += seconds
        return self.board.tick()


def test_a_fault_ends_when_its_time_is_over_and_not_before() -> None:
    """What has a time is undone by the clock alone, and what has none stays."""
    bench = Bench()
    assert bench.board.inject(Inject("cut", "leaf1:3", seconds=5.0))[0] == 1
    assert bench.board.inject(Inject("silence", "leaf1:4"))[0] == 2
    assert bench.after(4.0) == pytest.approx(1.0)
    assert bench.did == ["begin cut leaf1:3", "begin silence leaf1:4"]
    assert bench.after(1.0) is None
    assert bench.did[2:] == ["end cut leaf1:3"]
    assert [fault.number for fault in bench.board.active()] == [2]


def test_what_another_fault_has_changed_is_refused_by_its_number_until_that_ends() -> None:
    """A link that is cut cannot flap as well; other links and other kinds can."""
    bench = Bench()
    bench.board.inject(Inject("cut", "leaf1:3", seconds=5.0))
    with pytest.raises(FaultRefused, match=r"fault 1 .*netfold fault end 1") as refused:
        bench.board.inject(Inject("flap", "leaf1:3", amount=1.0))
    assert refused.value.conflict
    bench.board.inject(Inject("silence", "leaf1:3"))
    bench.board.inject(Inject("cut", "leaf1:4"))
    bench.after(5.0)
    bench.board.inject(Inject("flap", "leaf1:3", amount=1.0))


def test_a_link_that_flaps_goes_down_and_up_in_turn_and_is_up_at_the_end() -> None:
    """True if its last change took it down or up, ending it leaves it up, once."""
    for periods, changes in ((2, ["begin", "end", "begin", "end"]), (1, ["begin", "end"])):
        bench = Bench()
        bench.board.inject(Inject("flap", "leaf1:3", seconds=10.0, amount=1.0))
        for _ in range(periods):
            assert bench.after(1.0) == pytest.approx(1.0)
        bench.board.undo(1)
        assert bench.did == [f"{change} flap leaf1:3" for change in changes]
        assert bench.after(20.0) is None


def test_a_fault_that_cannot_be_injected_leaves_nothing_behind() -> None:
    """What half of it may have changed is undone, and the target is free."""
    bench = Bench()
    bench.broken.add("begin cut leaf1:3")
    with pytest.raises(OSError, match="refused"):
        bench.board.inject(Inject("cut", "leaf1:3", seconds=1.0))
    assert bench.did == ["end cut leaf1:3"]
    assert bench.board.active() == []
    bench.broken.clear()
    bench.board.inject(Inject("cut", "leaf1:3", seconds=1.0))


def test_a_fault_that_cannot_be_undone_stays_with_the_reason_and_can_be_ended_again() -> None:
    """It is not tried again by itself, is listed with its problem, and still holds its target."""
    bench = Bench()
    bench.board.inject(Inject("cut", "leaf1:3", seconds=1.0))
    bench.broken.add("end cut leaf1:3")
    assert bench.after(1.0) is None
    (fault,) = bench.board.active()
    assert "could not be undone: end cut leaf1:3 is refused" in fault.problem
    with pytest.raises(FaultRefused, match="could not be undone"):
        bench.board.undo(None)
    bench.broken.clear()
    assert bench.board.undo(1) == ["cut leaf1:3"]
    assert bench.board.active() == []


def test_what_is_over_at_once_has_no_number_and_takes_no_time() -> None:
    """A restart cannot be undone, so that a time for it is refused before anything is done."""
    bench = Bench()
    assert bench.board.inject(Inject("restart", "leaf1")) == (0, "restart leaf1")
    with pytest.raises(FaultRefused, match="expected no time"):
        bench.board.inject(Inject("restart", "leaf1", seconds=1.0))
    assert bench.did == ["begin restart leaf1"]


def test_the_end_of_the_fabric_undoes_only_what_it_would_wait_for() -> None:
    """A process that stands still is let go; interfaces go with the fabric."""
    bench = Bench()
    bench.board.inject(Inject("stop", "leaf1"))
    bench.board.inject(Inject("cut", "leaf1:3"))
    bench.board.close()
    assert bench.did[2:] == ["end stop leaf1"]
