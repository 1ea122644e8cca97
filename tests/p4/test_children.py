# SPDX-License-Identifier: Apache-2.0
"""The fold's rules for both kinds of children (docs/protocol.md), packet by packet: the compiled program with the
controller's own entries, and BMv2 beside it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from netfold.controller.switch import tables
from netfold.wire import roce
from support.models.nic_packets import ACK, RNR, SEQUENCE, Packet, Rc, Reth
from support.p4.scene import FULL, REGION, TOTAL, Out, Scene, compare_with_bmv2, lanes

RNR_128 = RNR | 14
"""Come again after 1.28 ms."""


def fold_all(s: Scene, psn: int) -> Out:
    """All ranks contribute a full packet; at a leaf below another switch the result comes back down."""
    out = s.everybody(psn)
    if s.root:
        return out
    assert out == s.up(psn, TOTAL)
    return s.parent(psn)


def payloads(out: Out) -> list[bytes]:
    """The payloads of what left."""
    return [packet.payload for _, packet in out]


# ---- rules: each takes PSNs of its own, and leaves nothing open ---------------------------------------------------


def results_have_each_receivers_addresses(s: Scene) -> None:
    """A NIC gets the sum from its predecessor at its fold address and queue pair, a windowed rank at its connection; an
    acknowledgement is asked for where one contribution does."""
    psn = s.take()
    s.send(0, psn, ack_req=True)
    s.send(1, psn)
    out = s.send(2, psn)
    if not s.root:
        assert out == s.up(psn, TOTAL, ack_req=True)
        out = s.parent(psn, TOTAL, ack_req=True)
    expected = [
        Packet(s.hosts[1].address, s.fold_address(0), Rc.SEND_ONLY, 33, psn, TOTAL, ack_req=True, ttl=255,
               ip_id=psn & 0xFFFF, source_port=s.stream.source_ports[1]),
        Packet(s.hosts[0].address, s.fold_address(1), Rc.SEND_ONLY, 34, psn, TOTAL, ack_req=True, ttl=255,
               ip_id=psn & 0xFFFF, source_port=s.stream.source_ports[0]),
        Packet(s.hosts[1].address, s.hosts[2].address, Rc.SEND_ONLY, s.stream.connections[2] << 3, psn, TOTAL,
               ack_req=True, ttl=255, ip_id=psn & 0xFFFF, pkey=roce.PKEY_WINDOWED,
               source_port=s.stream.source_ports[1]),
    ]
    assert out == sorted(zip(s.ports, expected, strict=True), key=lambda pair: pair[0])
    s.acknowledged(psn)


def writes_land_in_each_receivers_region(s: Scene) -> None:
    """RETH addresses are offsets in the successor's region on the way in, and in the receiver's on the way out."""
    psn = s.take()
    for place, base in ((0, REGION[1]), (1, REGION[0]), (2, 0)):
        out = s.send(place, psn, opcode=Rc.WRITE_ONLY, reth=Reth(base + 0x1230, 77, FULL))
    if not s.root:
        assert out == s.up(psn, TOTAL, opcode=Rc.WRITE_ONLY, reth=Reth(0x1230, 0, FULL))
        out = s.parent(psn, TOTAL, opcode=Rc.WRITE_ONLY, reth=Reth(0x1230, 0, FULL))
    assert {to: packet.reth for to, packet in out} == dict(zip(s.ports, (
        Reth(REGION[0] + 0x1230, 5, FULL), Reth(REGION[1] + 0x1230, 6, FULL), Reth(0x1230, 0, FULL)), strict=True))
    s.acknowledged(psn)


def payloads_of_every_length_fold(s: Scene) -> None:
    """Multiples of four bytes, with every header after the last whole word, pad and immediate data."""
    rng = np.random.default_rng(4)
    for size in (4, 8, 12, 60, 124, 252, 256, 260, 508, 764, 1000, 1020, FULL):
        for immediate in (None, 0xDEADBEEF):
            psn = s.take()
            rows = [rng.integers(0, 2**32, size // 4, dtype=np.uint32) for _ in range(3)]
            fields = {"opcode": Rc.SEND_ONLY if immediate is None else Rc.SEND_ONLY_IMMEDIATE, "immediate": immediate,
                      "pad": size % 3}
            for place, row in enumerate(rows):
                out = s.send(place, psn, row.astype(">u4").tobytes(), **fields)
            total = np.add.reduce(rows, dtype=np.uint32).astype(">u4").tobytes()
            if not s.root:
                assert out == s.up(psn, total, **fields)
                out = s.parent(psn, total, **fields)
            assert payloads(out) == [total] * 3, f"{size} bytes, immediate {immediate}"
            assert {packet.immediate for _, packet in out} == {immediate}
            assert {packet.pad for _, packet in out} == {size % 3}
            repeat = s.send(0, psn, rows[0].astype(">u4").tobytes(), **fields)
            assert payloads(repeat) == [total]
            s.acknowledged(psn)


def a_nic_that_skips_a_packet_is_told_once(s: Scene) -> None:
    """NAK with a PSN that acknowledges nothing; nothing ahead is taken; the gap closed, the next one is told anew."""
    psn = s.take(3)
    assert s.send(0, psn + 1) == s.answer(0, SEQUENCE, psn)
    assert s.send(0, psn + 2) == []
    assert s.send(0, psn) == []
    assert s.send(0, psn + 2) == s.answer(0, SEQUENCE, psn)
    assert s.send(0, psn + 1) == []
    assert s.send(0, psn + 2) == []
    for place in (1, 2):
        for step in range(3):
            out = s.send(place, psn + step)
            if place == 2 and not s.root:
                out = s.parent(psn + step)
    assert payloads(out) == [TOTAL] * 3
    s.acknowledged(psn + 2)


def a_nic_that_repeats_too_early_is_put_off(s: Scene) -> None:
    """RNR NAK for the lowest PSN that its successor lacks; silence above."""
    psn = s.take(2)
    assert s.send(0, psn) == s.send(0, psn + 1) == []
    assert s.send(0, psn) == s.answer(0, RNR_128, psn)
    assert s.send(0, psn + 1) == []
    for step in range(2):
        for place in (1, 2):
            out = s.send(place, psn + step)
        if not s.root:
            s.parent(psn + step)
        else:
            assert payloads(out) == [TOTAL] * 3
    s.acknowledged(psn + 1)


def a_nics_repeat_goes_onward_with_the_result(s: Scene) -> None:
    """With its own addresses, queue pair, PSN, RETH and request for an acknowledgement, to its successor alone."""
    psn = s.take(2)
    for step in range(2):
        fold_all(s, psn + step)
    again = s.contribution(0, psn + 1, ack_req=True)
    assert s.inject(s.ports[0], again.frame()) == [(s.ports[1], dataclasses.replace(again, payload=TOTAL, ttl=63))]
    s.acknowledged(psn + 1)


def a_writes_repeat_goes_onward_as_it_is(s: Scene) -> None:
    """Address and rkey of its successor's region, the operation's bits of the queue pair too."""
    psn = s.take()
    for place, base in ((0, REGION[1]), (1, REGION[0]), (2, 0)):
        s.send(place, psn, opcode=Rc.WRITE_ONLY, reth=Reth(base + 64, 77, FULL))
    if not s.root:
        s.parent(psn, TOTAL, opcode=Rc.WRITE_ONLY, reth=Reth(64, 0, FULL))
    again = s.contribution(1, psn, opcode=Rc.WRITE_ONLY, reth=Reth(REGION[0] + 64, 77, FULL))
    assert s.inject(s.ports[1], again.frame()) == [(s.ports[0], dataclasses.replace(again, payload=TOTAL, ttl=63))]
    s.acknowledged(psn)


def what_the_successor_has_is_acknowledged_for_it(s: Scene) -> None:
    """Its acknowledgements pass unchanged; a repeat of what they name is acknowledged, and no data leaves.  A NAK
    acknowledges what is below it; one with a wrong ICRC, nothing; nor does one of a PSN that was never sent."""
    psn = s.take(3)
    for step in range(3):
        fold_all(s, psn + step)
    (passed,) = s.acknowledge(0, psn, corrupt=False)
    assert passed[0] == s.ports[0]
    assert (passed[1].syndrome, passed[1].psn, passed[1].msn, passed[1].ttl) == (ACK, psn & roce.PSN_MASK, 3, 63)
    assert s.send(0, psn) == s.answer(0, ACK, psn)
    s.acknowledge(0, psn + 2, corrupt=True)
    s.acknowledge(0, psn + 40)
    assert payloads(s.send(0, psn + 1)) == [TOTAL]
    s.acknowledge(0, psn + 2, SEQUENCE)
    assert s.send(0, psn + 1) == s.answer(0, ACK, psn + 1)
    s.acknowledge(0, psn)
    assert s.send(0, psn + 1) == s.answer(0, ACK, psn + 1), "acknowledgements move forward alone"
    assert payloads(s.send(0, psn + 2)) == [TOTAL]
    s.acknowledged(psn + 2)


def a_windowed_rank_is_asked_for_what_it_skipped(s: Scene) -> None:
    """At once, for the gap alone; the packet itself counts, and a late one shows no gap."""
    psn = s.take(4)
    s.send(2, psn)
    assert s.send(2, psn + 3) == s.answer(2, SEQUENCE, psn + 1, psn + 3)
    assert s.send(2, psn + 1) == s.send(2, psn + 2) == []
    for place in (0, 1):
        for step in range(4):
            out = s.send(place, psn + step)
            if place == 1 and not s.root:
                out = s.parent(psn + step)
            assert place == 0 or payloads(out) == [TOTAL] * 3
    s.acknowledged(psn + 3)


def a_windowed_rank_asks_for_results(s: Scene) -> None:
    """It gets what is there, is asked for its own contribution where that is missing, and waits for others."""
    psn = s.take(4)
    for step in range(2):
        fold_all(s, psn + step)
    if not s.grows:
        naks = [pair for at in (psn, psn + 1) for pair in s.answer(2, SEQUENCE, at, at + 1)]
        assert s.ask(2, psn, psn + 2) == naks
        assert [payloads(s.send(2, at)) for at in (psn, psn + 1)] == [[TOTAL]] * 2
    out = s.ask(2, psn, psn + 2)
    assert not s.grows or [(to, packet.psn, packet.payload, packet.opcode) for to, packet in out] == [
        (s.ports[2], at & roce.PSN_MASK, TOTAL, Rc.SEND_ONLY) for at in (psn, psn + 1)]
    assert {packet.pkey for _, packet in out} == {roce.PKEY_WINDOWED}
    assert s.ask(2, psn + 2) == s.answer(2, SEQUENCE, psn + 2, psn + 3)
    s.send(0, psn + 2)
    assert s.ask(2, psn + 2) == s.answer(2, SEQUENCE, psn + 2, psn + 3)
    s.send(2, psn + 2)
    assert s.ask(2, psn + 2) == []
    s.send(1, psn + 2)
    if not s.root:
        if s.grows:
            assert s.ask(2, psn + 2) == s.up(psn + 2, opcode=roce.Opcode.ACKNOWLEDGE, syndrome=SEQUENCE,
                                             msn=(psn + 3) & roce.PSN_MASK)
        else:
            assert s.ask(2, psn + 2) == s.answer(2, SEQUENCE, psn + 2, psn + 3)
            assert s.send(2, psn + 2) == s.up(psn + 2, TOTAL)
        s.parent(psn + 2)
    fold_all(s, psn + 3)
    s.acknowledged(psn + 3)


def short_and_written_results_are_made_anew_too(s: Scene) -> None:
    """With their length, RETH and pad; those with immediate data are asked for, as the slot does not hold it."""
    for size in (4, 260, 1020, FULL):
        psn = s.take()
        for place, base in ((0, REGION[1]), (1, REGION[0]), (2, 0)):
            s.send(place, psn, lanes(1 << 8 * place, size), opcode=Rc.WRITE_ONLY, reth=Reth(base + 64, 77, size), pad=1)
        if not s.root:
            s.parent(psn, lanes(0x010101, size), opcode=Rc.WRITE_ONLY, reth=Reth(64, 0, size), pad=1)
        out = s.ask(2, psn)
        if not s.grows:
            assert out == s.answer(2, SEQUENCE, psn, psn + 1)
            fields = {"opcode": Rc.WRITE_ONLY, "reth": Reth(64, 77, size), "pad": 1}
            out = s.send(2, psn, lanes(1 << 16, size), **fields)
        ((_, packet),) = out
        assert (packet.payload, packet.reth, packet.pad) == (lanes(0x010101, size), Reth(64, 0, size), 1)
        s.acknowledged(psn)
    psn = s.take()
    out = s.everybody(psn, opcode=Rc.SEND_ONLY_IMMEDIATE, immediate=5)
    if not s.root:  # lost on its way up: the parent could ask for it in vain, the child's repeat brings it there again
        assert s.ask(2, psn) == s.answer(2, SEQUENCE, psn, psn + 1)
        assert s.send(2, psn, opcode=Rc.SEND_ONLY_IMMEDIATE, immediate=5) == out
        s.parent(psn, TOTAL, opcode=Rc.SEND_ONLY_IMMEDIATE, immediate=5)
    assert s.ask(2, psn) == s.answer(2, SEQUENCE, psn, psn + 1)
    ((_, packet),) = s.send(2, psn, opcode=Rc.SEND_ONLY_IMMEDIATE, immediate=5)
    assert (packet.payload, packet.immediate) == (TOTAL, 5)
    s.acknowledged(psn)
    assert out


def contributions_that_do_not_fit_are_dropped(s: Scene) -> None:
    """Another opcode, length or pad than the first one's; of a NIC, another address."""
    psn = s.take()
    before = s.outcomes()[8]
    s.send(0, psn, opcode=Rc.WRITE_ONLY, reth=Reth(REGION[1] + 64, 77, FULL))
    assert s.send(2, psn) == []
    assert s.send(2, psn, opcode=Rc.WRITE_ONLY, reth=Reth(64, 77, 512), payload=lanes(1, 512)) == []
    assert s.send(2, psn, opcode=Rc.WRITE_ONLY, reth=Reth(64, 77, FULL), pad=2) == []
    assert s.send(2, psn, opcode=Rc.WRITE_ONLY, reth=Reth(64, 77, FULL)) == []
    assert s.send(1, psn, opcode=Rc.WRITE_ONLY, reth=Reth(REGION[0] + 65, 77, FULL)) == []
    assert s.outcomes()[8] == before + 4


