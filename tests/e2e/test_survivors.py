# SPDX-License-Identifier: Apache-2.0
"""Ranks of a training are killed, stop, and come back, on a fabric in namespaces: the others go on with exact sums."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from netfold.bench.ranks.survivor import FIRST, Reached
from netfold.topo.network import sandbox
from support import needs
from support.fabrics.fabrics import leafspine
from support.sandboxes.topo import in_sandbox

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.bench.harness.survivors import Survivors
from netfold.topo.network.net import Network

pytestmark = pytest.mark.timeout(300)
SEED = 11
PAUSE = 0.01
"""Seconds that ranks compute in a step, for which others have the processor."""


def alike(ends: list[Reached], world: int) -> None:
    """All ranks have ended with the same weights, which are nearer to their target than at first."""
    assert len(ends) == world
    assert len({(end.step, end.checksum, end.world) for end in ends}) == 1, ends
    assert ends[0].world == world
    assert ends[0].loss < FIRST


@in_sandbox(timeout=250)
def test_ranks_are_killed_and_come_back_and_every_sum_is_exact(tmp_path: Path) -> None:
    """Folding and over TCP, by themselves and by ``shrink``; two at once; one that comes back has the others' weights;
    one that stands still is evicted by the others, and is told so when it runs again."""
    rng = random.Random(SEED)
    fabric = leafspine(2, 2, 4, rate="200mbit", rundir=sandbox.rundir())
    with Network(fabric, logs=tmp_path) as network:
        with Survivors(network, "grow", "innet", job="folds", pause=PAUSE) as crew:
            victim = rng.choice(sorted(crew.hosts))
            _, reached = crew.kill(victim)
            assert {(one.world, one.rail) for one in reached} == {(3, "innet")}
            assert {one.world for one in crew.bring_back(victim)} == {4}
            crew.kill("h1", "h3")
            alike(crew.end(), 2)
        with (
            Survivors(network, "by itself", "innet", job="still", pause=PAUSE, timeout=5.0) as crew,
            Survivors(network, "by itself", "tcp", job="itself", pause=PAUSE) as other,
        ):
            since = time.monotonic()
            crew.signal("h4", signal.SIGSTOP)
            other.kill("h2")  # while the ranks of the other job wait for the one that stands still
            alike(other.end(), 3)
            crew.wait_for(crew.hosts - {"h4"}, since=since)
            crew.signal("h4", signal.SIGCONT)
            assert "Evicted" in crew.last_words("h4")
            alike(crew.end(), 3)
        network.check()
