# SPDX-License-Identifier: Apache-2.0
"""Everything that is not a table entry: profiles, groups, counters, meters, registers, replication, value sets."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from finsy.proto import p4r

from switch_support.client import DELETE, INSERT, MODIFY, Client, primary

PROFILE, SELECT, FORWARD = 0x11000001, 0x02000006, 0x01000001
COUNTER, METER, SUMS, WIDE, VALUE_SET = 0x12000001, 0x14000001, 0x16000001, 0x16000002, 0x18000001
OK, INVALID, NOT_FOUND, EXISTS, EXHAUSTED, PRECONDITION, OUT_OF_RANGE, UNIMPLEMENTED = 0, 3, 5, 6, 8, 9, 11, 12


@pytest.fixture
def client() -> Iterator[Client]:
    with primary() as (_, client, _stream):
        yield client


def action(port: int) -> p4r.Action:
    return p4r.Action(action_id=FORWARD, params=[p4r.Action.Param(param_id=1, value=bytes([port]))])


def member(ident: int, port: int = 1) -> p4r.Entity:
    return p4r.Entity(
        action_profile_member=p4r.ActionProfileMember(action_profile_id=PROFILE, member_id=ident, action=action(port))
    )


def group(ident: int, *members: tuple[int, int], max_size: int = 0) -> p4r.Entity:
    message = p4r.ActionProfileGroup(action_profile_id=PROFILE, group_id=ident, max_size=max_size)
    for one, weight in members:
        message.members.add(member_id=one, weight=weight)
    return p4r.Entity(action_profile_group=message)


def row(key: int, action: p4r.TableAction) -> p4r.Entity:
    message = p4r.TableEntry(table_id=SELECT, action=action)
    message.match.add(field_id=1).exact.value = bytes([key])
    return p4r.Entity(table_entry=message)


ALL_MEMBERS = p4r.Entity(action_profile_member=p4r.ActionProfileMember())
ALL_GROUPS = p4r.Entity(action_profile_group=p4r.ActionProfileGroup())


def test_members_and_groups_live_and_die_in_order(client: Client) -> None:
    """Members and groups in use cannot be deleted, and those that do not exist cannot be used."""
    use_group, use_member = p4r.TableAction(action_profile_group_id=7), p4r.TableAction(action_profile_member_id=1)
    assert client.codes((INSERT, group(7, (1, 1)))) == [NOT_FOUND]
    client.write((INSERT, member(1)), (INSERT, member(2, 2)), (INSERT, group(7, (1, 1), (2, 3))))
    client.write((INSERT, row(1, use_group)), (INSERT, row(2, use_member)))
    assert client.read(ALL_MEMBERS) == [member(1), member(2, 2)]
    assert client.read(ALL_GROUPS) == [group(7, (1, 1), (2, 3))]
    assert client.read(p4r.Entity(table_entry=p4r.TableEntry(table_id=SELECT))) == [
        row(1, use_group),
        row(2, use_member),
    ]
    assert client.codes((INSERT, member(1)), (INSERT, group(7))) == [EXISTS, EXISTS]
    assert client.codes((DELETE, member(1)), (DELETE, group(7))) == [PRECONDITION, PRECONDITION]
    client.write((MODIFY, member(1, 9)), (MODIFY, group(7, (2, 1))))
    assert client.read(ALL_MEMBERS) == [member(1, 9), member(2, 2)]
    client.write((DELETE, row(1, use_group)), (DELETE, row(2, use_member)), (DELETE, group(7)))
    client.write((DELETE, member(1)), (DELETE, member(2)))
    assert client.read(ALL_MEMBERS, ALL_GROUPS) == []


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        (group(1, (1, 0)), INVALID),
        (group(1, (1, 1), (1, 2)), INVALID),
        (group(0, (1, 1)), INVALID),
        (member(0), INVALID),
        (member(1 << 31), INVALID),
    ],
    ids=["weight 0", "member twice", "group 0", "member 0", "hidden id"],
)
def test_bad_members_and_groups_are_refused(client: Client, wrong: p4r.Entity, code: int) -> None:
    """Wrong weights, ids and duplicates are refused."""
    client.write((INSERT, member(1)))
    assert client.codes((INSERT, wrong)) == [code]


def test_the_size_of_a_group_is_set_once(client: Client) -> None:
    """A change of max_size and a negative one are refused; 0 leaves it as it is."""
    client.write((INSERT, member(1)), (INSERT, group(7, (1, 2), max_size=3)))
    assert client.codes((MODIFY, group(7, (1, 1), max_size=2)), (MODIFY, group(7, max_size=-1)),
                        (INSERT, group(8, max_size=-1)), (INSERT, group(8, max_size=17))) == [INVALID] * 4
    client.write((MODIFY, group(7, (1, 3))))
    assert client.read(ALL_GROUPS) == [group(7, (1, 3), max_size=3)]
    assert client.codes((MODIFY, group(7, (1, 4)))) == [EXHAUSTED]


def one_shot(*ports: int) -> p4r.TableAction:
    message = p4r.TableAction()
    for port in ports:
        message.action_profile_action_set.action_profile_actions.add(action=action(port), weight=port)
    return message


def test_a_selector_is_programmed_one_way_or_the_other(client: Client) -> None:
    """Action sets beside members are refused, and members beside action sets; an empty selector takes either."""
    use_member = p4r.TableAction(action_profile_member_id=1)
    for _ in range(2):
        client.write((INSERT, row(1, one_shot(1, 2))))
        client.write((MODIFY, row(1, one_shot(3))), (MODIFY, row(1, one_shot(4))))  # leaves no set behind
        assert client.codes((INSERT, member(1)), (INSERT, group(7)), (INSERT, row(2, use_member))) == [INVALID] * 3
        client.write((DELETE, row(1, one_shot())), (INSERT, member(1)))
        assert client.codes((INSERT, row(1, one_shot(1, 2)))) == [INVALID]
        client.write((DELETE, member(1)))


def test_one_shot_action_sets_bring_and_take_their_members(client: Client) -> None:
    """Action sets read back as written; their members are never visible, and are deleted with the entry, and where one
    of them is refused."""
    wrong = one_shot(1, 2, 3)
    wrong.action_profile_action_set.action_profile_actions[2].action.action_id = 99
    for _ in range(40):  # the profile has room for 64 members: nothing leaks
        assert client.codes((INSERT, row(1, wrong))) == [INVALID]
        client.write((INSERT, row(1, one_shot(1, 2))))
        assert client.codes((INSERT, row(1, one_shot(1)))) == [EXISTS]
        client.write((MODIFY, row(1, one_shot(3, 4, 5))))
        assert client.read(p4r.Entity(table_entry=p4r.TableEntry(table_id=SELECT))) == [row(1, one_shot(3, 4, 5))]
        assert client.read(ALL_MEMBERS, ALL_GROUPS) == []
        client.write((DELETE, row(1, one_shot())))
    assert client.codes((INSERT, row(1, one_shot()))) == [INVALID]
    assert client.codes((INSERT, row(1, one_shot(16, 1)))) == [EXHAUSTED]


def counter(index: int | None, packets: int = 0, octets: int = 0) -> p4r.Entity:
    message = p4r.CounterEntry(counter_id=COUNTER, data=p4r.CounterData(packet_count=packets, byte_count=octets))
    if index is not None:
        message.index.index = index
    return p4r.Entity(counter_entry=message)


def test_counters_are_written_and_read_one_and_all(client: Client) -> None:
    """A read without an index returns every cell, and one without an id every counter."""
    client.write((MODIFY, counter(3, 5, 500)))
    assert client.read(counter(3)) == [counter(3, 5, 500)]
    cells = client.read(counter(None))
    assert cells == [counter(i, *((5, 500) if i == 3 else (0, 0))) for i in range(8)]
    assert client.read(p4r.Entity(counter_entry=p4r.CounterEntry())) == cells
    client.write((MODIFY, counter(None, 1, 1)))
    assert client.read(counter(None)) == [counter(i, 1, 1) for i in range(8)]
    assert client.codes((INSERT, counter(1)), (MODIFY, counter(8)), (MODIFY, counter(-1))) == [
        INVALID,
        OUT_OF_RANGE,
        OUT_OF_RANGE,
    ]


def test_meters_are_configured_and_reset(client: Client) -> None:
    """A write without configuration makes a cell unmetered again."""

    def meter(index: int, *rates: int) -> p4r.Entity:
        message = p4r.MeterEntry(meter_id=METER, index=p4r.Index(index=index))
        if rates:
            message.config.CopyFrom(p4r.MeterConfig(cir=rates[0], cburst=rates[1], pir=rates[2], pburst=rates[3]))
        return p4r.Entity(meter_entry=message)

    client.write((MODIFY, meter(2, 1, 2, 3, 4)))
    assert client.read(meter(2)) == [meter(2, 1, 2, 3, 4)]
    client.write((MODIFY, meter(2)))
    assert client.read(meter(2)) == [meter(2)]
    assert client.codes((MODIFY, meter(2, 5, 1, 4, 1)), (MODIFY, meter(2, -1, 1, 4, 1))) == [INVALID, INVALID]


@pytest.mark.parametrize(("register", "value"), [(SUMS, 0xFFFFFFFF), (WIDE, (1 << 100) - 2)])
def test_registers_are_read_and_written(client: Client, register: int, value: int) -> None:
    """Registers can be read and written, unlike BMv2's, with canonical values of any width."""

    def cell(index: int, content: int) -> p4r.Entity:
        message = p4r.RegisterEntry(register_id=register, index=p4r.Index(index=index))
        message.data.bitstring = content.to_bytes((content.bit_length() + 7) // 8 or 1, "big")
        return p4r.Entity(register_entry=message)

    client.write((MODIFY, cell(1, value)))
    found = client.read(p4r.Entity(register_entry=p4r.RegisterEntry(register_id=register)))
    assert found == [cell(i, value if i == 1 else 0) for i in range(len(found))]
    assert len(found) == (16 if register == SUMS else 4)
    assert client.codes((MODIFY, cell(0, 1 << 101))) == [OUT_OF_RANGE]
    assert client.codes((MODIFY, cell(99, 1))) == [OUT_OF_RANGE]


def multicast(ident: int, *replicas: tuple[int, int], metadata: bytes = b"") -> p4r.Entity:
    entity = p4r.Entity()
    message = entity.packet_replication_engine_entry.multicast_group_entry
    message.multicast_group_id, message.metadata = ident, metadata
    for port, instance in replicas:
        message.replicas.add(egress_port=port, instance=instance)
    return entity


def test_multicast_groups_are_written_and_read(client: Client) -> None:
    """Both fields for a port are accepted; duplicates and impossible numbers are refused."""
    client.write((INSERT, multicast(5, (1, 0), (1, 1), (2, 7), metadata=b"m")), (INSERT, multicast(6)))
    everything = p4r.Entity()
    everything.packet_replication_engine_entry.multicast_group_entry.SetInParent()
    assert client.read(everything) == [multicast(5, (1, 0), (1, 1), (2, 7), metadata=b"m"), multicast(6)]
    by_bytes = multicast(6)
    by_bytes.packet_replication_engine_entry.multicast_group_entry.replicas.add(port=b"\x01\xfe", instance=3)
    client.write((MODIFY, by_bytes))
    assert client.read(multicast(6)) == [multicast(6, (510, 3))]
    assert client.codes(
        (INSERT, multicast(5)),
        (INSERT, multicast(0)),
        (INSERT, multicast(1 << 16)),
        (INSERT, multicast(8, (1, 1), (1, 1))),
        (INSERT, multicast(8, (512, 1))),
        (DELETE, multicast(9)),
    ) == [EXISTS, INVALID, INVALID, INVALID, INVALID, NOT_FOUND]
    client.write((DELETE, multicast(5)), (DELETE, multicast(6)))
    assert client.read(everything) == []


def test_clone_sessions_are_written_and_read(client: Client) -> None:
    """Clone sessions read back with their replicas and truncation length."""

    def session(ident: int, *ports: int, length: int = 0, service: int = 0) -> p4r.Entity:
        entity = p4r.Entity()
        message = entity.packet_replication_engine_entry.clone_session_entry
        message.session_id, message.packet_length_bytes, message.class_of_service = ident, length, service
        for port in ports:
            message.replicas.add(egress_port=port, instance=1)
        return entity

    client.write((INSERT, session(5, 1, 510, length=128)))
    assert client.read(session(5)) == [session(5, 1, 510, length=128)]
    client.write((MODIFY, session(5, 2)))
    assert client.read(session(5)) == [session(5, 2)]
    assert client.codes((INSERT, session(6, 1, service=1)), (INSERT, session(0, 1)), (INSERT, session(1 << 15, 1))) == [
        UNIMPLEMENTED, INVALID, INVALID]
    client.write((DELETE, session(5)))


def test_value_sets_are_replaced_whole(client: Client) -> None:
    """MODIFY gives all members; more than the set's size is RESOURCE_EXHAUSTED."""

    def values(*pairs: tuple[bytes, bytes]) -> p4r.Entity:
        message = p4r.ValueSetEntry(value_set_id=VALUE_SET)
        for value, mask in pairs:
            match = message.members.add().match.add(field_id=1)
            match.ternary.value, match.ternary.mask = value, mask
        return p4r.Entity(value_set_entry=message)

    client.write((MODIFY, values((b"\1", b"\xff"), (b"\2", b"\x0f"))))
    assert client.read(p4r.Entity(value_set_entry=p4r.ValueSetEntry())) == [
        values((b"\1", b"\xff"), (b"\2", b"\x0f"))
    ]
    client.write((MODIFY, values()))
    assert client.read(values()) == [values()]
    assert client.codes((INSERT, values()), (MODIFY, values(*[(b"\1", b"\1")] * 5))) == [INVALID, EXHAUSTED]
