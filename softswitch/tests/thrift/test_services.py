# SPDX-License-Identifier: Apache-2.0
"""BMv2's Thrift services on the engine: numbers, errors and orders of BMv2, and what P4Runtime sees of them."""

from __future__ import annotations

import binascii
import zlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from finsy.proto import p4r
from thrift.Thrift import TApplicationException

from softswitch.engine.entities import CloneSession, MeterConfig, Multicast
from softswitch.p4runtime import entities
from softswitch.thrift import entry_structs
from softswitch.thrift.errors import ThriftError
from softswitch.thrift.server import ThriftServer
from softswitch.thrift.structs import TYPES
from switch_support.thrift import LocalSwitch, client, served

T = TYPES["standard"]
KIND = T.BmMatchParamType


@pytest.fixture
def both() -> Iterator[tuple[LocalSwitch, ThriftServer]]:
    with served() as pair:
        yield pair


@pytest.fixture
def standard(both: tuple[LocalSwitch, ThriftServer]) -> Iterator[Any]:
    with client(both[1], "standard") as made:
        yield made


def exact(*fields: tuple[int, int]) -> list[Any]:
    return [T.BmMatchParam(KIND.EXACT, T.BmMatchParamExact(value.to_bytes(size, "big"))) for value, size in fields]


def ternary(value: int, mask: int) -> list[Any]:
    return [T.BmMatchParam(KIND.TERNARY, ternary=T.BmMatchParamTernary(value.to_bytes(2, "big"),
                                                                       mask.to_bytes(2, "big"))),
            *exact((3, 2))]


def drop(standard: Any, dst: int) -> int:
    key, options = exact((dst, 6), (1, 2)), T.BmAddEntryOptions(0)
    handle: int = standard.bm_mt_add_entry(0, "I.exact_t", key, "I.drop", [], options)
    return handle


def refused(error: str, call: Callable[[], object]) -> str:
    """The name of the code with which a call is refused."""
    with pytest.raises(getattr(T, error)) as caught:
        call()
    errors = {"InvalidTableOperation": T.TableOperationErrorCode,
              "InvalidCounterOperation": T.CounterOperationErrorCode,
              "InvalidMeterOperation": T.MeterOperationErrorCode,
              "InvalidRegisterOperation": T.RegisterOperationErrorCode}[error]
    name: str = errors._VALUES_TO_NAMES[caught.value.code]
    return name


def test_handles_count_as_bmv2s_do(standard: Any) -> None:
    """A new entry has the lowest free place, and the handle's upper eight bits count how often that was used; an old
    handle of the place has expired."""
    assert [drop(standard, n) for n in range(3)] == [0, 1, 2]
    standard.bm_mt_delete_entry(0, "I.exact_t", 1)
    assert drop(standard, 9) == (1 << 24) + 1
    delete = standard.bm_mt_delete_entry
    assert refused("InvalidTableOperation", lambda: delete(0, "I.exact_t", 1)) == "EXPIRED_HANDLE"
    assert refused("InvalidTableOperation", lambda: delete(0, "I.exact_t", 7)) == "INVALID_HANDLE"
    standard.bm_mt_clear_entries(0, "I.exact_t", False)
    assert drop(standard, 1) == 0
    for _ in range(256):
        handle = standard.bm_mt_get_entries(0, "I.exact_t")[0].entry_handle
        standard.bm_mt_delete_entry(0, "I.exact_t", handle)
        drop(standard, 1)
    assert handle == -(1 << 24)  # 255 uses, as a signed number


@pytest.mark.parametrize(("code", "table", "key", "action", "data"), [
    ("INVALID_TABLE_NAME", "exact_t", exact((1, 6), (1, 2)), "I.drop", []),
    ("INVALID_ACTION_NAME", "I.exact_t", exact((1, 6), (1, 2)), "drop", []),
    ("BAD_ACTION_DATA", "I.exact_t", exact((1, 6), (1, 2)), "I.forward", [b"\1"]),
    ("BAD_MATCH_KEY", "I.exact_t", exact((1, 6)), "I.drop", []),
    ("BAD_MATCH_KEY", "I.exact_t", exact((1, 5), (1, 2)), "I.drop", []),
    ("BAD_MATCH_KEY", "I.lpm_t", exact((1, 4)), "I.drop", []),
    ("BAD_MATCH_KEY", "I.exact_t", [T.BmMatchParam(), T.BmMatchParam()], "I.drop", []),
    ("WRONG_TABLE_TYPE", "I.ind_t", exact((1, 6)), "I.say", [b"\1"]),
    ("IMMUTABLE_TABLE_ENTRIES", "I.const_t", ternary(1, 1)[:1], "I.say", [b"\1"]),
    ("DUPLICATE_ENTRY", "I.exact_t", exact((0, 6), (1, 2)), "I.drop", []),
])
def test_entries_are_refused_with_bmv2s_names(standard: Any, code: str, table: str, key: list[Any], action: str,
                                              data: list[bytes]) -> None:
    """What is wrong with an entry has the name that BMv2 gives it, and nothing is added."""
    drop(standard, 0)
    options = T.BmAddEntryOptions(1)
    assert refused("InvalidTableOperation",
                   lambda: standard.bm_mt_add_entry(0, table, key, action, data, options)) == code
    assert standard.bm_mt_get_num_entries(0, "I.exact_t") == 1


