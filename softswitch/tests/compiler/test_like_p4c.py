# SPDX-License-Identifier: Apache-2.0
"""What p4c's back end for BMv2 takes is taken, and what it refuses is refused: each case was put before p4c 1.2.5.

test_the_cases_are_p4cs puts them before the p4c of this machine, where there is one: those that like_p4c.asked does not
list, and some others. To ask about all of them takes 20 s of processor time, for verdicts that do not change.
"""

from __future__ import annotations

import hashlib
import random
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from softswitch.compiler.driver import CompileError, compile_source
from softswitch.compiler.preprocess import INCLUDE_DIR, LIBRARY
from switch_support.compiler import run

_PROGRAM = """#include <core.p4>
#include <v1model.p4>
header H { bit<8> a; bit<8> b; bit<16> c; }
struct P { bit<8> x; bit<8> y; }
struct Hs { H h; H[3] s; }
struct M { bit<8> m; bool f; P p; }
TOP
parser Pa(packet_in pkt, out Hs hdr, inout M meta, inout standard_metadata_t sm) {
    PARSER
    state start { pkt.extract(hdr.h); STATE transition TO }
}
control None(inout Hs hdr, inout M meta) { apply { } }
control Ck(inout Hs hdr, inout M meta) { apply { CHECKSUM } }
control In(inout Hs hdr, inout M meta, inout standard_metadata_t sm) {
    action nop() { }
    action set(bit<8> v) { hdr.h.a = v; }
    LOCAL
    apply { APPLY }
}
control Eg(inout Hs hdr, inout M meta, inout standard_metadata_t sm) { apply { EGRESS } }
control De(packet_out pkt, in Hs hdr) { apply { DEPARSE pkt.emit(hdr.h); } }
MAIN
"""
_DEFAULTS = {"TOP": "", "PARSER": "", "STATE": "", "TO": "accept;", "CHECKSUM": "", "LOCAL": "", "APPLY": "",
             "EGRESS": "", "DEPARSE": "", "MAIN": "V1Switch(Pa(), None(), In(), Eg(), Ck(), De()) main;"}
_T = "table t { key = { hdr.h.a : exact; } actions = { nop; set; } %s } "
_U = "table u { key = { hdr.h.b : exact; } actions = { nop; set; } } "
_TERNARY = "table t { key = { hdr.h.a : ternary; } actions = { nop; } %s entries = { %s } }"
_METER = "direct_meter<bit<8>>(MeterType.bytes) m; action rd() { m.read(hdr.h.b); } "
_UPDATE = "update_checksum(%s, { %s }, hdr.h.c, HashAlgorithm.csum16);"
_SIZED = ("control C(inout bit<8> r)(bit<32> n) { action a() { } table t { key = { r: exact; } actions = { a; } "
          "size = n + 1; } apply { t.apply(); } } ")
_ONE = ("control C(inout Hs hdr) { action a() { } table t { key = { hdr.h.a: exact; } actions = { a; } } "
        "apply { t.apply(); } } ")
_SM = "inout standard_metadata_t sm"


def main(**blocks: str) -> str:
    """V1Switch with other arguments than usual."""
    given = {"p": "Pa()", "vr": "None()", "ig": "In()", "eg": "Eg()", "ck": "Ck()", "dep": "De()", **blocks}
    return f"V1Switch({', '.join(given.values())}) main;"


def source(parts: dict[str, str]) -> str:
    """The program with these parts."""
    text = _PROGRAM
    for place, usual in _DEFAULTS.items():
        text = text.replace(place, parts.get(place, usual))
    return text


def newtype(apply: str, more: str = "", **parts: str) -> dict[str, str]:
    """A program with `type bit<8> N` and a constant of it."""
    return {"TOP": f"type bit<8> N; const N K = (N)3; {more}", "APPLY": apply, **parts}


def entry(key: str, match: str = "exact") -> dict[str, str]:
    """A program with an entry for a key of type N."""
    table = (f"N k = (N)hdr.h.a; table t {{ key = {{ k : {match}; }} actions = {{ nop; }} "
             f"const entries = {{ {key}: nop(); }} }}")
    return newtype("t.apply();", LOCAL=table)


