# SPDX-License-Identifier: Apache-2.0
"""`netfold links`: where cables lead, and where the fabric's file says.  Real cables: tests/p4/test_links.py."""

from __future__ import annotations

import io
from pathlib import Path

import msgspec
import pytest
from typer.testing import CliRunner

from netfold.cli.app import app
from netfold.cli.common import FAILED
from netfold.cli.links import show
from netfold.controller import client
from netfold.controller.health.wiring import AskWiring, Cable, Cables
from netfold.fabric.graph import Fabric
from netfold.plain_console import Terminal
from netfold.rpc import rpc
from netfold.wire import operator
from support.control.cables import Cables as Laid
from support.control.controller import BOUND, until
from support.control.jobs import Rig, rig
from support.control.recovery import lose


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let probes follow each other at once, and wait long enough for every answer."""
    monkeypatch.setattr("netfold.controller.health.liveness.DISCOVER_TIMEOUT", BOUND)
    monkeypatch.setattr("netfold.controller.health.liveness.REPEAT_INTERVAL", 0.01)
    monkeypatch.setattr("netfold.controller.health.liveness.SUSPECT_INTERVAL", 0.001)


async def ask(r: Rig) -> list[Cable]:
    """The answer of the controller to what `netfold links` asks."""
    return (await rpc.call(r.fabric.jobs, f"{operator.SERVICE}/Wiring", AskWiring(), Cables, BOUND)).cables


def swapped(fabric: Fabric, first: str, second: str) -> Fabric:
    """The fabric with two cables in each other's ports at their second ends."""
    ends = {first: second, second: first}
    links = tuple(msgspec.structs.replace(link, b=ends.get(link.b, link.b)) for link in fabric.links)
    return msgspec.structs.replace(fabric, links=links)


def text(cables: list[Cable]) -> str:
    """The table that `netfold links` prints of these cables."""
    out = io.StringIO()
    show(Cables(cables), Terminal(file=out, width=160))
    return out.getvalue()


async def test_cables_as_the_file_says_are_as_planned(tmp_path: Path) -> None:
    """Both ways; links to hosts are not asked; what is drained is said, and still asked."""
    async with rig(tmp_path) as r:
        Laid(r.fabric, r.switches)
        await client.drain(r.fabric.jobs, "spine2", True)
        cables = await ask(r)
        assert [(c.from_a, c.from_b) for c in cables] == [(c.b, c.a) if c.asked else ("", "") for c in cables]
        assert [c.b for c in cables if c.asked] == ["spine1:1", "spine2:1", "spine1:2", "spine2:2"]
        assert not any(c.wrong for c in cables)
        lines = {line.split()[0] + line.split()[2]: line for line in text(cables).splitlines()[1:]}
        assert lines["leaf1:1h1:0"].split()[3:] == ["up", "-", "-"]
        assert lines["leaf1:4spine2:1"].split()[3:] == ["up,", "drained", "as", "planned", "as", "planned"]


async def test_a_swapped_pair_is_named_at_all_of_its_ends(tmp_path: Path) -> None:
    """Expected and seen; the question takes no link down."""
    async with rig(tmp_path) as r:
        Laid(swapped(r.fabric, "spine1:1", "spine2:1"), r.switches)
        cables = await ask(r)
        assert [sentence for c in cables for sentence in c.wrong] == [
            "leaf1:3: expected spine1:1, sees spine2:1", "spine1:1: expected leaf1:3, sees leaf1:4",
            "leaf1:4: expected spine2:1, sees spine1:1", "spine2:1: expected leaf1:4, sees leaf1:3",
        ]
        assert r.controller.liveness.links_down() == {}
        assert "miswired leaf1:3: expected spine1:1, sees spine2:1" in text(cables)


async def test_what_is_cut_or_down_is_told_apart_from_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing arrives over a cut cable; a switch that is down is not asked."""
    monkeypatch.setattr("netfold.controller.health.liveness.DISCOVER_TIMEOUT", 0.01)
    async with rig(tmp_path) as r:
        laid = Laid(r.fabric, r.switches)
        laid.cut.add(2)
        lose(r, "spine2")
        await until(lambda: not r.controller.targets["spine2"].is_up)
        cables = await ask(r)
        assert not any(c.wrong for c in cables)
        assert [(c.a, c.from_a, c.from_b) for c in cables if c.asked] == [
            ("leaf1:3", "", ""), ("leaf2:3", "spine1:2", "leaf2:3")]
        assert text(cables).count("nothing arrives") == 2
        assert {c.why for c in cables if not c.up} == {"spine2 is down"}


async def test_lost_probes_are_sent_again(tmp_path: Path) -> None:
    """Links that lose packets are found all the same, and are not judged by it."""
    async with rig(tmp_path) as r:
        Laid(r.fabric, r.switches)
        sends, lost = r.switches["leaf1"].sends, [0]

        def lossy(port: int, frame: bytes) -> None:
            lost[0] += port == 3
            if port != 3 or lost[0] > 2:
                sends(port, frame)

        r.switches["leaf1"].sends = lossy
        assert [c.from_a for c in await ask(r) if c.a == "leaf1:3"] == ["spine1:1"]
        assert lost[0] == 3
        assert r.controller.liveness.links_down() == {}


def test_without_a_controller_the_command_says_so() -> None:
    """The command fails, and its error says that no controller answers."""
    result = CliRunner().invoke(app, ["links", "--controller", "unix:/nonexistent/socket"])
    assert (result.exit_code, "no controller answers" in result.stderr) == (FAILED, True)
