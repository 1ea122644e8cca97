# SPDX-License-Identifier: Apache-2.0
"""The switch's treatment of a frame: v1model's traffic manager as BMv2's simple_switch has it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from softswitch.engine.entities import CloneSession, EventKind, Multicast
from softswitch.engine.errors import InvalidArgument
from softswitch.engine.local import LocalEngine
from switch_support.probe import PROBE, TELL, Op, probe, read

NORMAL, INGRESS_CLONE, EGRESS_CLONE, REPLICATION, RESUBMIT = 0, 1, 2, 5, 6
PARSED = 77 << 24
"""The metadata that the probe's parser writes, as TELL shows it."""


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    with LocalEngine.open(PROBE, cpu_port=510) as engine:
        yield engine


def test_unicast_goes_to_egress_spec_with_its_payload(engine: LocalEngine) -> None:
    """A frame leaves by the port that ingress chose, payload untouched."""
    frame = probe(Op.FORWARD, b=5, rest=b"payload")

    assert engine.inject(1, frame) == [(5, frame)]


def test_drop_port_drops_and_is_counted(engine: LocalEngine) -> None:
    """A frame with egress_spec 511 is dropped and counted."""
    assert engine.inject(1, probe(Op.DROP)) == []
    assert engine.stats().dropped_ingress == 1


@pytest.mark.parametrize("length", range(8))
def test_a_frame_too_short_to_parse_still_runs_through(engine: LocalEngine, length: int) -> None:
    """v1model does not reject: the error is noted and the bytes go on as payload."""
    frame = bytes(range(length))

    out = engine.inject(1, frame)

    assert out == ([(3, frame)] if length else [])
    assert engine.stats().parser_errors == 1


def test_multicast_sends_one_copy_a_replica_and_not_the_original(engine: LocalEngine) -> None:
    """mcast_grp wins over egress_spec 511; copies carry instance_type 5 and their egress_rid; no source pruning."""
    engine.write_multicast("insert", Multicast(7, ((1, 10), (2, 20), (2, 21))))

    out = engine.inject(1, probe(Op.MULTICAST | TELL, b=7, rest=b"xy"))

    assert [(port, read(f)[1:]) for port, f in out] == [
        (1, (REPLICATION, 10, PARSED | 10, b"xy")), (2, (REPLICATION, 20, PARSED | 10, b"xy")),
        (2, (REPLICATION, 21, PARSED | 10, b"xy"))]


def test_an_unknown_or_empty_group_is_a_drop(engine: LocalEngine) -> None:
    """An unknown or empty multicast group drops the frame, as in BMv2."""
    engine.write_multicast("insert", Multicast(8, ()))

    assert engine.inject(1, probe(Op.MULTICAST, b=7)) == []
    assert engine.inject(1, probe(Op.MULTICAST, b=8)) == []


def test_an_ingress_clone_is_the_frame_as_it_came(engine: LocalEngine) -> None:
    """The original shows ingress's changes; the clone shows the received frame, fresh metadata and its own type."""
    engine.write_clone_session("insert", CloneSession(3, ((6, 0),)))

    out = engine.inject(1, probe(Op.CLONE | TELL, a=0, b=3, c=4, rest=b"z"))

    assert [(port, read(f)[1:]) for port, f in out] == [
        (6, (INGRESS_CLONE, 0, 9, b"z")), (4, (NORMAL, 0x1234, 0x5678 << 24 & 0xFFFFFFFF | 9, b"z"))]


def test_a_clone_keeps_the_field_list_and_nothing_else(engine: LocalEngine) -> None:
    """Metadata in the list arrives with the value it had at the end of ingress; the rest is zero."""
    engine.write_clone_session("insert", CloneSession(3, ((6, 0),)))

    (clone, _) = engine.inject(1, probe(Op.CLONE | TELL, a=1, b=3, c=4))

    assert read(clone[1])[1:4] == (INGRESS_CLONE, 0x1234, 8)