def test_a_full_table_is_refused(standard: Any) -> None:
    """A table takes as many entries as it says."""
    for n in range(4):
        drop(standard, n)
    assert refused("InvalidTableOperation", lambda: drop(standard, 4)) == "TABLE_FULL"


def test_p4runtime_and_thrift_see_each_others_entries(both: tuple[LocalSwitch, ThriftServer], standard: Any) -> None:
    """An entry of one is read, modified and deleted by the other; the least priority of Thrift is P4Runtime's
    greatest."""
    context = both[0].context()
    standard.bm_mt_add_entry(0, "I.tern_t", ternary(0x800, 0xFFF), "I.say", [b"\0\0\0\7"], T.BmAddEntryOptions(10))
    wanted = p4r.Entity(table_entry=p4r.TableEntry(table_id=context.engine.table("I.tern_t").id))
    (seen,) = entities.read(context, [wanted])
    assert seen.table_entry.priority == entry_structs.TOP_PRIORITY - 10
    assert seen.table_entry.match[0].ternary.value == b"\x08\x00"
    seen.table_entry.priority = 77
    seen.table_entry.metadata = b"kept"
    assert entities.write(context, [p4r.Update(type=p4r.Update.INSERT, entity=seen)]) == [None]
    first, second = standard.bm_mt_get_entries(0, "I.tern_t")
    assert (first.options.priority, second.options.priority) == (10, entry_structs.TOP_PRIORITY - 77)
    assert second.action_entry.action_data == [b"\7"]
    standard.bm_mt_modify_entry(0, "I.tern_t", second.entry_handle, "I.say", [b"\x12"])
    told = [entity.table_entry for entity in entities.read(context, [wanted])]
    assert [entry.action.action.params[0].value for entry in told] == [b"\7", b"\x12"]
    standard.bm_mt_delete_entry(0, "I.tern_t", second.entry_handle)
    assert context.metadata == {}
    assert len(list(entities.read(context, [wanted]))) == 1


def test_const_entries_have_p4cs_priorities(standard: Any) -> None:
    """The entries of the program are there, numbered from 1 on, and cannot be changed."""
    assert [entry.options.priority for entry in standard.bm_mt_get_entries(0, "I.const_t")] == [1, 2, 3]
    clear = standard.bm_mt_clear_entries
    assert refused("InvalidTableOperation", lambda: clear(0, "I.const_t", True)) == "IMMUTABLE_TABLE_ENTRIES"


def test_default_actions_are_set_and_reset(standard: Any) -> None:
    """A default action is told as set, goes back to the program's, and stays where it is const."""
    standard.bm_mt_set_default_action(0, "I.exact_t", "I.forward", [b"\1", b"\0\5"])
    assert standard.bm_mt_get_default_entry(0, "I.exact_t").action_data == [b"\1", b"\5"]
    standard.bm_mt_reset_default_entry(0, "I.exact_t")
    assert standard.bm_mt_get_default_entry(0, "I.exact_t").action_name == "I.drop"
    set_default = standard.bm_mt_set_default_action
    assert refused("InvalidTableOperation",
                   lambda: set_default(0, "I.tern_t", "I.say", [b"\1"])) == "DEFAULT_ENTRY_IS_CONST"


