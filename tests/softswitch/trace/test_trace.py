# SPDX-License-Identifier: Apache-2.0
"""What the packet trace says: every step with its place, every drop with its reason, and nothing that harms."""

from __future__ import annotations

import json
import os
import random
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from softswitch.cli.app import app
from softswitch.compiler.driver import compile_file
from softswitch.engine.byte_form import pack_fields
from softswitch.engine.entities import CloneSession, DoAction, Entry, Multicast
from softswitch.engine.linking import build
from softswitch.engine.local import LocalEngine
from softswitch.p4runtime.process import Settings, SwitchProcess
from softswitch.p4runtime.program import Compiler
from softswitch.trace import PacketTrace, Place, Step, TracedEngine, TraceError, to_json, to_text
from softswitch.trace.bmv2 import Bmv2Words
from softswitch.trace.recording import Live, Lost, Recorder, read, renderer

WAY = Path(__file__).parent / "way.p4"
SOURCE = WAY.read_text().splitlines()
ETHERNET = bytes.fromhex("001122334455 66778899aabb")


def ipv4(dst: str, *, tos: int = 0, version: int = 4, options: bytes = b"", wrong: int = 0) -> bytes:
    """An IPv4 packet to this address, with a right checksum but for `wrong`."""
    head = struct.pack(">BBH6xH4s4s", version << 4 | 5 + len(options) // 4, tos, 30, 0, bytes([192, 168, 0, 1]),
                       bytes(map(int, dst.split("."))))
    total = sum(struct.unpack(">10H", head))
    total = (total & 0xFFFF) + (total >> 16)
    head = head[:10] + struct.pack(">H", (~total ^ wrong) & 0xFFFF) + head[12:]
    return ETHERNET + b"\x08\x00" + head + options + b"payload"


def line(text: str, after: str = "") -> int:
    """The number of the one line of the program with this text, behind a line with `after`."""
    first = next(i for i, row in enumerate(SOURCE) if after in row)
    return next(i + 1 for i, row in enumerate(SOURCE) if i >= first and text in row)


def fill(engine: LocalEngine) -> None:
    """Routes to each action."""
    table = next(t for t in engine.info.tables if t.name == "TheIngress.routes")
    actions = {action.name.rpartition(".")[2]: i for i, action in enumerate(table.actions)}

    def route(dst: int, action: str, *values: int) -> None:
        data = pack_fields(values, table.actions[actions[action]].param_bits, action)
        engine.insert(Entry(table, dst.to_bytes(4, "big"), b"\xff\xff\0\0", DoAction(actions[action], data)))

    route(0x0A010000, "forward", 2, 0x020202020202)
    route(0x0A020000, "group", 7)
    route(0x0A030000, "copy", 5)
    route(0x0A040000, "nothing")
    route(0x0A050000, "drop")
    filters = next(t for t in engine.info.tables if t.name == "TheIngress.filter")
    drop = next(i for i, a in enumerate(filters.actions) if a.name == "TheIngress.drop")
    engine.insert(Entry(filters, bytes(6) + b"\0\x05", bytes(6) + b"\0\x06", DoAction(drop), priority=10))


@pytest.fixture(scope="module")
def built() -> TracedEngine:
    engine = TracedEngine.compile(WAY, cpu_port=510)
    fill(engine)
    return engine


@pytest.fixture
def engine(built: TracedEngine) -> Iterator[TracedEngine]:
    yield built
    built._local.take_trace()
    built.limit_output()
    built.take()


def one(engine: TracedEngine, frame: bytes, port: int = 1) -> PacketTrace:
    (trace,) = engine.receive_traced(port, frame)
    return trace


def only(trace: PacketTrace, what: str) -> Step:
    (step,) = trace.of(what)
    return step


def at(step: Step) -> int:
    """The line of a step, 0 without one."""
    return step.place.line if step.place is not None else 0


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
    """What was expected and what came."""
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

    page = (Path(__file__).parents[3] / "docs/trace.md").read_text()
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


def test_damaged_recordings_are_refused_and_nothing_else_happens(engine: TracedEngine, tmp_path: Path) -> None:
    """Bytes changed or cut, in records and in the description, are a TraceError or something that can be shown."""
    engine.inject(1, ipv4("10.1.0.1", tos=3, options=b"abcd"))
    (records,), _ = engine._local.take_trace()
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


@pytest.fixture(scope="module")
def executable() -> tuple[Path, str]:
    """The program as an executable with the trace, built in the manner of a push."""
    built = Compiler(trace=True)(compile_file(WAY).preprocessed.encode())
    return built.executable, built.trace


