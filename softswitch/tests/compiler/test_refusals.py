# SPDX-License-Identifier: Apache-2.0
"""Programs that have no meaning are refused where the mistake stands, those beside them accepted: as p4c does."""

from __future__ import annotations

import pytest

from softswitch.compiler.driver import CompileError, compile_source

_PROGRAM = """#include <core.p4>
#include <v1model.p4>
header H { bit<8> a; bit<8> b; bit<16> c; }
header V { bit<8> n; varbit<64> v; }
struct P { bit<8> x; bit<8> y; }
struct Hs { H h; H[3] s; V v; }
struct M { bit<8> m; bool f; P p; }
TOP
parser Pa(packet_in pkt, out Hs hdr, inout M meta, inout standard_metadata_t sm) {
    PARSER
    state start { pkt.extract(hdr.h); STATE transition TO }
}
control None(inout Hs hdr, inout M meta) { apply { } }
control In(inout Hs hdr, inout M meta, inout standard_metadata_t sm) {
    action nop() { }
    action set(bit<8> v) { hdr.h.a = v; }
    LOCAL
    apply { APPLY }
}
control Eg(inout Hs hdr, inout M meta, inout standard_metadata_t sm) { apply { } }
control De(packet_out pkt, in Hs hdr) { apply { pkt.emit(hdr.h); } }
V1Switch(Pa(), None(), In(), Eg(), None(), De()) main;
"""
_PLACES = ("TOP", "PARSER", "STATE", "TO", "LOCAL", "APPLY")


def complain(**parts: str) -> str:
    """The first error of the program with these parts, or ""; its place must be in one of them."""
    text = _PROGRAM
    for place in _PLACES:
        text = text.replace(place, parts.get(place, "accept;" if place == "TO" else ""))
    try:
        compile_source(text, "refused.p4")
        return ""
    except CompileError as error:
        first = error.diagnostics[0]
    assert any(part in first.pos.text for part in parts.values()), f"{first.message}, but at: {first.pos.text}"
    return first.message


def table(*properties: str, key: str = "hdr.h.a : exact;", actions: str = "nop; set;") -> str:
    """A table's declaration on one line."""
    return f"table t {{ key = {{ {key} }} actions = {{ {actions} }} {' '.join(properties)} }}"


@pytest.mark.parametrize(
    ("top", "says"),
    [
        ("bit<8> f(in bit<8> x) { if (x == 1) { return 2; } }", "does not return a value on all paths"),
        ("bit<8> f(in bit<8> x) { for (bit<8> i = 0; i < x; i = i + 1) { return 2; } }", "on all paths"),
        ("bit<8> f(out bit<8> x = 0) { x = 1; return 1; }", "'x' is out: it cannot have a default value"),
        ("bit<8> f(in bit<8> x) { if (x == 1) { bit<8> x = 2; return x; } return 1; }", "would hide the parameter"),
        ("action ta() { } void f() { ta(); }", "action ta cannot be called from a function"),
        ("type P NP;", "'type' makes a new type of bit, int or bool alone, not of P"),
        ("type tuple<bit<8>> NP;", "not of tuple<bit<8>>"),
        ("enum bit<4> E { A = 17 }", "17 of 'A' does not fit bit<4>"),
        ("enum int<4> E { A = 8 }", "8 of 'A' does not fit int<4>"),
        ("const register<bit<8>> R = register<bit<8>>(1);", "a constant cannot be of type register<bit<8>>"),
        ("control C(inout bit<8> x) { apply { } } control D(C c) { apply { } }", "cannot be of type control C"),
        ("control C(inout bit<8> x) { apply { } } control D()(C c) { apply { } }", "cannot be of type control C"),
        ("extern void ff(in string s);", "a parameter of type string has no direction"),
    ],
)
def test_declarations_without_meaning(top: str, says: str) -> None:
    """Functions, types and constants at the top level."""
    assert says in complain(TOP=top)