def test_members_and_groups_have_the_lowest_free_handles(standard: Any) -> None:
    """Members and groups are numbered from 0 on; one in use stays; entries may not use an empty group."""
    add, name = standard.bm_mt_act_prof_add_member, "I.sel"
    assert [add(0, name, "I.say", [bytes([n])]) for n in range(3)] == [0, 1, 2]
    standard.bm_mt_act_prof_delete_member(0, name, 1)
    assert add(0, name, "I.say", [b"\x09"]) == 1
    assert standard.bm_mt_act_prof_create_group(0, name) == 0
    use = standard.bm_mt_indirect_ws_add_entry
    key, options = exact((5, 6)), T.BmAddEntryOptions(0)
    assert refused("InvalidTableOperation", lambda: use(0, "I.sel_t", key, 0, options)) == "EMPTY_GRP"
    for member in (2, 0):
        standard.bm_mt_act_prof_add_member_to_group(0, name, member, 0)
    assert use(0, "I.sel_t", key, 0, options) == 0
    (group,) = standard.bm_mt_act_prof_get_groups(0, name)
    assert group.mbr_handles == [0, 2]
    assert refused("InvalidTableOperation",
                   lambda: standard.bm_mt_act_prof_delete_group(0, name, 0)) == "GRP_STILL_USED"
    assert refused("InvalidTableOperation",
                   lambda: standard.bm_mt_act_prof_delete_member(0, name, 2)) == "MBR_STILL_USED"
    assert refused("InvalidTableOperation",
                   lambda: standard.bm_mt_act_prof_create_group(0, "I.prof")) == "NO_ACTION_PROFILE_SELECTION"


def test_meters_are_in_units_a_microsecond(both: tuple[LocalSwitch, ThriftServer], standard: Any) -> None:
    """BMv2's rates are told in units a microsecond, P4Runtime's and the engine's in units a second."""
    assert standard.bm_meter_get_rates(0, "I.pm", 1) == []
    rates = [T.BmMeterRateConfig(0.5, 10), T.BmMeterRateConfig(1.0, 20)]
    standard.bm_meter_set_rates(0, "I.pm", 1, rates)
    assert standard.bm_meter_get_rates(0, "I.pm", 1) == rates
    engine = both[0].engine
    assert engine.read_meter(engine.meter("I.pm"), 1, 1) == [MeterConfig(500_000, 10, 1_000_000, 20)]
    slow = [T.BmMeterRateConfig(0.0000005, 1), T.BmMeterRateConfig(0.0000128, 9000)]  # one unit in two seconds
    standard.bm_meter_set_rates(0, "I.pm", 2, slow)
    assert standard.bm_meter_get_rates(0, "I.pm", 2) == slow
    cell = p4r.Entity(meter_entry=p4r.MeterEntry(meter_id=engine.meter("I.pm").id, index=p4r.Index(index=2)))
    (told,) = entities.read(both[0].context(), [cell])
    assert (told.meter_entry.config.cir, told.meter_entry.config.pir) == (1, 13)
    set_rates = standard.bm_meter_set_rates
    assert refused("InvalidMeterOperation", lambda: set_rates(0, "I.pm", 1, rates[:1])) == "BAD_RATES_LIST"
    assert refused("InvalidMeterOperation", lambda: set_rates(0, "I.pm", 4, rates)) == "INVALID_INDEX"
    assert refused("InvalidMeterOperation", lambda: set_rates(0, "I.pm", 1, rates[::-1])) == "INVALID_INFO_RATE_VALUE"


def test_an_array_of_direct_meters_is_set_for_all_entries_of_its_table(standard: Any) -> None:
    """meter_array_set_rates of a direct meter's name, as courses' command files have it."""
    rates = [T.BmMeterRateConfig(0.0000005, 1), T.BmMeterRateConfig(0.00001, 2)]
    handles = []
    for dst in (1, 2):
        key = [T.BmMatchParam(KIND.LPM, lpm=T.BmMatchParamLPM(dst.to_bytes(4, "big"), 32))]
        handles.append(standard.bm_mt_add_entry(0, "I.lpm_t", key, "I.drop", [], T.BmAddEntryOptions(0)))
    standard.bm_meter_array_set_rates(0, "I.rates", rates)
    assert [standard.bm_mt_get_meter_rates(0, "I.lpm_t", handle) for handle in handles] == [rates, rates]


def test_a_meter_of_less_than_one_packet_a_second(both: tuple[LocalSwitch, ThriftServer], standard: Any) -> None:
    """At a packet in two seconds the next is green two seconds after the last one that was, and yellow before."""
    engine = both[0].engine
    rates = [T.BmMeterRateConfig(0.0000005, 1), T.BmMeterRateConfig(1.0, 1000)]
    standard.bm_meter_array_set_rates(0, "I.pm", rates)
    colors = []
    for second in (0, 1, 2, 3, 4):
        engine.inject(1, bytes(40), now_us=second * 1_000_000)
        colors += engine.read_register(engine.register("I.color"), 0, 1)
    assert colors == [0, 1, 0, 1, 0]


