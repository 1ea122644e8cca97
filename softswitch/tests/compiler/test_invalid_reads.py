# SPDX-License-Identifier: Apache-2.0
"""Warnings of fields of headers that are not valid, or may be so: the same as p4c's, at the same lines."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from softswitch.compiler.driver import compile_source

_PROGRAM = """#include <core.p4>
#include <v1model.p4>
header H { bit<8> a; bit<8> b; }
header_union U { H one; H two; }
struct Hs { H h; H g; H[3] s; U u; }
struct M { bit<8> m; bit<8> n; Hs kept; }
TOP
parser Pa(packet_in pkt, out Hs hdr, inout M meta, inout standard_metadata_t sm) {
    state start {
STATE
    }
}
control None(inout Hs hdr, inout M meta) { apply { } }
control In(inout Hs hdr, inout M meta, inout standard_metadata_t sm) {
LOCAL
    apply {
APPLY
        sm.egress_spec = (bit<9>)meta.m;
    }
}
control Eg(inout Hs hdr, inout M meta, inout standard_metadata_t sm) { apply { } }
control De(packet_out pkt, in Hs hdr) { apply { pkt.emit(hdr.h); pkt.emit(hdr.g); } }
V1Switch(Pa(), None(), In(), Eg(), None(), De()) main;
"""

CASES: dict[str, dict[str, str]] = {  # a comment says what the warning of its line begins with, or that there is none
    "a parser gives out headers": {"STATE": """
        hdr.h.a = 1;  // is
        pkt.extract(hdr.h);
        hdr.h.a = 2;  // none
        transition select(hdr.h.a) { 1: more; default: last; }
    }
    state more {
        pkt.extract(hdr.g);
        transition last;
    }
    state last {
        meta.m = hdr.g.a;  // may be
        meta.m = meta.m + hdr.h.a;  // none
        transition accept;"""},
    "stacks": {"STATE": """
        meta.m = hdr.s.last.a;  // is
        pkt.extract(hdr.s.next);
        meta.m = meta.m + hdr.s.last.a;  // none
        transition accept;"""},
    "branches": {"APPLY": """
        if (meta.m == 1) { hdr.h.setInvalid(); }
        meta.m = hdr.h.a;  // may be
        if (meta.m == 2) { hdr.g.setInvalid(); } else { hdr.g.setInvalid(); }
        meta.m = meta.m + hdr.g.a;  // is
        hdr.g.setValid();
        meta.m = meta.m + hdr.g.a;  // none
        switch (meta.n) { 1: { hdr.g.setInvalid(); } 2: { meta.n = 3; } }
        meta.m = meta.m + hdr.g.b;  // may be"""},
    "branches that return": {"APPLY": """
        if (meta.m == 1) { hdr.h.setInvalid(); } else { return; }
        meta.m = hdr.h.a;  // may be
        if (meta.m == 2) { exit; } else { return; }
        meta.m = hdr.h.b;  // none"""},
    "who asks is trusted": {"APPLY": """
        hdr.h.setInvalid();
        if (hdr.h.isValid()) {
            meta.m = hdr.h.a;  // none
        }
        if (meta.n == 3 && !hdr.h.isValid()) {
            meta.m = meta.m + hdr.h.a;  // none
        }
        meta.m = meta.m + hdr.h.a;  // is"""},
    "variables and copies": {"APPLY": """
        H x;
        x.a = 1;  // is
        x = hdr.h;
        meta.m = x.a;  // none
        hdr.g = {#};
        meta.kept = hdr;
        meta.m = meta.m + meta.kept.g.a;  // is
        meta.m = meta.m + meta.kept.h.a;  // none"""},
    "unions": {"APPLY": """
        hdr.u.one.setValid();
        hdr.u.one.a = 3;  // none
        hdr.u.two.setValid();
        meta.m = hdr.u.two.a + hdr.u.one.a;  // is"""},
    "actions, tables and controls": {"TOP": """
void clear(inout H h) { h.setInvalid(); }
control Sub(inout Hs hdr, inout M meta) {
    apply {
        meta.m = meta.m + hdr.h.a;  // is
    }
}""", "LOCAL": """
    Sub() sub;
    action two() {
        meta.m = hdr.s[1].b;  // is
        hdr.g.setInvalid();
    }
    table t { actions = { two; } }
    action inner() { if (meta.n == 1) { meta.n = 2; } hdr.g.setInvalid(); }
    action outer() { hdr.g.setInvalid(); }
""", "APPLY": """
        hdr.s[1].setInvalid();
        t.apply();
        inner();
        meta.m = meta.m + hdr.g.a;  // none
        outer();
        meta.m = meta.m + hdr.g.a;  // is
        clear(hdr.h);
        sub.apply(hdr, meta);
        exit;
        hdr.h.b = 1;  // none"""},
}


def text(parts: dict[str, str]) -> str:
    whole = _PROGRAM
    for place in ("TOP", "STATE", "LOCAL", "APPLY"):
        usual = "        pkt.extract(hdr.h); transition accept;" if place == "STATE" else ""
        whole = whole.replace(place, parts.get(place, usual), 1)
    return whole


def wanted(whole: str) -> dict[int, bool]:
    """The lines that are warned of, and whether their header is certainly not valid."""
    marks = {n: mark for n, line in enumerate(whole.splitlines(), 1) if (mark := line.partition("  // ")[2])}
    assert set(marks.values()) <= {"is", "may be", "none"}
    return {n: mark == "is" for n, mark in marks.items() if mark != "none"}


@pytest.mark.parametrize("name", CASES)
def test_fields_of_invalid_headers_are_warned_of(name: str) -> None:
    """By line, and whether the header is invalid on every way; nothing else in the program is warned of."""
    whole = text(CASES[name])
    warned = compile_source(whole, "odd.p4").warnings
    found = re.findall(r"^odd\.p4:(\d+):\d+: warning: a field of a header that (is|may be) invalid", warned, re.M)
    assert {int(line): kind == "is" for line, kind in found} == wanted(whole)
    assert warned.count("warning:") == len(found)


@pytest.mark.needs("p4c")
@pytest.mark.parametrize("name", CASES)
def test_p4c_warns_of_the_same_lines(name: str, tmp_path: Path) -> None:
    """The lines that the cases name are p4c's."""
    path = tmp_path / "odd.p4"
    path.write_text(text(CASES[name]))
    said = subprocess.run(["p4c-bm2-ss", "-o", "/dev/null", str(path)], capture_output=True, text=True, timeout=120,
                          check=False)
    assert said.returncode == 0, said.stderr
    found = re.findall(r"^\S*\((\d+)\): \[--Wwarn=invalid-header\] \D* (an|a potentially) invalid", said.stderr, re.M)
    assert {int(line): kind == "an" for line, kind in found} == wanted(path.read_text())
