# SPDX-License-Identifier: Apache-2.0
"""Packet tests: their language, and the results of expectations that hold and that do not."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from softswitch.compiler.diagnostics import CompileError
from softswitch.engine.local import LocalEngine
from softswitch.stf.frames import draw_difference, matches
from softswitch.stf.runner import Report, run_statements
from softswitch.stf.runner import run as run_files
from softswitch.stf.script import ActionCall, Add, CheckCounter, Command, Expect, Packet, StfSyntaxError, parse
from switch_support.probe import PROBE

PARAMS = {0x01000001: ["port"], 0x01000002: ["value", "port"], 0x01000003: []}


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalEngine]:
    with LocalEngine.open(PROBE) as engine:
        yield engine


@pytest.fixture
def engine(shared: LocalEngine) -> LocalEngine:
    shared.reset()
    return shared


def run(engine: LocalEngine, text: str) -> Report:
    return run_statements(engine, parse(text, "t.stf"), PARAMS, "t.stf")


def test_statements_are_read_with_their_lines() -> None:
    """Comments, quotes, labels, priorities, prefixes, ranges and ternary digits."""
    text = '''
    # a comment
    add "my table" 100 hdr.a:0x0a**  h.stack$1.b:0b1*0 c:10/8 d:1..5  do.it(x:0x1, y:2) = A   # another
    packet 3 00 11 aabb
    expect 3 0* 11$
    expect 4
    check_counter cnt($A) packets >= 5
    mc_node_create 1 2 3
    '''
    assert parse(text) == [
        Add(3, "my table", 100, (("hdr.a", "0x0a**"), ("h.stack$1.b", "0b1*0"), ("c", "10/8"), ("d", "1..5")),
            ActionCall("do.it", (("x", "0x1"), ("y", "2"))), "A"),
        Packet(4, 3, bytes.fromhex("0011aabb")),
        Expect(5, 3, "0*11", True),
        Expect(6, 4, None, False),
        CheckCounter(7, "cnt", "$A", ("packets", ">=", 5)),
        Command(8, "mc_node_create", ("1", "2", "3")),
    ]


@pytest.mark.parametrize(("text", "says"), [
    ("frobnicate 1", 'unknown statement "frobnicate"'),
    ("packet x 00", "expected: packet PORT HEX"),
    ("packet 1 0", "non-hexadecimal|hex"),
    ("add t a:1", r"expected: ACTION\(PARAM:VALUE"),
    ("add t a:1 f(1)", "expected: PARAM:VALUE"),
    ("expect", "expected: expect PORT"),
    ("remove some", "remove all"),
])
def test_a_statement_that_cannot_be_read_says_where_and_what_was_expected(text: str, says: str) -> None:
    """File, line, the expected shape and the line itself."""
    with pytest.raises(StfSyntaxError, match=says) as caught:
        parse("\n" + text, "bad.stf")
    assert str(caught.value).startswith("bad.stf:2: ")


@given(st.text(max_size=60))
def test_any_text_is_read_or_refused(text: str) -> None:
    """Any text is parsed, or refused with StfSyntaxError."""
    with contextlib.suppress(StfSyntaxError):
        parse(text)


def test_a_test_whose_expectations_hold_passes(engine: LocalEngine) -> None:
    """Entries by short names, wildcards, ends, multicast in BMv2's commands."""
    report = run(engine, """
        add exact h.c:0x9 set(value:0x0b, port:3) = A
        add I.ternary 5 b:0x00** c:0x0000000* forward(port:4)
        add lpm b:1 c:0x0a000000/8 I.forward(port:5)
        add range 1 b:2..3 forward(port:6)
        setdefault exact forward(port:1)
        packet 1 06 00 0000 00000009 aabb
        packet 1 06 00 0000 00000008
        expect 3 06 01 **** 0000000b aa
        expect 1 06 00 0000 0000000* $
        packet 1 08 00 0012 00000007
        packet 1 08 00 0112 00000007
        expect 4 08
        packet 1 07 00 0001 0a112233
        expect 5 07
        packet 1 09 00 0003 00000000
        packet 1 09 00 0004 00000000
        expect 6
        mc_mgrp_create 7
        mc_node_create 3 9 8
        mc_node_associate 7 0
        packet 1 81 00 0007 00000000
        expect 8 81 05 0003
        expect 9 81 05 0003
        mirroring_add 3 20
        packet 1 03 00 0003 00000015
        expect 20
        expect 21
        register_write I.sums 3 40
        packet 1 0c 03 0017 00000002
        expect 23 0c 03 0017 0000002a $
        register_read sums 3
        packet 1 0d 02 0018 00000000
        expect 24
        check_counter I.count(2) packets == 1
        check_counter count(2) bytes == 8
        check_counter exact_count($A) packets == 1
        meter_set_rates meter 1 0.001:1 0.002:2
        meter_get_rates meter 1
    """)

    assert report.failures == []
    assert report.passed
    assert (report.sent, report.received) == (11, 11)
    assert report.notes == [
        "t.stf:32: register_read sums 3 = 42",
        "t.stf:39: meter_get_rates meter 1 = MeterConfig(cir=1000, cburst=1, pir=2000, pburst=2)"]


