# SPDX-License-Identifier: Apache-2.0
"""Tables: which entries match, which one wins, what is refused; compared with a reference that tries every entry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from softswitch.engine.codec import DELETE, INSERT, split, table_write
from softswitch.engine.engine import read_idle_entry
from softswitch.engine.entities import Count, DoAction, DoGroup, DoMember, Entry, EventKind, Group, MeterConfig
from softswitch.engine.errors import (
    AlreadyExists,
    EngineError,
    FailedPrecondition,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
)
from softswitch.engine.local import LocalEngine
from softswitch.engine.program_info import TableInfo
from switch_support.insides import transport
from switch_support.probe import PROBE, Op, probe, read

ONES16, ONES32 = 0xFFFF, 0xFFFFFFFF


@pytest.fixture(scope="module")
def shared() -> Iterator[LocalEngine]:
    with LocalEngine.open(PROBE) as engine:
        yield engine


@pytest.fixture
def engine(shared: LocalEngine) -> LocalEngine:
    shared.reset()
    shared.events.clear()
    shared.take()
    return shared


def entry(table: TableInfo, fields: list[tuple[int, int]], port: int, priority: int = 0) -> Entry:
    """An entry that forwards to `port`."""
    key, mask = table.pack_key(fields)
    forward = table.action("forward")
    return Entry(table, key, mask, DoAction(forward.index, forward.pack([port])), priority)


def look_up(engine: LocalEngine, op: Op, b: int, c: int) -> int | None:
    """The port that the table of this op gives, or None for a miss (the default action drops)."""
    out = engine.inject(1, probe(op, b=b, c=c))
    return out[0][0] if out else None


def test_an_exact_entry_matches_its_key_alone(engine: LocalEngine) -> None:
    """An exact entry matches its own key only, and a lookup reports whether it hit."""
    engine.insert(entry(engine.table("exact"), [(9, ONES32)], 7))

    ((port, frame),) = engine.inject(1, probe(Op.EXACT, c=9))
    assert (port, read(frame).a) == (7, 1)
    assert look_up(engine, Op.EXACT, 0, 8) is None


def test_the_same_key_again_sees_what_changed_between(engine: LocalEngine) -> None:
    """Packets come in runs of one key, and an entry that comes, changes or goes between two of them holds at once."""
    table = engine.table("ternary")
    wide = entry(table, [(0, 0), (0, 0)], 3, priority=1)
    narrow = entry(table, [(0, 0), (5, ONES32)], 4, priority=2)
    engine.insert(wide)
    assert [look_up(engine, Op.TERNARY, 0, 5) for _ in range(2)] == [3, 3]
    engine.insert(narrow)
    assert [look_up(engine, Op.TERNARY, 0, 5) for _ in range(2)] == [4, 4]
    engine.modify(entry(table, [(0, 0), (5, ONES32)], 6, priority=2))
    assert look_up(engine, Op.TERNARY, 0, 5) == 6
    assert look_up(engine, Op.TERNARY, 0, 9) == 3
    engine.delete(narrow)
    assert [look_up(engine, Op.TERNARY, 0, 5) for _ in range(2)] == [3, 3]
    engine.delete(wide)
    assert look_up(engine, Op.TERNARY, 0, 5) is None


def test_the_longest_prefix_wins(engine: LocalEngine) -> None:
    """The longest prefix wins among entries with the same exact fields."""
    table = engine.table("lpm")
    lpm = table.keys[1]
    for length, port in ((0, 1), (8, 2), (24, 3), (32, 4)):
        engine.insert(entry(table, [(5, ONES16), lpm.prefix(0x0A000001, length)], port))

    assert [look_up(engine, Op.LPM, 5, c) for c in (0x0A000001, 0x0A000002, 0x0A010000, 0x0B000000)] == [4, 3, 2, 1]
    assert look_up(engine, Op.LPM, 6, 0x0A000001) is None


def test_of_equal_priorities_the_lowest_handle_wins_and_freed_handles_are_taken_first(engine: LocalEngine) -> None:
    """BMv2's tie rule: the place in its handle list decides, not the time of insertion."""
    table = engine.table("ternary")
    first, second, third = (entry(table, [(0, 0), (bit, bit)], port, 5) for bit, port in ((1, 1), (2, 2), (4, 3)))
    engine.insert(first)
    engine.insert(second)
    assert look_up(engine, Op.TERNARY, 0, 7) == 1

    engine.delete(first)
    engine.insert(third)

    assert look_up(engine, Op.TERNARY, 0, 7) == 3