TAKEN: list[dict[str, str]] = [
    # strings and lines that begin with #
    {"LOCAL": '@brief("one // no comment\n\n  two /* neither */ end") ' + _T % "", "APPLY": "t.apply();"},
    {"APPLY": 'log_msg("a\nb {}", { hdr.h.a });'},
    {"TOP": '# hello world\n#hello\n#!/usr/bin/x\n# 33\n# ---- x\n#assert machine(x)\n#sccs "x"\n#ident "x"\n'
            '#warning don\'t "'},
    {"LOCAL": "table t { key = { hdr.h.a : exact; }\n  # words\n actions = { nop; } }", "APPLY": "t.apply();"},
    # newtypes: an integer becomes one where it is assigned, initialised and returned
    newtype("N n = 3; n = 4; n = -1; n = 1 + 2; if (n == K) { hdr.h.a = (bit<8>)n; }"),
    newtype("hdr.h.a = (bit<8>)f();", "const N L = 300; const int I = 5; N f() { N n; n = I; return 3; }"),
    newtype("Q q = { K, 2 }; q.n = 7; hdr.h.a = (bit<8>)q.n;", "struct Q { N n; bit<8> x; }"),
    newtype("N n = hdr.h.a == 0 ? K : (N)4; hdr.h.a = (bit<8>)n;"),
    newtype("O o = (O)(N)hdr.h.a; hdr.h.b = (bit<8>)(N)o;", "type N O;"),
    entry("(N)3"), entry("K", "lpm"), entry("_", "optional"),
    # tables
    {"TOP": _SIZED, "LOCAL": "C(30) c; C(20) d;", "APPLY": "c.apply(hdr.h.a); d.apply(hdr.h.a);"},
    {"LOCAL": _T % "junk = 3; other = nop;", "APPLY": "t.apply();"},
    {"LOCAL": _T % "" + _U, "APPLY": "if (hdr.h.a == 1) { t.apply(); } else { hdr.h.b = 1; t.apply(); } u.apply();"},
    {"LOCAL": _T % "" + _U, "APPLY": "switch (u.apply().action_run) { nop: { t.apply(); } set: { t.apply(); } }"},
    {"TOP": _ONE, "LOCAL": "C() c;", "APPLY": "if (hdr.h.a == 1) { c.apply(hdr); } else { c.apply(hdr); }"},
    {"LOCAL": _TERNARY % ("", "priority=5: 3: nop(); 4: nop();"), "APPLY": "t.apply();"},
    {"LOCAL": _TERNARY % ("const", "3: nop() @priority(3); 4: nop(); 5: nop() @priority(1);"), "APPLY": "t.apply();"},
    {"LOCAL": _METER + _T.replace("set", "rd") % "meters = m;", "APPLY": "t.apply();"},
    # slices, packages, externs
    {"TOP": "const int K = 3;",
     "APPLY": "hdr.h.a = 4w0 ++ hdr.h.b[K:0]; hdr.h.b[8w3:1 + 1] = 1; hdr.s[K - 2].a[1:0] = 3;"},
    {"MAIN": main(p="dep=De()", vr="p=Pa()", ig="ck=Ck()", eg="ig=In()", ck="vr=None()", dep="eg=Eg()")},
    {"MAIN": main().replace("V1Switch", "V1Switch<_, _>") + " V1Switch(Pa(), None(), In(), Eg(), Ck(), De()) spare;"},
    {"TOP": f"control X<A, B>(inout A hdr, inout B meta, {_SM}) {{ apply {{ }} }}", "MAIN": main(ig="X()")},
    {"TOP": f"control X<A, B>(inout A hdr, inout B meta, {_SM}) {{ apply {{ }} }}", "MAIN": main(ig="X<Hs, M>()")},
    {"TOP": "extern void foo(in bit<8> x); extern E { E(); abstract void g(); void f(); }"},
    # stages
    {"STATE": 'log_msg("x"); verify(hdr.h.a == 1, error.NoMatch); if (hdr.h.a == 1) { hdr.h.b = 1; }'},
    {"CHECKSUM": "bool x = hdr.h.isValid(); " + _UPDATE % ("x && meta.m > 3", "hdr.h.a, 8w3, meta.p")},
    {"APPLY": "truncate(32w10);", "EGRESS": "clone(CloneType.E2E, 3); recirculate_preserving_field_list(0);"},
    {"DEPARSE": "bit<16> q; hash(q, HashAlgorithm.crc16, 16w0, { hdr.h.b }, 16w10);"},
    {"TOP": "bit<8> f(in bit<8> x) { bit<8> r = 0; switch (x) { 1: { r = 2; } default: { r = 3; } } return r; }",
     "APPLY": "hdr.h.a = f(hdr.h.b);"},
]

