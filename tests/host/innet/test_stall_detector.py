# SPDX-License-Identifier: Apache-2.0
"""When a rank asks whether a link has failed, and when it reports that it lacks no result."""

from __future__ import annotations

import threading
from itertools import pairwise
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.host.client.fold_control import FoldControl
from netfold.host.innet.fold import FoldRail
from netfold.host.innet.stall_detector import (
    CALM,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    PATIENT_PAUSE,
    ROUND_TRIPS,
    SHORTEST_PAUSE,
    StallDetector,
)
from netfold.testing import loopback_job, on_every_rank
from support.hosts.insides import parts_of

MS = 1_000_000


def test_a_stream_that_flows_is_never_suspect() -> None:
    """However long an operation takes, a stream that makes progress is no stall."""
    suspicion = StallDetector()
    assert not any(suspicion.check([step * 50 * MS], step * 50 * MS + 1) for step in range(100))


def test_silence_is_suspect_soon_and_asked_about_ever_more_rarely() -> None:
    """The first question comes after FIRST_PAUSE, the next ones with twice the pause each time, up to LONGEST_PAUSE."""
    suspicion, asked = StallDetector(), []
    for now in range(0, 10_000 * MS, 10 * MS):
        if suspicion.check([0, 0], now):
            asked.append(now)
    pauses = [later - before for before, later in pairwise(asked)]
    assert asked[0] == FIRST_PAUSE
    assert pauses[:4] == [FIRST_PAUSE, 2 * FIRST_PAUSE, 4 * FIRST_PAUSE, 8 * FIRST_PAUSE]
    assert pauses[4:6] == [16 * FIRST_PAUSE, 32 * FIRST_PAUSE]
    assert set(pauses[6:]) == {LONGEST_PAUSE}


@pytest.mark.parametrize("now", [0, FIRST_PAUSE - 1, FIRST_PAUSE, FIRST_PAUSE + 1, 10 * FIRST_PAUSE])
def test_a_look_is_due_after_now_however_long_a_stream_has_stood(now: int) -> None:
    """Else a rank that waits would look again and again, without a pause."""
    assert StallDetector().due(0, now) > now


@pytest.mark.parametrize(("round_trip", "pause"), [
    (0, FIRST_PAUSE), (MS // 10, SHORTEST_PAUSE), (6 * MS, 6 * MS * ROUND_TRIPS), (300 * MS, FIRST_PAUSE),
])
def test_the_first_question_comes_after_some_usual_round_trips(round_trip: int, pause: int) -> None:
    """Within two bounds, and after the later one where no round trip is known."""
    suspicion, now = StallDetector(), 0
    while not suspicion.check([0], now, round_trip):
        now += MS
    assert now == pause


def test_patience_grows_from_the_shortest_pause_to_the_same_bound() -> None:
    """A job whose ranks come at different times asks as rarely on a quick network as on a slow one."""
    suspicion, now, pauses = StallDetector(), 0, []
    for _ in range(5):
        progress = now
        while not suspicion.check([progress], now, MS):
            now += MS
        pauses.append(now - progress)
        suspicion.check([now], now, MS)
    assert pauses == [SHORTEST_PAUSE, 2 * SHORTEST_PAUSE, 4 * SHORTEST_PAUSE, PATIENT_PAUSE, PATIENT_PAUSE]


def test_one_stuck_stream_among_others_that_flow_is_noticed() -> None:
    """A tree that has failed is noticed while the other one brings results."""
    suspicion = StallDetector()
    looks = [suspicion.check([0, step * 20 * MS], step * 20 * MS) for step in range(4)]
    assert looks == [False, False, True, False]


def test_stalls_that_end_by_themselves_make_it_patient_for_a_while() -> None:
    """Each doubles the pause before the next question, up to PATIENT_PAUSE: a job whose ranks come at different times
    does not ask at every step. Without any for CALM, the first pause holds again."""
    suspicion, now, pauses = StallDetector(), 0, []
    for _ in range(4):
        progress = now
        while not suspicion.check([progress], now):
            now += 10 * MS
        pauses.append(now - progress)
        suspicion.check([now], now)
    assert pauses == [FIRST_PAUSE, PATIENT_PAUSE, PATIENT_PAUSE, PATIENT_PAUSE]
    now += CALM
    assert not suspicion.check([now], now)
    assert suspicion.check([now], now + FIRST_PAUSE)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40), st.integers(0, 10))
