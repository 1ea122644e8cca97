# SPDX-License-Identifier: Apache-2.0
"""Const entries and actions with a scope: what a controller may write of them, and what RECONCILE keeps."""

from __future__ import annotations

from collections.abc import Iterator

import grpc
import pytest
from finsy.proto import p4r

from softswitch.compiler.driver import compile_source
from softswitch.p4runtime.program import Compiler
from switch_support.client import DELETE, INSERT, MODIFY, Client, code_of, serving

Set = p4r.SetForwardingPipelineConfigRequest
INVALID, NOT_FOUND, DENIED = 3, 5, 7

SOURCE = """
#include <core.p4>
#include <v1model.p4>
header in_t { bit<8> a; }
struct headers_t { in_t i; }
struct meta_t { bit<2> color; }
parser Parse(packet_in p, out headers_t h, inout meta_t m, inout standard_metadata_t s) {
    state start { p.extract(h.i); transition accept; }
}
control None(inout headers_t h, inout meta_t m) { apply { } }
control NoEgress(inout headers_t h, inout meta_t m, inout standard_metadata_t s) { apply { } }
control Work(inout headers_t h, inout meta_t m, inout standard_metadata_t s) {
    direct_meter<bit<2>>(MeterType.packets) rate;
    direct_counter(CounterType.packets) hits;
    action to(bit<9> port) { s.egress_spec = port; }
    action to_metered(bit<9> port) { rate.read(m.color); s.egress_spec = port; }
    @name("fixed") table fixed {
        key = { h.i.a: exact; }
        actions = { to_metered; NoAction; }
        const entries = { 1: to_metered(5); 2: to_metered(5); }
        const default_action = NoAction();
        meters = rate;
        counters = hits;
    }
    @name("scoped") table scoped {
        key = { h.i.a: exact; }
        actions = { @tableonly to; @defaultonly NoAction; }
    }
    apply { fixed.apply(); scoped.apply(); }
}
control Write(packet_out p, in headers_t h) { apply { p.emit(h.i); } }
V1Switch(Parse(), None(), Work(), NoEgress(), None(), Write()) main;
"""
FIRST = compile_source(SOURCE, "first.p4")
FIXED, SCOPED = (table.preamble.id for table in FIRST.p4info.tables)
TO, METERED, NOTHING = (next(a.preamble.id for a in FIRST.p4info.actions if a.preamble.name == name)
                        for name in ("Work.to", "Work.to_metered", "NoAction"))
RATE = p4r.MeterConfig(cir=1, cburst=2, pir=3, pburst=4)


def config(source: str) -> p4r.ForwardingPipelineConfig:
    program = compile_source(source, "pushed.p4")
    return p4r.ForwardingPipelineConfig(p4info=program.p4info, p4_device_config=program.preprocessed.encode())


@pytest.fixture
def client() -> Iterator[Client]:
    with serving(builder=Compiler()) as (_, address), Client(address) as client:
        client.become_primary()
        client.push(config(SOURCE))
        yield client


def entry(number: int, table: int = FIXED) -> p4r.Entity:
    made = p4r.Entity(table_entry=p4r.TableEntry(table_id=table))
    made.table_entry.match.add(field_id=1).exact.value = bytes([number])
    return made


def metered(number: int) -> p4r.Entity:
    made = entry(number)
    made.table_entry.meter_config.CopyFrom(RATE)
    made.table_entry.counter_data.packet_count = 77
    return made


def test_the_meter_and_counter_of_a_const_entry_are_written_without_its_action(client: Client) -> None:
    """A MODIFY that names an action or metadata is PERMISSION_DENIED, as every INSERT and DELETE is."""
    acting, noted = metered(1), metered(1)
    acting.table_entry.action.action.action_id = NOTHING
    noted.table_entry.metadata = b"mine"
    assert client.codes((MODIFY, acting), (MODIFY, noted), (MODIFY, metered(3))) == [DENIED, DENIED, NOT_FOUND]
    assert client.codes((INSERT, acting)) == client.codes((DELETE, entry(1))) == [DENIED]
    client.write((MODIFY, metered(1)))
    asked = entry(1)
    asked.table_entry.meter_config.SetInParent()
    asked.table_entry.counter_data.SetInParent()
    (found,) = client.read(asked)
    assert (found.table_entry.meter_config, found.table_entry.counter_data.packet_count) == (RATE, 77)
    assert found.table_entry.action.action.action_id == METERED


def test_an_action_of_another_scope_is_denied(client: Client) -> None:
    """The table has it, but in entries alone, or as its default alone (P4Runtime 9.1.2)."""
    row, default = entry(1, SCOPED), p4r.Entity(table_entry=p4r.TableEntry(table_id=SCOPED, is_default_action=True))
    row.table_entry.action.action.action_id = NOTHING
    default.table_entry.action.action.action_id = TO
    default.table_entry.action.action.params.add(param_id=1, value=b"\1")
    assert client.codes((INSERT, row)) == client.codes((MODIFY, default)) == [DENIED]


def test_reconcile_keeps_the_meters_and_counters_of_const_entries(client: Client) -> None:
    """The meter and counter of a const default action are kept as well; without the entry, the request is refused."""
    default = p4r.DirectCounterEntry(table_entry=p4r.TableEntry(table_id=FIXED, is_default_action=True))
    default.data.packet_count = 5
    client.write((MODIFY, metered(1)), (MODIFY, p4r.Entity(direct_counter_entry=default)))
    table, first = p4r.TableEntry(table_id=FIXED), p4r.TableEntry(table_id=FIXED, is_default_action=True)
    asked = [p4r.Entity(direct_meter_entry=p4r.DirectMeterEntry(table_entry=table)),
             *(p4r.Entity(direct_counter_entry=p4r.DirectCounterEntry(table_entry=e)) for e in (table, first))]
    before = client.read(*asked)
    client.push(config(SOURCE.replace("1: to_metered(5)", "1: to_metered(6)")), Set.RECONCILE_AND_COMMIT)
    assert client.read(*asked) == before
    with pytest.raises(grpc.RpcError) as refused:
        client.push(config(SOURCE.replace("1: to_metered(5)", "3: to_metered(5)")), Set.RECONCILE_AND_COMMIT)
    assert code_of(refused.value) is grpc.StatusCode.FAILED_PRECONDITION
    assert client.read(*asked) == before
