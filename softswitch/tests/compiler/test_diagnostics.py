# SPDX-License-Identifier: Apache-2.0
"""The errors of programs with mistakes: their place, the line of the source, and what was expected."""

from __future__ import annotations

import re

import pytest

from softswitch.compiler.driver import CompileError, compile_source
from switch_support.compiler import program

HEADERS = "header in_t { bit<8> a; bit<16> b; }\nheader out_t { bit<8> a; }\n"


def errors(source: str) -> CompileError:
    with pytest.raises(CompileError) as caught:
        compile_source(source, "bad.p4")
    return caught.value


def test_error_draws_the_line_with_a_caret() -> None:
    """An error has file, line and column, the line itself, and a caret under the word."""
    text = str(errors(program(HEADERS, "hdr.o.aa = 1;")))

    assert re.search(r"bad\.p4:\d+:15: error: no field 'aa' in header out_t; did you mean 'a'\?\n", text)
    drawn, caret = text.splitlines()[1:]
    assert drawn.endswith("|         hdr.o.aa = 1;")
    assert caret.index("^^") == drawn.index("aa")


def test_several_errors_are_reported_in_one_run() -> None:
    """One mistake does not hide the next, and each is reported once."""
    found = errors(program(HEADERS, "hdr.o.a = hdr.i.b;\nnothing = 1;\nhdr.o.a = true;")).diagnostics

    assert [d.message for d in found] == [
        "expected bit<8>, got bit<16>",
        "'nothing' is not declared",
        "expected bit<8>, got bool",
    ]
    assert len({d.pos.line for d in found}) == 3


def test_syntax_errors_of_several_declarations() -> None:
    """After a syntax error the parser goes on with the next declaration."""
    found = errors("header h { bit<8> a }\nstruct s { bit<> x; }\n").diagnostics

    assert [(d.pos.line, d.message) for d in found] == [
        (1, "expected ';', got '}'"),
        (2, "expected an expression, got '>'"),
    ]


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("hdr.o.a = hdr.i.a + hdr.i.b;", r"'\+' needs operands of one type, got bit<8> and bit<16>"),
        ("hdr.o.a = hdr.i.b[8:0];", r"expected bit<8>, got bit<9>"),
        ("hdr.o.a = hdr.i.a[8:0];", r"bit 8 of a bit<8>"),
        ("if (hdr.i.a) { }", r"expected a bool, got bit<8>"),
        ("hdr.o.a = hdr.i.a / hdr.i.a;", r"^unsupported: '/' of values that are not known at"),
        ("hdr.o.a = 8w1 / 0;", r"division by zero"),
        ("hdr.i.isvalid();", r"has no method 'isvalid'"),
        ("t.apply();", r"'t' is not declared"),
        ("hdr.o.a = (bit<8>)true;", r"no cast from bool to bit<8>"),
        ("mark_to_drop(meta);", r"mark_to_drop: .*standard_metadata_t, got meta_t"),
        ("hash(hdr.o.a, HashAlgorithm.crc33, 8w0, { hdr.i.a }, 8w10);", r"no member 'crc33'; did you mean 'crc3?[26]'"),
        ("return 1;", r"returns no value"),
        ("break;", r"belong in a loop"),
        ("const bit<8> k = hdr.i.a;", r"'k' is not known at compile time"),
        ("bit<8> x; bit<8> x;", r"'x' is declared twice; first at bad.p4:\d+"),
        ("hdr.o.a = hdr.i;", r"expected bit<8>, got in_t"),
        ("switch (hdr.i.a) { 1: { } 1: { } }", r"two cases of a switch are equal"),
        ("hash(hdr.o.a, HashAlgorithm.crc16, 8w0, { 5 }, 8w10);", r"unknown width"),
        ("packet_in x;", r"a variable cannot be of type packet_in"),
        ("hdr.o.a = 8w1 << hdr;", r"'<<' needs numbers, got headers_t"),
    ],
)
def test_mistake_is_named(body: str, says: str) -> None:
    """Each mistake in the body of a control has its own message."""
    assert re.search(says, errors(program(HEADERS, body)).diagnostics[0].message)


@pytest.mark.parametrize(
    ("locals_", "says"),
    [
        ("table t { key = { hdr.i.a: exactly; } actions = { NoAction; } }",
         "no match_kind 'exactly'; did you mean 'exact'"),
        ("table t { key = { hdr.i.a: exact; } actions = { drop; } }", "'drop' is not declared"),
        ("table t { actions = { NoAction; } junk = junk; }", "'junk' is not declared"),
        ("action f(bit<8> x) { } table t { actions = { f; } default_action = f(); }", "f takes 1 arguments, got 0"),
        ("table t { key = { hdr.i.a: exact; } actions = { NoAction; } const entries = { _: NoAction(); } }",
         "'_' for the exact key"),
        ("table t { key = { hdr.i.a: lpm; hdr.i.b: lpm; } actions = { NoAction; } }", "two lpm keys"),
        ("register<in_t>(4) r;", "a register of in_t: only bit, int and bool are supported"),
        ("action f(in bit<8> x) { x = 1; }", "'x' is an 'in' parameter: it cannot be written"),
        ("bit<0> x = 1w1;", "expected bit<0>, got bit<1>"),
        ("Work() again;", ""),
    ],
)
def test_mistake_in_a_declaration_is_named(locals_: str, says: str) -> None:
    """Tables, actions and instances are checked where they are declared."""
    assert any(says in d.message for d in errors(program(HEADERS, "", locals_=locals_)).diagnostics)