def test_counters_and_registers(standard: Any) -> None:
    """Cells are read and written, cut to a register's width, and refused beyond their end."""
    standard.bm_counter_write(0, "I.ports", 3, T.BmCounterValue(bytes=20, packets=10))
    assert standard.bm_counter_read(0, "I.ports", 3) == T.BmCounterValue(20, 10)
    assert refused("InvalidCounterOperation", lambda: standard.bm_counter_read(0, "I.ports", -1)) == "INVALID_INDEX"
    drop(standard, 1)
    standard.bm_mt_write_counter(0, "I.exact_t", 0, T.BmCounterValue(7, 5))
    assert standard.bm_mt_read_counter(0, "I.exact_t", 0) == T.BmCounterValue(7, 5)
    standard.bm_mt_reset_counters(0, "I.exact_t")
    assert standard.bm_mt_read_counter(0, "I.exact_t", 0) == T.BmCounterValue(0, 0)
    standard.bm_register_write_range(0, "I.seen", 1, 3, -1)
    assert standard.bm_register_read_all(0, "I.seen") == [0, 2**32 - 1, 2**32 - 1, 0, 0, 0, 0, 0]
    assert refused("InvalidRegisterOperation",
                   lambda: standard.bm_register_write(0, "I.seen", 8, 1)) == "INVALID_INDEX"


def test_value_sets(standard: Any) -> None:
    """A value is in a set once, and goes."""
    for _ in range(2):
        standard.bm_parse_vset_add(0, "P.types", b"\x08\x00")
    assert standard.bm_parse_vset_get(0, "P.types") == [b"\x08\x00"]
    standard.bm_parse_vset_remove(0, "P.types", b"\x08\x00")
    assert standard.bm_parse_vset_get(0, "P.types") == []
    with pytest.raises(T.InvalidParseVSetOperation):
        standard.bm_parse_vset_add(0, "P.types", b"\x08")


def test_custom_crcs_have_their_parameters(both: tuple[LocalSwitch, ThriftServer], standard: Any) -> None:
    """A custom CRC is the plain one at first, then that of its parameters: here CRC-16/IBM-3740 and CRC-32/BZIP2."""
    engine = both[0].engine
    frame = b"123456789abc" + bytes(20)

    def crcs() -> list[int]:
        engine.inject(1, frame)
        return engine.read_register(engine.register("I.crcs"))

    assert crcs()[1] == zlib.crc32(frame[:12])
    standard.bm_set_crc16_custom_parameters(0, "calc", T.BmCrc16Config(0x1021, -1, 0, False, False))
    standard.bm_set_crc32_custom_parameters(0, "calc_0", T.BmCrc32Config(0x04C11DB7, -1, -1, False, False))
    assert crcs() == [binascii.crc_hqx(frame[:12], 0xFFFF), bzip2_crc(frame[:12])]
    standard.bm_set_crc32_custom_parameters(0, "calc_0", T.BmCrc32Config(0x04C11DB7, -1, -1, True, True))
    assert crcs()[1] == zlib.crc32(frame[:12])
    for name, code in (("calc_9", "INVALID_CALCULATION_NAME"), ("calc_0", "WRONG_TYPE_CALCULATION")):
        with pytest.raises(T.InvalidCrcOperation) as caught:
            standard.bm_set_crc16_custom_parameters(0, name, T.BmCrc16Config(1, 0, 0, False, False))
        assert T.CrcErrorCode._VALUES_TO_NAMES[caught.value.code] == code


def bzip2_crc(data: bytes) -> int:
    """CRC-32/BZIP2: the plain one of bytes whose bits are turned around, turned around itself."""
    turned = bytes(int(f"{byte:08b}"[::-1], 2) for byte in data)
    return int(f"{zlib.crc32(turned):032b}"[::-1], 2)


