# SPDX-License-Identifier: Apache-2.0
"""Switches whose P4Runtime server is silent: what their data planes let through, as their neighbours count it."""

from __future__ import annotations

import asyncio
from collections import Counter
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, cast

import pytest

from netfold.controller.health import silent_control
from netfold.controller.health.links import Links
from netfold.controller.health.silent_control import MISSES, PACKETS, SilentControl
from netfold.controller.switch.switch import SwitchError
from netfold.controller.switch.target import Target
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import End
from netfold.wire import roce
from support.control.cables import link_between
from support.control.controller import run


class Server:
    """The controller's view of one switch, which sends what it is told into the data planes."""

    def __init__(self, planes: Planes, name: str) -> None:
        self.name, self._planes = name, planes
        self.client = self
        self.is_up, self.silence, self.mute = True, "", False
        self.ports_down: set[int] = set()
        self.resumed = 0
        self.misses, self.late = 0, 0.0
        """Questions that it does not answer, and seconds by which this process is late then."""
        self.takes_nothing = False
        """True if it answers, but does not end a write."""

    @property
    def is_heard(self) -> bool:
        return not self.silence

    async def hear(self) -> None:
        self._planes.now += self.late
        if self.mute or self.misses:
            self.misses = max(0, self.misses - 1)
            raise SwitchError("no answer")

    def fall_silent(self, why: str) -> None:
        self.silence = why

    async def resume(self) -> None:
        self.silence = ""
        self.resumed += 1
        if self.takes_nothing:
            await asyncio.Event().wait()

    async def packet_out(self, port: int, frame: bytes) -> None:
        assert not self.mute, "a switch that does not answer is asked for nothing"
        self._planes.sent += 1
        self._planes.send(End(self.name, port), frame)

    async def read_cell(self, _: str, port: int) -> int:
        assert not self.mute, "a switch that does not answer is asked for nothing"
        return self._planes.came_in[End(self.name, port)]