REFUSED: list[tuple[dict[str, str], str]] = [
    (newtype("N n = 3; if (n == 3) { hdr.h.a = 1; }"), "cannot compare N with int"),
    (newtype("f(3, hdr.h.a);", "void f(in N n, out bit<8> r) { r = (bit<8>)n; }"), "parameter 'n' is N, got int"),
    (newtype("N n = hdr.h.a;"), r"expected N, got bit<8>"),
    (newtype("N n = hdr.h.a == 0 ? 3 : 4;"), "have no width"),
    (newtype("Q q = { 1, 2 };", "struct Q { N n; bit<8> x; }"), "expected N, got int"),
    (newtype("O o = 3;", "typedef bit<8> B; type B O;"), "expected O, got int"),
    (newtype("hdr.h.c = (bit<16>)K;"), r"no cast from N to bit<16>"),
    (newtype("N n = (N)hdr.h.c;"), r"no cast from bit<16> to N"),
    (newtype("O o = (O)K;", "type bit<8> O;"), "no cast from N to O"),
    (newtype("hdr.h.a = (bit<8>)(int<8>)K;"), r"no cast from N to int<8>"),
    (entry("3"), r"expected N, got int: cast it, as in \(N\)3"),
    (entry("K &&& K", "ternary"), "needs numbers, got N"),
    (newtype("", STATE="N k = (N)hdr.h.a;", TO="select(k) { K: accept; default: reject; }"), "select of a N"),
    ({"APPLY": "hdr.h.a = hdr.h.b == 1 ? 1 : 2;"}, "have no width"),
    ({"APPLY": "const int K = 3; hdr.h.a[K:0] = 1;"}, "'K' bounds a slice that is assigned to"),
    ({"TOP": "const int K = 3;", "STATE": "hdr.h.a[7:K] = 1;"}, "'K' bounds a slice that is assigned to"),
    # tables
    ({"LOCAL": _T % "", "APPLY": "t.apply(); t.apply();"}, "meets a table once"),
    ({"TOP": _ONE, "LOCAL": "C() c;", "APPLY": "c.apply(hdr); c.apply(hdr);"}, "meets a table once"),
    ({"LOCAL": _T % "", "APPLY": "switch (t.apply().action_run) { nop: { t.apply(); } }"}, "meets a table once"),
    ({"LOCAL": _T % "" + _U, "APPLY": "if (meta.f) { t.apply(); u.apply(); } else { t.apply(); }"},
     "must follow after both"),
    ({"LOCAL": _T % "", "APPLY": "if (meta.f) { if (t.apply().hit) { hdr.h.b = 2; } } else { t.apply(); }"},
     "must follow"),
    ({"LOCAL": _T % "", "APPLY": "if (meta.f) { t.apply(); hdr.h.b = 1; } else { t.apply(); }"},
     "must follow after both"),
    ({"LOCAL": _TERNARY % ("", "priority=0: 3: nop();"), "APPLY": "t.apply();"}, "would be 0"),
    ({"LOCAL": _TERNARY % ("priority_delta = 10;", "priority=5: 3: nop(); 4: nop();"), "APPLY": "t.apply();"},
     "would be -5"),
    ({"LOCAL": _TERNARY % ("", "3: nop(); priority=5: 4: nop();"), "APPLY": "t.apply();"}, "the first needs one too"),
    ({"LOCAL": _TERNARY % ("const", "priority=5: 3: nop();"), "APPLY": "t.apply();"}, "their order is their priority"),
    ({"LOCAL": _T % "support_timeout = 3;", "APPLY": "t.apply();"}, "true or false"),
    ({"LOCAL": _T % "size = hdr.h.a;", "APPLY": "t.apply();"}, "'size' needs a positive integer"),
    ({"LOCAL": _T % "meters = direct_meter<bit<8>>(MeterType.bytes);", "APPLY": "t.apply();"}, "needs a direct_meter"),
    ({"LOCAL": _T % "" + "action z(in bool b) { meta.f = b; } table v { actions = { z(t.apply().hit); } }",
      "APPLY": "v.apply();"}, "cannot be applied in the arguments"),
    ({"LOCAL": "@name(3) action z() { }"}, "@name has one string"),
    ({"LOCAL": "@name action z() { }"}, "@name has one string"),
    ({"LOCAL": _METER + _T % "meters = m;", "APPLY": "t.apply();"}, "no action reads the direct meter In.m"),
    ({"LOCAL": "action z(bool b) { meta.f = b; } table v { actions = { z; } }", "APPLY": "v.apply();"},
     "an action's data cannot be of type bool"),
    # packages
    ({"TOP": f"control X(in Hs hdr, inout M meta, {_SM}) {{ apply {{ }} }}", "MAIN": main(ig="X()")},
     "'hdr' of X is 'in Hs', Ingress needs 'inout Hs'"),
    ({"TOP": f"control X(Hs hdr, inout M meta, {_SM}) {{ apply {{ }} }}", "MAIN": main(eg="X()")},
     "is 'Hs', Egress needs"),
    ({"TOP": "control X(packet_out p, inout Hs hdr) { apply { } }", "MAIN": main(dep="X()")}, "Deparser needs 'in Hs'"),
    ({"TOP": f"control X(inout P hdr, inout M meta, {_SM}) {{ apply {{ }} }}", "MAIN": main(ig="X()")}, "'inout P'"),
    ({"MAIN": main().replace("V1Switch", "V1Switch<M, M>")}, "'hdr' of Pa is 'out Hs', Parser needs 'out M'"),
    ({"MAIN": "In() i; " + main(ig="i")}, "cannot be instantiated at the top level"),
    ({"TOP": f"parser X(packet_in p, out H hdr, inout M meta, {_SM}) {{ state start {{ transition accept; }} }}"
             "control C(inout H hdr, inout M meta) { apply { } } control D(packet_out p, in H hdr) { apply { } }"
             f"control I(inout H hdr, inout M meta, {_SM}) {{ apply {{ }} }}",
      "MAIN": main(p="X()", vr="C()", ig="I()", eg="I()", ck="C()", dep="D()")}, "the headers must be a struct"),
    # externs and stages
    ({"TOP": "extern void foo(in bit<8> x);", "APPLY": "foo(hdr.h.a);"}, "'foo' is none of core.p4 and v1model.p4"),
    ({"TOP": "extern void register_read(in bit<8> x);", "APPLY": "register_read(hdr.h.a);"}, "is none of core.p4"),
    ({"TOP": "extern E { E(); void f(); }", "LOCAL": "E() e;"}, "extern E cannot be instantiated"),
    ({"LOCAL": "Checksum16() ck;", "APPLY": "hdr.h.c = ck.get({ hdr.h.a });"},
     "extern Checksum16 cannot be instantiated"),
    ({"PARSER": "register<bit<8>>(4) r;", "STATE": "r.write(0, 1);"}, "register cannot be used in a parser"),
    ({"STATE": "hash(hdr.h.a, HashAlgorithm.crc16, 8w0, { hdr.h.b }, 8w10);"},
     r"hash\(\) cannot be called in a parser"),
    ({"STATE": "mark_to_drop(sm);"}, r"mark_to_drop\(\) cannot be called in a parser"),
    ({"STATE": "assert(hdr.h.a == 1);"}, r"assert\(\) cannot be called in a parser"),
    ({"STATE": "switch (hdr.h.a) { 1: { hdr.h.b = 1; } }"}, "a parser's state has no switch"),
    ({"STATE": "for (bit<8> i = 0; i < 2; i = i + 1) { hdr.h.a = 1; }"}, "a parser's state has no switch and no loop"),
    ({"TOP": "bit<8> f(in bit<8> x) { if (x == 1) { return 2; } return 3; }", "STATE": "hdr.h.a = f(hdr.h.b);"},
     "'if' cannot stand in a function that a parser calls"),
    ({"LOCAL": "action z() { switch (hdr.h.a) { 1: { hdr.h.b = 1; } } }", "APPLY": "z();"},
     "cannot stand in an action"),
    ({"CHECKSUM": "if (hdr.h.isValid()) { " + _UPDATE % ("true", "hdr.h.a") + " }"},
     "'if' cannot stand in the control"),
    ({"CHECKSUM": _UPDATE % ("true", "hdr.h.a + 1")}, "the data of a checksum are fields and constants"),
    ({"CHECKSUM": "hdr.h.a = 1;"}, "an assignment cannot stand in the control that computes"),
    ({"CHECKSUM": 'log_msg("x");'}, r"log_msg\(\) cannot be called in the control that computes"),
    ({"CHECKSUM": (_UPDATE % ("true", "hdr.h.a")).replace("update", "verify")},
     r"verify_checksum\(\) cannot be called"),
    ({"APPLY": _UPDATE % ("true", "hdr.h.a")}, r"update_checksum\(\) cannot be called in an ingress"),
    ({"APPLY": "recirculate_preserving_field_list(0);"}, "cannot be called in an ingress"),
    ({"APPLY": "clone(CloneType.E2E, 3);"}, "E2E to egress"),
    ({"EGRESS": "clone(CloneType.I2E, 3);"}, "I2E belongs to ingress"),
    ({"EGRESS": "resubmit_preserving_field_list(0);"}, "cannot be called in an egress"),
    ({"DEPARSE": "if (hdr.h.a == 1) { pkt.emit(hdr.s[0]); }"}, "'if' cannot stand in a deparser"),
    ({"DEPARSE": "pkt.emit((H){1, 2, 3});"}, "only headers can be emitted"),
    ({"APPLY": "hash(hdr.h.c, HashAlgorithm.crc16, 16w0, hdr.h.a, 16w10);"}, "the data of a hash must be a list"),
    ({"APPLY": 'log_msg("{}", hdr.h.a);'}, "the values of log_msg must be a list"),
    ({"APPLY": "digest(1, hdr.h);"}, "not H, which is a header"),
    ({"APPLY": "if (meta.f) bit<8> x = 1;"}, "a declaration cannot be a branch"),
]