def what_meets_no_entry_never_reaches_a_fold_address(s: Scene) -> None:
    """Contributions to another queue pair, or with the windowed key, die at their first switch, and are counted."""
    counter = s.engine.counter(tables.UNFOLDED)
    before = s.engine.read_counter(counter)[s.ports[0]].packets
    psn = s.take(0)
    assert s.send(0, psn, queue_pair=99) == []
    assert s.send(0, psn, pkey=roce.PKEY_WINDOWED) == []
    assert s.send(0, psn, payload=bytes(6)) == []
    assert s.engine.read_counter(counter)[s.ports[0]].packets == before + 3


def a_corrupt_contribution_of_a_nic_is_dropped(s: Scene) -> None:
    """Short or not, and it does not move the flow on."""
    psn = s.take()
    for payload in (lanes(5), lanes(5, 260), lanes(5, 4)):
        frame = bytearray(s.contribution(0, psn, payload).frame())
        frame[-9] ^= 4
        s.frames.append((s.ports[0], bytes(frame)))
        s.sent.append(s.engine.inject(s.ports[0], bytes(frame)))
        assert s.sent[-1] == []
    assert payloads(fold_all(s, psn)) == [TOTAL] * 3
    s.acknowledged(psn)


BOTH: list[Callable[[Scene], None]] = [
    results_have_each_receivers_addresses,
    writes_land_in_each_receivers_region,
    payloads_of_every_length_fold,
    a_nic_that_skips_a_packet_is_told_once,
    a_nic_that_repeats_too_early_is_put_off,
    a_nics_repeat_goes_onward_with_the_result,
    a_writes_repeat_goes_onward_as_it_is,
    what_the_successor_has_is_acknowledged_for_it,
    a_windowed_rank_is_asked_for_what_it_skipped,
    a_windowed_rank_asks_for_results,
    short_and_written_results_are_made_anew_too,
    what_meets_no_entry_never_reaches_a_fold_address,
    a_corrupt_contribution_of_a_nic_is_dropped,
]


