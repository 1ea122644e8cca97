# SPDX-License-Identifier: Apache-2.0
"""`softswitch explain`: what a program does with a packet, with entries from any of three notations."""

from __future__ import annotations

import json
import re
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner

from softswitch.cli.app import app
from softswitch.explain import packets

PROGRAM = Path(__file__).parent / "l3.p4"
ETHERNET = "020000000002 020000000001 0800"
IPV4 = "4500001c 00010000 40 01 0000 0a000101"
TO_KNOWN = f"{ETHERNET} {IPV4} 0a000202 0000000000000000"
TO_UNKNOWN = f"{ETHERNET} {IPV4} 0b000202 0000000000000000"

NOTATIONS = {
    "s1-runtime.json": json.dumps({
        "target": "bmv2",
        "table_entries": [
            {"table": "I.routes", "match": {"hdr.ipv4.dst": ["10.0.2.0", 24]}, "action_name": "I.forward",
             "action_params": {"to": "02:00:00:00:00:99", "port": 3}},
            {"table": "I.routes", "match": {"hdr.ipv4.dst": ["10.0.3.0", 24]}, "action_name": "I.flood"},
            {"table": "I.blocked", "match": {"hdr.ethernet.src": ["0e:00:00:00:00:00", "ff:00:00:00:00:00"],
                                             "standard.ingress_port": [4, 6]},
             "priority": 5, "action_name": "I.drop"},
        ],
        "multicast_group_entries": [
            {"multicast_group_id": 7, "replicas": [{"egress_port": 1, "instance": 1}, {"egress_port": 2}]}],
    }),
    "routes.stf": """
        add I.routes hdr.ipv4.dst:0x0a000200/24 I.forward(to:0x020000000099, port:3)
        add I.routes hdr.ipv4.dst:0x0a000300/24 I.flood()
        add I.blocked 5 hdr.ethernet.src:0x0e********** standard.ingress_port:4..6 I.drop()
        mc_mgrp_create 7
        mc_node_create 1 1
        mc_node_create 0 2
        mc_node_associate 7 0
        mc_node_associate 7 1
        packet 1 """ + TO_KNOWN + "\n",
    "commands.txt": """
        # as a course hands them out
        table_add I.routes I.forward 10.0.2.0/24 => 02:00:00:00:00:99 3
        table_add routes flood 10.0.3.0/24 =>
        table_add blocked drop 0x0e0000000000&&&0xff0000000000 4->6 => 5
        mc_mgrp_create 7
        mc_node_create 1 1
        mc_node_create 0 2
        mc_node_associate 7 0
        mc_node_associate 7 1
        """,
}


