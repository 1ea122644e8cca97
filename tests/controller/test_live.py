# SPDX-License-Identifier: Apache-2.0
"""The controller on real switches, BMv2 and softswitch, without interfaces: what it wants is what they hold."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable

import grpc
import msgspec
import pytest

from netfold.controller import client
from netfold.controller.controller import Controller
from netfold.controller.operations.differences import AskDiff, Difference, Differences, dry_run
from netfold.controller.switch import pipeline, tables
from netfold.controller.switch.election import Superseded
from netfold.controller.switch.entities import Entry
from netfold.controller.switch.reconcile import Update
from netfold.controller.switch.switch import Session
from netfold.fabric import file as fabric_file
from netfold.fabric.graph import Fabric
from netfold.rpc import rpc
from netfold.wire import operator
from netfold.wire.jobs import SERVICE, Done, Join, Leave
from netfold.wire.plan import Plan
from support.control.credentials import token_file
from support.sandboxes.processes import BOUND, Switches, forked, netfold
from support.sandboxes.topo import ENGINES_LONG

pytestmark = [pytest.mark.timeout(180), pytest.mark.slow]
async def together(fabric: Fabric, world: int) -> list[Plan]:
    """Let all ranks join at once, and return their plans."""
    async with grpc.aio.insecure_channel(fabric.jobs) as channel:
        join = channel.unary_unary(f"/{SERVICE}/Join", msgspec.json.encode, msgspec.json.Decoder(Plan).decode)
        return list(await asyncio.gather(*(
            join(Join("j", world, rank, fabric.hosts[rank].address, "10.0.0.1:1", 1024), timeout=60)
            for rank in range(world)
        )))


async def leave(fabric: Fabric, plan: Plan) -> None:
    """Let one rank leave its job."""
    async with grpc.aio.insecure_channel(fabric.jobs) as channel:
        goodbye = channel.unary_unary(f"/{SERVICE}/Leave", msgspec.json.encode, msgspec.json.Decoder(Done).decode)
        await goodbye(Leave(plan.job, plan.rank, plan.epoch, secret=plan.rank_secret), timeout=60)


async def held(controller: Controller) -> dict[str, bool]:
    """By switch, whether what it holds is what it should hold, read back this moment."""
    found = {}
    for name, target in controller.targets.items():
        found[name] = await target.client.read_state(tables.MANAGED) == target.desired.all
    return found


async def test_switches_hold_what_the_controller_wants(switches: Switches) -> None:
    """Pipeline, routes, losses and a job's entries read back equal; they go with the job, or after the
    grace of a second controller, which finds the pipeline in place, and a switch that died gets everything anew."""
    fabric = switches.fabric
    names = [switch.name for switch in fabric.switches]
    async with asyncio.timeout(BOUND):
        async with Controller(fabric, start_timeout=BOUND) as controller:
            assert await held(controller) == dict.fromkeys(names, True)
            plans = await together(fabric, 4)
            assert [tree.name for tree in plans[0].trees] == ["spine1", "spine2"], plans[0].reason
            assert await held(controller) == dict.fromkeys(names, True)
            status = await client.status(fabric.jobs)
            assert all(s.up and s.pushes == 1 and s.entries > 10 for s in status.switches)

        left = msgspec.structs.replace(fabric, grace=0.0)
        async with Controller(left, start_timeout=BOUND) as controller:
            await until_slowly(lambda: not any(target.found for target in controller.targets.values()))
            assert [target.pushes for target in controller.targets.values()] == [0] * 4
            assert await held(controller) == dict.fromkeys(names, True)
            assert all(e.table != tables.CONNECTION for t in controller.targets.values()
                       for e in t.desired.all.values() if hasattr(e, "table"))
            plans = await together(fabric, 2)
            target = controller.targets["leaf1"]
            switches.kill("leaf1")
            await until_slowly(lambda: not target.is_up)
            switches.start("leaf1")
            await target.wait_up(BOUND)
            # the job's trees are planned anew meanwhile: what the leaf should hold moves while it is asked
            while await held(controller) != dict.fromkeys(names, True):
                await asyncio.sleep(0.05)
            for plan in plans:
                await leave(fabric, plan)
            assert await held(controller) == dict.fromkeys(names, True)
            assert set(controller.allocator.used().values()) == {0}


async def test_what_somebody_changed_by_hand_is_shown_and_repaired(switches: Switches) -> None:
    """A route bent, one taken away, one too many: read back from the switch, by the controller and by a dry run beside
    it; `apply` writes exactly that."""
    fabric = msgspec.structs.replace(switches.fabric, probe=0)
    switch = fabric.switch("leaf1")

    async def ask(apply: bool = False) -> list[Difference]:
        found = await rpc.call(fabric.jobs, f"{operator.SERVICE}/Diff", AskDiff(apply), Differences, BOUND)
        assert found.problems == []
        return found.writes

    built = pipeline.of_fabric(fabric)
    async with (
        asyncio.timeout(BOUND),
        Controller(fabric, start_timeout=BOUND) as controller,
        Session("leaf1", switch.grpc, switch.device_id, built, controller.candidacies["leaf1"].number) as hand,
    ):
        assert await ask() == []
        assert (await dry_run(fabric, built=built)).writes == []
        routes = [e for e in (await hand.read_state([tables.ROUTE])).values() if isinstance(e, Entry)]
        bent = msgspec.structs.replace(routes[0], action=tables.FORWARD, params=routes[1].params)
        assert bent != routes[0]
        extra = msgspec.structs.replace(routes[1], key=(("dst", (0x0A090909, 32)),))
        await hand.write([Update("modify", bent), Update("delete", routes[2]), Update("insert", extra)])
        found = await ask()
        assert {(d.verb, d.entity, d.was) for d in found} == {
            ("modify", str(routes[0]), str(bent)), ("insert", str(routes[2]), ""), ("delete", str(extra), "")}
        assert {d.switch for d in found} == {"leaf1"}
        assert set((await dry_run(fabric, built=built)).writes) == set(found)
        assert await ask(apply=True) == found
        assert await ask() == []
        held = (await hand.read_state([tables.ROUTE])).values()
        assert {e for e in held if isinstance(e, Entry)} == set(routes)


async def test_a_later_controller_takes_the_switches_over(
    switches: Switches, caplog: pytest.LogCaptureFixture
) -> None:
    """The first one of the same fabric lets go of every switch, says once who has them, and ends; what the second wants
    is what they hold."""
    first_fabric = switches.fabric
    second_fabric = msgspec.structs.replace(first_fabric, jobs=f"unix:{switches.folder}/second.sock")
    async with (
        asyncio.timeout(BOUND),
        Controller(first_fabric, start_timeout=BOUND) as first,
        Controller(second_fabric, start_timeout=BOUND) as second,
    ):
        await until_slowly(lambda: all("to which this one yields" in t.problem for t in first.targets.values()))
        numbers = "|".join(str(candidacy.number) for candidacy in second.candidacies.values())
        with pytest.raises(Superseded, match=f"election id ({numbers})"):  # of the switch that it names
            await first.run()
        assert len([said for said in caplog.messages if "to which this one yields" in said]) == 1
        plans = await together(first_fabric, 2)
        assert (plans[0].trees, "no link to h1 is up" in plans[0].reason) == ([], True)
        plans = await together(second_fabric, 2)
        assert plans[0].trees
        assert await held(second) == {switch.name: True for switch in first_fabric.switches}


@pytest.mark.parametrize("switches", ["softswitch"], indirect=True)
async def test_a_controller_starts_though_a_native_process_has_died(switches: Switches) -> None:
    """It died while no controller was there: the next one pushes to that switch alone, and all hold what they must."""
    fabric = switches.fabric
    async with asyncio.timeout(BOUND):
        async with Controller(fabric, start_timeout=BOUND):
            pass
        switches.kill_native("leaf1")
        async with Controller(fabric, start_timeout=BOUND) as controller:
            assert {name: target.pushes for name, target in controller.targets.items()} == {
                switch.name: int(switch.name == "leaf1") for switch in fabric.switches}
            assert await held(controller) == {switch.name: True for switch in fabric.switches}


async def test_a_switch_that_a_stranger_took_is_claimed_again(switches: Switches) -> None:
    """A client with a much higher election id becomes primary: the controller names it, takes the switch back while the
    client is still there, and pushes the program anew, whatever the client may have done."""
    fabric = switches.fabric
    switch = fabric.switch("leaf1")
    built = pipeline.of_fabric(fabric)
    async with asyncio.timeout(BOUND), Controller(fabric, start_timeout=BOUND) as controller:
        target = controller.targets["leaf1"]
        sessions = target.sessions
        number = controller.candidacies["leaf1"].number + (1 << 110)
        async with await Session.open(switch.name, switch.grpc, device_id=switch.device_id, pipeline=built,
                                      election_id=number, timeout=BOUND) as stranger:
            await until_slowly(lambda: f"election id {number}" in target.problem)
            ended = await stranger.ended()
            assert f"election id {controller.candidacies['leaf1'].number}" in ended
            await until_slowly(lambda: target.is_up)
            assert target.sessions > sessions
            assert target.pushes == 2
            while await held(controller) != {s.name: True for s in fabric.switches}:  # the others' routes come back
                await asyncio.sleep(0.01)


async def test_a_controllers_own_id_repeated_on_another_switch_is_a_strangers(switches: Switches) -> None:
    """A client outbids the controller on one leaf, by an id far in the future, learns what the controller answers, and
    is primary of a spine by that: the controller claims both again, and goes on."""
    fabric = switches.fabric
    leaf, spine = fabric.switch("leaf1"), fabric.switch("spine1")
    built = pipeline.of_fabric(fabric)
    async with asyncio.timeout(BOUND), Controller(fabric, start_timeout=BOUND) as controller:
        def answered() -> int:
            return controller.candidacies["leaf1"].number

        outbid = answered() + (1 << 110)
        async with await Session.open(leaf.name, leaf.grpc, device_id=leaf.device_id, pipeline=built,
                                      election_id=outbid, timeout=BOUND) as stranger:
            await stranger.ended()
        async with await Session.open(spine.name, spine.grpc, device_id=spine.device_id, pipeline=built,
                                      election_id=answered(), timeout=BOUND) as stranger:
            await stranger.ended()
        await until_slowly(lambda: all(target.is_up for target in controller.targets.values()))
        assert not controller.superseded.is_set()


async def until_slowly(condition: Callable[[], bool]) -> None:
    """Wait for what another process does; the test's own bound ends it."""
    while not condition():
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("switches", ENGINES_LONG, indirect=True)
def test_the_command_line_starts_reports_and_stops(switches: Switches) -> None:
    """`netfold up` says when it is ready, `netfold status` and `slots` show the switches to who has the token, a signal
    ends it with status 0."""
    token_file(switches.folder, "a-secret")
    file = switches.folder / "lab.toml"
    fabric_file.save(msgspec.structs.replace(switches.fabric, operator_token_file="a-secret.token"), file)
    fabric = msgspec.structs.replace(switches.fabric, operator_token_file=str(switches.folder / "a-secret.token"))
    assert fabric_file.load(file) == fabric
    switches.wait()
    dry = netfold("up", str(file), "--dry-run")
    assert (dry.returncode, dry.stdout.count("modify the program")) == (1, 4), dry.stderr
    assert "leaf1: insert" in dry.stdout
    with (switches.folder / "up.log").open("wb") as log:
        up = forked([sys.executable, "-m", "netfold.cli", "up", str(file), "--timeout", "120", "--metrics",
                     "127.0.0.1:0"], subprocess.PIPE, log)
    assert up.stdout is not None
    try:
        line = up.stdout.readline().decode()
        assert line.startswith(f"ready: fabric {fabric.name}, 4 switches ({fabric.engine})")
        page = line.rpartition("page and metrics at ")[2].strip()
        scrape = urllib.request.Request(f"{page}/metrics", headers={"Authorization": "Bearer a-secret"})
        with urllib.request.urlopen(scrape, timeout=60) as answer:
            assert answer.read().count(b"netfold_switch_up{") == 4
        assert "4 of 4 switches up" in netfold("status", str(file)).stdout
        without = netfold("status", "--controller", fabric.jobs,
                          env={k: v for k, v in os.environ.items() if k != "NETFOLD_TOKEN"})
        assert (without.returncode, "NETFOLD_TOKEN_FILE" in without.stderr) == (1, True)
        data = netfold("status", "--json", "--controller", fabric.jobs,
                       env=os.environ | {"NETFOLD_TOKEN": "a-secret"})
        assert msgspec.json.decode(data.stdout, type=operator.Status).fabric == fabric.name
        slots = netfold("slots", "leaf1", "--fabric", str(file))
        assert (slots.returncode, "no job holds slots of leaf1" in slots.stdout) == (0, True)
        diff = netfold("diff", str(file))
        assert (diff.returncode, diff.stdout) == (0, "all switches hold what they should\n")
        second = netfold("up", str(file))
        assert second.returncode == 1
        assert "running at" in second.stderr
        assert "Traceback" not in second.stderr
        up.send_signal(signal.SIGTERM)
        assert up.wait(60) == 0
    finally:
        up.kill()
        up.wait(10)
        up.stdout.close()