# ---- below another switch -------------------------------------------------------------------------------------------


def a_gap_in_the_parents_results_is_asked_for(s: Scene) -> None:
    """The leaf asks, its children get what came."""
    psn = s.take(3)
    for step in range(3):
        s.everybody(psn + step)
    s.parent(psn)
    out = s.parent(psn + 2)
    nak = s.up(psn + 1, opcode=roce.Opcode.ACKNOWLEDGE, syndrome=SEQUENCE, msn=(psn + 2) & roce.PSN_MASK)
    assert [pair for pair in out if pair[0] == s.fold.parent_port] == nak
    assert payloads([pair for pair in out if pair not in nak]) == [TOTAL] * 3
    assert payloads(s.parent(psn + 1)) == [TOTAL] * 3
    s.acknowledged(psn + 2)


def the_parent_asks_for_sums(s: Scene) -> None:
    """It gets those that are complete, from one question for several; none that is open, and none that is done.  On
    BMv2 it gets none: the ranks' timers repeat what is missing."""
    psn = s.take(4)

    def asked(first: int, end: int) -> Out:
        return s.parent(first, b"", opcode=roce.Opcode.ACKNOWLEDGE, syndrome=SEQUENCE, msn=end & roce.PSN_MASK)

    for step in range(3):
        s.everybody(psn + step)
    s.send(0, psn + 3)
    sums = [pair for step in range(3) for pair in s.up(psn + step, TOTAL)]
    assert asked(psn, psn + 4) == (sums if s.grows else [])
    for step in range(3):
        s.parent(psn + step)
    assert asked(psn, psn + 3) == []
    for place in (1, 2):
        s.send(place, psn + 3)
    s.parent(psn + 3)
    s.acknowledged(psn + 3)


