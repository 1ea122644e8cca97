# SPDX-License-Identifier: Apache-2.0
"""Table entries over P4Runtime: every match kind, every refusal by its code, wildcard reads."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from finsy.proto import p4r

from softswitch.p4runtime import entities
from switch_support.client import DELETE, INSERT, MODIFY, Client, code_of, details, primary
from switch_support.entries import (
    DROP,
    ENTRIES,
    EXACT,
    FIXED,
    FORWARD,
    LPM,
    RANGE,
    SELECT,
    TERNARY,
    entry,
    exact,
    forward,
    in_range,
    lpm,
    ternary,
)

OK, INVALID, NOT_FOUND, EXISTS, DENIED, OUT_OF_RANGE = 0, 3, 5, 6, 7, 11


@pytest.fixture(scope="module")
def switch() -> Iterator[Client]:
    with primary() as (_, client, _stream):
        yield client


@pytest.fixture
def client(switch: Client) -> Iterator[Client]:
    """The switch with empty tables."""
    yield switch
    for entity in switch.read(p4r.Entity(table_entry=p4r.TableEntry())):
        if not entity.table_entry.is_const:
            switch.write((DELETE, entity))


def same(client: Client, table: int) -> list[p4r.TableEntry]:
    """Entries of a table as read, without what the server adds."""
    found = []
    for entity in client.read(entry(table)):
        found.append(entity.table_entry)
    return found


@pytest.mark.parametrize("wanted", ENTRIES, ids=range(len(ENTRIES)))
def test_entries_read_back_as_they_were_written(client: Client, wanted: p4r.Entity) -> None:
    """Insert, wildcard read, read of one, modify, delete: the same canonical message each time."""
    table = wanted.table_entry.table_id
    client.write((INSERT, wanted))
    assert same(client, table) == [wanted.table_entry]

    one = p4r.Entity()
    one.CopyFrom(wanted)
    one.table_entry.ClearField("action")
    assert [e.table_entry for e in client.read(one)] == [wanted.table_entry]

    changed = p4r.Entity()
    changed.CopyFrom(wanted)
    changed.table_entry.action.CopyFrom(forward(9))
    changed.table_entry.controller_metadata = 77
    changed.table_entry.metadata = b"mine"
    client.write((MODIFY, changed))
    assert same(client, table) == [changed.table_entry]

    client.write((DELETE, one))
    assert same(client, table) == []
    assert client.read(one) == []


def test_a_wildcard_read_of_all_tables_gives_every_entry(client: Client) -> None:
    """Table id 0 names all tables, const entries included."""
    client.write(*((INSERT, e) for e in ENTRIES))
    found = [e.table_entry for e in client.read(entry(0))]
    assert [e for e in found if not e.is_const] == [e.table_entry for e in ENTRIES]
    assert {e.table_id for e in found if e.is_const} == {FIXED}


REFUSED = {
    "unknown table": (INSERT, entry(0x02FFFFFF, exact(b"\1"), action=forward(1)), INVALID),
    "no table": (INSERT, entry(0, exact(b"\1"), action=forward(1)), INVALID),
    "unknown field": (INSERT, entry(EXACT, exact(b"\1", 9), action=forward(1)), INVALID),
    "field twice": (INSERT, entry(EXACT, exact(b"\1"), exact(b"\2"), action=forward(1)), INVALID),
    "wrong kind": (INSERT, entry(EXACT, ternary(b"\1", b"\1"), action=forward(1)), INVALID),
    "missing exact field": (INSERT, entry(EXACT, action=forward(1)), INVALID),
    "empty bytes": (INSERT, entry(EXACT, exact(b""), action=forward(1)), INVALID),
    "value too wide": (INSERT, entry(EXACT, exact(b"\1\0\0\0\0"), action=forward(1)), OUT_OF_RANGE),
    "param too wide": (INSERT, entry(EXACT, exact(b"\1"), action=forward(b"\x02\x00")), OUT_OF_RANGE),
    "no action": (INSERT, entry(EXACT, exact(b"\1")), INVALID),
    "unknown action": (
        INSERT,
        entry(EXACT, exact(b"\1"), action=p4r.TableAction(action=p4r.Action(action_id=7))),
        INVALID,
    ),
    "missing param": (
        INSERT,
        entry(EXACT, exact(b"\1"), action=p4r.TableAction(action=p4r.Action(action_id=FORWARD))),
        INVALID,
    ),
    "priority on exact": (INSERT, entry(EXACT, exact(b"\1"), action=forward(1), priority=1), INVALID),
    "no priority": (INSERT, entry(TERNARY, ternary(b"\1", b"\1"), action=forward(1)), INVALID),
    "prefix 0": (INSERT, entry(LPM, exact(b"\1"), lpm(b"\0", 0), action=forward(1)), INVALID),
    "prefix too long": (INSERT, entry(LPM, exact(b"\1"), lpm(b"\0", 33), action=forward(1)), INVALID),
    "bits beyond prefix": (INSERT, entry(LPM, exact(b"\1"), lpm(b"\x0a\0\0\1", 8), action=forward(1)), INVALID),
    "mask 0": (INSERT, entry(TERNARY, ternary(b"\0", b"\0"), action=forward(1), priority=1), INVALID),
    "bits outside mask": (INSERT, entry(TERNARY, ternary(b"\3", b"\1"), action=forward(1), priority=1), INVALID),
    "low above high": (INSERT, entry(RANGE, in_range(b"\2", b"\1"), action=forward(1), priority=1), INVALID),
    "full range": (INSERT, entry(RANGE, in_range(b"\0", b"\xff\xff"), action=forward(1), priority=1), INVALID),
    "const entries": (INSERT, entry(FIXED, ternary(b"\1", b"\1"), action=forward(1), priority=1), DENIED),
    "modify what is not there": (MODIFY, entry(EXACT, exact(b"\1"), action=forward(1)), NOT_FOUND),
    "delete what is not there": (DELETE, entry(EXACT, exact(b"\1")), NOT_FOUND),
    "idle timeout unsupported": (INSERT, entry(LPM, exact(b"\1"), action=forward(1), idle_timeout_ns=1), INVALID),
    "time since the last hit": (
        INSERT,
        entry(EXACT, exact(b"\1"), action=forward(1), time_since_last_hit=p4r.TableEntry.IdleTimeout(elapsed_ns=1)),
        INVALID,
    ),
    "default that ages": (
        MODIFY,
        entry(EXACT, action=forward(1), is_default_action=True, idle_timeout_ns=1),
        INVALID,
    ),
    "default's time since the last hit": (
        MODIFY,
        entry(EXACT, action=forward(1), is_default_action=True, time_since_last_hit=p4r.TableEntry.IdleTimeout()),
        INVALID,
    ),
    "default inserted": (INSERT, entry(EXACT, action=forward(1), is_default_action=True), INVALID),
    "default deleted": (DELETE, entry(EXACT, is_default_action=True), INVALID),
    "default with match": (MODIFY, entry(EXACT, exact(b"\1"), action=forward(1), is_default_action=True), INVALID),
    "const default": (MODIFY, entry(FIXED, action=forward(1), is_default_action=True), DENIED),
    "direct action on a profile": (INSERT, entry(SELECT, exact(b"\1"), action=forward(1)), INVALID),
    "member on a plain table": (
        INSERT,
        entry(EXACT, exact(b"\1"), action=p4r.TableAction(action_profile_member_id=1)),
        INVALID,
    ),
    "unknown member": (
        INSERT,
        entry(SELECT, exact(b"\1"), action=p4r.TableAction(action_profile_member_id=1)),
        NOT_FOUND,
    ),
    "peak rate below the committed one": (
        INSERT,
        entry(EXACT, exact(b"\1"), action=forward(1), meter_config=p4r.MeterConfig(cir=10, cburst=1, pir=5, pburst=1)),
        INVALID,
    ),
    "negative count": (
        INSERT,
        entry(EXACT, exact(b"\1"), action=forward(1), counter_data=p4r.CounterData(packet_count=-1)),
        INVALID,
    ),
    "default's peak rate below the committed one": (
        MODIFY,
        entry(EXACT, action=forward(2), is_default_action=True, meter_config=p4r.MeterConfig(cir=10, pir=5)),
        INVALID,
    ),
    "default's negative count": (
        MODIFY,
        entry(EXACT, action=forward(3), is_default_action=True, counter_data=p4r.CounterData(byte_count=-1)),
        INVALID,
    ),
    "default's meter where there is none": (
        MODIFY,
        entry(LPM, action=forward(4), is_default_action=True, meter_config=p4r.MeterConfig()),
        INVALID,
    ),
    "default's counter where there is none": (
        MODIFY,
        entry(LPM, action=forward(5), is_default_action=True, counter_data=p4r.CounterData()),
        INVALID,
    ),
    "empty entity": (INSERT, p4r.Entity(), INVALID),
    "no type": (p4r.Update.UNSPECIFIED, entry(EXACT, exact(b"\1"), action=forward(1)), INVALID),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_wrong_is_refused_by_its_code(client: Client, name: str) -> None:
    """Each bad update gets the specification's code, and nothing changes."""
    kind, entity, code = REFUSED[name]
    state = entry(0), entry(0, is_default_action=True)
    before = client.read(*state)
    assert client.codes((kind, entity)) == [code]
    assert client.read(*state) == before


