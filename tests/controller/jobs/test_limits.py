# SPDX-License-Identifier: Apache-2.0
"""Requests without end: they cost the controller a few answers, and their sender a refusal."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import grpc
import msgspec
import pytest

from netfold.controller import client
from netfold.controller.jobs import callers, fabric_key, registry
from netfold.controller.jobs.job import Job
from netfold.fabric.graph import DEFAULT_TENANT
from netfold.rpc import rpc
from netfold.wire.jobs import SERVICE, AskMissing, Done, Join, RankReport, Settled
from netfold.wire.operator import Status
from support.control.controller import BOUND
from support.control.credentials import scopes
from support.control.jobs import Code, rig


async def test_statuses_that_are_asked_for_at_once_are_read_from_the_switches_once_or_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred questions cost two readings of the counters, not two hundred."""
    async with rig(tmp_path) as r:
        readings, real = [], r.controller.inspection.status

        async def counted(*args: object) -> Status:
            readings.append(args)
            await asyncio.sleep(0)
            return await real(*args)  # type: ignore[arg-type]

        monkeypatch.setattr(r.controller.inspection, "status", counted)
        answers = await asyncio.gather(*(r.controller.status() for _ in range(200)))
        assert len(answers) == 200
        assert len(readings) <= 2


async def test_viewers_read_at_a_rate_and_operators_as_they_like(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The refusal says how long to wait."""
    monkeypatch.setattr(callers, "READ_BURST", 3)
    monkeypatch.setattr(callers, "READ_RATE", 0.001)
    async with rig(tmp_path, **scopes(tmp_path)) as r:
        for _ in range(3):
            await client.status(r.fabric.jobs, token="viewers")
        with pytest.raises(rpc.CallRefused, match=r"Status: expected at most .* of the viewer, got more. Wait \d+"):
            await client.status(r.fabric.jobs, token="viewers")
        await client.status(r.fabric.jobs, token="jobs")
        for _ in range(5):
            await client.status(r.fabric.jobs, token="operators")


async def test_a_rank_that_asks_without_end_is_refused_and_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank has its own rate."""
    monkeypatch.setattr(registry, "RANK_BURST", 4)
    monkeypatch.setattr(registry, "RANK_RATE", 0.001)
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        asks = [AskMissing("j", plan.rank, plan.epoch, {}, plan.rank_secret) for plan in plans]
        for _ in range(4):
            await r.call("Suspect", asks[0], Done)
        code, words = await r.refusal(asks[0], "Suspect")
        assert (code, "rank 0: expected at most" in words) == (Code.RESOURCE_EXHAUSTED, True)
        await r.call("Suspect", asks[1], Done)


async def test_reports_of_any_size_leave_totals_that_can_be_read(tmp_path: Path) -> None:
    """The sum of ranks' claims stops at the largest number that counters have, and a smaller claim takes nothing
    away."""
    async with rig(tmp_path) as r:
        plans = await r.together(4)
        for plan in plans:
            for claimed in (2**62 - 1, 0):
                report = RankReport("j", plan.rank, plan.epoch, 1, claimed, 0, 0, {}, plan.rank_secret)
                await r.call("Report", report, Done)
        status = msgspec.json.decode(msgspec.json.encode(await r.controller.status()), type=Status)
        assert status.totals.bytes_reduced == 2**63 - 1


async def test_requests_of_thousands_of_ranks_at_once_are_all_answered(tmp_path: Path) -> None:
    """However long the controller has no time for them: none is cancelled, which would mean that it is gone."""
    async with rig(tmp_path) as r:
        channels = [grpc.insecure_channel(r.fabric.jobs, options=[("grpc.use_local_subchannel_pool", 1)])
                    for _ in range(8)]
        calls = [channels[number % 8].unary_unary(f"/{SERVICE}/Report").future(b"no report", timeout=BOUND)
                 for number in range(2500)]
        time.sleep(0.5)  # this thread is the controller's, which takes none of them meanwhile
        codes = await asyncio.to_thread(lambda: [call.code() for call in calls])
        for channel in channels:
            channel.close()
        assert set(codes) == {Code.INVALID_ARGUMENT}


def test_a_ranks_request_looks_at_jobs_of_its_name_alone() -> None:
    """A tenant may let thousands of jobs wait, whose number costs the ranks of others nothing."""

    class Unwalked(dict[str, Job]):
        def values(self) -> Any:
            raise AssertionError("walked over all jobs")

        __iter__ = items = values  # type: ignore[assignment]

    jobs = registry.Registry()
    jobs.named = Unwalked(mine=Job("mine", 2, state="active", epoch=7), other=Job("other", 2))
    jobs.named["mine"].joins[1] = Join("mine", 2, 1, "10.0.0.1", "10.0.0.1:1", 0)
    asks = Settled("mine", 1, 7, fabric_key.rank_secret(jobs.key, DEFAULT_TENANT, "mine", 7, 1))
    assert jobs.find(asks) is jobs.named_by(asks) is jobs.named["mine"]
    assert jobs.evicts(asks) is None
    jobs.retire(jobs.named.pop("mine"))
    assert jobs.find(asks) is jobs.named_by(asks) is jobs.ending[0]