def a_nic_that_waits_for_another_leaf_is_put_off(s: Scene) -> None:
    """Its repeat sends the sum up again, in case it was lost, and it is told to come again: no retry is used up."""
    psn = s.take(2)
    for step in range(2):
        s.everybody(psn + step)
    assert s.send(0, psn) == sorted(s.answer(0, RNR_128, psn) + s.up(psn, TOTAL), key=lambda pair: pair[0])
    assert s.send(0, psn + 1) == s.up(psn + 1, TOTAL)
    for step in range(2):
        s.parent(psn + step)
    s.acknowledged(psn + 1)


BELOW = [
    a_gap_in_the_parents_results_is_asked_for,
    the_parent_asks_for_sums,
    a_nic_that_waits_for_another_leaf_is_put_off,
]


@pytest.fixture
def scene(request: pytest.FixtureRequest) -> Iterator[Scene]:
    """Parameters: True if the switch is the tree's root; True if packets may grow; bits of the program's bitmaps."""
    root, grows, children = request.param
    made = Scene(root=root, grows=grows, children=children)
    yield made
    made.close()


@pytest.mark.parametrize("scene", [(True, True, 64), (False, True, 64), (False, True, 256)],
                         ids=["root", "leaf", "leaf of many"], indirect=True)
@pytest.mark.parametrize("rule", [*BOTH, contributions_that_do_not_fit_are_dropped], ids=lambda rule: rule.__name__)
def test_a_switch_keeps_its_rules(scene: Scene, rule: Callable[[Scene], None]) -> None:
    """The rule's docstring says which."""
    rule(scene)