def test_range_ends_are_inside(engine: LocalEngine) -> None:
    """Both ends of a range match."""
    engine.insert(entry(engine.table("range"), [(10, 20), (0, 0)], 4, 1))

    assert [look_up(engine, Op.RANGE, b, 0) for b in (9, 10, 20, 21)] == [None, 4, 4, None]


def test_optional_matches_a_value_or_anything(engine: LocalEngine) -> None:
    """An optional field matches a value or anything; between the two, the priority decides."""
    table = engine.table("optional")
    engine.insert(entry(table, [table.keys[0].any], 1, 1))
    engine.insert(entry(table, [(5, ONES32)], 2, 2))

    assert [look_up(engine, Op.OPTIONAL, 0, c) for c in (5, 6)] == [2, 1]


def test_const_entries_are_there_and_cannot_be_changed(engine: LocalEngine) -> None:
    """They match by priority, can be read, and refuse writes; so does a const default."""
    table = engine.table("fixed")
    assert [look_up(engine, Op.CONST, b, c) for b, c in ((1, 7), (2, 7), (2, 8))] == [2, 3, None]

    have = list(engine.entries(table))
    assert [(e.fields, e.priority) for e in have] == [([(1, ONES16), (0, 0)], 2), ([(0, 0), (7, 0xFF)], 1)]
    for write in (engine.insert, engine.modify, engine.delete):
        with pytest.raises(PermissionDenied):
            write(have[0])
    with pytest.raises(PermissionDenied):
        engine.clear(table)
    with pytest.raises(PermissionDenied):
        engine.set_default(table, DoAction(2))


def test_what_cannot_be_is_refused_by_name(engine: LocalEngine) -> None:
    """Each wrong request says what is wrong with it and changes nothing."""
    exact, lpm, ternary = engine.table("exact"), engine.table("lpm"), engine.table("ternary")
    good = entry(exact, [(9, ONES32)], 7)
    wrong = [
        (replace(good, mask=b"\xff\xff\xff\0"), "all ones"),
        (replace(good, priority=1), "priority must be 0"),
        (replace(good, do=DoAction(3)), "no action 3"),
        (replace(good, do=DoAction(0, b"\x02\x00")), r"does not fit bit<9>"),
        (replace(good, do=DoAction(0, b"\x02")), "expected 2 bytes of parameters, got 1"),
        (replace(good, do=DoMember(1)), "takes actions"),
        (entry(lpm, [(5, ONES16), (0, 0x00FF0000)], 1), "must be a prefix"),
        (entry(engine.table("range"), [(20, 10), (0, 0)], 1, 1), "low end is above"),
        (entry(engine.table("optional"), [(0, 1)], 1, 1), "all ones or zero"),
        (replace(entry(ternary, [(0, 0), (0, 0)], 1, 1), idle_timeout_ns=5000), "does not support idle"),
        (replace(good, key=b"\0"), "expected a key and mask of 4 bytes"),
        (Entry(engine.table("select"), b"\0\0", b"\xff\xff", DoAction(0, b"\0\0")), "takes members or groups"),
    ]
    for bad, why in wrong:
        with pytest.raises(InvalidArgument, match=why):
            engine.insert(bad)
    assert all(not list(engine.entries(table)) for table in (exact, lpm, ternary))
    for what, missing in (("table", engine.table), ("register", engine.register), ("counter", engine.counter)):
        with pytest.raises(InvalidArgument, match=f"{what} nope is unknown"):
            missing("nope")


def test_duplicates_absences_and_full_tables_have_their_errors(engine: LocalEngine) -> None:
    """ALREADY_EXISTS, NOT_FOUND, RESOURCE_EXHAUSTED; equal matches of other priority are other entries."""
    table = engine.table("optional")
    one = entry(table, [(5, ONES32)], 2, 2)
    engine.insert(one)
    with pytest.raises(AlreadyExists):
        engine.insert(one)
    for priority in (3, 4, 5):
        engine.insert(replace(one, priority=priority))
    with pytest.raises(ResourceExhausted, match="its size is 4"):
        engine.insert(replace(one, priority=6))
    for write in (engine.modify, engine.delete):
        with pytest.raises(NotFound):
            write(replace(one, priority=6))
    with pytest.raises(NotFound):
        engine.entry(table, one.key, one.mask, 6)


