# SPDX-License-Identifier: Apache-2.0
"""@p4runtime_translation: controllers say strings and numbers of their own width, and packets have the program's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from finsy.proto import p4r

from softswitch.compiler import device_config
from softswitch.compiler.driver import Program, compile_source
from softswitch.engine.errors import FailedPrecondition, InvalidArgument, NotFound, OutOfRange, ResourceExhausted
from softswitch.engine.local import LocalEngine
from softswitch.p4runtime import entities, packet_io, translation
from softswitch.p4runtime.context import Context
from softswitch.p4runtime.digests import Digests
from softswitch.p4runtime.schema import Schema
from softswitch.p4runtime.translation import Strings

CPU, INTERFACES = 510, {"eth1": 1, "eth2": 2}

SOURCE = """
#include <core.p4>
#include <v1model.p4>
@p4runtime_translation("example.org/port", string) type bit<9> port_name_t;
@p4runtime_translation("example.org/wide", 32) type bit<12> wide_t;
@p4runtime_translation("example.org/vrf", string)
@p4runtime_translation_mappings({ {"", 0}, {"blue", 7} }) type bit<8> vrf_t;
@controller_header("packet_in")
header packet_in_t { port_name_t port; @hidden bit<3> pad; wide_t wide; vrf_t vrf; }
@controller_header("packet_out")
header packet_out_t { @hidden bit<7> pad; port_name_t port; vrf_t vrf; }
header data_t { bit<8> op; bit<8> vrf; bit<16> wide; }
struct headers_t { packet_in_t in_; packet_out_t out_; data_t data; }
struct learned_t { vrf_t vrf; wide_t wide; bool flag; }
struct meta_t { vrf_t vrf; wide_t wide; }
parser Parse(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    state start { transition select(s.ingress_port) { 510: from_controller; default: data; } }
    state from_controller { p.extract(h.out_); transition data; }
    state data { p.extract(h.data); transition accept; }
}
control Work(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    register<vrf_t>(2) last;
    action to_port(port_name_t port, wide_t wide) { s.egress_spec = (bit<9>) port; m.wide = wide; }
    action set_vrf(vrf_t vrf) { m.vrf = vrf; }
    table vrfs { key = { h.data.op: exact; } actions = { set_vrf; NoAction; } }
    table forward { key = { m.vrf: exact; } actions = { to_port; NoAction; } }
    table wides { key = { m.wide: ternary; m.vrf: optional; } actions = { set_vrf; NoAction; } }
    table prefixes { key = { m.wide: lpm; } actions = { NoAction; } }
    table ranges { key = { m.wide: range; } actions = { NoAction; } }
    apply {
        m.wide = (wide_t) h.data.wide[11:0];
        vrfs.apply();
        wides.apply();
        prefixes.apply();
        ranges.apply();
        if (h.out_.isValid()) {
            s.egress_spec = (bit<9>) h.out_.port;
            h.data.vrf = (bit<8>) h.out_.vrf;
            h.out_.setInvalid();
        } else if (h.data.op == 255) {
            digest<learned_t>(1, { m.vrf, m.wide, true });
            h.in_ = { (port_name_t) s.ingress_port, 0, m.wide, m.vrf };
            s.egress_spec = 510;
        } else {
            forward.apply();
            h.data.vrf = (bit<8>) m.vrf;
            h.data.wide = 4w0 ++ (bit<12>) m.wide;
        }
        last.write(1, m.vrf);
    }
}
control NoCheck(inout headers_t h, inout meta_t m) { apply { } }
control NoEgress(inout headers_t h, inout meta_t m, inout standard_metadata_t s) { apply { } }
control Write(packet_out p, in headers_t h) { apply { p.emit(h); } }
V1Switch(Parse(), NoCheck(), Work(), NoEgress(), NoCheck(), Write()) main;
"""
INSERT, MODIFY, DELETE = p4r.Update.INSERT, p4r.Update.MODIFY, p4r.Update.DELETE


@pytest.fixture(scope="module")
def program() -> Program:
    return compile_source(SOURCE, "translated.p4")


class Switch:
    """A program with P4Runtime's entities on top, in this process."""

    def __init__(self, program: Program, engine: LocalEngine) -> None:
        self.engine, self.info = engine, program.p4info
        self.digests: list[p4r.DigestList] = []
        digests = Digests(self.digests.append)
        schema = Schema(program.p4info, engine, json=program.bmv2_json, interfaces=lambda: INTERFACES)
        digests.describe(schema.digests, program.p4info, schema.types)
        self.context = Context(schema, engine, digests)

    def id(self, kind: str, name: str) -> int:
        return next(x.preamble.id for x in getattr(self.info, kind) if x.preamble.alias == name)

    def entry(self, table: str, *fields: p4r.FieldMatch, action: str = "", priority: int = 0,
              **params: bytes) -> p4r.Entity:
        entry = p4r.TableEntry(table_id=self.id("tables", table), match=fields, priority=priority)
        if action:
            call = entry.action.action
            call.action_id = self.id("actions", action)
            for i, value in enumerate(params.values(), 1):
                call.params.add(param_id=i, value=value)
        return p4r.Entity(table_entry=entry)

    def write(self, *wanted: p4r.Entity, kind: Any = INSERT) -> None:
        for error in entities.write(self.context, [p4r.Update(type=kind, entity=e) for e in wanted]):
            if error is not None:
                raise error

    def read(self, entity: p4r.Entity) -> list[p4r.Entity]:
        return list(entities.read(self.context, [entity]))

    def entries(self, table: str) -> list[p4r.TableEntry]:
        return [e.table_entry for e in self.read(self.entry(table))]


