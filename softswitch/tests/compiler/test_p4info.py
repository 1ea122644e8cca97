# SPDX-License-Identifier: Apache-2.0
"""P4Info: ids, names and aliases as p4c gives them."""

from __future__ import annotations

from pathlib import Path

import pytest
from finsy.proto import p4i

from softswitch.compiler.diagnostics import CompileError
from softswitch.compiler.driver import compile_file, compile_source
from softswitch.compiler.p4info_files import written
from softswitch.compiler.p4info_ids import jenkins
from switch_support import p4c
from switch_support.compiler import program

HERE = Path(__file__).resolve().parent
CONTROL_PLANE = HERE / "p4info" / "control_plane.p4"
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


def test_p4info_is_p4cs_to_the_byte() -> None:
    """Order, ids, annotations, documentation, types, sizes and scopes of a program with all of them."""
    expected = CONTROL_PLANE.with_suffix(".p4info.txtpb").read_bytes()
    assert written(compile_file(CONTROL_PLANE).p4info, "text") == expected


@pytest.mark.needs("p4c")
def test_p4c_writes_the_same_p4info() -> None:
    """p4c's is still the one that the test above compares with."""
    assert written(compile_file(CONTROL_PLANE).p4info, "text") == p4c.compiled(CONTROL_PLANE).p4info


def test_an_id_may_lack_the_prefix_of_its_kind() -> None:
    """@id(7) of a table is 0x02000007, as p4c makes it; another kind's prefix is refused."""
    table = "table t {{ key = {{ hdr.i.a: exact; }} actions = {{ NoAction; }} }}"
    assert info(f"@id(7) {table.format()}", "t.apply();").tables[0].preamble.id == 0x02000007
    assert info(f"@id(0x02000007) {table.format()}", "t.apply();").tables[0].preamble.id == 0x02000007
    with pytest.raises(CompileError, match="0x02"):
        info(f"@id(0x01000007) {table.format()}", "t.apply();")


def test_ids_of_fields_are_numbered_past_those_that_are_given() -> None:
    """A field after one with an @id has the number after it, as far as it is free; 0 and a repeated one are refused."""
    keys = "table t {{ key = {{ hdr.i.a: exact; hdr.i.b: exact {}; hdr.i.a: exact @name(\"c\") {}; }} " \
           "actions = {{ NoAction; }} }}"

    def ids(*notes: str) -> list[int]:
        return [f.id for f in info(keys.format(*notes), "t.apply();").tables[0].match_fields]

    assert ids("", "") == [1, 2, 3]
    assert ids("@id(9)", "") == [1, 9, 2]
    assert ids("@id(2)", "") == [1, 2, 3]
    for notes in (("@id(0)", ""), ("@id(4)", "@id(4)")):
        with pytest.raises(CompileError, match="id"):
            ids(*notes)
