# SPDX-License-Identifier: Apache-2.0
"""Where slots are short, real ranks of a low priority go on over TCP within their allreduces, in real namespaces."""

from __future__ import annotations

import asyncio
from pathlib import Path

import grpc
import msgspec
import pytest

from netfold.fabric.graph import Fabric, Tenant
from netfold.rpc import tokens
from netfold.topo.network import sandbox
from netfold.wire.jobs import SERVICE, Join
from netfold.wire.plan import Plan
from support import needs
from support.control.credentials import scopes, tenant
from support.fabrics.fabrics import leafspine
from support.sandboxes.steady import Steady
from support.sandboxes.topo import in_sandbox

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network.net import Network

pytestmark = pytest.mark.timeout(300)
MOST_JOBS = 14
"""More jobs of four ranks than the switches have slots for."""


def fabric_of(folder: Path) -> Fabric:
    """Two leaves, two spines, four hosts; ranks that join with the operator's token are of a low priority."""
    fabric = leafspine(2, 2, 4, rate="1gbit", path_mtu=1024, rundir=sandbox.rundir())
    tenants = (Tenant("default", priority=-1), tenant(folder, "urgent", priority=5))
    return msgspec.structs.replace(fabric, lease=120.0, tenants=tenants, **scopes(folder))


async def join_all(fabric: Fabric, job: str) -> Plan:
    """Four joins of a job of a high priority without any process behind them; the plan of the first."""
    async with grpc.aio.insecure_channel(fabric.jobs) as channel:
        join = channel.unary_unary(f"/{SERVICE}/Join", msgspec.json.encode, msgspec.json.Decoder(Plan).decode)
        plans = await asyncio.gather(*(
            join(Join(job, 4, rank, host.address, "10.0.0.1:1", 0), metadata=tokens.metadata("urgent"), timeout=60)
            for rank, host in enumerate(fabric.hosts)
        ))
        first: Plan = plans[0]
        return first


@in_sandbox(timeout=200)
def test_a_job_of_low_priority_gives_up_its_slots_and_sums_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs of a high priority come until the switches are full and one more: it folds, and the running job goes on over
    TCP, every sum exact, in the same calls."""
    fabric = fabric_of(tmp_path)
    assert fabric.operator_token_file is not None
    monkeypatch.setenv("NETFOLD_TOKEN_FILE", fabric.operator_token_file)
    with Network(fabric, logs=tmp_path / "logs") as network, Steady(network, seed=7, rail="auto") as steady:
        for number in range(MOST_JOBS):
            plan = asyncio.run(join_all(network.fabric, f"urgent{number}"))
            assert plan.trees, plan.reason
            if not network.status().jobs[0].trees:
                break
        job = steady.round(1)
        ends = steady.end()
    assert (job.name, job.tenant, job.trees) == ("steady", "default", [])
    assert f"'urgent{number}' of priority 5 needs its slots" in job.reason
    assert [end["rail"] for end in ends] == ["tcp"] * 4
    assert all(job.reason in end["fallback"] for end in ends)
    assert len({end["operations"] for end in ends}) == 1
    print(f"longest operations: {', '.join(format(end['longest'], '.3f') for end in ends)} s")