@pytest.mark.parametrize("parts", TAKEN)
def test_what_p4c_takes_is_taken(parts: dict[str, str]) -> None:
    """The front end and the generation of C are through without an error."""
    assert compile_source(source(parts), "like.p4").c_source


@pytest.mark.parametrize(("parts", "says"), REFUSED)
def test_what_p4c_refuses_is_refused(parts: dict[str, str], says: str) -> None:
    """The first error says what is wrong."""
    with pytest.raises(CompileError, match=says):
        compile_source(source(parts), "like.p4")


def test_texts_over_several_lines_are_p4cs() -> None:
    """In documentation, blanks within later lines become one, comments stay, and macros are expanded there."""
    texts = '@brief("one  XX // a  \n  two   XX /* b */ end\n\tlast") @description("one // c") '
    text = source({"LOCAL": "#define XX yy\n" + texts + _T % "", "APPLY": "t.apply();"})
    program = compile_source(text, "like.p4")
    doc = program.p4info.tables[0].preamble.doc

    assert doc.brief == "one  XX // a  \n  two yy /* b */ end\n last"
    assert doc.description == "one // c"
    again = compile_source(program.preprocessed, "like.p4")
    assert (again.preprocessed, again.p4info) == (program.preprocessed, program.p4info)


def test_errors_behind_a_text_over_several_lines_are_at_their_line() -> None:
    """Lines inside of a string count."""
    with pytest.raises(CompileError) as caught:
        compile_source('@brief("a\n\n\n\n\n\n\nb") const bit<8> x = 1;\nbogus y;\n', "like.p4")

    assert (caught.value.diagnostics[0].pos.line, caught.value.diagnostics[0].pos.col) == (9, 7)


