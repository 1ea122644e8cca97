# SPDX-License-Identifier: Apache-2.0
"""Probes of links between switches: what they say, and what is concluded when they are lost or come from elsewhere."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from hypothesis import given
from hypothesis import strategies as st

from netfold.controller.health import links
from netfold.controller.health.links import Links
from netfold.controller.switch import tables
from netfold.fabric.generate import leafspine
from netfold.fabric.graph import End, Fabric
from netfold.wire import roce
from support.control.cables import link_between
from support.control.controller import signed

FABRIC = leafspine(2, 2, 4)


def deliver(found: Links, fabric: Fabric, *, without: frozenset[End] = frozenset()) -> None:
    """One round over cables as the file says, less those that lead into some ends."""
    far = {a: b for link in fabric.links for a, b in (link.ends, link.ends[::-1])}
    for switch, port, frame in list(found.round([s.name for s in fabric.switches])):
        end = far[End(switch, port)]
        if end not in without:
            assert found.receive(end.node, end.port, frame) == ""


def test_a_probe_is_valid_rocev2() -> None:
    """Scapy agrees with every length, checksum and ICRC of each round; it is addressed to all routers, with the
    sender's address, its port and the round's PSN, and as long as a data packet, or short where the last one was lost.
    It asks for an acknowledgement, and what goes to all neighbours does not."""
    from scapy.contrib.roce import BTH
    from scapy.layers.l2 import Ether

    import support.models.scapy_roce  # noqa: F401 (lets scapy know RETH)

    found, full = Links(FABRIC), roce.ip_packet_bytes(roce.Opcode.WRITE_FIRST, FABRIC.path_mtu)
    rounds = [(psn, probe) for psn in (1, 2, 3) for probe in found.round([s.name for s in FABRIC.switches])]
    assert len(rounds) == 8 + 16 + 16
    lengths = []
    for psn, probe in rounds:
        packet = Ether(probe.frame)
        assert BTH in packet
        assert (packet["IP"].src, packet["IP"].dst) == (FABRIC.switch(probe.switch).address, "224.0.0.2")
        again = packet.copy()
        del again["IP"].chksum, again["IP"].len, again["UDP"].len
        again[BTH].icrc = None
        assert bytes(again) == probe.frame
        assert (packet[BTH].psn, packet[BTH].ackreq) == (psn, 1)
        assert packet["UDP"].sport == tables.PROBE_PORT + probe.port
        lengths.append(packet["IP"].len)
    assert lengths == [full] * 8 + [full - FABRIC.path_mtu + 16, full] * 16
    for name, frame in found.to_neighbours([s.name for s in FABRIC.switches]):
        packet = Ether(signed(frame, 7))
        assert (packet["IP"].src, packet["UDP"].sport) == (FABRIC.switch(name).address, tables.PROBE_PORT + 7)
        assert (packet["IP"].len, packet[BTH].ackreq) == (full, 0)


def test_hosts_at_switches_in_doubt_are_asked_for_a_sign_of_life() -> None:
    """One ARP probe to each host of the switches at such a link and to no other; scapy reads it as one, whole."""
    from scapy.layers.l2 import ARP, Ether

    everywhere = [s.name for s in FABRIC.switches]
    questions = list(Links(FABRIC).arp_probes(everywhere, [link_between(FABRIC, "leaf1", "spine2")]))
    asked = [host for host, leaf in FABRIC.leaf_of().items() if leaf == "leaf1"]
    assert sorted(Ether(question.frame)[ARP].pdst for question in questions) == sorted(
        FABRIC.host(host).address for host in asked)
    for question in questions:
        frame = Ether(question.frame)
        host = FABRIC.host_at(frame[ARP].pdst)
        assert host is not None
        assert (frame.dst, frame[ARP].op, frame[ARP].psrc) == (host.mac, 1, "0.0.0.0")
        assert (frame.src, frame[ARP].hwsrc) == (FABRIC.switch("leaf1").mac,) * 2
        assert len(question.frame) == 60
        assert any({str(End(question.switch, question.port)), host.name} <= {link.a, link.b, link.b.partition(":")[0]}
                   for link in FABRIC.links)
    assert not list(Links(FABRIC).arp_probes(everywhere, []))
    assert not list(Links(FABRIC).arp_probes(["leaf2"], [link_between(FABRIC, "leaf1", "spine2")]))


def test_a_link_is_down_when_probes_are_lost_in_one_direction() -> None:
    """Not before MISSES of them in a row, no other link with it, and up with the first that arrives."""
    found = Links(FABRIC)
    dead = frozenset([End("spine2", 1)])
    for _ in range(FABRIC.misses - 1):
        deliver(found, FABRIC, without=dead)
        assert found.down() == frozenset()
    deliver(found, FABRIC, without=dead)
    assert found.down() == {link_between(FABRIC, "leaf1", "spine2")}
    deliver(found, FABRIC)
    assert found.down() == frozenset()


@pytest.mark.parametrize(("loss", "rounds"), [(0.0, 5), (0.01, 5), (0.05, 7), (0.5, 30), (1.0, 5)])
def test_losses_on_purpose_are_not_taken_for_failures(loss: float, rounds: int) -> None:
    """A lossy link is given so many rounds that chance alone takes it down once in a billion; one that loses all is
    down."""
    fabric = leafspine(2, 1, 2, loss=loss)
    found = Links(fabric)
    for _ in range(rounds - 1):
        deliver(found, fabric, without=frozenset([End("spine1", 1)]))
    assert found.down() == frozenset()
    deliver(found, fabric, without=frozenset([End("spine1", 1)]))
    assert len(found.down()) == 1
    assert loss in (0.0, 1.0) or loss**rounds <= links.CHANCE


def test_links_of_a_switch_that_is_down_are_not_judged() -> None:
    """Nothing can be sent or heard there; when it is back, they start as good as new."""
    found = Links(FABRIC)
    for _ in range(2 * FABRIC.misses):
        assert {probe.switch for probe in found.round(["leaf1", "leaf2", "spine1"])} == {"leaf1", "leaf2", "spine1"}
    assert found.down() == {link_between(FABRIC, "leaf1", "spine1"), link_between(FABRIC, "leaf2", "spine1")}


def test_a_link_that_carries_short_probes_alone_is_down_for_its_mtu() -> None:
    """The reason names both ends, the path MTU, and the MTU that it needs; once full probes arrive it is up."""
    found, number = Links(FABRIC), link_between(FABRIC, "leaf1", "spine1")
    for _ in range(FABRIC.misses + 1):
        for probe in found.round([s.name for s in FABRIC.switches]):
            here = End(probe.switch, probe.port)
            there = next(b if a == here else a for a, b in (link.ends for link in FABRIC.links) if here in (a, b))
            if len(probe.frame) <= 1514 or FABRIC.links[number].ends not in ((here, there), (there, here)):
                found.receive(there.node, there.port, probe.frame)
    assert found.down() == {number}
    assert found.why_down(number) == (
        "short probes from leaf1:3 arrive at spine1:1, those of 4156 bytes are lost: path_mtu = 4096 needs an MTU of "
        "4156 or more at both ends: `ip link set dev ... mtu 4200`, or path_mtu = 1024 in the fabric's file")
    deliver(found, FABRIC)
    assert found.down() == frozenset()


def test_a_link_that_is_cut_after_a_loss_is_not_blamed_on_its_mtu() -> None:
    """A short probe that arrived between losses says nothing of a link over which nothing arrives any more."""
    fabric = leafspine(2, 1, 2, path_mtu=1024)
    found, cut = Links(fabric), frozenset([End("spine1", 1)])
    deliver(found, fabric)
    deliver(found, fabric, without=cut)
    short = next(probe for probe in found.round([s.name for s in fabric.switches])
                 if probe.switch == "leaf1" and len(probe.frame) < 1024)
    found.receive("spine1", 1, short.frame)
    for _ in range(fabric.misses):
        deliver(found, fabric, without=cut)
    (number,) = found.down()
    assert found.why_down(number) == "its probes are lost"


@pytest.mark.parametrize("back", ["arrives", "reset"])
def test_the_reason_of_an_earlier_failure_does_not_survive_the_links_return(back: str) -> None:
    """A link that was too narrow, worked again, and is then found silent has lost its probes: its MTU is not blamed."""
    fabric = leafspine(2, 1, 2, path_mtu=1024)
    found, up = Links(fabric), [s.name for s in fabric.switches]
    for _ in range(2 * fabric.misses):
        for probe in found.round(up):
            here = End(probe.switch, probe.port)
            there = next(b if a == here else a for a, b in (link.ends for link in fabric.links) if here in (a, b))
            if len(probe.frame) < 1024:
                found.receive(there.node, there.port, probe.frame)
    number = link_between(fabric, "leaf1", "spine1")
    assert "short probes" in found.why_down(number)
    if back == "arrives":
        deliver(found, fabric)
    else:
        found.reset([number])
    assert number not in found.down()
    found.take_down([number])
    assert found.why_down(number) == "its probes are lost"


def test_switches_that_have_never_sent_a_probe_back_are_named_with_the_option_that_they_lack() -> None:
    """A switch without a CPU port hands no probe to the controller, over whichever link it comes."""
    found, deaf = Links(FABRIC), frozenset(end for link in FABRIC.links for end in link.ends if end.node == "leaf1")
    for _ in range(FABRIC.misses):
        deliver(found, FABRIC, without=deaf)
    assert found.why_down(link_between(FABRIC, "leaf1", "spine1")) == (
        "its probes are lost; no probe over any link has ever come back from leaf1: look whether it runs with "
        "--cpu-port 510")
    deliver(found, FABRIC)
    found.take_down([link_between(FABRIC, "leaf1", "spine1")])
    assert found.why_down(link_between(FABRIC, "leaf1", "spine1")) == "its probes are lost"


def test_where_the_path_mtu_is_the_least_no_smaller_one_is_offered() -> None:
    """The reason then asks for a larger MTU alone."""
    fabric = leafspine(2, 1, 2, path_mtu=1024)
    found = Links(fabric)
    for _ in range(fabric.misses + 1):
        for probe in found.round([s.name for s in fabric.switches]):
            if probe.switch == "leaf1" and len(probe.frame) < 1024:
                found.receive("spine1", 1, probe.frame)
    assert found.why_down(link_between(fabric, "leaf1", "spine1")).endswith("both ends: `ip link set dev ... mtu 1500`")


def test_a_cable_in_the_wrong_port_is_named() -> None:
    """A probe that arrives at another port than the file says does not count, and is reported."""
    found = Links(FABRIC)
    probe = next(p for p in found.round(["leaf1", "spine1"]) if p.switch == "leaf1")
    words = found.receive("spine2", 1, probe.frame)
    assert "what leaves leaf1:3 arrives at spine2:1, the fabric's file says spine1:1" in words


def regular(found: Links, *, cut: frozenset[End] = frozenset(), silent: Collection[str] = ()) -> None:
    """A regular round: what the last one's probes have brought, less those into some ends, and the next probes.

    silent  switches that do not tell what they have heard"""
    switches = [switch.name for switch in FABRIC.switches]
    heard = {name: sum(1 << end.port for link in FABRIC.links for end in link.ends
                       if end.node == name and end not in cut and {e.node for e in link.ends} <= {*switches})
             for name in switches if name not in silent}
    found.hear(heard)
    assert sorted(name for name, _ in found.to_neighbours(switches)) == sorted(switches)


def test_a_regular_round_counts_as_probes_of_single_links_do() -> None:
    """A link is down with as many of them, no other is, and one that comes through is enough to be up."""
    found, dead = Links(FABRIC), frozenset([End("spine2", 1)])
    regular(found)
    for _ in range(FABRIC.misses - 2):
        regular(found, cut=dead)
        assert found.down() == frozenset()
        assert found.missing().keys() == dead
    regular(found, cut=dead)
    assert found.down() == {link_between(FABRIC, "leaf1", "spine2")}
    regular(found)
    assert (found.down(), found.missing()) == (frozenset(), {})


def test_a_late_answer_of_a_switch_tells_nothing_and_a_second_one_that_all_is_missing() -> None:
    """The answer after a late one has what came in before, so nothing is lost by it."""
    found = Links(FABRIC)
    regular(found)
    for _ in range(2 * FABRIC.misses):
        regular(found, silent=["leaf1"])
        regular(found)
        assert found.missing() == {}
    regular(found, silent=["leaf1"])
    for _ in range(FABRIC.misses - 2):
        assert found.down() == frozenset()
        regular(found, silent=["leaf1"])
    assert found.down() == {link_between(FABRIC, "leaf1", spine) for spine in ("spine1", "spine2")}


def test_a_lost_regular_probe_is_followed_by_a_short_one_that_asks_for_an_acknowledgement() -> None:
    """The controller gets it, so that a link with too small an MTU is told from one that is cut."""
    found = Links(FABRIC)
    regular(found)
    assert not list(found.short_ones([switch.name for switch in FABRIC.switches]))
    for _ in range(FABRIC.misses):
        regular(found, cut=frozenset([End("spine2", 1)]))
        (short,) = found.short_ones([switch.name for switch in FABRIC.switches])
        assert (short.switch, short.port, len(short.frame)) == ("leaf1", 4, 90)
        assert found.receive("spine2", 1, short.frame) == ""
    assert "short probes from leaf1:4 arrive at spine2:1" in found.why_down(link_between(FABRIC, "leaf1", "spine2"))
    assert not list(found.short_ones(["leaf1", "leaf2", "spine1"]))


def test_what_was_never_sent_is_not_missing() -> None:
    """Neither before the first round, nor over links with an end that was down."""
    found = Links(FABRIC)
    found.hear({switch.name: 0 for switch in FABRIC.switches})
    assert found.missing() == {}
    assert {name for name, _ in found.to_neighbours(["leaf1", "leaf2", "spine1"])} == {"leaf1", "leaf2", "spine1"}
    found.hear({"leaf1": 0, "leaf2": 1 << 3, "spine1": 1 << 1 | 1 << 2, "spine2": 0})
    assert found.missing().keys() == {End("leaf1", 3)}


def test_a_regular_probe_that_comes_from_elsewhere_names_the_cable() -> None:
    """Its switch and port stand in it, for which the switch has no count."""
    found = Links(FABRIC)
    frame = dict(found.to_neighbours([switch.name for switch in FABRIC.switches]))["leaf1"]
    assert found.receive("spine1", 1, signed(frame, 3)) == ""
    words = found.receive("spine1", 1, signed(frame, 4))
    assert "what leaves leaf1:4 arrives at spine1:1, the fabric's file says spine2:1" in words


@given(st.binary(max_size=200))
def test_other_packets_are_no_probes(frame: bytes) -> None:
    """Whatever hosts send to all routers does nothing."""
    found = Links(FABRIC)
    assert found.receive("leaf1", 1, frame) == ""
    assert found.down() == frozenset()
