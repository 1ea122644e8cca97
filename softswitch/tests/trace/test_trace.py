# SPDX-License-Identifier: Apache-2.0
"""The contents of the packet trace: every step with its place, every drop with its reason, and nothing that harms."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from softswitch.compiler.driver import compile_file
from softswitch.engine.entities import CloneSession, Multicast
from softswitch.engine.linking import build
from softswitch.engine.local import LocalEngine
from softswitch.trace import Place, TracedEngine, TraceError, to_json, to_text
from softswitch.trace.bmv2 import Bmv2Words
from softswitch.trace.program import TracedProgram
from softswitch.trace.recording import read, renderer
from softswitch.trace.records import RecordKind, decode
from switch_support import ROOT
from switch_support.insides import transport
from switch_support.way import ETHERNET, WAY, at, fill, ipv4, line, one, only


@pytest.fixture(scope="module")
def built() -> TracedEngine:
    engine = TracedEngine.compile(WAY, cpu_port=510)
    fill(engine)
    return engine


@pytest.fixture
def engine(built: TracedEngine) -> Iterator[TracedEngine]:
    yield built
    transport(built).take_trace()
    built.limit_output()
    built.take()


def test_a_forwarded_packet_shows_its_way(engine: TracedEngine) -> None:
    """States, headers with their fields, the entry hit, what is assigned, what leaves, each at its place."""
    trace = one(engine, ipv4("10.1.2.3"))

    assert [step.name for step in trace.of("state")] == ["start", "ipv4"]
    assert [step.text for step in trace.of("select")] == ["0x800", "5"]
    ethernet, ip = trace.of("extract")
    assert (ethernet.name, ethernet.about["fields"]["type"]) == ("hdr.ethernet", 0x800)
    assert (ip.about["offset"], ip.about["fields"]["dst"]) == (14, 0x0A010203)
    routes, filters = trace.of("apply")
    assert routes.about["key"] == [{"name": "hdr.ipv4.dst", "match": "lpm", "bits": 32, "value": 0x0A010203,
                                    "entry": {"value": 0x0A010000, "prefix": 16}}]
    assert (routes.about["hit"], routes.about["slot"], routes.about["action"]) == (True, 0, "TheIngress.forward")
    assert routes.about["params"] == {"port": 2, "dst": 0x020202020202}
    assert at(routes) == line("routes.apply()")
    assert (filters.about["hit"], filters.about["action"]) == (False, "NoAction")
    statements = [step for step in routes.walk() if step.what == "statement"]
    assert [s.text for s in statements] == [
        "standard.egress_spec = port", "hdr.ethernet.dst = dst", "sent.count((bit<32>)port)"]
    assert statements[0].place == Place(str(WAY), line("egress_spec = port"), 9, 27)
    assert {s.name: s.value for s in trace.of("set")}["hdr.ethernet.dst"] == 0x020202020202
    assert only(trace, "count").value == 2
    assert only(trace, "register_read").about["result"] == only(trace, "register_write").about["value"] - 1
    assert [step.about.get("ok") for step in trace.of("checksum")] == [True, None]
    out = only(trace, "out")
    assert (out.about["port"], out.value) == engine.take()[0]
    assert not trace.of("drop")
    assert not trace.cut


def test_the_same_frames_leave_with_and_without_a_trace(engine: TracedEngine) -> None:
    """Tracing changes nothing of what a program does, and a program without it has nothing of it."""
    program = compile_file(WAY)
    assert "ss_trace" not in program.c_source
    assert b"ss_trace" not in build(program).read_bytes()
    ways = [(i, tos, o) for i in range(7) for tos in (0, 1, 3, 4, 5) for o in (b"", b"abcd")]
    frames = [ipv4(f"10.{i}.0.1", tos=tos, options=o) for i, tos, o in ways]
    with LocalEngine.open(program, cpu_port=510) as plain:
        fill(plain)
        engine.write_multicast("insert", group := Multicast(7, ((1, 0), (2, 9))))
        plain.write_multicast("insert", group)
        assert [engine.inject(1, frame) for frame in frames] == [plain.inject(1, frame) for frame in frames]
    engine.write_multicast("delete", group)


def test_wide_values_headers_and_logs(engine: TracedEngine) -> None:
    """Values of more than 64 and 128 bits, a header that becomes invalid, a varbit field and a logged text."""
    trace = one(engine, ipv4("10.1.0.1", tos=3, options=b"abcdefgh"))

    values = {step.name: step.value for step in trace.of("set")}
    assert values["meta.wide"] == 0x123456789ABCDEF0123456789ABCDEF012345678
    assert values["meta.middle"] == 0xFEDCBA9876543210F
    assert only(trace, "invalid").name == "hdr.ethernet"
    assert trace.of("extract")[2].about["fields"] == {"data": b"abcdefgh".hex()}
    assert only(trace, "log").text == "tos 3"
    assert [step.name for step in trace.of("emit")] == ["hdr.ipv4", "hdr.options"]


DROPS = {
    "default action": (ipv4("10.9.0.1"), "ingress", "mark_to_drop(standard);", "action drop",
                       "in action TheIngress.drop of table TheIngress.routes (no entry matched: its default action)"),
    "entry": (ipv4("10.5.0.1"), "ingress", "mark_to_drop(standard);", "action drop",
              "in action TheIngress.drop of table TheIngress.routes (hit entry 4)"),
    "assigned": (ipv4("10.1.0.1", tos=1), "ingress", "egress_spec = 511", "", "egress_spec = 511 at way.p4"),
    "egress": (ipv4("10.1.0.1", tos=4), "egress", "mark_to_drop(standard);", "control TheEgress", "the end of egress"),
    "group": (ipv4("10.2.0.1"), "no_group", "mcast_grp = number", "", "multicast group 7 does not exist"),
    "too long": (ipv4("10.1.0.1") + bytes(17000), "too_long_in", "", "", "17041 bytes"),
}


@pytest.mark.parametrize("case", DROPS)
def test_a_drop_says_why_and_where(engine: TracedEngine, case: str) -> None:
    """Each drop has a reason and the place that caused it."""
    frame, reason, text, after, words = DROPS[case]

    trace = one(engine, frame)

    drop = only(trace, "drop")
    assert drop.name == reason
    assert words in drop.text
    assert at(drop) == (line(text, after) if text else 0)
    assert "DROPPED" in to_text(trace)
    assert engine.take() == []


def test_an_empty_group_and_a_full_queue_drop(engine: TracedEngine) -> None:
    """A group without replicas, and a queue without room, which only some copies meet."""
    engine.write_multicast("insert", Multicast(7, ()))
    assert only(one(engine, ipv4("10.2.0.1")), "drop").name == "empty_group"
    engine.write_multicast("modify", Multicast(7, ((1, 0), (2, 0))))
    engine.limit_output(1)
    engine.take()

    trace = one(engine, ipv4("10.2.0.1"))

    assert [(step.name, step.text) for step in trace.of("drop")] == [("queue_full", "the queue of port 2 is full")]
    assert [step.about["port"] for step in trace.of("pass") if step.name == "egress"] == [1, 2]
    engine.write_multicast("delete", Multicast(7, ()))


def test_what_is_resubmitted_for_ever_is_dropped_with_a_reason(engine: TracedEngine) -> None:
    """A loop ends, its trace is bounded and says that it was cut or why it ended."""
    for more in (0, 154, 160, 165):  # with the last three the room ends where a pass begins
        trace = one(engine, ipv4("10.1.0.1", tos=2) + bytes(more))

    assert trace.cut or only(trace, "drop").name == "too_many_passes"
    assert len(trace.of("again")) > 100
    assert to_text(trace)
    assert to_json(trace)


def test_port_0_is_told_from_a_drop(engine: TracedEngine) -> None:
    """Where the program never assigned egress_spec the packet leaves by port 0, and the trace says so."""
    trace = one(engine, ipv4("10.4.0.1"))

    out = only(trace, "out")
    assert out.about["port"] == 0
    assert "never assigned egress_spec" in out.about["why"]
    assert "TheIngress.filter" in out.about["why"]


def test_a_clone_session_that_is_missing_is_named(engine: TracedEngine) -> None:
    """No copy is made, which is no drop; with the session there is a copy that is a pass of its own."""
    trace = one(engine, ipv4("10.3.0.1"))
    assert only(trace, "copies").text == "clone session 5 does not exist: no copy is made"

    engine.write_clone_session("insert", CloneSession(5, ((3, 0),)))
    trace = one(engine, ipv4("10.3.0.1"))
    engine.write_clone_session("delete", CloneSession(5, ()))

    assert [(step.name, step.about["port"]) for step in trace.of("pass")] == [
        ("ingress", 1), ("clone", 1), ("egress", 3), ("egress", 1)]


def test_a_recirculated_packet_runs_again_after_its_first_pass(engine: TracedEngine) -> None:
    """Recirculation: a second ingress, which names the egress that sent it back."""
    trace = one(engine, ipv4("10.1.0.1", tos=5))

    first, again = trace.steps
    egress = next(step for step in first.steps if step.what == "pass")
    assert (egress.name, again.name, again.about["instance_type"]) == ("egress", "ingress", "recirculated")
    assert again.about["parent"] == egress.about["number"]
    assert only(trace, "again").name == "recirculate"


@pytest.mark.parametrize(("frame", "error", "text"), [
    pytest.param(ipv4("10.1.0.1")[:20], "PacketTooShort", "packet.extract(hdr.ipv4)", id="too short"),
    pytest.param(ipv4("10.1.0.1", version=6), "ParserInvalidArgument", "verify(", id="verify"),
    pytest.param(ETHERNET + b"\x08\x01" + bytes(9), "StackOutOfBounds", "extract(hdr.labels.next)", id="stack"),
])
def test_a_parser_error_has_its_name_and_place(engine: TracedEngine, frame: bytes, error: str, text: str) -> None:
    """v1model goes on after an error; the trace says which and where."""
    trace = one(engine, frame)

    failed = only(trace, "parser_error")
    assert failed.name == error == only(trace, "parsed").name
    assert at(failed) == line(text)


def test_a_select_without_a_match_and_elements_of_a_stack(engine: TracedEngine) -> None:
    """No case: the parser ends there. Headers of a stack have their index."""
    trace = one(engine, ETHERNET + b"\x08\x01" + b"\x04\x07rest")

    assert [step.name for step in trace.of("extract")] == ["hdr.ethernet", "hdr.labels[0]", "hdr.labels[1]"]
    assert (trace.of("select")[-1].name, trace.of("select")[-1].text) == ("reject", "")


def test_a_wrong_checksum_is_shown_with_both_values(engine: TracedEngine) -> None:
    """The step has the expected and the received value."""
    check = one(engine, ipv4("10.1.0.1", wrong=1)).of("checksum")[0]

    assert check.about["ok"] is False
    assert check.about["computed"] ^ check.about["given"] == 1


def test_an_exit_in_a_ternary_table(engine: TracedEngine) -> None:
    """A hit with a mask and a range, and the exit that follows."""
    trace = one(engine, ipv4("10.1.0.1"), port=6)

    apply = trace.of("apply")[1]
    assert [part["entry"] for part in apply.about["key"]] == [{"value": 0, "mask": 0}, {"low": 5, "high": 6}]
    assert apply.about["priority"] == 10
    assert "exit" in [step.text for step in trace.of("statement")]
    assert "TheIngress.filter (hit entry 0)" in only(trace, "drop").text


def test_json_has_everything_and_only_plain_values(engine: TracedEngine) -> None:
    """JSON of a trace is read back as it was, and every step has a kind."""
    data = to_json(one(engine, ipv4("10.1.0.1", tos=3)))

    assert json.loads(json.dumps(data)) == data

    def kinds(steps: list[dict[str, object]]) -> Iterator[str]:
        for step in steps:
            yield str(step["what"])
            yield from kinds(step.get("steps", []))  # type: ignore[arg-type]

    page = (ROOT / "docs" / "trace.md").read_text()
    assert {kind for kind in kinds(data["steps"]) if f"`{kind}`" not in page} == set()


def test_bmv2s_words(engine: TracedEngine) -> None:
    """The lines of BMv2's log that courses show; held against its own log by hand (docs/trace.md)."""
    text = Bmv2Words().lines(one(engine, ipv4("10.1.2.3")))

    said = [row.partition("[cxt 0] ")[2] or row for row in text.splitlines()]
    wanted = [
        "Processing packet received on port 1",
        "Parser 'parser': start",
        "Parser 'parser' entering state 'start'",
        "Extracting header 'ethernet'",
        "Parser state 'start': key is 0800",
        "Bytes parsed: 14",
        "Parser 'parser' entering state 'ipv4'",
        "Parser 'parser': end",
        "Pipeline 'ingress': start",
        f'way.p4({line("if (hdr.ipv4.isValid())")}) Condition "hdr.ipv4.isValid()" (node_2) is true',
        "Applying table 'TheIngress.routes'",
        "Looking up key:",
        "* hdr.ipv4.dst        : 0a010203",
        "Table 'TheIngress.routes': hit with handle 0",
        "Dumping entry 0",
        "Match key:",
        "* hdr.ipv4.dst        : LPM       0a010000/16",
        "Action entry: TheIngress.forward - 2,20202020202,",
        "Action entry is TheIngress.forward - 2,20202020202,",
        "Action TheIngress.forward",
        f"way.p4({line('egress_spec = port')}) Primitive standard.egress_spec = port",
        "Updated counter 'TheIngress.sent' at index 2",
        "Table 'TheIngress.filter': miss",
        "Action entry is NoAction - ",
        "Pipeline 'ingress': end",
        "Egress port is 2",
        "Pipeline 'egress': start",
        "Pipeline 'egress': end",
        "Deparser 'deparser': start",
        "Updating checksum 'cksum'",
        "Deparsing header 'ethernet'",
        "Deparser 'deparser': end",
        "Transmitting packet of size 41 out of port 2",
    ]
    rest = iter(said)
    assert [row for row in wanted if row not in rest] == []
    assert "Dropping packet at the end of ingress" in Bmv2Words().lines(one(engine, ipv4("10.9.0.1")))