@pytest.fixture(params=list(NOTATIONS))
def entries(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A file with the same entries in one of the notations."""
    if request.param == "commands.txt":
        pytest.importorskip("thrift")
    path: Path = tmp_path / request.param
    path.write_text(NOTATIONS[request.param])
    return path


def explain(*arguments: str | Path, status: int = 0) -> str:
    """The output of `softswitch explain` of the program; both outputs if it fails."""
    done = CliRunner().invoke(app, ["explain", str(PROGRAM), *map(str, arguments)])
    assert done.exit_code == status, done.output
    return done.output if status else done.stdout


def steps(output: str, what: str) -> list[dict[str, object]]:
    """All steps of a kind in the first frame of --json's output."""
    def walk(step: dict[str, object]) -> list[dict[str, object]]:
        inner = step.get("steps", [])
        assert isinstance(inner, list)
        return [step, *(found for one in inner for found in walk(one))]
    trace = json.loads(output.splitlines()[0])
    return [step for one in trace["steps"] for step in walk(one) if step["what"] == what]


def test_entries_of_every_notation_decide_where_a_packet_goes(entries: Path) -> None:
    """A hit changes the frame and sends it on; a group copies it; a miss says who dropped it and where."""
    out, = steps(explain("--json", "--packet", TO_KNOWN, "--entries", entries), "out")
    about = out["about"]
    assert isinstance(about, dict)
    assert about["port"] == 3
    assert str(out["value"]).startswith("020000000099")
    copies = steps(explain("--json", "--packet", TO_KNOWN.replace("0a000202", "0a000302"), "--entries", entries), "out")
    assert [one["about"]["port"] for one in copies] == [1, 2]  # type: ignore[index]
    text = explain("--packet", TO_UNKNOWN, "--entries", entries)
    assert "no entry matches -> default I.drop()" in text
    assert "DROPPED" in text


def test_ternary_and_range_entries_are_taken_from_every_notation(entries: Path) -> None:
    """A source and port within the blocked ones are dropped by that entry; a port beyond is not."""
    blocked = TO_KNOWN.replace("020000000001", "0e0000000001")
    assert steps(explain("--json", "--packet", blocked, "--port", "6", "--entries", entries), "drop")
    assert not steps(explain("--json", "--packet", blocked, "--port", "7", "--entries", entries), "drop")


def test_a_file_of_commands_runs_nothing_and_writes_nothing(tmp_path: Path) -> None:
    """However a command of the system's shell is spelt: a course's file is not one's own. Nor does it reach the
    terminal."""
    pytest.importorskip("thrift")
    planted = tmp_path / "planted"
    spelt = [f"shell touch {planted}", f'shell"touch" {planted}', f"shell/usr/bin/touch {planted}", f"!touch {planted}",
             f"! touch {planted}", f"shell;touch {planted}", f"write_config_to_file {planted}",
             f"serialize_state {planted}", "load_new_config_file /dev/stdin", "table_clear \x1b]0;title\x07"]
    (tmp_path / "commands.txt").write_text("\n".join(spelt))
    done = CliRunner().invoke(app, ["explain", str(PROGRAM), "--packet", TO_KNOWN, "--entries",
                                    str(tmp_path / "commands.txt")])
    assert done.exit_code == 0, done.output
    assert not planted.exists()
    assert done.stderr.count("not executed") == len(spelt) - 1
    assert done.stderr.endswith(f"{len(spelt)} of its commands failed, above; the packets met what the others wrote\n")
    assert "\x1b" not in done.stderr


def test_commands_that_fail_are_told_and_the_next_ones_count(tmp_path: Path) -> None:
    """As simple_switch_CLI goes on: what needs ports or queues, what is no command, what the switch refuses; and
    nothing of what they say comes between the traces."""
    pytest.importorskip("thrift")
    file = tmp_path / "commands.txt"
    file.write_text("set_queue_rate 100 1\nswitch_info\nport_remove 1\nswap_configs\nno_such_command\nhelp table_add\n"
                    "mirroring_add 5 2\nmirroring_get 5\nmirroring_add 99999 1\nmc_mgrp_destroy -5\nshow_ports\n"
                    "table_add routes forward 10.0.2.0/24 => 02:00:00:00:00:99 3\n"
                    "table_add routes forward 10.0.2.0/24 => 02:00:00:00:00:99 3\nreset_state\n"
                    "table_add routes forward 10.0.2.0/24 => 02:00:00:00:00:99 3\n")
    done = CliRunner().invoke(app, ["explain", str(PROGRAM), "--json", "--packet", TO_KNOWN, "--entries", str(file)])
    assert done.exit_code == 0, done.output
    trace, = done.stdout.splitlines()
    out, = steps(trace, "out")
    assert out["about"]["port"] == 3  # type: ignore[index]
    for told in ("no ports, no queues", "no_such_command", "from 0 to 32767", "DUPLICATE_ENTRY",
                 "MirroringSessionConfig"):
        assert told in done.stderr, (told, done.stderr)
    assert "Traceback" not in done.stderr


def test_a_packet_tests_own_packets_are_explained_where_no_other_is_given(tmp_path: Path) -> None:
    """Without --packet a packet test brings its packets."""
    test = tmp_path / "routes.stf"
    test.write_text(NOTATIONS["routes.stf"])
    assert len(steps(explain("--json", "--entries", test), "out")) == 1
    assert "expected --packet" in explain(status=2)


def test_all_frames_of_a_pcap_file_are_explained(tmp_path: Path) -> None:
    """Both byte orders are read, and each frame is a trace."""
    frames = [bytes.fromhex(text.replace(" ", "")) for text in (TO_KNOWN, TO_UNKNOWN)]
    for order in "<>":
        file = tmp_path / "in.pcap"
        file.write_bytes(struct.pack(order + "IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)
                         + b"".join(struct.pack(order + "4I", 0, 0, len(f), len(f)) + f for f in frames))
        output = explain("--json", "--packet", file)
        assert [json.loads(line)["frame"] for line in output.splitlines()] == [frame.hex() for frame in frames]


def test_the_digits_of_a_frame_may_be_more_than_the_name_of_a_file_can_have() -> None:
    """Linux refuses names of more than 255 characters, and paths of more than 4095: neither ends the program."""
    for length in (14, 127, 128, 1500, 9000):
        assert packets.read("ab" * length) == [b"\xab" * length]


def capture(frames: int) -> bytes:
    """A pcap file with so many empty frames."""
    return struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1) + bytes(16) * frames


@pytest.mark.parametrize(("content", "told"), [
    (capture(packets.MAX_FRAMES + 1), "at most 1000 packets"),
    (bytes(packets.MAX_BYTES + 1), "at most 64 MB"),
    (b"not a capture", "expected hexadecimal digits or a pcap file"),
    (b"\x0a\x0d\x0d\x0a" + bytes(40), "pcapng"),
    (struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 113), "link type 113"),
    (struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1), "no packet"),
    (struct.pack("<IHHiIII4I", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1, 0, 0, 60, 60), "ends in the middle"),
    (struct.pack("<IHHiIII4I", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1, 0, 0, 2, 60) + b"ab", "cut to 2 of 60"),
])
def test_what_is_no_packet_is_refused_by_name(tmp_path: Path, content: bytes, told: str) -> None:
    """A file that is not a whole capture of Ethernet frames says why."""
    file = tmp_path / "in.pcap"
    file.write_bytes(content)
    with pytest.raises(packets.PacketError, match=told):
        packets.read(str(file))