@pytest.mark.parametrize(
    ("parts", "says"),
    [
        ({"TO": "select(hdr.h) { default: accept; }"}, "select of a H"),
        ({"TO": "select(hdr.v.v) { default: accept; }"}, "select of a varbit<64>"),
        ({"TO": "select(meta.p) { default: accept; }"}, "select of a P"),
        ({"TO": "select(sm.parser_error) { error.NoMatch: accept; default: reject; }"}, "select of a error"),
        ({"TO": "select(hdr.h.a) { hdr.h.b: accept; }"}, "must be known at compile time"),
        ({"TO": "select(hdr.h.a) { hdr.h.b &&& 3: accept; }"}, "must be known at compile time"),
        ({"TO": "select(hdr.h.a) { 1 .. hdr.h.b: accept; }"}, "must be known at compile time"),
        ({"STATE": "bit<8> meta = 1;"}, "would hide the parameter"),
        ({"STATE": "ta();", "TOP": "action ta() { }"}, "action ta cannot be called from a parser"),
    ],
)
def test_parsers_without_meaning(parts: dict[str, str], says: str) -> None:
    """What a state selects on, with what it compares, and what it calls."""
    assert says in complain(**parts)


def test_parser_that_never_ends_is_refused() -> None:
    """A parser whose states only lead to each other reaches neither accept nor reject."""
    source = _PROGRAM.replace("TO }", "more; }\n    state more { transition more; }", 1)
    for place in _PLACES:
        source = source.replace(place, "")
    with pytest.raises(CompileError, match="parser Pa reaches neither accept nor reject"):
        compile_source(source, "refused.p4")


@pytest.mark.parametrize(
    ("local", "says"),
    [
        (f"{table()} action a() {{ t.apply(); }}", "apply() cannot be called from actions"),
        ("action b(bit<8> z, inout bit<8> y) { y = z; }", "'y' must stand before 'z'"),
        ("action b(int v) { }", "of an action cannot be of type int"),
        ("action b(packet_in p) { }", "of an action cannot be of type packet_in"),
        ("action b() { bit<8> meta = 1; hdr.h.a = meta; }", "would hide the parameter"),
        (table("key = { hdr.h.b : exact; }"), "two properties 'key'"),
        (table("actions = { nop; }"), "two properties 'actions'"),
        ("table t { key = { hdr.h.a : exact; } }", "has no property 'actions'"),
        (table(key="hdr.h.a + hdr.h.b : exact;"), "needs a name for the control plane"),
        (table("size = true;"), "'size' needs a positive integer"),
        (table("size = -1;"), "'size' needs a positive integer"),
        (table("entries = { priority=1 : 1 : nop(); }"), "its entries have no priority"),
        (table("const entries = { 1 : set(2); }", actions="nop; @defaultonly set;"), "set is @defaultonly in table t"),
        (table("default_action = set(2);", actions="nop; @tableonly set;"), "set is @tableonly in table t"),
        ("action b(inout bit<8> y, bit<8> z) { y = z; } " +
         table("default_action = b(hdr.h.b, 3);", actions="b(hdr.h.a);"), "'y' is bound to something else"),
        ('@name(".x") action p() { } @name(".x") action q() { }', "the control plane's name 'x' is also that of"),
    ],
)
def test_actions_and_tables_without_meaning(local: str, says: str) -> None:
    """Parameters of actions, and what a table lists, binds and holds."""
    assert says in complain(LOCAL=local)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("hdr.h.a = hdr.h.a >> (-2);", "a shift by the negative amount -2"),
        ("hdr.h.c = (bit<16>)hdr.s.lastIndex;", "can only be used in a parser"),
        ("tuple<bit<8>, bit<8>, bit<16>> t = { 1, 2, 3 }; hdr.h = t;", "expected H, got tuple"),
        ("meta.p = {#};", "{#} is an invalid header, but P is wanted"),
        ("switch (hdr.h) { default: { } }", "switch of a H"),
        ("switch (meta.f) { true: { } default: { } }", "switch of a bool"),
        ("switch (hdr.h.a) { default: { } 1: { } }", "a case behind 'default'"),
        ("hash(meta.m, HashAlgorithm.crc16, 16w0, { hdr.h.a }, 0xFFFF);", "a number of unknown width"),
        ("meta.m = (bit<8>)hdr.h.minSizeInBits(3);", "takes no arguments"),
        ("random(result = meta.m, 8w0, 8w9);", "either all arguments are named, or none"),
        ("bit<8> sm = 1; hdr.h.a = sm;", "would hide the parameter"),
    ],
)
def test_statements_without_meaning(body: str, says: str) -> None:
    """What a control's body assigns, compares and calls."""
    assert says in complain(APPLY=body)


@pytest.mark.parametrize("results", ["t.apply().action_run == t.apply().action_run", "t.apply() == t.apply()"])
def test_results_of_tables_are_not_compared(results: str) -> None:
    """action_run is for a switch statement alone."""
    assert "cannot be compared" in complain(LOCAL=table(), APPLY=f"if ({results}) {{ }}")