def test_texts_of_strangers_cannot_steer_a_terminal(engine: TracedEngine) -> None:
    """Names and logged texts with escape sequences or bidirectional marks are shown escaped in text and words."""
    trace = one(engine, ipv4("10.1.0.1"))
    evil = "\x1b[2J\u202e\r\nx"
    for step in trace.walk():
        step.name = step.name and step.name + evil
        step.text = step.text and step.text + evil

    for text in (to_text(trace), Bmv2Words().lines(trace)):
        assert all(char.isprintable() for char in text.replace("\n", ""))


@pytest.mark.parametrize("bits", [1 << 40, -(1 << 40), 8.0, "8"])
def test_a_number_that_no_program_has_is_damage_of_the_description(bits: object) -> None:
    """As the width of a key, of which a reader would make as long a text; what is whole is read."""
    described = json.loads(compile_file(WAY, trace=True).trace)
    TracedProgram(json.dumps(described))
    key = next(table["keys"][0] for table in described["tables"] if table["keys"])
    key[2] = bits
    with pytest.raises(TraceError, match=r"is damaged: .*is out of range"):
        TracedProgram(json.dumps(described))


def test_a_record_that_ends_before_its_length_is_damage() -> None:
    """It is shown whole or not at all, also where it is a text that would be read as far as it goes."""
    program, text = TracedProgram(compile_file(WAY, trace=True).trace), b"a log line"
    records = struct.pack("<HBI", len(text), RecordKind.LOG, 0) + text
    assert [step.text for step in decode(program, records).steps] == [text.decode()]
    for cut in range(1, len(text) + 1):
        with pytest.raises(TraceError, match=f"a record of 10 bytes, of which {len(text) - cut} are there"):
            decode(program, records[:-cut])