def test_a_stuck_stream_is_noticed_in_time_by_who_looks_when_it_is_due(steps: list[int], at: int) -> None:
    """Another stream's results at any times put it off by no more than the pause, and not at all once somebody has
    looked since it waits; `due` is always later than now."""
    suspicion, now = StallDetector(), 0
    results = [sum(steps[:count + 1]) * MS for count in range(len(steps))]
    stuck_since, first = at * MS, -1
    while True:
        progress = max([0, *(when for when in results if when <= now), min(now, stuck_since)])
        if now >= stuck_since and first < 0:
            first = now
        if suspicion.check([min(now, stuck_since), progress], now, MS):
            break
        later = suspicion.due(progress, now)
        assert later > now
        now = later
    assert now <= max(first, stuck_since + SHORTEST_PAUSE)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 400)), max_size=60))
def test_it_asks_only_when_something_waits_and_never_twice_within_the_pause(steps: list[tuple[int, int]]) -> None:
    """This holds for any sequence of progress and silence."""
    suspicion, now, last, progress = StallDetector(), 0, -FIRST_PAUSE, 0
    for results, wait in steps:
        if results:
            progress = now
        now += wait * MS
        waits = [progress] if results != 3 else []
        if suspicion.check(waits, now):
            assert waits
            assert now - progress >= FIRST_PAUSE
            assert now - last >= FIRST_PAUSE
            last = now


def test_a_rail_settles_when_its_operation_is_over() -> None:
    """Not while another rank has yet to come, since packets that it waits for may still be lost, and be needed of
    others."""
    with loopback_job(2, timeout=30) as comms:
        rail = cast(FoldRail, parts_of(comms[0]).dispatch.switches)
        settled = threading.Event()
        first = threading.Thread(target=lambda: comms[0].allreduce(np.ones(1000, np.int32)), daemon=True)
        first.start()
        while not rail.turn.locked():
            assert first.is_alive()
        rail.settle(rail.begun, settled.set)
        assert not settled.wait(0.1)
        comms[1].allreduce(np.ones(1000, np.int32))
        assert settled.wait(20)
        first.join(20)


def test_a_rail_settles_at_once_where_a_later_operation_is_under_way() -> None:
    """That one can never end after another rank has left, and the rank that leaves need not wait for it."""
    with loopback_job(2, timeout=30) as comms:
        on_every_rank(comms, lambda comm: comm.allreduce(np.ones(1000, np.int32)))
        rail = cast(FoldRail, parts_of(comms[0]).dispatch.switches)
        last, both = rail.begun, [threading.Event(), threading.Event()]
        second = threading.Thread(target=lambda: comms[0].allreduce(np.ones(1000, np.int32)), daemon=True)
        second.start()
        while rail.begun == last:
            assert second.is_alive()
        for number, settled in zip((last, rail.begun), both, strict=True):
            rail.settle(number, settled.set)
        assert both[0].wait(20)
        assert not both[1].wait(0.1)
        comms[1].allreduce(np.ones(1000, np.int32))
        assert both[1].wait(20)
        second.join(20)


def test_a_rank_that_waits_for_a_late_one_asks_and_goes_on() -> None:
    """It reports which of its queue pairs wait for which PSN, and the sum is right in the end."""
    with loopback_job(2, timeout=30) as comms:
        told = threading.Event()
        rail = cast(FoldRail, parts_of(comms[0]).dispatch.switches)
        waits: list[dict[int, int]] = []

        def suspect(found: dict[int, int]) -> None:
            waits.append(found)
            told.set()

        rail.control = FoldControl(suspect=suspect)
        results: list[object] = []
        first = threading.Thread(target=lambda: results.append(comms[0].allreduce(np.ones(500, np.int32))), daemon=True)
        first.start()
        assert told.wait(20)
        on_every_rank(comms[1:], lambda comm: comm.allreduce(np.ones(500, np.int32)))
        first.join(20)
        assert np.array_equal(results[0], np.full(500, 2, np.int32))  # type: ignore[arg-type]
        (tree,) = comms[0].plan.trees
        assert waits[0] == dict(enumerate((tree.data.psn, tree.agreement.psn)))