@pytest.mark.parametrize("scene", [(False, True, 64)], ids=["leaf"], indirect=True)
@pytest.mark.parametrize("rule", BELOW, ids=lambda rule: rule.__name__)
def test_a_leaf_keeps_its_rules_towards_its_parent(scene: Scene, rule: Callable[[Scene], None]) -> None:
    """The rule's docstring says which."""
    rule(scene)


@pytest.mark.parametrize("path_mtu", roce.PATH_MTUS)
@pytest.mark.slow
def test_a_question_becomes_a_packet_of_any_path_mtu(path_mtu: int) -> None:
    """An acknowledgement of 62 bytes grows into the whole result that it asks for."""
    scene = Scene(root=True, path_mtu=path_mtu)
    psn = scene.take()
    for place in range(3):
        scene.send(place, psn, lanes(1 << 8 * place, path_mtu))
    assert payloads(scene.ask(2, psn)) == [lanes(0x010101, path_mtu)]
    scene.close()


@pytest.mark.needs("bmv2")
@pytest.mark.parametrize("scene", [(True, False, 64), (False, False, 64), (False, False, 256)],
                         ids=["root", "leaf", "leaf of many"], indirect=True)
def test_bmv2_keeps_the_same_rules_byte_for_byte(scene: Scene, tmp_path: Path) -> None:
    """All rules one after another on one switch; the same frames leave BMv2's ports."""
    for rule in [*BOTH, *([] if scene.root else BELOW), contributions_that_do_not_fit_are_dropped]:
        rule(scene)
    compare_with_bmv2(scene, tmp_path)