@pytest.fixture
def switch(program: Program) -> Iterator[Switch]:
    with LocalEngine.open(program, cpu_port=CPU) as engine:
        yield Switch(program, engine)


def exact(value: bytes, field: int = 1) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field, exact=p4r.FieldMatch.Exact(value=value))


def optional(value: bytes, field: int) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=field, optional=p4r.FieldMatch.Optional(value=value))


def ternary(value: bytes, mask: bytes) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=1, ternary=p4r.FieldMatch.Ternary(value=value, mask=mask))


def lpm(value: bytes, length: int) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=1, lpm=p4r.FieldMatch.LPM(value=value, prefix_len=length))


def span(low: bytes, high: bytes) -> p4r.FieldMatch:
    return p4r.FieldMatch(field_id=1, range=p4r.FieldMatch.Range(low=low, high=high))


def test_strings_in_entries_become_numbers_in_packets_and_strings_again(switch: Switch) -> None:
    """Mapped, named after an interface, a number, and made up: each is read back as it was written."""
    rows = [(1, b"blue", b"eth2", 7, 2), (2, b"", b"3", 0, 3), (3, b"12", b"eth1", 12, 1), (4, b"red", b"2", 255, 2)]
    for op, vrf, port, _, _ in rows:
        switch.write(switch.entry("vrfs", exact(bytes([op])), action="set_vrf", vrf=vrf),
                     switch.entry("forward", exact(vrf), action="to_port", port=port, wide=b"\x05"))

    for op, _, _, number, port in rows:
        assert switch.engine.inject(4, bytes([op, 99, 0, 0])) == [(port, bytes([op, number, 0, 5]))]
    read = {e.match[0].exact.value: e.action.action.params[0].value for e in switch.entries("forward")}
    # eth2 and 2 are the same port, which has the name that was written first
    assert read == {b"blue": b"eth2", b"": b"3", b"12": b"eth1", b"red": b"eth2"}
    with pytest.raises(NotFound, match="nothing uses 'green'"):
        switch.write(switch.entry("forward", exact(b"green")), kind=DELETE)
    assert switch.read(switch.entry("forward", exact(b"green"))) == []
    switch.write(switch.entry("forward", exact(b"red")), kind=DELETE)
    assert switch.engine.inject(4, bytes([4, 0, 0, 0])) == [(0, bytes([4, 255, 0, 0]))]


def test_what_is_no_port_is_refused_and_not_made_up(switch: Switch) -> None:
    """A name that no interface has, a number beyond nine bits, and one that is not written as numbers are."""
    for port in (b"eth7", b"512", b"01", b""):
        with pytest.raises(InvalidArgument, match="no port"):
            switch.write(switch.entry("forward", exact(b"blue"), action="to_port", port=port, wide=b"\x05"))
    with pytest.raises(InvalidArgument, match="UTF-8"):
        switch.write(switch.entry("forward", exact(b"\xff"), action="to_port", port=b"1", wide=b"\x05"))
    assert switch.entries("forward") == []