def test_a_failed_update_does_not_stop_the_others(client: Client) -> None:
    """CONTINUE_ON_ERROR: one error a failed update, OK for the rest, in order; the message names table and field."""
    good, bad = entry(EXACT, exact(b"\1"), action=forward(1)), entry(EXACT, exact(b"\1\1\1\1\1"), action=forward(1))
    with pytest.raises(grpc.RpcError) as caught:
        client.write((INSERT, good), (INSERT, bad), (INSERT, good), (DELETE, good))
    assert code_of(caught.value) is grpc.StatusCode.UNKNOWN
    errors = details(caught.value)
    assert [e.canonical_code for e in errors] == [OK, OUT_OF_RANGE, EXISTS, OK]
    assert "I.exact" in errors[1].message
    assert "h.c" in errors[1].message
    assert same(client, EXACT) == []


def test_unsupported_idle_timeouts_are_refused_in_bmv2s_words(client: Client) -> None:
    """Control planes of courses compare the message, not the code alone."""
    with pytest.raises(grpc.RpcError) as caught:
        client.write((INSERT, entry(LPM, exact(b"\1"), action=forward(1), idle_timeout_ns=1)))
    (error,) = details(caught.value)
    assert error.message == "idle_timeout_ns must be set to 0 for tables which do not support idle timeout"


