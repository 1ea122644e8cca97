# SPDX-License-Identifier: Apache-2.0
"""Two users' jobs at once on the same hosts of a fabric, neither of them root: both fold, neither receives or forges
the other's packets, and one goes on when the other is killed."""

from __future__ import annotations

import json
import os
import signal
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec
import pytest

from netfold.fabric.graph import Engine, Fabric
from netfold.topo.network import sandbox
from netfold.topo.processes.ranks import Ranks
from netfold.wire import roce
from support import needs
from support.control.credentials import scopes, tenant
from support.fabrics.fabrics import leafspine
from support.sandboxes.topo import ENGINES_LONG, in_sandbox, program

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network.net import Network

pytestmark = pytest.mark.timeout(300)
RATES = {"softswitch": "1gbit", "bmv2": "50mbit"}
USERS = {"red": 30001, "blue": 30002}
HOSTS = 4
LEFT = (0, 1, 3)
"""Red's ranks after one was killed."""
IN_USE, NOT_PERMITTED = "Address already in use", "Operation not permitted"


def open_to_users(folder: Path) -> None:
    """Lets other users of this machine reach the controller's socket, as its token makes safe."""
    for each in (folder, *folder.parents):
        if not each.stat().st_mode & stat.S_IXOTH:
            each.chmod(each.stat().st_mode | stat.S_IXGRP | stat.S_IXOTH)
    (folder / "controller.sock").chmod(0o777)


class Said:
    """The messages that the ranks of a job print; a rank may be ahead of others."""

    def __init__(self, ranks: Ranks) -> None:
        self._lines = ranks.lines(within=200)
        self._ahead: dict[int, list[Any]] = {rank: [] for rank in range(HOSTS)}

    def each(self, ranks: Collection[int] = range(HOSTS)) -> list[Any]:
        """The next message of each of these ranks, by rank."""
        while not all(self._ahead[rank] for rank in ranks):
            rank, line = next(self._lines)
            self._ahead[rank].append(json.loads(line))
        return [self._ahead[rank].pop(0) for rank in sorted(ranks)]


def fabric_of(engine: Engine, folder: Path) -> Fabric:
    """A fabric of two tenants, the users."""
    fabric = leafspine(2, 2, HOSTS, rate=RATES[engine], engine=engine, rundir=sandbox.rundir())
    tenants = tuple(tenant(folder, name) for name in USERS)
    return msgspec.structs.replace(fabric, tenants=tenants, **scopes(folder))


@pytest.mark.parametrize("engine", ENGINES_LONG)
@pytest.mark.usefixtures("torch_in_forks")
@in_sandbox(timeout=290)
def test_two_users_of_the_same_hosts_fold_and_train_side_by_side(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each host has a rank of both jobs, at UDP ports of their own.  Blue knows all numbers of red's: the kernel gives
    it none of red's ports, and what it sends all the same changes no sum.  When one of red's ranks is killed, red's
    others hear which, and blue folds on.  The same holds for trainings by torch, where it is there."""
    fabric = fabric_of(engine, tmp_path)
    monkeypatch.setenv("NETFOLD_TOKEN_FILE", str(fabric.operator_token_file))
    with Network(fabric, logs=tmp_path / "logs") as network:
        open_to_users(sandbox.rundir())
        fold(network)
        if needs.missing("torch") is None:  # the ranks import it
            train(network)


def fold(network: Network) -> None:
    """Sums of both users, and what blue tries against red's."""

    def start(user: str, *more: str) -> tuple[Ranks, Said]:
        ranks = network.launch([*program("rank_user.py"), str(USERS[user]), *more], job=user,
                               env={"NETFOLD_TOKEN": user, "NETFOLD_TOKEN_FILE": ""})
        return ranks, Said(ranks)

    red, of_red = start("red")
    reds = of_red.each()
    blue, of_blue = start("blue", json.dumps(reds))
    blues, attempts = of_blue.each(), of_blue.each()
    os.kill(red.processes[2].pid, signal.SIGUSR1)
    lost = of_red.each(LEFT)
    os.kill(blue.processes[0].pid, signal.SIGUSR2)
    ends = of_blue.each()
    log = (network.logs / "red-rank0.log").read_text()
    assert [one["udp_port"] for one in reds] == [roce.UDP_PORT] * HOSTS
    assert [one["udp_port"] for one in blues] == [roce.UDP_PORTS[0]] * HOSTS
    for mine, other, tried in zip(blues, reds, attempts, strict=True):
        assert not set(mine["source_ports"]) & set(other["source_ports"])
        assert tried["sent"] == 4000
        expected = {name: NOT_PERMITTED if name in ("raw", "packet") else IN_USE for name in tried["refused"]}
        assert tried["refused"] == expected
        assert len(expected) == 2 + 6 * (1 + len(other["source_ports"]))
    assert all("rank 2" in one["lost"] for one in lost), lost
    assert {one["rail"] for one in ends} == {"innet"}
    assert len({one["rounds"] for one in ends}) == 1
    assert min(one["rounds"] for one in ends) > 20
    assert min(one["folded"] for one in ends) >= ends[0]["rounds"] * 80_000
    assert "packets so far to this rank's queue pairs were dropped" in log


def train(network: Network) -> None:
    """Each user's DistributedDataParallel has a rank on every host, and checks its gradients.  When one of red's ranks
    is killed in the middle, red's others hear which, and blue trains on."""
    begun = []
    for port, (user, uid) in enumerate(USERS.items(), 29_501):
        env = {"RES_OPTIONS": "timeout:1 attempts:1", "OMP_NUM_THREADS": "1", "NETFOLD_ALGO": "innet",
               "MASTER_ADDR": network.fabric.hosts[0].address, "MASTER_PORT": str(port), "NETFOLD_TOKEN": user,
               "NETFOLD_TOKEN_FILE": ""}
        ranks = network.launch([*program("rank_torch_user.py"), str(uid)], job=f"{user}-trains", env=env)
        begun.append((ranks, Said(ranks)))
    (red, of_red), (blue, of_blue) = begun
    of_red.each()
    of_blue.each()
    os.kill(red.processes[2].pid, signal.SIGUSR1)
    lost = of_red.each(LEFT)
    os.kill(blue.processes[0].pid, signal.SIGUSR2)
    ends = of_blue.each()
    assert all("rank 2" in one["lost"] for one in lost), lost
    assert len({one["steps"] for one in ends}) == 1
    assert ends[0]["steps"] > 20
    assert len({one["loss"] for one in ends}) == 1
    assert all(one["folded"] >= one["steps"] * one["gradients"] for one in ends), ends