def test_groups_send_what_their_nodes_have(both: tuple[LocalSwitch, ThriftServer]) -> None:
    """Ports and link aggregates of a group's nodes become its replicas; of an aggregate BMv2 takes one port, always the
    same. Without aggregates (simple_pre) the calls have one argument less."""
    engine, kinds = both[0].engine, TYPES["simple_pre_lag"]
    with client(both[1], "simple_pre_lag") as pre, client(both[1], "simple_pre") as plain:
        assert pre.bm_mc_mgrp_create(0, 1) == 1
        assert pre.bm_mc_node_create(0, 5, "110", "") == 0
        assert plain.bm_mc_node_create(0, 6, "1000") == 1
        assert pre.bm_mc_node_create(0, 7, "", "10") == 2
        pre.bm_mc_set_lag_membership(0, 1, "1110000")
        for node in (2, 0, 1):
            pre.bm_mc_node_associate(0, 1, node)
        assert engine.multicasts() == [Multicast(1, ((4 + 255 % 3, 7), (1, 5), (2, 5), (3, 6)))]
        with pytest.raises(kinds.InvalidMcOperation):
            pre.bm_mc_node_associate(0, 1, 0)
        pre.bm_mc_node_destroy(0, 0)
        assert engine.multicasts() == [Multicast(1, ((4, 7), (3, 6)))]
        pre.bm_mc_mgrp_destroy(0, 1)
        assert engine.multicasts() == []


def test_groups_of_p4runtime_are_told_as_nodes(both: tuple[LocalSwitch, ThriftServer]) -> None:
    """A group that P4Runtime writes, and changes, has a node for each instance; it can be destroyed over Thrift."""
    engine = both[0].engine
    engine.write_multicast("insert", Multicast(9, ((1, 0), (2, 0), (1, 4))))
    with client(both[1], "simple_pre_lag") as pre:
        assert '"ports": [1, 2]' in pre.bm_mc_get_entries(0).replace("\n", "").replace("   ", "").replace("[ ", "[")
        engine.write_multicast("modify", Multicast(9, ((3, 0),)))
        assert pre.bm_mc_node_create(0, 1, "10000", "") == 1
        pre.bm_mc_node_associate(0, 9, 1)
        assert engine.multicasts() == [Multicast(9, ((3, 0), (4, 1)))]
        pre.bm_mc_mgrp_destroy(0, 9)
        assert engine.multicasts() == []


def test_mirroring_sessions_are_clone_sessions(both: tuple[LocalSwitch, ThriftServer]) -> None:
    """A session has a port, a multicast group or both, and may be set again."""
    kinds = TYPES["simple_switch"]
    with client(both[1], "simple_switch") as switch:
        switch.mirroring_session_add(5, kinds.MirroringSessionConfig(port=2))
        switch.mirroring_session_add(5, kinds.MirroringSessionConfig(port=3, mgid=4))
        assert both[0].engine.clone_sessions() == [CloneSession(5, ((3, 0),), group=4)]
        assert switch.mirroring_session_get(5) == kinds.MirroringSessionConfig(3, 4)
        switch.mirroring_session_delete(5)
        with pytest.raises(kinds.InvalidMirroringOperation):
            switch.mirroring_session_get(5)


def test_queues_and_ports(both: tuple[LocalSwitch, ThriftServer], standard: Any) -> None:
    """Limits and ports go to the switch; a port has one queue, so that another priority is refused by name."""
    with client(both[1], "simple_switch") as switch:
        assert switch.set_egress_queue_rate(1, 100) == 0
        assert switch.set_all_egress_queue_depths(10) == 0
        with pytest.raises(TApplicationException, match="one queue"):
            switch.set_egress_priority_queue_rate(1, 3, 100)
    standard.bm_dev_mgr_add_port("eth9", 9, "")
    standard.bm_dev_mgr_remove_port(9)
    assert both[0].asked == [("queue", 1, None, 100), ("queue", None, 10, None), ("add", 9, "eth9"), ("remove", 9)]
    assert [port.port_num for port in standard.bm_dev_mgr_show_ports()] == [1, 2]


def test_a_reset_forgets_all_but_the_program(both: tuple[LocalSwitch, ThriftServer], standard: Any) -> None:
    """reset_state clears entries, groups and cells, and keeps const entries."""
    drop(standard, 1)
    with client(both[1], "simple_pre_lag") as pre:
        pre.bm_mc_mgrp_create(0, 1)
        assert pre.bm_mc_node_create(0, 1, "1", "") == 0
        standard.bm_reset_state()
        assert pre.bm_mc_node_create(0, 1, "1", "") == 0
    assert standard.bm_mt_get_num_entries(0, "I.exact_t") == 0
    assert standard.bm_mt_get_num_entries(0, "I.const_t") == 3


def test_a_port_that_is_taken_is_named(both: tuple[LocalSwitch, ThriftServer]) -> None:
    """Where another server has the port, the message says which one it is."""
    with pytest.raises(ThriftError, match=rf"127\.0\.0\.1:{both[1].port}"):
        ThriftServer(both[0], both[1].port)