def test_a_switch_process_records_to_a_file(executable: tuple[Path, str], tmp_path: Path) -> None:
    """What passes a confined process is in the file, which only its owner reads."""
    path, description = executable
    recorder = Recorder(tmp_path / "packets.trace")
    process = SwitchProcess(path, Settings(cpu_port=510, trace=recorder), description=description)
    try:
        process.start()
        for frame in (ETHERNET + b"\x09\0rest", ipv4("10.1.0.1"), ipv4("10.1.0.1", tos=1)):
            process.engine.packet_out(frame)
        assert process.death is None
    finally:
        process.close()

    found = list(read(tmp_path / "packets.trace"))

    assert [only(trace, "drop").name for trace in found if isinstance(trace, PacketTrace)] == [
        "no_port", "ingress", "ingress"]
    assert (tmp_path / "packets.trace").stat().st_mode & 0o777 == 0o600
    first = found[0]
    assert isinstance(first, PacketTrace)
    assert first.program.started_us
    assert "never assigned egress_spec" in only(first, "drop").text

    shown = CliRunner().invoke(app, ["trace", str(tmp_path / "packets.trace"), "--packet", "2", "--format", "bmv2"])
    assert shown.exit_code == 0
    assert "[2.0] [cxt 0] Dropping packet at the end of ingress" in shown.output
    assert "[0.0]" not in shown.output
    none = CliRunner().invoke(app, ["trace", str(tmp_path / "packets.trace"), "--packet", "99"])
    assert (none.exit_code, "no packet 99" in none.stderr) == (1, True)


def test_a_full_pipe_never_stops_the_switch(executable: tuple[Path, str]) -> None:
    """Nobody reads: the switch answers, frames are lost whole, and their number is told once there is room."""
    path, description = executable

    class Blocked:
        """A stream that takes nothing until it is opened, and counts what it is told."""

        def __init__(self) -> None:
            self.opened = threading.Event()
            self.text: list[str] = []

        def write(self, text: str) -> int:
            assert self.opened.wait(60)
            self.text.append(text)
            return len(text)

        def flush(self) -> None: ...

    out = Blocked()
    live = Live(out, "json")  # type: ignore[arg-type]
    process = SwitchProcess(path, Settings(cpu_port=510, trace=live), description=description)
    frame, total = ipv4("10.5.0.1") + bytes(8000), 2000
    try:
        process.start()
        for _ in range(total):
            process.engine.packet_out(frame)
        assert process.engine.stats().received == total
        out.opened.set()
    finally:
        process.close()
        live.close()

    rows = [json.loads(row) for row in out.text]
    assert all(row.get("lost", 1) is not None for row in rows)
    lost = sum(row["lost"] for row in rows if "lost" in row)
    assert 0 < lost == total - sum("steps" in row for row in rows)


def test_a_recording_ends_at_its_limit_and_says_what_is_missing(executable: tuple[Path, str], tmp_path: Path) -> None:
    """Beyond the limit frames are counted, not written."""
    path, description = executable
    limit = len(description) * 2 + 20_000
    recorder = Recorder(tmp_path / "packets.trace", limit=limit)
    process = SwitchProcess(path, Settings(cpu_port=510, trace=recorder), description=description)
    try:
        process.start()
        for _ in range(500):
            process.engine.packet_out(ipv4("10.5.0.1"))
    finally:
        process.close()

    found = list(read(tmp_path / "packets.trace"))

    assert os.path.getsize(tmp_path / "packets.trace") <= limit + 100
    assert isinstance(found[-1], Lost)
    assert found[-1].frames + len(found) - 1 == 500


def test_a_file_that_is_there_loses_its_readers_and_another_users_is_refused(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recording has frames: whoever made the file before cannot read them, nor by a link that comes in its place."""
    path, other = tmp_path / "packets.trace", tmp_path / "other"
    path.write_text("old")
    path.chmod(0o666)
    recorder = Recorder(path)
    assert (path.stat().st_mode & 0o777, path.stat().st_size) == (0o600, 0)
    path.rename(tmp_path / "moved")
    other.write_text("theirs")
    path.symlink_to(other)
    os.close(recorder.begin("{}").fd)
    recorder.close()
    assert other.read_text() == "theirs"
    assert (tmp_path / "moved").stat().st_size > 0

    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    with pytest.raises(PermissionError, match="another user"):
        Recorder(other)
    assert other.read_text() == "theirs"


def test_what_is_no_recording_is_refused(tmp_path: Path) -> None:
    """A file of something else is an error that says so."""
    (tmp_path / "other").write_bytes(b"\xd4\xc3\xb2\xa1" + bytes(100))

    with pytest.raises(TraceError, match="no recording"):
        list(read(tmp_path / "other"))