@pytest.mark.parametrize(("text", "says"), [
    ("packet 1 00 00 0005 00000000\nexpect 5 00 00 0005 00000001", "t.stf:2: frame 1 on port 5 differs"),
    ("packet 1 00 00 0005 00000000", "t.stf:0: unexpected frame on port 5"),
    ("no_packet\npacket 1 00 00 0005 00000000", "t.stf:1: unexpected frame on port 5"),
    ("expect 5 00", "t.stf:1: expected frame 1 on port 5, none came"),
    ("expect 5", "t.stf:1: expected a frame on port 5, none came"),
    ("packet 1 00 00 0005 00000000\nexpect 5 00 00 0005 000000$", "differs"),
    ("packet 1 00 00 0005 00000000\nexpect 5 00 00 0005 00000000 00", "at least 9 bytes, got 8"),
    ("add nope a:1 f()", "table nope is unknown"),
    ("add exact nope:1 drop()", "has no key field nope"),
    ("add exact c:1 nope()", "action of table I.exact nope is unknown"),
    ("add exact c:1 forward()", r"takes \(port\), got \(\)"),
    ("add exact c:1 forward(port:512)", "does not fit bit<9>"),
    ("add exact c:0x1* forward(port:1)", r"takes no \*"),
    ("check_counter count(1) packets == 1", r"I.count\(1\) has 0 packets, expected == 1"),
    ("mc_node_associate 1", "an argument is missing"),
    ("add fixed 1 b:0x1 forward(port:1)", "const entries"),
])
def test_whatever_does_not_hold_fails_the_test_with_its_line(engine: LocalEngine, text: str, says: str) -> None:
    """Wrong frames, missing frames, frames too many, statements that the switch refuses."""
    report = run(engine, text)

    assert not report.passed
    assert re.search(says, str(report))


def test_ternary_masks_cover_the_written_digits_only(engine: LocalEngine) -> None:
    """0x1 leaves higher bits open, as p4c's runner has it for BMv2."""
    run(engine, "add ternary 1 c:0x1 forward(port:4)")

    (entry,) = engine.entries(engine.table("ternary"))
    assert entry.fields == [(0, 0), (1, 0xF)]


def test_differences_are_marked_nibble_by_nibble() -> None:
    """Wrong, missing and surplus nibbles have a ^ under them; * matches anything."""
    assert draw_difference("0011*2", True, bytes.fromhex("01113304")) == "\n".join([
        "    0000  expected  00 11 *2",
        "    0000  got       01 11 33 04",
        "                     ^     ^ ^^",
        "    expected exactly 3 bytes, got 4"])


@given(st.binary(max_size=40), st.data())
def test_a_frame_matches_its_own_pattern_with_any_nibbles_starred(frame: bytes, data: st.DataObject) -> None:
    """A frame matches its own digits with any of them starred, and no longer when another digit changes."""
    stars = data.draw(st.lists(st.booleans(), min_size=2 * len(frame), max_size=2 * len(frame)))
    pattern = "".join("*" if star else nibble for star, nibble in zip(stars, frame.hex(), strict=True))

    assert matches(pattern, True, frame)
    assert matches(pattern, False, frame + b"more")
    assert not matches(pattern, True, frame + b"more")
    fixed = [i for i, star in enumerate(stars) if not star]
    if fixed:
        i = data.draw(st.sampled_from(fixed))
        wrong = pattern[:i] + ("0" if pattern[i] != "0" else "1") + pattern[i + 1 :]
        assert not matches(wrong, False, frame)


TABLES = PROBE.with_name("tables.p4")


def test_a_p4_program_and_a_test_file_run_from_their_paths(tmp_path: Path) -> None:
    """Compiled, loaded, entries with the parameter names of the P4 source, compared."""
    test = tmp_path / "t.stf"
    test.write_text("""
        add exact_t ask.small:0x123 ask.nibble:4 say_exact(value:0xaabbccdd)
        add ternary_t 10 hdr.ask.wide:0x********0001 nibble:0x4 I.say_ternary(value:0x2)
        setdefault lpm_t say_lpm(value:7)
        packet 3 1234 0a000001 000000000001 ff
        expect 1 1234 0a000001 000000000001 ff aabbccdd 00000007 00000002 e0000004 e0000005 e0000006 ********$
    """)

    report = run_files(TABLES, test)

    assert report.passed, str(report)
    assert str(report).endswith("passed; 1 frames in, 1 out")


def test_a_program_that_does_not_compile_is_the_compilers_error(tmp_path: Path) -> None:
    """A program that does not compile is an error of the compiler, not a failed test."""
    program, test = tmp_path / "bad.p4", tmp_path / "t.stf"
    program.write_text("this is no P4")
    test.write_text("wait")

    with pytest.raises(CompileError):
        run_files(program, test)