def test_clone_header_bytes_are_those_received(engine: LocalEngine) -> None:
    """Without the egress report the clone is the received frame, bit for bit."""
    engine.write_clone_session("insert", CloneSession(3, ((6, 0),)))
    frame = probe(Op.CLONE, a=0, b=3, c=4, rest=b"abc")

    out = engine.inject(1, frame)

    assert out[0] == (6, frame)
    assert read(out[1][1]).c == 0xDEAD


def test_a_clone_session_may_name_ports_and_a_group_and_cut_the_copy(engine: LocalEngine) -> None:
    """Replicas of the group come first, then the session's own, all of at most truncate_to bytes."""
    engine.write_multicast("insert", Multicast(9, ((1, 1),)))
    engine.write_clone_session("insert", CloneSession(3, ((6, 2), (7, 3)), truncate_to=10, group=9))

    out = engine.inject(1, probe(Op.CLONE, a=0, b=3, c=4, rest=b"0123456789"))

    assert [(port, len(f)) for port, f in out] == [(1, 10), (6, 10), (7, 10), (4, 18)]


def test_an_unconfigured_clone_session_clones_nothing(engine: LocalEngine) -> None:
    """A clone to an unknown session makes no copy, and the original frame continues."""
    assert [port for port, _ in engine.inject(1, probe(Op.CLONE, b=99, c=4))] == [4]


def test_an_egress_clone_shows_what_egress_did_and_passes_egress_again(engine: LocalEngine) -> None:
    """E2E clones keep headers as they are and get instance_type 2."""
    engine.write_clone_session("insert", CloneSession(2, ((6, 55),)))

    out = engine.inject(1, probe(Op.CLONE_EGRESS | TELL, a=2, b=5, rest=b"pay"))

    assert [(port, read(f).a, read(f).b, read(f).rest) for port, f in out] == [
        (5, NORMAL, 0x4321, b"pay"), (6, EGRESS_CLONE, 0x4321, b"pay")]


def test_resubmit_starts_over_with_the_received_frame(engine: LocalEngine) -> None:
    """The second pass sees the original header, the kept field, instance_type 6 and (BMv2) ingress_port 0."""
    ((port, frame),) = engine.inject(4, probe(Op.RESUBMIT, a=1, b=5, c=0xABCD))
    assert (port, read(frame)) == (5, (Op.RESUBMIT, 0, 0xABCD, 0xABCD, b""))

    ((port, frame),) = engine.inject(4, probe(Op.RESUBMIT, a=0, b=5, c=0xABCD))
    assert (port, read(frame).b) == (5, 0)


def test_recirculate_starts_over_with_the_deparsed_frame(engine: LocalEngine) -> None:
    """Changes of egress are in the frame that the parser sees again, kept metadata too; here ten times over."""
    ((port, frame),) = engine.inject(4, probe(Op.RECIRCULATE, b=5, c=10, rest=b"r"))

    assert (port, read(frame)) == (5, (Op.RECIRCULATE, 0x77, 5, 0, b"r"))


@pytest.mark.timeout(20)
def test_a_program_that_resubmits_for_ever_does_not_hang_the_switch(engine: LocalEngine) -> None:
    """The frame is given up after a bounded number of passes, counted and said."""
    assert engine.inject(1, probe(Op.FOREVER)) == []
    assert engine.stats().dropped_passes == 1
    assert [e.kind for e in engine.events] == [EventKind.LOG]
    assert engine.inject(1, probe(Op.FORWARD, b=2)) != []


@pytest.mark.timeout(20)
def test_a_program_that_clones_its_clones_for_ever_does_not_hang_the_switch(engine: LocalEngine) -> None:
    """A limit ends egress clones of egress clones, so that the switch does not hang."""
    engine.write_clone_session("insert", CloneSession(2, ((6, 0), (7, 0))))

    out = engine.inject(1, probe(Op.CLONE_EGRESS, a=2, b=5, c=0xFFFF))

    assert 100 < len(out) < 10_000
    assert engine.stats().dropped_passes > 0


