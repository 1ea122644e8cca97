# SPDX-License-Identifier: Apache-2.0
"""Links that swallow everything are found by their probes, and none that is only slow, or among others that are."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from netfold.controller.health.links import DELAYS, Direction, Links
from netfold.controller.health.silent_links import MOST_AT_ONCE, REPRIEVE, SilentLinks
from netfold.controller.switch.switch import SwitchError
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import End
from support.control.cables import link_between


class Fabric22:
    """Two leaves and two spines, or more, whose probes arrive at once unless they are swallowed or late."""

    def __init__(self, spines: int = 2, misses: int = 5) -> None:
        fabric = leafspine(2, spines, 4, rate="1gbit", rundir=Path("/nowhere"))
        self.fabric = msgspec.structs.replace(fabric, misses=misses)
        self.links = Links(self.fabric)
        self.up = [switch.name for switch in self.fabric.switches]
        self.counts: dict[End, int] = {}
        self.delays: dict[Direction, float] = {}
        """Seconds that probes take; those of others take none."""
        self.over = False
        """True if there was nothing more to wait for after the last round."""
        self.dumb: set[str] = set()
        """Switches that do not tell their counters."""
        self.targets: Any = {
            name: SimpleNamespace(client=SimpleNamespace(read_cell=self._reader(name)), is_heard=True, ports_down=set())
            for name in self.up
        }
        self.now = 0.0
        self.seconds = 1 / 64
        """How long one round of probes takes."""
        self.sent: Counter[Direction] = Counter()
        """Probes sent so far."""
        self.silent = SilentLinks(self.targets, self.links, clock=lambda: self.now)
        self.tick((), ())

    def _reader(self, name: str) -> Any:
        async def read_cell(counter: str, index: int) -> int:
            if name in self.dumb:
                raise SwitchError(f"{name} does not say")
            return self.counts.get(End(name, index), 0)

        return read_cell

    def number(self, leaf: str, spine: str) -> int:
        return link_between(self.fabric, leaf, spine)

    def tick(
        self, suspects: Collection[int], lost: Collection[Direction], *, arrives: int | None = None
    ) -> set[int]:
        """Probes of the suspects and their witnesses, of which those of some directions get lost, all but the one of
        this number in the round."""
        before, witnesses, sent = self.links.arrived(), self.silent.witnesses(suspects), self.now
        probes = self.silent.wanted(suspects)
        for turn in range(max(probes.values(), default=1)):
            over = [*(number for number in suspects if probes[number] > turn), *(() if turn else witnesses)]
            for probe in self.links.round(self.up, over or None, counted=False, now=sent):
                direction = next(d for d in ((n, w) for n in self.links.probed for w in (0, 1))
                                 if self.links.ends(*d)[0] == End(probe.switch, probe.port))
                self.sent[direction] += 1
                if direction not in lost or turn == arrives:
                    receiver = self.links.ends(*direction)[1]
                    arrived = sent + self.delays.get(direction, 0.0)
                    self.links.receive(receiver.node, receiver.port, probe.frame, arrived)
        self.over = self.silent.is_over(suspects, witnesses, before)
        self.now += self.seconds
        return asyncio.run(self.silent.find(probes, witnesses, before, sent))

    def spare(self, lost: Collection[int], *, come_in: int) -> set[int]:
        """What is spared of these links, at whose ends so many packets come in meanwhile."""

        async def story() -> set[int]:
            self.links.take_down(lost)
            await self.silent.look(lost)
            for end in (end for number in lost for end in self.links.ends(number, 0)):
                self.counts[end] = self.counts.get(end, 0) + come_in
            return await self.silent.spare(lost)

        return asyncio.run(story())


def test_a_link_that_swallows_is_found_after_the_usual_number_of_probes() -> None:
    """One way is enough.  They are sent in two rounds: the first probe that is missing calls for all others."""
    for lost_ways in ((0, 1), (0,), (1,)):
        net = Fabric22()
        cut = net.number("leaf1", "spine1")
        net.sent.clear()
        looks = [net.tick({cut}, {(cut, way) for way in lost_ways}) for _ in range(2)]
        assert looks == [set(), {cut}]
        assert net.sent[cut, 0] == net.sent[cut, 1] == net.fabric.misses
        assert net.sent[net.number("leaf1", "spine2"), 0] == 2, "one a round of a witness"


def test_a_link_that_must_lose_many_probes_gets_a_few_at_once() -> None:
    """A switch's queue would not hold all of them, and others' packets would be lost in it."""
    net = Fabric22(misses=30)
    cut = net.number("leaf1", "spine1")
    sent, found = [], set[int]()
    while not found:
        net.sent.clear()
        found = net.tick({cut}, {(cut, 0)})
        sent.append(net.sent[cut, 0])
    assert sent == [1, MOST_AT_ONCE, MOST_AT_ONCE, MOST_AT_ONCE, 30 - 1 - 3 * MOST_AT_ONCE]


def test_a_probe_that_arrives_in_between_begins_the_count_anew() -> None:
    """Whichever it is: only as many in a row as the fabric allows take a link down."""
    net = Fabric22()
    cut = net.number("leaf1", "spine1")
    for arrives in range(net.fabric.misses - 1):
        assert net.tick({cut}, {(cut, 0)}) == set()
        assert net.tick({cut}, {(cut, 0)}, arrives=arrives) == set()


@pytest.mark.parametrize("dark", [False, True])
def test_a_switch_that_is_down_makes_no_silent_link_slower_to_find(dark: bool) -> None:
    """Nor does a port that is known to be down: what cannot answer is no witness."""
    net = Fabric22(spines=4)
    cut, gone = net.number("leaf1", "spine1"), net.number("leaf1", "spine2")
    if dark:
        net.targets["leaf1"].ports_down.add(net.links.ends(gone, 0)[net.links.ends(gone, 0)[0].node != "leaf1"].port)
    else:
        net.targets["spine2"].is_heard = False
        net.up.remove("spine2")
    lost = {(cut, 0), (cut, 1), (gone, 0), (gone, 1)}
    assert [net.tick({cut}, lost) for _ in range(2)] == [set(), {cut}]


def test_a_drained_link_is_no_witness() -> None:
    """An operator works on it, and no probe is sent over it because of others."""
    net = Fabric22(spines=3)
    drained = net.number("leaf1", "spine2")
    net.silent = SilentLinks(net.targets, net.links, lambda: {drained}, clock=lambda: net.now)
    cut = net.number("leaf1", "spine1")
    assert drained not in net.silent.witnesses({cut})
    assert [net.tick({cut}, {(cut, 0), (cut, 1)}) for _ in range(2)] == [set(), {cut}]


def test_no_link_is_judged_while_witnesses_are_late() -> None:
    """A switch or a controller that is late with one may be so with all."""
    net = Fabric22()
    cut, witness = net.number("leaf1", "spine1"), net.number("leaf1", "spine2")
    assert not any(net.tick({cut}, {(cut, 0), (cut, 1), (witness, 1)}) for _ in range(3 * net.fabric.misses))
    assert net.silent.late
    assert [net.tick({cut}, {(cut, 0), (cut, 1)}) for _ in range(2)] == [set(), {cut}]
    assert not net.silent.late


def test_a_round_in_which_witnesses_are_late_counts_nothing_and_takes_nothing_back() -> None:
    """What was missing while all were in time is missing still; a probe that arrives is an answer, whoever is late."""
    for answers in (False, True):
        net = Fabric22()
        cut, witness = net.number("leaf1", "spine1"), net.number("leaf1", "spine2")
        both = {(cut, 0), (cut, 1)}
        assert net.tick({cut}, both) == set()
        assert net.tick({cut}, {(witness, 1)} if answers else {*both, (witness, 1)}) == set()
        assert net.tick({cut}, both) == (set() if answers else {cut})


def test_a_port_at_which_packets_come_in_is_not_silent() -> None:
    """Its link is slow, or loses some: that is for probes that are waited for as long as it takes."""
    net = Fabric22()
    cut = net.number("leaf1", "spine1")
    receiver = net.links.ends(cut, 0)[1]
    for look in range(6 * net.fabric.misses):
        net.counts[receiver] = 7 * look
        assert net.tick({cut}, {(cut, 0)}) == set()


def test_a_switch_that_tells_no_counters_has_no_silent_links() -> None:
    """Without them nobody knows whether the link is only slow."""
    net = Fabric22()
    cut = net.number("leaf1", "spine1")
    net.dumb.add(net.links.ends(cut, 0)[1].node)
    assert not any(net.tick({cut}, {(cut, 0)}) for _ in range(3 * net.fabric.misses))


def test_nothing_is_judged_of_a_switch_of_which_nothing_is_heard() -> None:
    """It may hang, or be late: no other link shows that it is in time."""
    net = Fabric22()
    links = {net.number(leaf, "spine1") for leaf in ("leaf1", "leaf2")}
    lost = {(number, way) for number in links for way in (0, 1)}
    assert not any(net.tick(links, lost) for _ in range(3 * net.fabric.misses))


@pytest.mark.parametrize(("delay", "silence"), [(None, 0.05), (0.001, 0.03), (0.04, 0.08)])
def test_a_link_is_silent_only_after_longer_than_a_probe_takes_over_it(delay: float | None, silence: float) -> None:
    """Twice as long, and no less than 30 ms; 50 ms where none has arrived so far."""
    net = Fabric22()
    net.seconds = 0.0025
    cut = net.number("leaf1", "spine1")
    net.links = Links(net.fabric)
    net.silent = SilentLinks(net.targets, net.links, clock=lambda: net.now)
    if delay is not None:
        net.delays = {(cut, 0): delay, (cut, 1): delay}
        assert net.tick({cut}, set()) == set()
    began = net.now
    while not net.tick({cut}, {(cut, 0), (cut, 1)}):
        assert net.now < began + silence + 1.5 * net.seconds
    assert net.now >= began + silence


def test_the_delay_of_a_link_is_that_of_its_quickest_probe_lately() -> None:
    """What a probe waits in queues is not the link's; one that has become longer is known after DELAYS probes."""
    net = Fabric22()
    number = net.number("leaf1", "spine1")
    assert Links(net.fabric).delay((number, 0)) is None
    net.delays = {(number, 0): 0.3}
    for _ in range(DELAYS - 1):
        net.tick({number}, set())
    assert net.links.delay((number, 0)) == pytest.approx(0.0)
    net.tick({number}, set())
    assert net.links.delay((number, 0)) == pytest.approx(0.3)
    assert net.links.delay((number, 1)) == pytest.approx(0.0)


