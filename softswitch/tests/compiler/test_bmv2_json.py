# SPDX-License-Identifier: Apache-2.0
"""BMv2's JSON: what control planes read of a program is what p4c writes of it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from softswitch.compiler.driver import compile_source

PROGRAM = """
#include <core.p4>
#include <v1model.p4>
enum Colour { RED, GREEN }
error { Mine }
header eth_t { bit<48> dst; bit<48> src; bit<16> type; }
header options_t { bit<8> length; varbit<320> options; int<7> signed; bit<1> pad; }
header label_t { bit<20> label; bit<12> rest; }
header_union either_t { eth_t eth; options_t options; }
struct inner_t { bit<9> x; bool flag; label_t copy; }
struct digest_t { bit<9> port; bit<48> source; }
struct meta_t { @field_list(1) bit<16> a; inner_t i; Colour c; @field_list(1, 2) bit<8> f; error e; }
struct headers_t { eth_t eth; label_t[3] labels; options_t options; either_t either; either_t[2] eithers; }
parser P(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    value_set<bit<16>>(8) known;
    state start { p.extract(h.eth); transition select(h.eth.type) { known: labels; 0x9000: more; default: accept; } }
    state labels { p.extract(h.labels.next); transition accept; }
    state more { p.extract(h.options, 32); transition accept; }
}
control V(inout headers_t h, inout meta_t m) { apply { } }
control Sub(inout eth_t e) {
    action renew(bit<48> to) { e.dst = to; }
    table renewed { key = { e.dst: exact; e.isValid(): exact; } actions = { renew; } }
    apply { renewed.apply(); }
}
control I(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    Sub() sub;
    counter(10, CounterType.packets) counted;
    @name("other") counter(20, CounterType.packets_and_bytes) both;
    direct_counter(CounterType.bytes) hits;
    direct_counter(CounterType.bytes) of_no_table_that_is_applied;
    meter(30, MeterType.bytes) metered;
    direct_meter<bit<8>>(MeterType.packets) rate;
    register<bit<32>>(40) wide;
    register<bit<7>>(5) narrow;
    action_profile(50) profile;
    action_selector(HashAlgorithm.crc16, 32w60, 32w10) selector_;
    action drop() { mark_to_drop(s); }
    action forward(bit<9> port, bit<48> to) { s.egress_spec = port; h.eth.dst = to; rate.read(m.f); }
    action metered_drop() { mark_to_drop(s); rate.read(m.f); }
    action by(in bit<9> from, bit<9> port) { s.egress_spec = port + from; }
    action send(bit<9> port) { s.egress_spec = port; }
    action used() { counted.count(1); both.count(2); digest<digest_t>(1, { s.ingress_port, h.eth.src }); }
    table all_kinds {
        key = {
            h.eth.dst: exact; h.eth.type: lpm @name("kind"); m.i.x: ternary; h.labels[0].label: range;
            s.ingress_port: optional; h.options.isValid(): exact;
        }
        actions = { forward; metered_drop; @defaultonly NoAction; }
        default_action = NoAction();
        size = 77; counters = hits; meters = rate; support_timeout = true;
    }
    table selected {
        key = { h.eth.dst: exact; h.eth.src: selector; m.a: selector; }
        actions = { drop; NoAction; } implementation = selector_;
    }
    table profiled {
        key = { h.eth.type & 255: exact; h.eth.src[15:0]: ternary; }
        actions = { by(s.ingress_port); drop; } implementation = profile;
    }
    table constant {
        key = { h.eth.type: ternary; m.i.flag: exact; }
        actions = { send; drop; }
        const entries = { (1 &&& 3, true): send(1); (_, false): drop(); }
        const default_action = send(4);
    }
    table prefixes {
        key = { h.eth.dst: lpm; } actions = { send; drop; } size = 12;
        const entries = { 48w0x10 &&& 0xfffffffffff0: send(1); }
    }
    table unnamed { key = { m.a: exact; } actions = { drop; } implementation = action_profile(3); }
    table named { key = { m.a: exact; } actions = { drop; } @name("own") implementation = action_profile(4); }
    table ranged {
        key = { m.a: range; h.eth.src: optional; } actions = { send; }
        const entries = { (4..5, _): send(1); (7, 3): send(2); }
    }
    table not_applied {
        key = { m.a: exact; } actions = { drop; } counters = of_no_table_that_is_applied;
    }
    table keyless { actions = { send; } default_action = send(7); size = 4; }
    apply {
        if (all_kinds.apply().hit) { selected.apply(); } else { used(); }
        sub.apply(h.eth);
        profiled.apply();
        switch (constant.apply().action_run) { send: { keyless.apply(); } }
        prefixes.apply();
        ranged.apply();
        named.apply();
        unnamed.apply();
        wide.write(0, 3);
        narrow.write(1, 1);
        metered.execute_meter<bit<8>>(1, m.f);
        hash(m.a, HashAlgorithm.crc16_custom, 16w0, { h.eth.dst }, 16w10);
        h.either.eth.setValid();
        resubmit_preserving_field_list(2);
    }
}
control E(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    action nothing() { }
    table at_egress { actions = { nothing; NoAction; } }
    apply { at_egress.apply(); clone_preserving_field_list(CloneType.E2E, 5, 1); }
}
control C(inout headers_t h, inout meta_t m) { apply { } }
control D(packet_out p, in headers_t h) { apply { p.emit(h.eth); p.emit(h.labels); p.emit(h.options); } }
V1Switch(P(), V(), I(), E(), C(), D()) main;
"""


def read_by_control_planes(whole: dict[str, Any]) -> dict[str, Any]:
    """The parts of a JSON that control planes read, without numbers and names that p4c chooses freely: tables that it
    makes of statements, copies of actions, scalars of its own."""
    actions = {action["id"]: action for action in whole["actions"]}
    fields = {kind["name"]: {field[0]: field[1] for field in kind["fields"]} for kind in whole["header_types"]}
    kinds = {header["name"]: header["header_type"] for header in whole["headers"]}

    def target(place: list[str]) -> tuple[Any, ...]:
        if place[1] == "$valid$":
            return tuple(place)
        bits = fields[kinds[place[0]]][place[1]]
        return ("scalars", bits) if place[0] == "scalars" and "." not in place[1] else (*place, bits)

    def entry(one: dict[str, Any]) -> tuple[Any, ...]:
        name = actions[one["action_entry"]["action_id"]]["name"]
        return one["match_key"], name, one["action_entry"]["action_data"], one["priority"]

    found: dict[str, Any] = {}
    for pipeline in whole["pipelines"]:
        tables = [table for table in pipeline["tables"] if not table["name"].startswith("tbl_")]
        found[pipeline["name"]] = [table["name"] for table in tables]
        for table in tables:
            default = table.get("default_entry")
            found[table["name"]] = [
                {name: table.get(name) for name in ("match_type", "type", "max_size", "with_counters", "direct_meters",
                                                    "support_timeout", "actions", "action_profile")},
                [(key["name"], key["match_type"], target(key["target"]), key["mask"]) for key in table["key"]],
                default and {**default, "action_id": actions[default["action_id"]]["name"]},
                [entry(one) for one in table.get("entries", [])],
                [actions[number]["runtime_data"] for number in table["action_ids"]],
            ]
        for profile in pipeline["action_profiles"]:
            selector = profile.get("selector", {})
            found[profile["name"]] = [profile["max_size"], selector.get("algo"),
                                      [target(one["value"]) for one in selector.get("input", [])]]
    for kind in ("meter_arrays", "counter_arrays", "register_arrays", "parse_vsets"):
        found[kind] = [{name: value for name, value in array.items()
                        if name not in ("id", "source_info", "result_target")} for array in whole[kind]]
    found |= {kind: whole[kind] for kind in ("errors", "header_stacks", "header_unions", "header_union_stacks",
                                             "header_union_types", "field_lists", "field_aliases", "headers")}
    found["enums"] = [(one["name"], one["entries"]) for one in whole["enums"]]
    found["header_types"] = [kind for kind in whole["header_types"] if kind["name"] != "scalars_0"]
    found["learn_lists"] = [(one["id"], one["name"], len(one["elements"])) for one in whole["learn_lists"]]
    found["hashes"] = [one["algo"] for one in whole["calculations"]]
    found["version"] = whole["__meta__"]["version"]
    return found


@pytest.fixture(scope="module")
def written() -> dict[str, Any]:
    """The JSON of the program."""
    made: dict[str, Any] = json.loads(compile_source(PROGRAM, "everything.p4").bmv2_json)
    return made


@pytest.mark.needs("bmv2")
def test_what_control_planes_read_is_what_p4c_writes(written: dict[str, Any], tmp_path: Path) -> None:
    """Tables with keys, actions, defaults, entries and sizes, arrays, headers and enums: all equal."""
    (tmp_path / "everything.p4").write_text(PROGRAM)
    subprocess.run(["p4c-bm2-ss", "--Wdisable", tmp_path / "everything.p4", "-o", tmp_path / "p4c.json"], check=True,
                   timeout=60)

    ours, theirs = (read_by_control_planes(j) for j in (written, json.loads((tmp_path / "p4c.json").read_text())))

    assert ours.keys() == theirs.keys()
    assert {name: ours[name] for name in ours if ours[name] != theirs[name]} == {}


def test_a_table_is_described_as_p4c_describes_it(written: dict[str, Any]) -> None:
    """The same on machines without p4c, for the table with every kind of key."""
    (table,) = (t for p in written["pipelines"] for t in p["tables"] if t["name"] == "I.all_kinds")
    assert [(key["match_type"], key["name"], key["target"]) for key in table["key"]] == [
        ("exact", "h.eth.dst", ["eth", "dst"]), ("lpm", "kind", ["eth", "type"]),
        ("ternary", "m.i.x", ["scalars", "meta_t._i_x1"]), ("range", "h.labels[0].label", ["scalars", "key_0"]),
        ("ternary", "s.ingress_port", ["standard_metadata", "ingress_port"]),
        ("exact", "h.options.$valid$", ["options", "$valid$"]),
    ]
    assert (table["match_type"], table["max_size"], table["direct_meters"]) == ("range", 77, "I.rate")
    names = {action["id"]: action["name"] for action in written["actions"]}
    assert [names[number] for number in table["action_ids"]] == ["I.forward", "I.metered_drop", "NoAction"]


def test_the_text_inside_compiles_to_the_same_program(written: dict[str, Any]) -> None:
    """A switch that is given the JSON runs what was compiled."""
    assert written["program"] == written["softswitch"]["name"] == "everything.p4"
    again = compile_source(written["softswitch"]["source"], "everything.p4")
    assert again.p4info == compile_source(PROGRAM, "everything.p4").p4info
    assert json.loads(again.bmv2_json)["pipelines"] == written["pipelines"]