def test_numbers_of_another_width_pass_where_they_fit(switch: Switch) -> None:
    """Of 32 bits, the program has 12; a match means the same in both."""
    def put(table: str, match: p4r.FieldMatch, **more: Any) -> p4r.TableEntry:
        action = {"action": "set_vrf", "vrf": b"blue"} if table == "wides" else {"action": "NoAction"}
        switch.write(switch.entry(table, match, **action, **more))
        return switch.entries(table)[-1]

    everything = b"\xff\xff\xff\xff"
    assert put("wides", ternary(b"\x0a\xbc", everything), priority=1).match[0].ternary.mask == everything
    assert switch.engine.inject(4, bytes([9, 0, 0xFA, 0xBC])) == [(0, bytes([9, 7, 0x0A, 0xBC]))]
    assert put("wides", ternary(b"\x02", b"\x03"), priority=1).match[0].ternary.mask in (b"\x03", everything)
    assert put("prefixes", lpm(b"\x0a\x00", 28)).match[0].lpm.prefix_len == 28
    assert not put("prefixes", lpm(b"\x00", 20)).match  # all that the program knows
    assert put("ranges", span(b"\x01", everything), priority=1).match[0].range.high == b"\x0f\xff"
    with pytest.raises(OutOfRange, match="12 bits"):
        put("wides", ternary(b"\x10\x00", everything), priority=1)
    with pytest.raises(OutOfRange, match="32 bits"):
        put("wides", ternary(b"\x01\x00\x00\x00\x00", everything), priority=1)
    with pytest.raises(InvalidArgument, match="beyond its prefix"):
        put("prefixes", lpm(b"\x01", 24))


def test_a_string_is_matched_optionally(switch: Switch) -> None:
    """A key that is absent matches all; a value that is there has the string's number."""
    switch.write(switch.entry("vrfs", exact(b"\x01"), action="set_vrf", vrf=b"red"),
                 switch.entry("wides", optional(b"red", 2), action="set_vrf", vrf=b"blue", priority=1))
    assert switch.engine.inject(4, bytes([1, 0, 0, 0]))[0][1][1] == 7
    assert switch.engine.inject(4, bytes([2, 0, 0, 0]))[0][1][1] == 0
    assert switch.entries("wides")[0].match[0].optional.value == b"red"


def test_packets_to_and_from_the_controller_are_translated(switch: Switch) -> None:
    """Strings and a wide number in the metadata, with hidden fields between them on the wire."""
    switch.write(switch.entry("vrfs", exact(b"\xff"), action="set_vrf", vrf=b"red"))
    assert switch.engine.inject(2, bytes([255, 0, 0x0A, 0xBC])) == []
    packet = packet_io.encode_packet_in(switch.context.schema.packet_in, switch.engine.events[-1].data)
    assert {m.metadata_id: m.value for m in packet.metadata} == {1: b"2", 3: b"\x0a\xbc", 4: b"red"}
    assert packet.payload == bytes([255, 0, 0x0A, 0xBC])

    out = p4r.PacketOut(payload=bytes([1, 0, 0, 0]))
    out.metadata.add(metadata_id=2, value=b"eth2")
    out.metadata.add(metadata_id=3, value=b"blue")
    switch.engine.packet_out(packet_io.decode_packet_out(switch.context.schema.packet_out, out))
    assert switch.engine.take() == [(2, bytes([1, 7, 0, 0]))]
    out.metadata[0].value = b"eth9"
    with pytest.raises(InvalidArgument, match="no port"):
        packet_io.decode_packet_out(switch.context.schema.packet_out, out)


def test_digests_and_registers_are_translated(switch: Switch) -> None:
    """P4Data has no strings, so theirs are in `bitstring`; a bool is still a bool."""
    switch.write(switch.entry("vrfs", exact(b"\xff"), action="set_vrf", vrf=b"red"))
    digest = switch.info.digests[0].preamble.id
    config = p4r.DigestEntry.Config(max_list_size=1)
    switch.write(p4r.Entity(digest_entry=p4r.DigestEntry(digest_id=digest, config=config)))
    switch.engine.inject(2, bytes([255, 0, 0x0A, 0xBC]))
    event = next(e for e in switch.engine.events if e.kind.name == "DIGEST")
    switch.context.digests.receive(event.id, event.data)
    vrf, wide, flag = switch.digests[0].data[0].struct.members
    assert (vrf.bitstring, wide.bitstring, flag.bool) == (b"red", b"\x0a\xbc", True)

    wanted = p4r.Entity()
    wanted.register_entry.register_id = switch.id("registers", "last")
    wanted.register_entry.index.index = 1
    assert switch.read(wanted)[0].register_entry.data.bitstring == b"red"
    wanted.register_entry.data.bitstring = b"blue"
    switch.write(wanted, kind=MODIFY)
    assert switch.engine.read_register(switch.engine.info.registers[0], 1, 1) == [7]