def test_a_round_is_over_once_all_has_arrived_that_can_be_waited_for() -> None:
    """Those of the witnesses, where the suspect's are missing; without witnesses nobody knows."""
    net = Fabric22()
    cut, witness = net.number("leaf1", "spine1"), net.number("leaf1", "spine2")
    for lost, over in (
        (set(), True), ({(cut, 0)}, True), ({(cut, 0), (cut, 1)}, True), ({(cut, 0), (witness, 1)}, False),
    ):
        net.tick({cut}, lost)
        assert net.over == over, lost
    links = {net.number(leaf, "spine1") for leaf in ("leaf1", "leaf2")}
    net.tick(links, {(number, 0) for number in links} | {(number, 1) for number in links})
    assert not net.over


def test_a_link_at_which_packets_come_in_is_spared_for_a_while() -> None:
    """Its probes are lost or late on a busy machine; but not for ever, since most others may be lost, too.  An answer
    lets the time begin anew."""
    net = Fabric22()
    number = net.number("leaf1", "spine1")
    assert net.spare({number}, come_in=1) == {number}
    net.now += REPRIEVE / 2
    assert net.spare({number}, come_in=1) == {number}
    net.now += REPRIEVE / 2
    assert net.spare({number}, come_in=1) == set()
    net.tick({number}, set())
    assert net.spare({number}, come_in=1) == {number}


