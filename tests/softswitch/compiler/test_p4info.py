# SPDX-License-Identifier: Apache-2.0
"""P4Info: ids, names and aliases as p4c gives them."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from finsy.proto import p4i
from google.protobuf import text_format

from softswitch.compiler.driver import compile_file, compile_source
from softswitch.compiler.p4info_ids import jenkins
from support.compiler import program

HERE = Path(__file__).resolve().parent
HEADERS = "header in_t { bit<8> a; bit<16> b; }\nheader out_t { bit<8> a; }\n"


def info(locals_: str = "", body: str = "", declarations: str = "") -> p4i.P4Info:
    return compile_source(program(HEADERS + declarations, body, locals_=locals_), "t.p4").p4info


@pytest.mark.parametrize(
    ("name", "prefix", "id_"),
    [
        ("SwitchIngress.fault_in.fault", 0x02, 45459302),
        ("SwitchIngress.fold.connection.connection", 0x02, 41764370),
        ("NoAction", 0x01, 21257015),
        ("SwitchIngress.fold.slot_state", 0x16, 381549871),
        ("packet_out_t", 0x04, 75327753),
    ],
)
def test_ids_are_p4cs(name: str, prefix: int, id_: int) -> None:
    """The prefix and 24 bits of Jenkins' hash; the numbers are from p4c's output."""
    assert prefix << 24 | jenkins(name) & 0xFFFFFF == id_


def test_explicit_ids_and_names() -> None:
    """@id wins, @name replaces the last part, a leading dot the whole name."""
    p4info = info(
        "@id(0x01000007) action f(@id(9) bit<8> x) { }\n"
        '@name("other") table t { key = { hdr.i.a: exact @name("key"); hdr.i.b[3:0]: ternary; } actions = { f; } }\n'
        '@name(".top") table u { key = { hdr.i.isValid(): exact; } actions = { f; @defaultonly NoAction; } }\n',
        "t.apply(); u.apply();",
    )
    tables = {t.preamble.name: t for t in p4info.tables}
    actions = {a.preamble.name: a for a in p4info.actions}

    assert set(tables) == {"Work.other", "top"}
    assert actions["Work.f"].preamble.id == 0x01000007
    assert actions["Work.f"].params[0].id == 9
    assert [(f.name, f.bitwidth) for f in tables["Work.other"].match_fields] == [("key", 8), ("hdr.i.b[3:0]", 4)]
    assert tables["top"].match_fields[0].name == "hdr.i.$valid$"
    assert [r.scope for r in tables["top"].action_refs] == [0, p4i.ActionRef.DEFAULT_ONLY]


def test_alias_is_the_shortest_unique_suffix() -> None:
    """Names that end alike get as many parts as tell them apart."""
    sub = "control Sub(inout out_t o) { action f() { o.a = 1; } table t { actions = { f; } } apply { t.apply(); } }\n"
    p4info = info("Sub() one; Sub() two;", "one.apply(hdr.o); two.apply(hdr.o);", sub)

    assert [t.preamble.alias for t in p4info.tables] == ["one.t", "two.t"]
    assert [t.preamble.name for t in p4info.tables] == ["Work.one.t", "Work.two.t"]


def test_tables_say_what_belongs_to_them() -> None:
    """Sizes, direct resources, profiles, default actions, const entries."""
    p4info = info(
        "action f(bit<8> x) { hdr.o.a = x; } direct_counter(CounterType.bytes) c; action_profile(32) p;\n"
        "table t { key = { hdr.i.a: exact; } actions = { f; } const default_action = f(7); counters = c; size = 77; }\n"
        "table u { key = { hdr.i.a: lpm; } actions = { f; NoAction; } implementation = p; support_timeout = true; }\n"
        "table v { key = { hdr.i.a: optional; } actions = { f; NoAction; } const entries = { 5: f(1); } }\n",
        "t.apply(); u.apply(); v.apply();",
    )
    t, u, v = p4info.tables
    action = next(a for a in p4info.actions if a.preamble.alias == "f").preamble.id

    assert t.size == 77
    assert t.const_default_action_id == action
    assert t.initial_default_action.arguments[0].value == b"\x07"
    assert list(t.direct_resource_ids) == [p4info.direct_counters[0].preamble.id]
    assert p4info.direct_counters[0].direct_table_id == t.preamble.id
    assert u.implementation_id == p4info.action_profiles[0].preamble.id
    assert list(p4info.action_profiles[0].table_ids) == [u.preamble.id]
    assert u.idle_timeout_behavior == p4i.Table.NOTIFY_CONTROL
    assert v.is_const_table


@pytest.mark.needs("p4c")
def test_p4info_of_the_fold_program_equals_p4cs(tmp_path: Path) -> None:
    """The controller may take either compiler's P4Info."""
    source = HERE.parents[2] / "p4src" / "netfold.p4"
    text = tmp_path / "p4info.txtpb"
    subprocess.run(
        ["p4c-bm2-ss", str(source), "-o", str(tmp_path / "x.json"), "--p4runtime-files", str(text)],
        check=True, timeout=120, capture_output=True,
    )
    theirs = p4i.P4Info()
    text_format.Parse(text.read_text(), theirs)

    assert normalised(compile_file(source).p4info) == normalised(theirs)


def normalised(message: p4i.P4Info) -> str:
    """Text without the order, which means nothing."""
    for descriptor, value in message.ListFields():
        if hasattr(value, "sort") and descriptor.name not in ("pkg_info", "type_info"):
            items: Any = value
            for item in items:
                if descriptor.name == "tables":
                    item.direct_resource_ids.sort()
            items.sort(key=lambda item: item.preamble.id)
    return text_format.MessageToString(message)
