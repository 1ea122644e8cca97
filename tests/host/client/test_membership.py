# SPDX-License-Identifier: Apache-2.0
"""A rank's reports to its controller end when the rank leaves (host/client/membership.py)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from netfold.host.client.membership import Membership
from netfold.host.operation.rail import RailStats
from netfold.wire.jobs import RankReport
from netfold.wire.plan import Plan


class Client:
    """A connection to a controller, and its watcher, which somebody may ask to tell how far the rank is."""

    def __init__(self) -> None:
        self.told: list[RankReport] = []
        self.left: list[RankReport] = []
        self.ask: Callable[[], None] = lambda: None

    def watch(self, _: Callable[[], Plan]) -> Client:
        return self

    def on_tell(self, call: Callable[[], None]) -> None:
        self.ask = call

    def leaving(self) -> None:
        """The rank begins to leave."""

    def tell(self, report: RankReport) -> None:
        self.told.append(report)

    def leave(self, report: RankReport, *_: object) -> None:
        self.left.append(report)


def test_a_rank_that_leaves_tells_no_progress_any_more() -> None:
    """Its rails close, so it reads none of their counts, and its totals are the last that the controller hears."""
    client, read = Client(), list[RailStats]()
    plan = Plan(job="j", epoch=1, rank=0, world=1, peers=[], trees=[])
    membership = Membership(plan, cast(Any, client))

    def progress() -> RailStats:
        read.append(RailStats(operations=3))
        return read[-1]

    membership.on_tell(progress)
    client.ask()
    assert [report.operations for report in client.told] == [3]
    membership.leave(RailStats(operations=5))
    client.ask()
    assert (len(read), len(client.told)) == (1, 1)
    assert [report.operations for report in client.left] == [5]