@pytest.mark.parametrize("silent", [(0,), (1,), (0, 1)])
def test_a_link_with_a_silent_end_is_not_spared(silent: tuple[int, ...]) -> None:
    """One way in which no packet comes is enough to be down; so is a switch that does not tell."""
    net = Fabric22()
    number = net.number("leaf1", "spine1")

    async def story() -> set[int]:
        net.links.take_down({number})
        await net.silent.look({number})
        for way in {0, 1} - set(silent):
            net.counts[net.links.ends(number, way)[1]] = 7
        return await net.silent.spare({number})

    assert asyncio.run(story()) == set()
    net.dumb.add("spine1")
    assert net.spare({number}, come_in=1) == set()


def test_a_link_that_passes_short_probes_alone_is_not_spared() -> None:
    """Its MTU is too small for data, and what comes in are short packets."""
    net = Fabric22()
    number = net.number("leaf1", "spine1")
    for _ in range(2 * net.fabric.misses):
        for probe in net.links.round(net.up, [number]):
            way = int(net.links.ends(number, 0)[0] != End(probe.switch, probe.port))
            receiver = net.links.ends(number, way)[1]
            if len(probe.frame) < net.fabric.path_mtu:
                net.links.receive(receiver.node, receiver.port, probe.frame)
    assert number in net.links.down()
    assert net.spare({number}, come_in=1) == set()


def test_what_was_down_for_silence_is_up_with_its_next_probe() -> None:
    """`Links.take_down` holds until a probe has arrived each way."""
    net = Fabric22()
    cut = net.number("leaf1", "spine1")
    net.links.take_down({cut})
    assert net.links.down() == {cut}
    net.tick({cut}, {(cut, 0)})
    assert net.links.down() == {cut}
    net.tick({cut}, set())
    assert net.links.down() == set()