def test_byte_strings_need_not_be_canonical_but_are_read_so(client: Client) -> None:
    """Leading zeros are accepted and gone when read back (P4Runtime 8.4)."""
    client.write((INSERT, entry(EXACT, exact(b"\0\0\0\0\0\x07"), action=forward(b"\0\0\x03"))))
    assert same(client, EXACT) == [entry(EXACT, exact(b"\x07"), action=forward(3)).table_entry]


def test_default_actions_are_set_read_and_reset(client: Client) -> None:
    """MODIFY sets a default action; without an action it goes back to the program's."""
    ask = entry(EXACT, is_default_action=True)
    (original,) = client.read(ask)
    assert original.table_entry.action.action.action_id == DROP
    wanted = entry(EXACT, action=forward(4), is_default_action=True, metadata=b"mine", controller_metadata=7)
    client.write((MODIFY, wanted))
    assert client.read(ask) == [wanted]
    client.write((MODIFY, ask))
    assert client.read(ask) == [original]


@pytest.mark.parametrize("filters", [
    {"action": p4r.TableAction(action=p4r.Action(action_id=FORWARD))}, {"metadata": b"one"}, {"controller_metadata": 5},
])
def test_a_read_selects_entries_by_action_and_metadata(client: Client, filters: dict[str, Any]) -> None:
    """Whatever parameters the action has (P4Runtime, "Wildcard Reads"), with a match as well as without."""
    one = entry(EXACT, exact(b"\1"), action=forward(1), metadata=b"one", controller_metadata=5)
    drop = p4r.TableAction(action=p4r.Action(action_id=DROP))
    other = entry(EXACT, exact(b"\2"), action=drop, metadata=b"two", controller_metadata=6)
    client.write((INSERT, one), (INSERT, other))
    assert client.read(entry(EXACT, **filters)) == [one]
    assert client.read(entry(EXACT, exact(b"\1"), **filters), entry(EXACT, exact(b"\2"), **filters)) == [one]