def test_truncate_cuts_the_frame_that_leaves(engine: LocalEngine) -> None:
    """truncate(n) in ingress holds for a unicast packet."""
    assert [len(f) for _, f in engine.inject(1, probe(Op.TRUNCATE, b=2, c=11, rest=bytes(100)))] == [11]
    assert [len(f) for _, f in engine.inject(1, probe(Op.TRUNCATE, b=2, c=500, rest=bytes(100)))] == [108]


def test_a_frame_truncated_to_nothing_does_not_leave(engine: LocalEngine) -> None:
    """truncate(0) sends nothing, as on BMv2, and the loss is counted."""
    before = engine.stats().dropped_egress
    assert engine.inject(1, probe(Op.TRUNCATE, b=2, c=0, rest=bytes(100))) == []
    assert engine.stats().dropped_egress == before + 1


def test_added_headers_come_before_the_payload_and_show_in_packet_length(engine: LocalEngine) -> None:
    """setValid in ingress lengthens the frame; egress sees the new length."""
    ((_, frame),) = engine.inject(1, probe(Op.GROW | TELL, b=2, rest=b"tail"))

    assert len(frame) == 8 + 100 + 4
    assert frame.endswith(b"\xee" * 100 + b"tail")
    assert read(frame).c == PARSED | 8 + 4 + 100


def test_the_longest_frame_passes_and_a_longer_one_is_dropped_and_counted(engine: LocalEngine) -> None:
    """Frames of 16384 bytes pass in both directions; longer ones are dropped and counted."""
    frame = probe(Op.FORWARD, b=2, rest=bytes(16384 - 8))
    assert engine.inject(1, frame) == [(2, frame)]

    assert engine.inject(1, frame + b"x") == []
    assert engine.inject(1, probe(Op.GROW, b=2, rest=bytes(16384 - 8))) == []
    assert engine.stats().dropped_oversize == 2


def test_a_full_queue_loses_the_frame_and_counts_it(engine: LocalEngine) -> None:
    """A frame that a full queue refuses is lost and counted (tail drop); the others leave."""
    engine.write_multicast("insert", Multicast(7, ((1, 0), (2, 0), (3, 0))))
    engine.limit_output(2)

    assert [port for port, _ in engine.inject(1, probe(Op.MULTICAST, b=7))] == [1, 2]
    assert engine.stats().dropped_queue == 1


def test_the_cpu_port_turns_frames_into_packet_ins_and_takes_packet_outs(engine: LocalEngine) -> None:
    """Frames for the CPU port are reported, not sent; a packet-out enters the pipeline from there."""
    frame = probe(Op.FORWARD, b=510, rest=b"up")

    assert engine.inject(4, frame) == []
    assert [(e.kind, e.id, e.data) for e in engine.events] == [(EventKind.PACKET_IN, 4, frame)]

    engine.packet_out(probe(Op.FORWARD, b=3, rest=b"down"))
    assert engine.take() == [(3, probe(Op.FORWARD, b=3, rest=b"down"))]


def test_digests_and_logs_are_reported_with_the_time(engine: LocalEngine) -> None:
    """Each digest() is one report with its fields in byte form; log_msg and failed asserts are text."""
    engine.inject(1, probe(Op.DIGEST, a=2, b=0x0102, c=0x03040506), now_us=1234)
    engine.inject(1, probe(Op.LOG, b=2), now_us=1300)

    assert [(e.kind, e.id, e.now_us, e.data) for e in engine.events] == [
        (EventKind.DIGEST, 0, 1234, bytes([1, 2, 3, 4, 5, 6])),
        (EventKind.LOG, 0, 1300, b"hello"),
        (EventKind.LOG, 0, 1300, b"probe.p4:1: b == 0")]
    assert engine.stats().asserts_failed == 1


def test_ports_beyond_nine_bits_are_refused(engine: LocalEngine) -> None:
    """v1model's ports are 9 bits wide."""
    with pytest.raises(InvalidArgument, match=r"512 is not within 0\.\.511"):
        engine.inject(512, b"")