def test_header_of_part_bytes_is_refused() -> None:
    """A header that is no whole number of bytes is refused by its name."""
    source = program("header in_t { bit<9> a; }\nheader out_t { bit<8> a; }\n", "")

    assert "header in_t has 9 bits; only whole bytes" in errors(source).diagnostics[0].message


@pytest.mark.parametrize(("top", "body"), [
    ("extern void strange(in bit<8> x);", "strange(hdr.i.a);"),
    ("", "update_checksum(true, { hdr.i.a, hdr.i.a }, hdr.i.b, HashAlgorithm.csum16);"),
])
def test_a_refusal_is_told_from_a_mistake_by_the_word_unsupported(top: str, body: str) -> None:
    """What p4c's language has, and this compiler or BMv2 has not, is refused with that word; a mistake has none."""
    assert errors(program(f"{HEADERS}{top}\n", body)).diagnostics[0].message.startswith("unsupported: ")
    assert "unsupported" not in errors(program(HEADERS, "hdr.o.a = nosuch;")).diagnostics[0].message


def test_other_architectures_are_refused_by_name() -> None:
    """A program for another architecture is refused with its name."""
    source = "package Switch(); \nSwitch() main;"

    assert errors(source).diagnostics[0].message.startswith("unsupported: architecture Switch is not supported")


def test_error_in_an_included_file_is_placed_there(tmp_path: object) -> None:
    """Positions survive #include, macros and preprocessing."""
    from pathlib import Path

    folder = Path(str(tmp_path))
    (folder / "inc.p4").write_text("\n#define WIDTH 8\n\nheader h_t { bit<WIDTH> a; bat<8> b; }\n")
    source = '#include "inc.p4"\nheader g_t { bit<8> a; }\n'
    with pytest.raises(CompileError) as caught:
        compile_source(source, "main.p4", include=[folder])

    found = caught.value.diagnostics[0]
    assert (Path(found.pos.file).name, found.pos.line) == ("inc.p4", 4)
    assert "bat" in found.message or "bat" in found.pos.text


@pytest.mark.parametrize(
    "text", ["", ";", "header", "control c(", "header h {", "@a(", '"', "#if 1", "const bit<8> x = ;"]
)
def test_fragments_are_refused_without_a_crash(text: str) -> None:
    """Whatever the text, the answer is a CompileError."""
    assert errors(text).diagnostics


def test_an_error_does_not_reach_the_terminal() -> None:
    """Names of files, and lines, of strangers are shown without what a terminal obeys."""
    with pytest.raises(CompileError) as caught:
        compile_source('#line 1 "a\x1b]0;title\x07.p4"\nconst bit<8> a = \x1b[31m b; // \u202e\n', "a.p4")
    assert not set(str(caught.value)) & set("\x1b\x07\u202e")
    assert str(caught.value).count("^") == 1


def test_what_is_hardly_meant_is_warned_of() -> None:
    """As p4c does: a constant that becomes another value, and mark_to_drop() without an argument; with line and caret,
    also where the program comes from the cache; a program without them warns of nothing."""
    text = program(HEADERS, "hdr.o.a = 0x1ff;\nmark_to_drop();")
    for _ in range(2):
        warned = compile_source(text, "odd.p4").warnings
        assert re.search(r"odd\.p4:\d+:\d+: warning: 0x1ff does not fit in bit<8>, and becomes 0xff\n", warned)
        drop = r"odd\.p4:\d+:\d+: warning: mark_to_drop\(\) without an argument is old.*\n.*\n +\| +\^{12}"
        assert re.search(drop, warned)
    assert compile_source(program(HEADERS, "hdr.o.a = 0xff;\nmark_to_drop(sm);"), "odd.p4").warnings == ""


def test_constants_of_a_select_and_states_without_a_transition_are_warned_of() -> None:
    """Each once: the packets of 0x10800 would be those of 0x800, and a state that only ends rejects its packets."""
    text = program(HEADERS, "")
    assert text.count("transition accept;") == 1
    odd = text.replace("transition accept;", "transition select(h.i.b) { 0x10800: next; default: accept; }\n    }\n"
                                             "    state next {")
    warned = [line for line in compile_source(odd, "odd.p4").warnings.splitlines() if "warning" in line]
    assert [line.partition("warning: ")[2] for line in warned] == [
        "0x10800 does not fit in bit<16>, and becomes 0x800",
        "state next has no transition, and so rejects the packet: add `transition accept;`, or where it goes on",
    ]
