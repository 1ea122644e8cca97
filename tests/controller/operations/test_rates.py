# SPDX-License-Identifier: Apache-2.0
"""Rates of links and switches: from each reading's own moment, and never above what a link carries."""

from __future__ import annotations

import msgspec
import pytest

from netfold.controller.operations import history
from netfold.controller.operations.history import History
from netfold.controller.operations.rates import Rates
from netfold.wire.jobs import RankReport
from netfold.wire.operator import JobStatus, LinkStatus, Outcomes, RoundStatus, Status, SwitchStatus, Traffic

RATE = 100e6
NONE = Traffic(0, 0, 0)


def status(there: Traffic, back: Traffic = NONE, rate: str | None = "100mbit") -> Status:
    """The status of a fabric with one link."""
    return Status("lab", "softswitch", 1.0, [], [LinkStatus("leaf1:1", "spine1:1", rate, 0, there, back)], [])


def traffic(bits: float, read: float, packets: int = 0) -> Traffic:
    """A reading of a counter."""
    return Traffic(packets, round(bits / 8), 0, read=read)


def test_each_end_has_its_own_interval() -> None:
    """A full link, whose one end was read late the first time and the other one the second time: both carried the
    link's rate, where one interval for both would say 1.5 and 0.5 times that."""
    rates = Rates()
    rates.update(status(traffic(0, 10.5), traffic(0, 10.0)))
    (link,) = rates.update(status(traffic(RATE, 11.5), traffic(1.5 * RATE, 11.5))).links
    assert link.there.bits == pytest.approx(RATE)
    assert link.back.bits == pytest.approx(RATE)


def test_what_is_counted_ahead_of_a_queue_is_carried_later() -> None:
    """Nothing is above the link's rate, and nothing is lost of what was counted; an unlimited link is as counted."""
    rates, carried = Rates(), 0.0
    counted = [0, 1.3 * RATE, 1.8 * RATE, 2.2 * RATE, 2.2 * RATE]
    for second, bits in enumerate(counted):
        (link,) = rates.update(status(traffic(bits, 1.0 + second))).links
        if second:
            assert link.there.bits is not None
            assert link.there.bits <= RATE
            carried += link.there.bits
    assert carried == pytest.approx(counted[-1])
    free = Rates()
    free.update(status(traffic(0, 1.0), rate=None))
    assert free.update(status(traffic(3 * RATE, 2.0), rate=None)).links[0].there.bits == pytest.approx(3 * RATE)


def test_a_queue_owes_a_second_at_most() -> None:
    """Bits beyond the capacity of a queue were dropped, and are not reported as carried forever."""
    rates = Rates()
    rates.update(status(traffic(0, 1.0)))
    rates.update(status(traffic(100 * RATE, 2.0)))
    told = [rates.update(status(traffic(100 * RATE, 3.0 + second))).links[0].there.bits for second in range(3)]
    assert told == [pytest.approx(RATE), 0.0, 0.0]


@pytest.mark.parametrize(("old", "new"), [
    (traffic(8e6, 1.0), Traffic(0, 0, 0)), (Traffic(0, 0, 0), traffic(8e9, 2.0)), (traffic(8e6, 1.0), traffic(0, 2.0)),
    (traffic(0, 5.0), traffic(8e6, 4.0)),
], ids=["no answer", "an answer after none", "restarted", "another controller's clock"])
def test_what_cannot_be_known_is_not_told(old: Traffic, new: Traffic) -> None:
    """A reading that is missing counts nothing, and the next one does not count everything since the start."""
    rates = Rates()
    rates.update(status(old))
    assert rates.update(status(new)).links[0].there == (None, None, None)


def test_a_switchs_rate_is_by_its_own_reading() -> None:
    """The rates of folded packets and of repeats have it."""
    rates = Rates()
    switch = SwitchStatus("leaf1", "leaf", "unix:/a", True, "", 0, 0, 0, 1, 0, Outcomes(100, 5), read=1.0)
    later = msgspec.structs.replace(switch, folded=Outcomes(300, 9), read=3.0)
    rates.update(Status("lab", "bmv2", 1.0, [switch], [], []))
    assert rates.update(Status("lab", "bmv2", 3.0, [later], [], [])).switches == [(100.0, 2.0)]


def test_the_history_is_made_of_what_was_read_anyway() -> None:
    """Statuses that follow too fast make no sample, after a pause rates begin anew, and it is bounded."""
    now = [100.0]
    told = History(clock=lambda: now[0], wall=lambda: 1e9 + now[0])

    def note(reduced: int, last: RoundStatus | None = None) -> None:
        report = RankReport("j", 0, 1, 1, reduced, 0, 0)
        job = JobStatus("j", "active", 1, 1, [0], [], [], 0, [], "", [report], round=last)
        told.note(msgspec.structs.replace(status(traffic(8 * reduced, now[0])), jobs=[job]))

    note(0)
    now[0] += history.SHORTEST / 2
    note(7)
    assert len(told.samples) == 1
    now[0] = 102.0
    note(1000)
    assert told.samples[-1].time == 1e9 + 102
    assert told.samples[-1].rates.links[0].there.bits == pytest.approx(4000)
    assert told.samples[-1].jobs == {"j": pytest.approx(4000)}
    now[0] += 2
    note(90_000, RoundStatus(1, "spine1 is down", 1.0, 0.04, ""))  # what ranks could not report meanwhile
    assert told.samples[-1].jobs == {"j": None}
    now[0] += history.GAP + 1
    note(1_000_000)
    assert told.samples[-1].rates.links[0].there.bits is None
    assert told.samples[-1].jobs == {"j": None}
    for _ in range(history.LENGTH):
        now[0] += 1
        note(2_000_000)
    assert len(told.samples) == history.LENGTH


def test_the_rate_of_a_job_stands_while_its_reports_are_late() -> None:
    """Without a report the rate is what it was, and the next one is spread over all the time; a job that stands still
    for long has none."""
    now = [100.0]
    told = History(clock=lambda: now[0], wall=lambda: 1e9 + now[0])
    rates = []
    for reduced in (0, 1000, 1000, 3000, 3000, 3000, 3000, 3000, 4000):
        report = RankReport("j", 0, 1, 1, reduced, 0, 0)
        told.note(Status("lab", "bmv2", now[0], [], [], [
            JobStatus("j", "active", 1, 1, [0], [], [], 0, [], "", [report])]))
        rates.append(told.samples[-1].jobs["j"])
        now[0] += 1
    assert rates == [None, 8000, 8000, 8000, 8000, 8000, 0, 0, 4000]