def one_shot(number: int) -> p4r.Entity:
    actions = p4r.ActionProfileActionSet(action_profile_actions=[
        p4r.ActionProfileAction(action=forward(1).action, weight=1)])
    return entry(SELECT, exact(bytes([number])), action=p4r.TableAction(action_profile_action_set=actions))


def test_entries_of_one_shot_sets_that_change_while_they_are_read_are_read_as_they_are_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A long read goes on after a write with what is there, not with groups that no client knows."""
    monkeypatch.setattr(entities, "READ_PART", 1)
    with primary() as (server, client, _):
        client.write(*((INSERT, one_shot(number)) for number in range(1, 6)))
        context = server.running().context
        parts = entities.read_in_parts(context, [entry(SELECT)])
        first, = next(parts)
        others = [number for number in range(1, 6) if one_shot(number) != first]
        client.write((MODIFY, one_shot(others[0])), *((DELETE, one_shot(number)) for number in others[1:]))
        assert list(parts) == [[one_shot(others[0])]]


def test_a_read_waits_for_a_write_that_is_being_executed() -> None:
    """It sees all or nothing of it (P4Runtime, "Parallelism of Read and Write Requests")."""
    with primary() as (server, client, _):
        asked = p4r.ReadRequest(device_id=1, entities=[entry(EXACT)])
        with server.running().context.changing, pytest.raises(grpc.RpcError) as late:
            list(client.stub.Read(asked, timeout=0.2))
        assert code_of(late.value) is grpc.StatusCode.DEADLINE_EXCEEDED
        assert client.read(entry(EXACT)) == []


def test_direct_resources_come_and_are_set_with_their_entry(client: Client) -> None:
    """Counter and meter of an entry: in TableEntry where asked, by their own entities, by wildcard."""
    row = entry(EXACT, exact(b"\x09"), action=forward(1))
    row.table_entry.meter_config.CopyFrom(p4r.MeterConfig(cir=1, cburst=2, pir=3, pburst=4))
    row.table_entry.counter_data.CopyFrom(p4r.CounterData(packet_count=5, byte_count=600))
    client.write((INSERT, row))

    ask = entry(EXACT)
    ask.table_entry.counter_data.SetInParent()
    ask.table_entry.meter_config.SetInParent()
    assert client.read(ask) == [row]

    counter = p4r.Entity()
    counter.direct_counter_entry.table_entry.table_id = EXACT
    counter.direct_counter_entry.table_entry.match.append(exact(b"\x09"))
    (found,) = client.read(counter)
    assert found.direct_counter_entry.data == p4r.CounterData(packet_count=5, byte_count=600)
    found.direct_counter_entry.data.packet_count = 50
    meter = p4r.Entity()
    meter.direct_meter_entry.table_entry.CopyFrom(counter.direct_counter_entry.table_entry)
    meter.direct_meter_entry.config.CopyFrom(p4r.MeterConfig(cir=10, cburst=20, pir=30, pburst=40))
    client.write((MODIFY, found), (MODIFY, meter))
    assert client.read(counter) == [found]
    assert client.read(p4r.Entity(direct_meter_entry=p4r.DirectMeterEntry())) == [meter]
    assert client.codes((INSERT, found)) == [INVALID]
    meter.direct_meter_entry.config.pir = 9  # below the committed rate
    assert client.codes((MODIFY, meter)) == [INVALID]


@pytest.mark.slow
def test_ten_thousand_entries_are_read_back_whole(client: Client) -> None:
    """Large batches go in, and wildcard reads are paged without losing or repeating any."""
    rows = [entry(EXACT, exact(i.to_bytes(3, "big").lstrip(b"\0")), action=forward(1)) for i in range(1, 10_001)]
    client.write(*((INSERT, row) for row in rows))
    found = sorted(e.match[0].exact.value.rjust(3, b"\0") for e in same(client, EXACT))
    assert found == [i.to_bytes(3, "big") for i in range(1, 10_001)]
    client.write(*((DELETE, row) for row in rows))