def test_a_string_without_an_end_is_placed_at_its_beginning() -> None:
    """Also where the rest of the program was taken for its text."""
    with pytest.raises(CompileError, match="a string that does not end") as caught:
        compile_source('const bit<8> x = 1;\n@brief("a\nconst bit<8> y = 2;\n', "like.p4")

    assert caught.value.diagnostics[0].pos.line == 2


def test_import_includes_a_file_once(tmp_path: Path) -> None:
    """#import is #include with a guard."""
    (tmp_path / "inc.p4").write_text("const bit<8> INC = 1;\n")
    text = source({"TOP": '#import "inc.p4"\n#import "inc.p4"', "APPLY": "hdr.h.a = INC;"})

    assert compile_source(text, str(tmp_path / "main.p4")).c_source


ASKED = Path(__file__).parent / "like_p4c.asked"
"""A digest of each case, with the verdict, that p4c 1.2.5.16 was asked about."""


def cases() -> dict[str, tuple[str, bool]]:
    """(program, whether p4c refuses it) of every case, by the digest of both."""
    every = [(source(parts), False) for parts in TAKEN] + [(source(parts), True) for parts, _ in REFUSED]
    return {hashlib.sha256(f"{refused}\n{text}".encode()).hexdigest()[:16]: (text, refused) for text, refused in every}