def test_damaged_recordings_are_refused_and_nothing_else_happens(engine: TracedEngine, tmp_path: Path) -> None:
    """Bytes changed or cut, in records and in the description, are a TraceError or something that can be shown."""
    engine.inject(1, ipv4("10.1.0.1", tos=3, options=b"abcd"))
    (records,), _ = transport(engine).take_trace()
    chunks = [(1, compile_file(WAY, trace=True).trace.encode()), (2, records), (4, b"")]
    whole = b"".join(struct.pack("<IHH", len(data) + 4, kind, 0) + data for kind, data in chunks)
    at_records = len(chunks[0][1]) + 16
    seed = random.SystemRandom().randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    refused = 0
    for _ in range(150):
        data = bytearray(whole)
        for _ in range(chance.randint(1, 4)):
            at = chance.randrange(at_records if chance.random() < 0.7 else 0, len(data))
            data[at] = chance.choice(b"0123456789") if at < at_records else chance.randrange(256)
        if chance.random() < 0.3:
            del data[chance.randrange(len(data)) :]
        (tmp_path / "packets.trace").write_bytes(data)
        try:
            for found in read(tmp_path / "packets.trace"):
                for style in ("text", "json", "bmv2"):
                    assert isinstance(renderer(style)(found), str)
        except TraceError:
            refused += 1
    assert refused