@pytest.mark.parametrize(("entry", "told"), [
    ({"table": "I.nothing", "action_name": "I.drop"}, "table I.nothing is unknown"),
    ({"table": "I.routes", "match": {"hdr.ipv4.dst": ["10.0.2.0", 40]}, "action_name": "I.drop"}, "prefix length 40"),
    ({"table": "I.routes", "match": {"hdr.ipv4.dst": ["10.0.2.x", 24]}, "action_name": "I.drop"}, "10.0.2.x"),
    ({"table": "I.routes", "match": {}, "action_name": "I.forward", "action_params": {"port": 3}},
     r"takes \(to, port\), got \(port\)"),
    ({"table": "I.blocked", "match": {}, "action_name": "I.drop"}, "needs a priority"),
    ({"match": {}}, "a member is missing"),
    ("entry", "of another kind"),
])
def test_entries_that_the_switch_refuses_are_named(tmp_path: Path, entry: object, told: str) -> None:
    """The message has the file, the place in it and what was expected."""
    file = tmp_path / "s1.json"
    file.write_text(json.dumps({"table_entries": [entry]}))
    output = " ".join(explain("--packet", TO_KNOWN, "--entries", file, status=2).split())
    assert re.search(told, output), output
    assert "s1.json: table_entries[0]" in output


@pytest.mark.parametrize(("data", "told"), [
    ({"table_entries": 5}, "table_entries: expected a list, got 5"),
    ({"clone_session_entries": None}, "clone_session_entries: expected a list"),
    ({"multicast_group_entries": [{"multicast_group_id": 1e999, "replicas": []}]}, r"multicast_group_entries\[0\]"),
    ({"multicast_group_entries": [{"multicast_group_id": 1, "replicas": [{"egress_port": -1}]}]},
     "egress_port: expected a number of 32 bits, got -1"),
    ({"clone_session_entries": [{"clone_session_id": 1 << 40, "replicas": []}]}, "clone_session_id: expected"),
])
def test_a_file_of_entries_that_makes_no_sense_is_refused_by_name(tmp_path: Path, data: object, told: str) -> None:
    """Members of another kind or out of range end in a message that names them."""
    file = tmp_path / "s1.json"
    file.write_text(json.dumps(data))
    output = " ".join(explain("--packet", TO_KNOWN, "--entries", file, status=2).split())
    assert re.search(f"s1.json: .*{told}", output), output


def test_the_page_has_the_source_the_steps_and_nothing_of_a_program_is_html(tmp_path: Path) -> None:
    """--page writes one file; what a program's text says stays text there."""
    program = tmp_path / "l3.p4"
    program.write_text(PROGRAM.read_text().replace("struct metadata_t { }",
                                                   "struct metadata_t { } // </script><script>alert(1)</script>"))
    page = tmp_path / "l3.html"
    done = CliRunner().invoke(app, ["explain", str(program), "--packet", TO_KNOWN, "--page", str(page)])
    assert done.exit_code == 0, done.output
    text = page.read_text()
    assert text.count("<script>") == text.count("</script>") == 1
    assert "routes.apply();" in text
    assert TO_KNOWN.replace(" ", "") in text


def test_a_program_that_does_not_compile_ends_with_the_compilers_message(tmp_path: Path) -> None:
    """Exit status 1 and the place of the mistake."""
    program = tmp_path / "bad.p4"
    program.write_text(PROGRAM.read_text().replace("routes.apply();", "nothing.apply();"))
    done = CliRunner().invoke(app, ["explain", str(program), "--packet", TO_KNOWN])
    assert done.exit_code == 1
    assert "bad.p4" in done.output
