# SPDX-License-Identifier: Apache-2.0
"""A rank that dies, stops or never calls is named on every other rank in bounded time, on every rail, for real."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any, TypeVar

import pytest

from netfold.fabric.graph import Engine, Fabric, Host
from netfold.topo.network import sandbox
from support import needs
from support.fabrics.fabrics import leafspine
from support.sandboxes.topo import ENGINES_LONG, in_sandbox, program

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network.net import Network
from netfold.topo.network.planes import Planes, side_by_side
from netfold.topo.processes.ranks import Ranks

T = TypeVar("T")

pytestmark = pytest.mark.timeout(300)
TIMEOUT = 5.0
"""Seconds without progress: on a busy machine all may stand still for some."""
BOUND = 60.0
"""Seconds more until an error: the questions to the others and to the controller (at most 15), and a busy machine."""
CASES = [("innet", "stop"), ("innet", "stay"), ("innet", "kill"), ("tcp", "stop"), ("roce", "stop")]


@pytest.mark.parametrize("engine", ENGINES_LONG)
@in_sandbox(timeout=250)
def test_every_other_rank_names_the_lost_one(engine: Engine, tmp_path: Path) -> None:
    """Operation, size and rank stand in each error, in time; the flight recorder has the operation as failed."""
    rate = "200mbit" if engine == "softswitch" else "20mbit"
    cases = CASES if engine == "softswitch" else CASES[:1]
    fabric = leafspine(2, 1, 4 * min(len(cases), 2), rate=rate, engine=engine, rundir=sandbox.rundir())
    sides = cycle(across(fabric))
    with Network(fabric, logs=tmp_path) as network:
        def lost(rail: str, way: str) -> tuple[str, str, Ranks]:
            job = f"{rail}-{way}"
            folder = tmp_path / job
            folder.mkdir()
            command = [*program("rank_lost.py"), rail, way, str(TIMEOUT), str(folder)]
            return rail, way, network.launch(command, job=job, hosts=next(sides))

        for rail, way, ranks in one_ahead(lost(*case) for case in cases):
            for rank, told in enumerate(heard(ranks)):
                where = f"{rail}-{way}, rank {rank}: {told}"
                named(told, where, TIMEOUT + BOUND)
                if rail == "innet" and way != "kill":
                    assert "rank 3 gone, stopped, or never called" in told["text"], where
                    assert "leaf2" in told["text"], where
        network.check()


SEVERAL = [("stop", "rank 3 does not answer"), ("stay", "rank 3 answers, and has not called"), ("kill", "rank 3")]


@pytest.mark.parametrize("engine", ENGINES_LONG)
@in_sandbox(timeout=250)
def test_over_several_rails_it_is_named_with_the_state_of_each(engine: Engine, tmp_path: Path) -> None:
    """The same where one allreduce goes over two planes, whether it is cut or not."""
    rate = "200mbit" if engine == "softswitch" else "20mbit"
    cases = SEVERAL if engine == "softswitch" else SEVERAL[:1]
    one = leafspine(1, 0, 4 * min(len(cases), 2), rate=rate, engine=engine)
    sides = cycle(across(one))
    with Planes(side_by_side([one, one], sandbox.rundir()), logs=tmp_path) as planes:
        def lost(way: str, says: str) -> tuple[str, str, Ranks]:
            folder = tmp_path / way
            folder.mkdir()
            command = [*program("rank_lost.py"), "auto", way, str(TIMEOUT), str(folder)]
            env = {"NETFOLD_RAILS": "innet@a+tcp@b"}
            return way, says, planes.launch(command, job=way, hosts=next(sides), env=env)

        for way, says, ranks in one_ahead(lost(*case) for case in cases):
            for rank, told in enumerate(heard(ranks)):
                where = f"{way}, rank {rank}: {told}"
                named(told, where, TIMEOUT + BOUND)
                assert says in told["text"], where
                assert "rails: innet@a " in told["text"], where
                assert ", tcp@b " in told["text"], where
        planes.check()


def across(fabric: Fabric) -> list[list[Host]]:
    """The hosts in fours, each of which has as many at every leaf, in order: for jobs side by side."""
    jobs, leaves = len(fabric.hosts) // 4, len(set(fabric.leaf_of().values()))
    at = len(fabric.hosts) // leaves
    each = 4 // leaves
    return [[fabric.hosts[leaf * at + job * each + host] for leaf in range(leaves) for host in range(each)]
            for job in range(jobs)]


def one_ahead(jobs: Iterator[T]) -> Iterator[T]:
    """The jobs of an iterator, each of which is started while the one before it runs: most of a job is the time until
    a silence counts, and jobs on other hosts know nothing of each other."""
    running = next(jobs)
    for started in jobs:
        yield running
        running = started
    yield running


def heard(ranks: Ranks) -> list[dict[str, Any]]:
    """The reports to the remaining ranks; then all are ended."""
    said = []
    for process, log in zip(ranks.processes[:3], ranks.logs, strict=False):
        process.wait(100)
        assert process.stdout is not None
        output = process.stdout.read()
        assert output, f"{log}: {log.read_text()[-3000:]}"
        said.append(json.loads(output))
    for process in ranks.processes:
        process.kill()
    return said


def named(told: dict[str, Any], where: str, bound: float) -> None:
    """Rank 3 and nobody else, the operation and its size, in time, and as failed in the flight recorder."""
    assert told["kind"] in ("CollectiveTimeout", "PeerLost"), where
    assert "rank 3" in told["text"], where
    assert not any(f"rank {other} {what}" in told["text"] for other in range(3)
                   for what in ("gone", "is gone", "does not", "answers")), where
    assert "100000 x float32" in told["text"], where
    assert f"operation {told['number']}" in told["text"], where
    assert told["state"] == "failed", where
    assert told["seconds"] < bound, where