def test_p4c_was_asked_about_every_case() -> None:
    """A case that is new or has changed is put before p4c once, by the next test, and listed then."""
    new = cases().keys() - set(ASKED.read_text().split())
    assert not new, f"add to {ASKED.name} where test_the_cases_are_p4cs passes with p4c 1.2.5: {' '.join(sorted(new))}"


@pytest.mark.needs("p4c")
@pytest.mark.slow
def test_the_cases_are_p4cs(tmp_path: Path) -> None:
    """p4c takes what is said here to be taken, and refuses the rest: new cases, and some that were asked before."""
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    every, known = cases(), set(ASKED.read_text().split())
    old = sorted(every.keys() & known)
    put = sorted(every.keys() - known) + random.Random(seed).sample(old, min(4, len(old)))

    def refused(digest: str) -> bool:
        path = tmp_path / f"{digest}.p4"
        path.write_text(every[digest][0])
        command = ["p4c-bm2-ss", "--Wdisable", "-o", "/dev/null", str(path)]
        return subprocess.run(command, capture_output=True, timeout=120, check=False).returncode != 0

    with ThreadPoolExecutor() as pool:
        verdicts = list(pool.map(refused, put))

    assert [every[digest][0] for digest, got in zip(put, verdicts, strict=True) if got != every[digest][1]] == []


def with_standard_metadata(parts: dict[str, str], was: str, now: str) -> str:
    """The program with a v1model.p4 of its own, in which `was` is `now`."""
    library = "".join((INCLUDE_DIR / name).read_text() for name in ("core.p4", "v1model.p4"))
    library = library.replace('#include "core.p4"', "")
    assert was in library
    return source(parts).replace("#include <core.p4>\n#include <v1model.p4>\n", library.replace(was, now))


def test_further_fields_of_standard_metadata_are_the_programs() -> None:
    """They are zero when a packet comes, and are carried from ingress to egress, also by copies of the whole."""
    parts = {"STATE": "sm.mine = sm.mine + 1;",
             "APPLY": "sm.wide = (bit<100>)hdr.h.c << 80; sm.egress_spec = 1; standard_metadata_t z = sm; "
                      "z.mine = z.mine + 1; sm = z;",
             "EGRESS": "sm.mine = sm.mine + 1; hdr.h.a = sm.mine; hdr.h.b = (bit<8>)(sm.wide >> 80);"}
    more = "bit<3> priority; bit<8> mine; bit<100> wide; bool f;"
    text = with_standard_metadata(parts, "bit<3>          priority;", more)
    program = compile_source(text, "like.p4", include=LIBRARY)  # as if it was pushed

    assert run(program, [b"\0\0\x12\x34rest"] * 2) == [b"\x03\x34\x12\x34rest"] * 2


@pytest.mark.parametrize(("was", "now", "says"), [
    ("bit<1>          checksum_error;", "", ""),
    ("typedef bit<9> PortId_t;", "type bit<9> Pid_t;\n#define PortId_t Pid_t", ""),
    ("bit<19>         enq_qdepth;", "bit<24> enq_qdepth;", "declared otherwise"),
    ("error           parser_error;", "bit<32> parser_error;", "declared otherwise"),
])
def test_known_fields_of_standard_metadata_have_their_sizes(was: str, now: str, says: str) -> None:
    """Any may be missing or of a newtype; one of another size is refused."""
    text = with_standard_metadata({"CHECKSUM": _UPDATE % ("true", "hdr.h.a"), "APPLY": "mark_to_drop(sm);"}, was, now)
    text = "#define V1MODEL_VERSION 20200408\n" + text
    if says:
        with pytest.raises(CompileError, match=says):
            compile_source(text, "like.p4", include=LIBRARY)
    else:
        assert compile_source(text, "like.p4", include=LIBRARY).c_source