def test_a_switch_over_a_table_with_a_mistake_shows_the_mistake() -> None:
    """Found by fuzzing: the table has an action without a declaration, and the switch looked for its name."""
    assert "ghost" in complain(LOCAL=table(actions="nop; ghost;"),
                               APPLY="switch (t.apply().action_run) { nop: { } }")


@pytest.mark.parametrize(
    "parts",
    [
        {"TOP": "bit<8> f(in bit<8> x) { if (x == 1) { return 2; } else { return 3; } }", "APPLY": "hdr.h.a = f(1);"},
        {"TOP": "T f<T>(in T x, in T y) { return x; }", "APPLY": "hdr.h.a = f(255, hdr.h.b);"},
        {"TOP": "parser Q(packet_in p, in bit<8> x)(bit<8> k) {"
                " state start { transition select(x) { k : accept; default: reject; } } }",
         "PARSER": "Q(3) q;", "STATE": "q.apply(pkt, hdr.h.a);"},
        {"TO": "select(hdr.h.a) { 1: start; default: accept; }"},
        {"LOCAL": "bit<8> meta;"},
        {"LOCAL": "action b(bit<8> meta) { hdr.h.a = meta; }", "APPLY": "b(1);"},
        {"LOCAL": table(key="hdr.h.a & 3 : exact;"), "APPLY": "t.apply();"},
        {"LOCAL": "action b(inout bit<8> y, bit<8> z) { y = z; } " +
                  table("default_action = b(hdr.h.a, 3);", actions="b(hdr.h.a);"), "APPLY": "t.apply();"},
        {"TOP": "control C(inout bit<8> x) { @name(\"z\") action z() { x = 1; } apply { z(); } }",
         "LOCAL": "C() c1; C() c2;", "APPLY": "c1.apply(hdr.h.a); c2.apply(hdr.h.b);"},
        {"TOP": "control E(inout bit<8> x); control D(inout bit<8> x) { apply { x = 1; } }"
                " control C(inout bit<8> x)(E e) { apply { e.apply(x); } }",
         "LOCAL": "D() d; C(d) c;", "APPLY": "c.apply(hdr.h.a);"},
        {"APPLY": "hdr.s.pop_front(0);"},
    ],
)
def test_neighbours_of_the_mistakes_are_accepted(parts: dict[str, str]) -> None:
    """Similar programs that are correct compile."""
    assert complain(**parts) == ""


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (_PROGRAM.replace("bit<8> n; varbit<64> v;", "bit<4> n; varbit<64> v; bit<4> m;"),
         {"STATE": "pkt.extract(hdr.v, 32w16);"}),
        (_PROGRAM.replace("bit<8> n; varbit<64> v;", "bit<4> n; varbit<64> v; bit<4> m;").replace(
            "pkt.emit(hdr.h)", "pkt.emit(hdr.v)"), {}),
        (_PROGRAM, {"APPLY": "hash(hdr.h.c, HashAlgorithm.crc16, 16w0, {4w1, hdr.v.v, 4w2}, 16w512);"}),
    ],
)
def test_a_varbit_begins_at_a_byte(text: str, parts: dict[str, str]) -> None:
    """One that begins within a byte is refused by name where it is extracted, emitted or in a list of fields."""
    for place in _PLACES:
        text = text.replace(place, parts.get(place, "accept;" if place == "TO" else ""))

    with pytest.raises(CompileError, match="unsupported: a varbit that does not begin at a byte"):
        compile_source(text, "refused.p4")


@pytest.mark.parametrize("what", ["8w1", "true", "hdr.h.a", "hdr.h.a + 1"])
def test_only_headers_are_emitted(what: str) -> None:
    """A number in the deparser is refused, a constant as well as a field."""
    text = _PROGRAM.replace("pkt.emit(hdr.h)", f"pkt.emit({what})")
    for place in _PLACES:
        text = text.replace(place, "accept;" if place == "TO" else "")

    with pytest.raises(CompileError, match="only headers can be emitted"):
        compile_source(text, "refused.p4")


def test_a_literal_may_have_no_bits() -> None:
    """`0w0` is the value of bit<0>; a signed number has at least a bit for its sign."""
    assert complain(APPLY="hash(hdr.h.c, HashAlgorithm.crc16, 16w0, {0w0, hdr.h.a}, 16w512);") == ""
    assert complain(APPLY="int<8> x = (int<8>)0s0;") == "'0s0' has width 0"