def test_replicas_have_the_ports_of_the_standard_metadata(switch: Switch, program: Program) -> None:
    """Where a program's standard_metadata_t has translated ports, groups and clone sessions say their names."""
    control = device_config.Control(port_type="port_name_t").member()
    json = "{" + control + "}"
    switch.context.schema = Schema(program.p4info, switch.engine, json=json, interfaces=lambda: INTERFACES)
    group = p4r.MulticastGroupEntry(multicast_group_id=1)
    for port in (b"eth2", b"5"):
        group.replicas.add(port=port, instance=1)
    wanted = p4r.Entity(packet_replication_engine_entry=p4r.PacketReplicationEngineEntry(multicast_group_entry=group))
    switch.write(wanted)
    assert next(iter(switch.engine.multicasts(1))).replicas == ((2, 1), (5, 1))
    assert switch.read(wanted) == [wanted]
    group.replicas[0].port = b"eth7"
    wanted.packet_replication_engine_entry.multicast_group_entry.CopyFrom(group)
    with pytest.raises(InvalidArgument, match="no port"):
        switch.write(wanted, kind=MODIFY)


def test_strings_run_out_by_name_and_survive_a_new_program() -> None:
    """A type of two bits has room for four strings; the next program knows them, if it has room."""
    old = Strings("small_t", 2, {"zero": 0}, dict, ports=False)
    assert [old.decode(s, "x") for s in (b"a", b"2", b"b")] == [3, 2, 1]
    with pytest.raises(ResourceExhausted, match="small_t"):
        old.decode(b"c", "x")
    assert [old.encode(v) for v in range(4)] == [b"zero", b"b", b"2", b"a"]

    new = Strings("small_t", 2, {}, dict, ports=False)
    new.adopt(old)
    assert new.decode(b"b", "x", new=False) == 1
    with pytest.raises(FailedPrecondition, match="small_t"):
        Strings("small_t", 1, {}, dict, ports=False).adopt(old)


@pytest.mark.parametrize(("bits", "text", "other", "value"), [
    (32, b"10.0.0.1", b"10.0.0.1", 0x0A000001),
    (48, b"00:00:5e:00:53:01", b"00:00:5E:00:53:01", 0x00005E005301),
    (128, b"2001:db8::1", b"2001:0db8::0001", 0x20010DB8000000000000000000000001),
])
def test_addresses_are_what_they_say(bits: int, text: bytes, other: bytes, value: int) -> None:
    """Packets have addresses, so no number is made up for one; another spelling of it is the same address."""
    names = Strings("address_t", bits, {}, dict, ports=False)
    assert names.decode(text, "x") == value
    assert names.encode(value) == text
    assert names.decode(other, "x") == value


def test_a_number_that_a_string_has_taken_is_written_otherwise() -> None:
    """What the data plane made of itself has a string too, and that string means just this number."""
    names = Strings("t", 4, {"3": 5}, dict, ports=False)
    assert names.encode(3) == b"3'"
    assert names.decode(b"3'", "x", new=False) == 3
    assert names.decode(b"3", "x") == 5


def test_packets_and_readers_take_no_strings_from_the_controller(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever values a host brings, and whatever a reader asks for, strings that are written find numbers."""
    names = Strings("t", 4, {}, dict, ports=False)
    assert [names.encode(value) for value in range(16)] == [str(value).encode() for value in range(16)]
    assert names.decode(b"7", "x") == 7
    made = [names.decode(b"s%d" % i, "x") for i in range(15)]
    assert sorted(made) == sorted(set(range(16)) - {7})
    with pytest.raises(ResourceExhausted, match="all values"):
        names.decode(b"another", "x")

    addresses = Strings("address_t", 32, {}, dict, ports=False)
    assert addresses.encode(0x0A000001) == b"167772161"
    assert addresses.decode(b"10.0.0.1", "x") == 0x0A000001
    assert addresses.encode(0x0A000001) == b"10.0.0.1"
    assert addresses.decode(b"167772161", "x", new=False) == 0x0A000001

    ports = Strings("t", 8, {}, lambda: {"eth5": 5}, ports=False)
    assert ports.encode(5) == b"5"
    assert (ports.decode(b"eth5", "x"), ports.encode(5)) == (5, b"eth5")

    monkeypatch.setattr(translation, "STRINGS_MAX", 2)
    monkeypatch.setattr(translation, "SHOWN_MAX", 3)
    wide = Strings("t", 128, {}, dict, ports=False)
    for value in range(10):
        wide.encode(value)
        wide.decode(b"2001:db8::%d" % value, "x", new=False)
    assert wide.decode(b"blue", "x") != wide.decode(b"red", "x")
    with pytest.raises(ResourceExhausted, match="2 strings"):
        wide.decode(b"green", "x")


def test_strings_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A million strings of the longest kind would be gigabytes."""
    monkeypatch.setattr(translation, "STRING_BYTES_MAX", 100)
    names = Strings("t", 32, {}, dict, ports=False)
    names.decode(b"a" * 60, "x")
    with pytest.raises(ResourceExhausted, match="MiB"):
        names.decode(b"b" * 60, "x")
    assert names.decode(b"a" * 60, "x") == 0xFFFFFFFF