class Planes:
    """The data planes of two leaves, two spines and four hosts."""

    def __init__(self, folder: Path) -> None:
        self.fabric = leafspine(2, 2, 4, rundir=folder)
        self.servers = {switch.name: Server(self, switch.name) for switch in self.fabric.switches}
        self.came_in: Counter[End] = Counter()
        self.dead: set[str] = set()
        """Switches whose data planes stand still."""
        self.cut: set[tuple[str, str]] = set()
        """Links that let nothing through from the first one to the second."""
        self.changes = 0
        self.now, self.sent = 100.0, 0
        self.waits = 0
        """How often the controller has waited for packets."""
        links = Links(self.fabric)
        self.control = SilentControl(self.fabric, cast(dict[str, Target], self.servers), links, self._changed,
                                     self._sleep, lambda: self.now)
        self.all = links.probed

    def _changed(self) -> None:
        self.changes += 1

    async def _sleep(self, seconds: float) -> None:
        self.waits += 1
        self.now += seconds
        await asyncio.sleep(0)

    def link(self, a: str, b: str) -> int:
        return link_between(self.fabric, a, b)

    def send(self, out: End, frame: bytes) -> None:
        """A frame leaves a switch's port; the next switch routes it on, and the one after that counts it."""
        here = self._cross(out)
        if here is None:
            return
        host = self.fabric.host_at(str(IPv4Address(frame[30:34])))
        assert host is not None
        leaf = self.fabric.leaf_of()[host.name]
        source = int.from_bytes(frame[34:36], "big")
        assert roce.ETHERNET_BYTES + roce.IPV4_BYTES == 34
        ways = [leaf] if here.startswith("spine") else [] if leaf == here else ["spine1", "spine2"]
        if ways:
            way = ways[source // 2 % len(ways)]
            number = self.link(here, way)
            self._cross(next(end for end in self.fabric.links[number].ends if end.node == here))

    def _cross(self, out: End) -> str | None:
        """Take a frame over the link at this end.  Returns the switch at the other end, if it counts and takes it."""
        link = next(link for link in self.fabric.links if out in link.ends)
        to = next(end for end in link.ends if end != out)
        if out.node in self.dead or to.node in self.dead or (out.node, to.node) in self.cut:
            return None
        self.came_in[to] += 1
        return to.node


@pytest.fixture
def planes(tmp_path: Path) -> Planes:
    return Planes(tmp_path)


def considered(planes: Planes, doubtful: Any = None, times: int = 1) -> set[int]:
    """Look so many times; returns the links that let nothing through."""

    async def look() -> None:
        for _ in range(times):
            await planes.control.consider(planes.all if doubtful is None else doubtful)

    run(look())
    return planes.control.dead


@pytest.mark.parametrize("name", ["leaf1", "spine2"])
def test_a_silent_switch_whose_links_let_packets_through_keeps_them(planes: Planes, name: str) -> None:
    """As long as it is silent; nothing is asked of it but a sign of life, and when it gives one it is told what it
    lacks."""
    planes.servers[name].mute = True
    assert considered(planes, times=MISSES + 1) == set()
    assert (planes.control.silent, planes.changes) == ({name}, 1)
    planes.servers[name].mute = False
    assert considered(planes) == set()
    assert (planes.control.silent, planes.servers[name].resumed, planes.changes) == (set(), 1, 2)


@pytest.mark.parametrize("name", ["leaf1", "spine2"])
def test_a_silent_switch_whose_data_plane_stands_still_is_given_up_at_the_first_look(planes: Planes, name: str) -> None:
    """And its links are taken back when they let packets through again, though it is silent still."""
    planes.servers[name].mute = True
    planes.dead.add(name)
    assert considered(planes) == {number for number in planes.all
                                  if name in {end.node for end in planes.fabric.links[number].ends}}
    planes.dead.clear()
    assert considered(planes) == set()


@pytest.mark.parametrize("cut", [("leaf1", "spine1"), ("spine1", "leaf1")])
@pytest.mark.parametrize("name", ["leaf1", "spine1"])
def test_one_way_of_one_link_is_enough_to_lose_it_and_no_other(
    planes: Planes, cut: tuple[str, str], name: str
) -> None:
    """Whichever end is silent."""
    planes.servers[name].mute = True
    planes.cut.add(cut)
    assert considered(planes) == {planes.link("leaf1", "spine1")}


def test_a_dead_neighbour_of_a_silent_leaf_takes_its_own_link_alone(planes: Planes) -> None:
    """The leaf, which cannot be told, still sends half of its packets there."""
    planes.servers["leaf1"].mute = True
    planes.servers["spine1"].is_up = False
    planes.servers["spine1"].silence = "down"  # so that it is not heard
    planes.dead.add("spine1")
    assert planes.link("leaf1", "spine2") not in considered(planes)


def test_a_look_at_which_a_busy_machine_is_late_takes_nothing_down(planes: Planes) -> None:
    """Of links that nobody misses anything of, some looks in a row do."""
    planes.servers["leaf1"].mute = True
    assert considered(planes) == set()
    planes.dead.add("leaf1")
    assert considered(planes, (), MISSES - 1) == set()
    assert len(considered(planes, ())) == 2


def test_a_switch_that_answers_is_judged_by_its_probes(planes: Planes) -> None:
    """Nothing is sent over its links, whatever they let through."""
    planes.dead.add("leaf1")
    assert considered(planes) == set()
    assert (planes.came_in.total(), planes.changes, planes.waits) == (0, 0, 0)


def test_no_time_is_spent_where_no_neighbour_of_a_silent_switch_is_heard(planes: Planes) -> None:
    """Nothing can be sent to it."""
    for server in planes.servers.values():
        server.mute = True
    considered(planes)
    assert planes.waits == 0


@pytest.mark.parametrize("answers", [(), ("leaf2",), ("spine2",)], ids=["none", "leaf", "spine"])
def test_links_of_which_nothing_can_be_known_are_kept_until_ranks_wait_for_results(
    planes: Planes, answers: tuple[str, ...]
) -> None:
    """Where the network of the servers fails, data planes fold on: missing probes say nothing of links that nobody can
    hear.  Ranks that get no results do."""
    for name, server in planes.servers.items():
        server.mute = name not in answers
    assert considered(planes, times=2 * silent_control.MISSES) == set()
    stalled = next(number for number in planes.all if not set(answers) & {
        end.node for end in planes.fabric.links[number].ends})

    async def stall(pause: float) -> None:
        for _ in range(3):
            planes.now += pause
            await planes.control.consider(stalled=[stalled])

    run(stall(silent_control.AGAIN + 0.1))
    assert planes.control.dead == set(), "each time a packet was late, and came"
    run(stall(silent_control.AGAIN - 0.1))
    assert planes.control.dead == {stalled}


def test_a_data_plane_that_stands_still_beside_others_that_are_silent_is_given_up(planes: Planes) -> None:
    """One leaf is heard, and hears nothing of one of two silent spines: that spine's link to it is dead, and its other
    one too, of which a silent leaf is the other end."""
    for name in ("leaf1", "spine1", "spine2"):
        planes.servers[name].mute = True
    planes.dead.add("spine1")
    assert considered(planes, times=silent_control.MISSES) == {
        planes.link("leaf1", "spine1"), planes.link("leaf2", "spine1")}


async def test_a_switch_that_answers_and_takes_nothing_holds_up_no_look(
    planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it lacks is written beside; when it falls silent and answers again, this begins anew."""
    monkeypatch.setattr(silent_control, "ANSWER", 0.01)
    bad = planes.servers["leaf1"]
    bad.takes_nothing = True
    async with asyncio.timeout(20):  # rather than to hang
        for _ in range(2):
            bad.mute = True
            await planes.control.consider(planes.all)
            bad.mute = False
            await planes.control.consider(planes.all)
        planes.servers["spine1"].mute = True
        await planes.control.consider(planes.all)
        assert (planes.control.silent, bad.resumed) == ({"spine1"}, 2)
        await planes.control.close()
        assert not [task for task in asyncio.all_tasks() if task.get_name() == "resuming leaf1"]


def test_one_missed_answer_makes_no_switch_silent(planes: Planes) -> None:
    """A job that is just planned would lose its trees by it; two in a row do."""
    planes.servers["leaf1"].misses = 1
    considered(planes)
    assert planes.control.silent == set()
    planes.servers["leaf1"].misses = 2
    considered(planes)
    assert planes.control.silent == {"leaf1"}


def test_a_process_that_was_late_itself_takes_no_switch_for_silent(planes: Planes) -> None:
    """Answers may have come meanwhile."""
    bad = planes.servers["leaf1"]
    bad.mute, bad.late = True, 1.0
    considered(planes)
    assert planes.control.silent == set()
    bad.late = 0.0
    considered(planes)
    assert planes.control.silent == {"leaf1"}


def test_links_that_a_look_has_no_time_for_are_judged_by_the_next_ones(
    planes: Planes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One look takes a bounded time, whatever the number of links, and none counts as dead unjudged."""
    monkeypatch.setattr(silent_control, "LONGEST", 0.05)
    monkeypatch.setattr(silent_control, "LATE", 1.0)
    planes.servers["spine1"].mute = True
    links = {planes.link("leaf1", "spine1"), planes.link("leaf2", "spine1")}
    planes.cut = {("leaf1", "spine1"), ("leaf2", "spine1")}
    original = planes.control.passes

    async def passes(numbers: Any, *, some: bool = False) -> bool:
        return some or await original(numbers)

    monkeypatch.setattr(planes.control, "passes", passes)
    assert len(considered(planes)) == 1
    assert considered(planes) == links


def test_a_switch_that_lets_nothing_through_costs_one_set_of_packets(planes: Planes) -> None:
    """Its links share them; of each link, as many would be far more at a switch with many."""
    planes.servers["spine1"].mute = True
    planes.dead.add("spine1")
    considered(planes)
    assert planes.sent == PACKETS * 2
