# SPDX-License-Identifier: Apache-2.0
"""Requests in the name of a rank: only the rank itself can make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import grpc
import msgspec
import pytest

from netfold.controller import client
from netfold.wire import jobs, paths
from netfold.wire.jobs import AskMissing, Connect, GroupOf, Leave, Opened, RankReport, Reform, Resume, Settled, Watch
from netfold.wire.paths import Follow, Suspect
from netfold.wire.plan import Plan, Secret
from support.control.controller import BOUND
from support.control.jobs import Code, Rig, rig
from support.control.recovery import streams

REQUESTS: Final[dict[str, Any]] = {
    f"{jobs.SERVICE}/Leave": Leave("victim", 0, 0, "because"),
    f"{jobs.SERVICE}/Report": RankReport("victim", 0, 0, 10**9, 0, 0, 0),
    f"{jobs.SERVICE}/Settled": Settled("victim", 0, 0),
    f"{jobs.SERVICE}/Opened": Opened("victim", 0, 0, "a port"),
    f"{jobs.SERVICE}/Reform": Reform("victim", 0, 0, "10.0.0.1:1", 0),
    f"{jobs.SERVICE}/Missing": AskMissing("victim", 0, 0, {}),
    f"{jobs.SERVICE}/Suspect": AskMissing("victim", 0, 0, {}),
    f"{jobs.SERVICE}/Resume": Resume("victim", 0, 0, {}),
    f"{jobs.SERVICE}/Connect": Connect("victim", 0, 0, 0, []),
    f"{jobs.SERVICE}/Watch": Watch("victim", 0, 0),
    f"{paths.SERVICE}/Follow": Follow("victim", 0, 0, collective="ring"),
    f"{paths.SERVICE}/Suspect": Suspect("victim", 0, 0, 1, 50_000),
}
"""Every request of a rank, by method."""


async def refused(r: Rig, method: str, request: Any) -> tuple[grpc.StatusCode, str]:
    """Code and words of the refusal of a request with one answer or a stream of them."""
    data = msgspec.json.encode(request)
    if method.endswith(("/Watch", "/Follow")):
        answer = r.channel.unary_stream(f"/{method}", bytes, bytes)(data, timeout=BOUND).read()
    else:
        answer = r.channel.unary_unary(f"/{method}", bytes, bytes)(data, timeout=BOUND)
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await answer
    return caught.value.code(), caught.value.details() or ""


@pytest.mark.parametrize("method", REQUESTS)
async def test_nobody_speaks_for_a_rank_of_another_job(tmp_path: Path, method: str) -> None:
    """Without a secret, with that of a rank of another job, of another rank of the same one, of another epoch: each is
    refused, and the job goes on as it was."""
    async with rig(tmp_path) as r:
        victims = await r.together(2, job="victim")
        thieves = await r.together(2, job="thief")
        (before,) = (job for job in (await client.status(r.fabric.jobs)).jobs if job.name == "victim")
        request = msgspec.structs.replace(REQUESTS[method], epoch=victims[0].epoch)
        secrets = [plan.rank_secret for plan in (*thieves, victims[1])]
        secrets += [victims[0].secret, Secret(victims[0].rank_secret.value[:-1]), Secret("ä")]
        for secret, got in ((Secret(), "none"), *((secret, "another one") for secret in secrets)):
            code, words = await refused(r, method, msgspec.structs.replace(request, secret=secret))
            assert code is Code.PERMISSION_DENIED
            assert f"rank 0: secret: expected that of this rank's plan, got {got}" in words
            assert victims[0].rank_secret.value not in words
        late = msgspec.structs.replace(request, epoch=thieves[0].epoch, secret=victims[0].rank_secret)
        assert (await refused(r, method, late))[0] is Code.PERMISSION_DENIED
        assert [job for job in (await client.status(r.fabric.jobs)).jobs if job.name == "victim"] == [before]


def test_every_request_that_names_a_rank_carries_its_secret() -> None:
    """A message with job, epoch and rank that comes from a rank has a secret, and REQUESTS has it; a group's is part of
    Join (test_groups.py)."""
    of_ranks = {
        kind for module in (jobs, paths) for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct) and kind not in (Plan, GroupOf)
        and {"job", "epoch", "rank"} <= set(kind.__struct_fields__)
    }
    assert all("secret" in kind.__struct_fields__ for kind in of_ranks)
    assert of_ranks == {type(request) for request in REQUESTS.values()}


async def test_the_status_shows_reports_without_the_secrets_they_came_with(tmp_path: Path) -> None:
    """Whoever may look does not become a rank by that."""
    async with rig(tmp_path) as r:
        plans = await r.together(2)
        mine = plans[0].rank_secret
        await r.call("Report", RankReport("j", 0, plans[0].epoch, 1, 2, 3, 4, {}, mine), jobs.Done)
        status = msgspec.json.encode(await client.status(r.fabric.jobs))
        assert b'"bytes_reduced":2' in status
        assert all(secret.value.encode() not in status for plan in plans for secret in (plan.secret, mine))


async def test_ranks_of_one_job_share_its_secret_and_no_rank_shares_its_own(tmp_path: Path) -> None:
    """The job's secret is drawn anew for each incarnation; new trees do not change it."""
    async with rig(tmp_path) as r:
        first = await r.together(2)
        assert len({plan.secret.value for plan in first}) == 1
        assert len(first[0].secret.value) == 64
        for plan in first:
            await r.leave(plan)
        again = await r.together(2)
        everything = [plan.rank_secret.value for plan in first + again] + [first[0].secret.value,
                                                                           again[0].secret.value]
        assert len(set(everything)) == len(everything)
        assert streams(again[0])
