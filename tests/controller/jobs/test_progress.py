# SPDX-License-Identifier: Apache-2.0
"""Ranks tell how far they are when somebody looks at their job, and only then."""

from __future__ import annotations

from pathlib import Path

from netfold.controller import client
from netfold.controller.jobs import reports
from netfold.wire.jobs import Done, RankReport, Tell
from support.control.jobs import rig


async def test_ranks_are_asked_while_somebody_looks(tmp_path: Path) -> None:
    """Once for all who look within the interval; a status alone, which every command and launcher reads, asks none."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        watcher = await r.watch(plans[0])
        job = r.controller.jobs.registry.active("j")[0]
        await client.status(r.fabric.jobs)
        assert job.asked == 0
        for _ in range(3):
            await client.events(r.fabric.jobs)
        assert isinstance(await watcher.next(), Tell)
        assert job.watchers[0].empty()
        job.asked -= reports.TELL_SECONDS  # as if it had been so long ago
        r.controller.jobs.ask_progress()
        assert isinstance(await watcher.next(), Tell)


async def test_a_report_that_was_overtaken_changes_nothing(tmp_path: Path) -> None:
    """How far a rank was comes after its totals, on another stream: the totals stay, and are counted once."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        secret, epoch = plans[1].rank_secret, plans[1].epoch
        for operations, reduced, sent in ((3, 300, 0), (9, 900, 77), (8, 800, 0), (9, 900, 0)):
            report = RankReport("j", 1, epoch, operations, reduced, sent, 0, {}, secret,
                                by_rail={"innet@a": reduced})
            await r.call("Report", report, Done)
        (told,) = (await client.status(r.fabric.jobs)).jobs[0].reports
        assert (told.operations, told.packets_sent, told.by_rail) == (9, 77, {"innet@a": 900})
        assert r.controller.jobs.totals.bytes_reduced == 900
        assert r.controller.jobs.totals.packets_sent == 77