def test_modify_changes_the_action_and_keeps_the_rest(engine: LocalEngine) -> None:
    """A modified entry keeps its handle and counter."""
    table = engine.table("exact")
    old = entry(table, [(9, ONES32)], 7)
    handle = engine.insert(old)
    look_up(engine, Op.EXACT, 0, 9)

    assert engine.modify(replace(entry(table, [(9, ONES32)], 6), cookie=99)) == handle

    now = engine.entry(table, old.key, old.mask)
    assert (now.handle, now.cookie, now.count) == (handle, 99, Count(1, 8))
    assert look_up(engine, Op.EXACT, 0, 9) == 6


def test_the_default_action_can_be_set_and_restored(engine: LocalEngine) -> None:
    """A miss runs the default action with its parameters, which can be set and restored."""
    table = engine.table("exact")
    setting = table.action("set")
    engine.set_default(table, DoAction(setting.index, setting.pack([0x01020304, 3])))

    ((port, frame),) = engine.inject(1, probe(Op.EXACT, c=1))
    assert (port, read(frame).c, read(frame).a) == (3, 0x01020304, 0)
    assert engine.default(table).do == DoAction(setting.index, setting.pack([0x01020304, 3]))

    engine.set_default(table, None)
    assert look_up(engine, Op.EXACT, 0, 1) is None


def test_direct_counters_and_meters_belong_to_entries(engine: LocalEngine) -> None:
    """Counted on every hit with the received length; the meter's colour arrives; both can be written."""
    table = engine.table("exact")
    one = entry(table, [(9, ONES32)], 7)
    engine.insert(one)
    engine.write_direct_counter(table, one, Count(100, 1000))
    engine.write_direct_meter(table, one, MeterConfig(cir=1, cburst=20, pir=1, pburst=40))

    colors = [read(engine.inject(1, probe(Op.EXACT, c=9, rest=bytes(2)))[0][1]).b for _ in range(5)]

    assert colors == [0, 0, 1, 1, 2]
    now = engine.entry(table, one.key, one.mask)
    assert (now.count, now.meter) == (Count(105, 1050), MeterConfig(1, 20, 1, 40))
    other = engine.table("lpm")
    with pytest.raises(InvalidArgument, match="no direct counter"):
        engine.write_direct_counter(other, None, Count())


