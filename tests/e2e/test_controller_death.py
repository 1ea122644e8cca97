# SPDX-License-Identifier: Apache-2.0
"""Controllers killed and started again under running ranks, in real namespaces: no operation waits for one."""

from __future__ import annotations

import signal
from pathlib import Path

import msgspec
import pytest

from netfold.fabric.graph import Engine, Fabric
from netfold.topo.faults.injector import FaultInjector
from netfold.topo.network import sandbox
from support import needs
from support.fabrics.fabrics import leafspine
from support.sandboxes.steady import BOUND, Steady
from support.sandboxes.topo import ENGINES_LONG, in_sandbox

pytest.importorskip("mininet.net", reason=needs.reason("mininet"))

from netfold.topo.network.net import Network

pytestmark = pytest.mark.timeout(300)
RATE = "50mbit"


def fabric_of(engine: Engine) -> Fabric:
    """Two leaves, two spines, four hosts, a standby, and a controller that a busy machine does not mislead."""
    fabric = leafspine(2, 2, 4, rate=RATE, engine=engine, rundir=sandbox.rundir())
    return msgspec.structs.replace(fabric, steady=3600.0,
                                   standby=f"unix:{sandbox.rundir()}/standby.sock")


@pytest.mark.parametrize("engine", ENGINES_LONG)
@in_sandbox(timeout=200)
def test_jobs_go_on_untouched_while_controllers_are_killed_or_hang(engine: Engine, tmp_path: Path) -> None:
    """One is killed, one is asked to end, one hangs and its standby takes over, which yields to one that is started
    last; the one that hung ends when it wakes up. The ranks go on while there is none and check every sum, no rank
    halts, and in the end they leave the last controller with nothing held."""
    with Network(fabric_of(engine), logs=tmp_path / "logs") as network, Steady(network, seed=9) as steady:
        for number in (signal.SIGKILL, signal.SIGTERM):
            network.end_controller(number)
            steady.go_on()
            network.start_controller()
            steady.registered()
        network.start_standby()
        hung = network.controller
        assert hung is not None
        network.take_over(hang=True)
        steady.registered()
        hung.send_signal(signal.SIGCONT)
        assert hung.wait(BOUND) == 1
        steady.go_on()
        network.start_controller()
        steady.registered()
        ends = steady.end()
        steady.until("all slots are free", lambda status: not any(switch.slots_used for switch in status.switches))
    assert [(end["rail"], end["rounds"]) for end in ends] == [("innet", 0)] * 4
    assert len({end["operations"] for end in ends}) == 1


@in_sandbox(timeout=200)
def test_what_fails_while_there_is_no_controller_is_mended_by_the_next(tmp_path: Path) -> None:
    """A spine dies while the controller is dead: its sums wait until the standby has taken over, which plans the job's
    trees anew; then another one dies.  Every sum stays exact, and rounds are numbered on."""
    with Network(fabric_of("softswitch"), logs=tmp_path / "logs") as network, Steady(network, seed=10) as steady:
        network.start_standby()
        do = FaultInjector(network)
        network.take_over(lambda: do.kill("spine1"))
        steady.round(1)
        do.start("spine1")
        steady.all_up()
        do.kill("spine2")
        job = steady.round(2)
        ends = steady.end()
    assert [tree.root for tree in job.trees] == ["spine1", "spine1"]
    assert [(end["rail"], end["rounds"]) for end in ends] == [("innet", 2)] * 4