def test_an_idle_entry_is_reported_each_time_that_its_timeout_ends(engine: LocalEngine) -> None:
    """The report carries the entry; a hit and a report start the time again."""
    table = engine.table("exact")
    base, second = engine.now_us, 1_000_000
    engine.insert(replace(entry(table, [(9, ONES32)], 7), idle_timeout_ns=second * 1000, cookie=5))

    assert engine.advance(base + second // 2) == base + second
    engine.inject(1, probe(Op.EXACT, c=9))
    engine.advance(base + second)
    assert engine.events == []
    assert engine.advance(base + second * 3 // 2) == base + second * 5 // 2
    assert [(e.kind, read_idle_entry(e, engine.info).cookie) for e in engine.events] == [(EventKind.IDLE, 5)]
    engine.advance(base + second * 5 // 2 - 1)
    assert len(engine.events) == 1
    engine.advance(base + second * 5 // 2)
    assert len(engine.events) == 2
    engine.advance(base + second * 11 // 4)
    engine.inject(1, probe(Op.EXACT, c=9))
    assert engine.advance(base + second * 7 // 2) == base + second * 15 // 4
    assert len(engine.events) == 2


def test_a_timeout_of_a_nanosecond_does_not_fill_the_stream(engine: LocalEngine) -> None:
    """Further reports of an entry that nothing hits come at least a tenth of a second apart."""
    table = engine.table("exact")
    base = engine.now_us
    engine.insert(replace(entry(table, [(9, ONES32)], 7), idle_timeout_ns=1))
    for now in range(0, 250_000, 1000):
        engine.advance(base + now)
    assert len(engine.events) == 3


def test_idle_entries_are_looked_for_less_often_the_more_there_are(engine: LocalEngine) -> None:
    """Entries whose timeouts end one after another do not cost a look at all of them each; none is missed."""
    table = engine.table("exact")
    base, second, number = engine.now_us, 1_000_000, 4000
    looks = 0
    for i in range(number):
        engine.insert(replace(entry(table, [(i, ONES32)], 7), idle_timeout_ns=second * 1000))
        engine.advance(base + i * 100)
    now = base + second // 2
    while len(engine.events) < number and now < base + 2 * second:
        now = max(now + 1, engine.advance(now))
        looks += 1
    assert len(engine.events) == number
    assert engine.now_us <= base + second + number * 100 + 20_000
    assert looks <= number // 10


def test_reads_page_through_a_large_table(engine: LocalEngine) -> None:
    """All entries come once, whatever the size; batches of writes answer one by one."""
    table = engine.table("exact")
    many = [entry(table, [(i * 7919, ONES32)], i % 500) for i in range(20_000)]

    handles = engine.write_entries("insert", many)
    again = engine.write_entries("insert", many[:10])

    assert len(set(handles)) == 20_000
    assert all(isinstance(error, AlreadyExists) for error in again)
    assert {e.fields[0][0] for e in engine.entries(table)} == {i * 7919 for i in range(20_000)}
    assert [look_up(engine, Op.EXACT, 0, i * 7919) for i in range(0, 20_000, 997)] == [
        i % 500 for i in range(0, 20_000, 997)]
    assert not any(isinstance(r, EngineError) for r in engine.write_entries("delete", many[::2]))
    assert look_up(engine, Op.EXACT, 0, 0) is None
    assert look_up(engine, Op.EXACT, 0, 7919) == 1


@pytest.mark.timeout(60)
@pytest.mark.slow
def test_a_million_writes_leave_the_table_as_one_would(engine: LocalEngine) -> None:
    """Inserted and deleted over and over, in changing order: every write succeeds, and slots do not creep."""
    table = engine.table("exact")
    batches = []
    for part in range(5):
        some = [entry(table, [(i * 2654435761 & ONES32, ONES32)], 1) for i in range(part * 10_000, (part + 1) * 10_000)]
        batches.append((b"".join(table_write(INSERT, e) for e in some),
                        b"".join(table_write(DELETE, e) for e in reversed(some))))
    for _ in range(5):
        for order in ((0, 1, 2, 3, 4), (3, 0, 4, 2, 1)):
            for which in (0, 1):
                for part in order:
                    replies = split(transport(engine).exchange(batches[part][which]))
                    assert not any(isinstance(reply, EngineError) for reply in replies)

    assert list(engine.entries(table)) == []
    assert engine.insert(entry(table, [(9, ONES32)], 7)) & ONES32 == 0


def test_a_selector_spreads_over_its_members_by_hash(engine: LocalEngine) -> None:
    """Choice = hash % members (here identity), by order of creation, weights repeated; empty groups run no action."""
    profile, table = engine.profile("ecmp"), engine.table("select")
    forward = table.action("forward")
    for member, port in ((30, 1), (10, 2), (20, 3)):
        engine.write_member("insert", profile, member, table, DoAction(forward.index, forward.pack([port])))
    engine.write_group("insert", profile, Group(1, ((10, 1), (20, 1), (30, 2))))
    engine.insert(Entry(table, b"\0\x05", b"\xff\xff", DoGroup(1)))
    engine.insert(Entry(table, b"\0\x06", b"\xff\xff", DoMember(20)))

    assert [look_up(engine, Op.SELECT, 5, c) for c in range(5)] == [1, 1, 2, 3, 1]
    assert look_up(engine, Op.SELECT, 6, 0) == 3

    engine.write_group("modify", profile, Group(1, ()))
    assert look_up(engine, Op.SELECT, 5, 0) == 9     # probe: no action ran


def test_members_and_groups_in_use_cannot_go(engine: LocalEngine) -> None:
    """References are counted through entries, groups, modifications and clears."""
    profile, table = engine.profile("ecmp"), engine.table("select")
    forward = table.action("forward")
    engine.write_member("insert", profile, 1, table, DoAction(forward.index, forward.pack([1])))
    engine.write_member("insert", profile, 2, table, DoAction(forward.index, forward.pack([2])))
    engine.write_group("insert", profile, Group(7, ((1, 1),)))
    engine.insert(Entry(table, b"\0\x05", b"\xff\xff", DoGroup(7)))
    with pytest.raises(FailedPrecondition):
        engine.write_group("delete", profile, Group(7, ()))
    with pytest.raises(FailedPrecondition):
        engine.write_member("delete", profile, 1)

    engine.modify(Entry(table, b"\0\x05", b"\xff\xff", DoMember(2)))
    engine.write_group("delete", profile, Group(7, ()))
    engine.write_member("delete", profile, 1)
    with pytest.raises(FailedPrecondition):
        engine.write_member("delete", profile, 2)
    engine.clear(table)
    engine.write_member("delete", profile, 2)

    assert engine.members(profile) == []
    with pytest.raises(NotFound):
        engine.insert(Entry(table, b"\0\x05", b"\xff\xff", DoMember(2)))
    with pytest.raises(NotFound):
        engine.write_group("insert", profile, Group(7, ((1, 1),)))


def test_members_and_groups_read_back(engine: LocalEngine) -> None:
    """Members and groups can be read one by one and all together."""
    profile, table = engine.profile("ecmp"), engine.table("select")
    setting = table.action("set")
    engine.write_member("insert", profile, 5, table, DoAction(setting.index, setting.pack([1, 2])))
    engine.write_group("insert", profile, Group(7, ((5, 3),), max_size=4))

    (member,) = engine.members(profile)
    assert (member.member, member.action_id, member.params) == (5, setting.id, setting.pack([1, 2]))
    assert engine.groups(profile) == engine.groups(profile, 7) == [Group(7, ((5, 3),), 4)]
    with pytest.raises(NotFound):
        engine.groups(profile, 8)
    with pytest.raises(ResourceExhausted, match="add up to 5, more than 4"):
        engine.write_group("modify", profile, Group(7, ((5, 5),), max_size=4))


# ---- against a reference ---------------------------------------------------------------------------------------------

small16 = st.integers(0, 7)
small32 = st.sampled_from([0, 1, 2, 3, 0x0A000000, 0x0A000001, 0x0A0000FF, 0xFFFFFFFF])
masks16 = st.sampled_from([0, 1, 3, 6, ONES16])
masks32 = st.sampled_from([0, 1, 0xFF, 0xFF000000, 0xFFFFFF00, ONES32])
prefixes = st.sampled_from([0, 1, 7, 8, 24, 31, 32])
ports = st.integers(1, 400)
queries = st.lists(st.tuples(small16, small32), min_size=1, max_size=8)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(small16, masks16, small32, masks32, st.integers(1, 3), ports, st.booleans()), max_size=12),
       queries)
def test_ternary_agrees_with_looking_at_every_entry(
    engine: LocalEngine, script: list[tuple[int, int, int, int, int, int, bool]], asked: list[tuple[int, int]]
) -> None:
    """Whatever is inserted and deleted, the winner is the highest priority, then the lowest slot."""
    engine.reset()
    table = engine.table("ternary")
    slots: dict[int, tuple[int, int, int, int, int, int]] = {}
    for b, bm, c, cm, priority, port, remove in script:
        rule = (b & bm, bm, c & cm, cm, priority)
        held = next((s for s, r in slots.items() if r[:5] == rule), None)
        e = entry(table, [(b, bm), (c, cm)], port, priority)
        if remove and held is not None:
            engine.delete(e)
            del slots[held]
        elif held is None:
            engine.insert(e)
            slots[next(s for s in range(100) if s not in slots)] = (*rule, port)
        else:
            with pytest.raises(AlreadyExists):
                engine.insert(e)
    for b, c in asked:
        hits = [(-r[4], s, r[5]) for s, r in slots.items() if b & r[1] == r[0] and c & r[3] == r[2]]
        assert look_up(engine, Op.TERNARY, b, c) == (min(hits)[2] if hits else None)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(small16, small32, prefixes, ports, st.booleans()), max_size=16), queries)
def test_lpm_agrees_with_looking_at_every_entry(
    engine: LocalEngine, script: list[tuple[int, int, int, int, bool]], asked: list[tuple[int, int]]
) -> None:
    """Whatever is inserted and deleted, the longest matching prefix wins."""
    engine.reset()
    table = engine.table("lpm")
    rules: dict[tuple[int, int, int], int] = {}
    for b, c, length, port, remove in script:
        value, mask = table.keys[1].prefix(c, length)
        e = entry(table, [(b, ONES16), (value, mask)], port)
        if (b, value, length) not in rules:
            engine.insert(e)
            rules[b, value, length] = port
        elif remove:
            engine.delete(e)
            del rules[b, value, length]
    for b, c in asked:
        hits = [(length, port) for (rb, value, length), port in rules.items()
                if rb == b and c >> (32 - length) == value >> (32 - length)]
        assert look_up(engine, Op.LPM, b, c) == (max(hits)[1] if hits else None)
