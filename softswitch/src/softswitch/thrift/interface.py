# SPDX-License-Identifier: Apache-2.0
"""The definition of BMv2's Thrift services: their types, methods and field numbers, as data.

Each type is one line, "kind Name: fields", and each method one line, "result name(fields) error". Fields are numbered
by their place, from 1 on, as BMv2 numbers all of theirs. A method with an error may raise that exception (field 1 of
its result, called `ouch` there). structs.py makes classes of it.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ThriftField:
    """A field of a struct or an argument of a method; `type` is a basic type, a struct, list<type> or map<a,b>."""

    type: str
    name: str


@dataclass(frozen=True)
class Method:
    """A method: what it gives back (or "void"), its arguments, and the exception that it may raise ("": none)."""

    name: str
    result: str
    arguments: tuple[ThriftField, ...]
    error: str


@dataclass(frozen=True)
class Module:
    """A group of types, and the service that uses them; `name` is what a multiplexed call begins with."""

    name: str
    service: str
    enums: dict[str, dict[str, int]]
    structs: dict[str, tuple[ThriftField, ...]]
    exceptions: dict[str, tuple[ThriftField, ...]]
    methods: tuple[Method, ...]


_ACTION_ERRORS = (
    "TABLE_FULL INVALID_HANDLE EXPIRED_HANDLE COUNTERS_DISABLED METERS_DISABLED AGEING_DISABLED INVALID_TABLE_NAME "
    "INVALID_ACTION_NAME WRONG_TABLE_TYPE INVALID_MBR_HANDLE MBR_STILL_USED MBR_ALREADY_IN_GRP MBR_NOT_IN_GRP "
    "INVALID_GRP_HANDLE GRP_STILL_USED EMPTY_GRP DUPLICATE_ENTRY BAD_MATCH_KEY INVALID_METER_OPERATION "
    "DEFAULT_ACTION_IS_CONST DEFAULT_ENTRY_IS_CONST NO_DEFAULT_ENTRY INVALID_ACTION_PROFILE_NAME "
    "NO_ACTION_PROFILE_SELECTION IMMUTABLE_TABLE_ENTRIES BAD_ACTION_DATA NO_TABLE_KEY ERROR=100"
)

_STANDARD_TYPES = f"""
enum BmMatchParamType: EXACT=0 LPM TERNARY VALID RANGE
enum TableOperationErrorCode: {_ACTION_ERRORS}
enum CounterOperationErrorCode: INVALID_COUNTER_NAME INVALID_INDEX ERROR
enum SwapOperationErrorCode: CONFIG_SWAP_DISABLED ONGOING_SWAP NO_ONGOING_SWAP
enum MeterOperationErrorCode: INVALID_METER_NAME INVALID_INDEX BAD_RATES_LIST INVALID_INFO_RATE_VALUE \
INVALID_BURST_SIZE_VALUE ERROR
enum RegisterOperationErrorCode: INVALID_REGISTER_NAME INVALID_INDEX ERROR
enum ParseVSetOperationErrorCode: INVALID_PARSE_VSET_NAME ERROR
enum LearnOperationErrorCode: INVALID_LIST_ID INVALID_LIST_NAME ERROR
enum DevMgrErrorCode: ERROR
enum CrcErrorCode: INVALID_CALCULATION_NAME WRONG_TYPE_CALCULATION INVALID_CONFIG
enum ToeplitzHashErrorCode: INVALID_CALCULATION_NAME WRONG_TYPE_CALCULATION INVALID_KEY
enum BmActionEntryType: NONE=0 ACTION_DATA MBR_HANDLE GRP_HANDLE
enum BmResourceType: MATCH_TABLE=0 ACTION_PROFILE COUNTER METER REGISTER LEARNING_LIST
enum IdLookupErrorCode: INVALID_RESOURCE_TYPE=0 INVALID_RESOURCE_NAME
struct BmMatchParamExact: binary key
struct BmMatchParamLPM: binary key, i32 prefix_length
struct BmMatchParamTernary: binary key, binary mask
struct BmMatchParamValid: bool key
struct BmMatchParamRange: binary start, binary end_
struct BmMatchParam: i32 type, BmMatchParamExact exact, BmMatchParamLPM lpm, BmMatchParamTernary ternary, \
BmMatchParamValid valid, BmMatchParamRange range
struct BmAddEntryOptions: i32 priority
struct BmCounterValue: i64 bytes, i64 packets
struct BmMeterRateConfig: double units_per_micros, i32 burst_size
struct DevMgrPortInfo: i32 port_num, string iface_name, bool is_up, map<string,string> extra
struct BmCrc16Config: i16 polynomial, i16 initial_remainder, i16 final_xor_value, bool data_reflected, \
bool remainder_reflected
struct BmCrc32Config: i32 polynomial, i32 initial_remainder, i32 final_xor_value, bool data_reflected, \
bool remainder_reflected
struct BmActionEntry: i32 action_type, string action_name, list<binary> action_data, i32 mbr_handle, i32 grp_handle
struct BmMtEntryLife: i32 timeout_ms, i32 time_since_hit_ms
struct BmMtEntry: list<BmMatchParam> match_key, BmAddEntryOptions options, i32 entry_handle, \
BmActionEntry action_entry, BmMtEntryLife life
struct BmMtActProfMember: i32 mbr_handle, string action_name, list<binary> action_data
struct BmMtActProfGroup: i32 grp_handle, list<i32> mbr_handles
struct BmConfig: i64 device_id, i32 thrift_port, string notifications_socket, string elogger_socket, \
string debugger_socket
exception InvalidTableOperation: i32 code
exception InvalidCounterOperation: i32 code
exception InvalidSwapOperation: i32 code
exception InvalidMeterOperation: i32 code
exception InvalidRegisterOperation: i32 code
exception InvalidParseVSetOperation: i32 code
exception InvalidLearnOperation: i32 code
exception InvalidDevMgrOperation: i32 code
exception InvalidCrcOperation: i32 code
exception InvalidToeplitzHashOperation: i32 code
exception InvalidIdLookup: i32 code
"""

_STANDARD_METHODS = """
i64 bm_mt_get_num_entries(i32 cxt_id, string table_name) InvalidTableOperation
void bm_mt_clear_entries(i32 cxt_id, string table_name, bool reset_default_entry) InvalidTableOperation
i32 bm_mt_add_entry(i32 cxt_id, string table_name, list<BmMatchParam> match_key, string action_name, \
list<binary> action_data, BmAddEntryOptions options) InvalidTableOperation
void bm_mt_set_default_action(i32 cxt_id, string table_name, string action_name, list<binary> action_data) \
InvalidTableOperation
void bm_mt_reset_default_entry(i32 cxt_id, string table_name) InvalidTableOperation
void bm_mt_delete_entry(i32 cxt_id, string table_name, i32 entry_handle) InvalidTableOperation
void bm_mt_modify_entry(i32 cxt_id, string table_name, i32 entry_handle, string action_name, \
list<binary> action_data) InvalidTableOperation
void bm_mt_set_entry_ttl(i32 cxt_id, string table_name, i32 entry_handle, i32 timeout_ms) InvalidTableOperation
i32 bm_mt_act_prof_add_member(i32 cxt_id, string act_prof_name, string action_name, list<binary> action_data) \
InvalidTableOperation
void bm_mt_act_prof_delete_member(i32 cxt_id, string act_prof_name, i32 mbr_handle) InvalidTableOperation
void bm_mt_act_prof_modify_member(i32 cxt_id, string act_prof_name, i32 mbr_handle, string action_name, \
list<binary> action_data) InvalidTableOperation
i32 bm_mt_act_prof_create_group(i32 cxt_id, string act_prof_name) InvalidTableOperation
void bm_mt_act_prof_delete_group(i32 cxt_id, string act_prof_name, i32 grp_handle) InvalidTableOperation
void bm_mt_act_prof_add_member_to_group(i32 cxt_id, string act_prof_name, i32 mbr_handle, i32 grp_handle) \
InvalidTableOperation
void bm_mt_act_prof_remove_member_from_group(i32 cxt_id, string act_prof_name, i32 mbr_handle, i32 grp_handle) \
InvalidTableOperation
list<BmMtActProfMember> bm_mt_act_prof_get_members(i32 cxt_id, string act_prof_name) InvalidTableOperation
BmMtActProfMember bm_mt_act_prof_get_member(i32 cxt_id, string act_prof_name, i32 mbr_handle) InvalidTableOperation
list<BmMtActProfGroup> bm_mt_act_prof_get_groups(i32 cxt_id, string act_prof_name) InvalidTableOperation
BmMtActProfGroup bm_mt_act_prof_get_group(i32 cxt_id, string act_prof_name, i32 grp_handle) InvalidTableOperation
i32 bm_mt_indirect_add_entry(i32 cxt_id, string table_name, list<BmMatchParam> match_key, i32 mbr_handle, \
BmAddEntryOptions options) InvalidTableOperation
void bm_mt_indirect_modify_entry(i32 cxt_id, string table_name, i32 entry_handle, i32 mbr_handle) \
InvalidTableOperation
void bm_mt_indirect_delete_entry(i32 cxt_id, string table_name, i32 entry_handle) InvalidTableOperation
void bm_mt_indirect_set_entry_ttl(i32 cxt_id, string table_name, i32 entry_handle, i32 timeout_ms) \
InvalidTableOperation
void bm_mt_indirect_set_default_member(i32 cxt_id, string table_name, i32 mbr_handle) InvalidTableOperation
void bm_mt_indirect_reset_default_entry(i32 cxt_id, string table_name) InvalidTableOperation
i32 bm_mt_indirect_ws_add_entry(i32 cxt_id, string table_name, list<BmMatchParam> match_key, i32 grp_handle, \
BmAddEntryOptions options) InvalidTableOperation
void bm_mt_indirect_ws_modify_entry(i32 cxt_id, string table_name, i32 entry_handle, i32 grp_handle) \
InvalidTableOperation
void bm_mt_indirect_ws_set_default_group(i32 cxt_id, string table_name, i32 grp_handle) InvalidTableOperation
BmCounterValue bm_mt_read_counter(i32 cxt_id, string table_name, i32 entry_handle) InvalidTableOperation
void bm_mt_reset_counters(i32 cxt_id, string table_name) InvalidTableOperation
void bm_mt_write_counter(i32 cxt_id, string table_name, i32 entry_handle, BmCounterValue value) InvalidTableOperation
void bm_mt_set_meter_rates(i32 cxt_id, string table_name, i32 entry_handle, list<BmMeterRateConfig> rates) \
InvalidTableOperation
list<BmMeterRateConfig> bm_mt_get_meter_rates(i32 cxt_id, string table_name, i32 entry_handle) InvalidTableOperation
list<BmMtEntry> bm_mt_get_entries(i32 cxt_id, string table_name) InvalidTableOperation
BmMtEntry bm_mt_get_entry(i32 cxt_id, string table_name, i32 entry_handle) InvalidTableOperation
BmActionEntry bm_mt_get_default_entry(i32 cxt_id, string table_name) InvalidTableOperation
BmMtEntry bm_mt_get_entry_from_key(i32 cxt_id, string table_name, list<BmMatchParam> match_key, \
BmAddEntryOptions options) InvalidTableOperation
BmCounterValue bm_counter_read(i32 cxt_id, string counter_name, i32 index) InvalidCounterOperation
void bm_counter_reset_all(i32 cxt_id, string counter_name) InvalidCounterOperation
void bm_counter_write(i32 cxt_id, string counter_name, i32 index, BmCounterValue value) InvalidCounterOperation
void bm_learning_ack(i32 cxt_id, i32 list_id, i64 buffer_id, list<i32> sample_ids) InvalidLearnOperation
void bm_learning_ack_buffer(i32 cxt_id, i32 list_id, i64 buffer_id) InvalidLearnOperation
void bm_learning_set_timeout(i32 cxt_id, i32 list_id, i32 timeout_ms) InvalidLearnOperation
void bm_learning_set_buffer_size(i32 cxt_id, i32 list_id, i32 nb_samples) InvalidLearnOperation
void bm_load_new_config(string config_str) InvalidSwapOperation
void bm_swap_configs() InvalidSwapOperation
void bm_meter_array_set_rates(i32 cxt_id, string meter_array_name, list<BmMeterRateConfig> rates) \
InvalidMeterOperation
void bm_meter_set_rates(i32 cxt_id, string meter_array_name, i32 index, list<BmMeterRateConfig> rates) \
InvalidMeterOperation
list<BmMeterRateConfig> bm_meter_get_rates(i32 cxt_id, string meter_array_name, i32 index) InvalidMeterOperation
i64 bm_register_read(i32 cxt_id, string register_array_name, i32 idx) InvalidRegisterOperation
list<i64> bm_register_read_all(i32 cxt_id, string register_array_name) InvalidRegisterOperation
void bm_register_write(i32 cxt_id, string register_array_name, i32 index, i64 value) InvalidRegisterOperation
void bm_register_write_range(i32 cxt_id, string register_array_name, i32 start_index, i32 end_index, i64 value) \
InvalidRegisterOperation
void bm_register_reset(i32 cxt_id, string register_array_name) InvalidRegisterOperation
void bm_parse_vset_add(i32 cxt_id, string parse_vset_name, binary value) InvalidParseVSetOperation
void bm_parse_vset_remove(i32 cxt_id, string parse_vset_name, binary value) InvalidParseVSetOperation
list<binary> bm_parse_vset_get(i32 cxt_id, string parse_vset_name) InvalidParseVSetOperation
void bm_parse_vset_clear(i32 cxt_id, string parse_vset_name) InvalidParseVSetOperation
void bm_dev_mgr_add_port(string iface_name, i32 port_num, string pcap_path) InvalidDevMgrOperation
void bm_dev_mgr_remove_port(i32 port_num) InvalidDevMgrOperation
list<DevMgrPortInfo> bm_dev_mgr_show_ports() InvalidDevMgrOperation
BmConfig bm_mgmt_get_info()
void bm_set_crc16_custom_parameters(i32 cxt_id, string calc_name, BmCrc16Config crc16_config) InvalidCrcOperation
void bm_set_crc32_custom_parameters(i32 cxt_id, string calc_name, BmCrc32Config crc32_config) InvalidCrcOperation
void bm_set_toeplitz_hash_key(i32 cxt_id, string calc_name, binary key) InvalidToeplitzHashOperation
void bm_reset_state()
string bm_get_config()
binary bm_get_config_md5()
i32 bm_get_id_from_name(i32 cxt_id, i32 resource_type, string resource_name) InvalidIdLookup
string bm_serialize_state()
"""

_PRE_TYPES = """
enum McOperationErrorCode: TABLE_FULL INVALID_MGID INVALID_MGRP_HANDLE INVALID_L1_HANDLE ERROR
exception InvalidMcOperation: i32 code
"""

_PRE_METHODS = """
i32 bm_mc_mgrp_create(i32 cxt_id, i32 mgrp) InvalidMcOperation
void bm_mc_mgrp_destroy(i32 cxt_id, i32 mgrp_handle) InvalidMcOperation
i32 bm_mc_node_create(i32 cxt_id, i32 rid, string port_map) InvalidMcOperation
void bm_mc_node_associate(i32 cxt_id, i32 mgrp_handle, i32 l1_handle) InvalidMcOperation
void bm_mc_node_dissociate(i32 cxt_id, i32 mgrp_handle, i32 l1_handle) InvalidMcOperation
void bm_mc_node_destroy(i32 cxt_id, i32 l1_handle) InvalidMcOperation
void bm_mc_node_update(i32 cxt_id, i32 l1_handle, string port_map) InvalidMcOperation
string bm_mc_get_entries(i32 cxt_id) InvalidMcOperation
"""

_PRE_LAG_METHODS = _PRE_METHODS.replace("string port_map)", "string port_map, string lag_map)") + (
    "void bm_mc_set_lag_membership(i32 cxt_id, i16 lag_index, string port_map) InvalidMcOperation\n"
)

_SWITCH_TYPES = """
enum MirroringOperationErrorCode: SESSION_NOT_FOUND
struct MirroringSessionConfig: i32 port, i32 mgid
exception InvalidMirroringOperation: i32 code
"""

_SWITCH_METHODS = """
i32 mirroring_mapping_add(i32 mirror_id, i32 egress_port)
i32 mirroring_mapping_delete(i32 mirror_id)
i32 mirroring_mapping_get_egress_port(i32 mirror_id)
void mirroring_session_add(i32 mirror_id, MirroringSessionConfig config) InvalidMirroringOperation
void mirroring_session_delete(i32 mirror_id) InvalidMirroringOperation
MirroringSessionConfig mirroring_session_get(i32 mirror_id) InvalidMirroringOperation
i32 set_egress_priority_queue_depth(i32 port_num, i32 priority, i32 depth_pkts)
i32 set_egress_queue_depth(i32 port_num, i32 depth_pkts)
i32 set_all_egress_queue_depths(i32 depth_pkts)
i32 set_egress_priority_queue_rate(i32 port_num, i32 priority, i64 rate_pps)
i32 set_egress_queue_rate(i32 port_num, i64 rate_pps)
i32 set_all_egress_queue_rates(i64 rate_pps)
i64 get_time_elapsed_us()
i64 get_time_since_epoch_us()
"""


def _fields(text: str) -> tuple[ThriftField, ...]:
    """Fields from "type name, type name"; a comma within <> belongs to its type."""
    parts = text.replace("string,string", "string;string").split(",") if text.strip() else []
    pairs = (part.replace(";", ",").split() for part in parts)
    return tuple(ThriftField(kind, name) for kind, name in pairs)


def _numbers(text: str) -> dict[str, int]:
    """Names with their numbers: one more than the name before, from 1 on, where "=number" does not say otherwise."""
    found: dict[str, int] = {}
    following = 1
    for word in text.split():
        name, _, number = word.partition("=")
        found[name] = int(number) if number else following
        following = found[name] + 1
    return found


def _method(line: str) -> Method:
    head, _, tail = line.partition("(")
    result, name = head.split()
    arguments, _, error = tail.rpartition(")")
    return Method(name, result, _fields(arguments), error.strip())


def _module(name: str, service: str, types: str, methods: str) -> Module:
    enums: dict[str, dict[str, int]] = {}
    structs: dict[str, tuple[ThriftField, ...]] = {}
    exceptions: dict[str, tuple[ThriftField, ...]] = {}
    for line in types.strip().splitlines():
        head, _, body = line.partition(":")
        kind, called = head.split()
        if kind == "enum":
            enums[called] = _numbers(body)
        else:
            (structs if kind == "struct" else exceptions)[called] = _fields(body)
    return Module(name, service, enums, structs, exceptions,
                  tuple(_method(line) for line in methods.strip().splitlines()))


STANDARD = _module("standard", "Standard", _STANDARD_TYPES, _STANDARD_METHODS)
SIMPLE_PRE = _module("simple_pre", "SimplePre", _PRE_TYPES, _PRE_METHODS)
SIMPLE_PRE_LAG = _module("simple_pre_lag", "SimplePreLAG", _PRE_TYPES, _PRE_LAG_METHODS)
SIMPLE_SWITCH = _module("simple_switch", "SimpleSwitch", _SWITCH_TYPES, _SWITCH_METHODS)

MODULES = (STANDARD, SIMPLE_PRE, SIMPLE_PRE_LAG, SIMPLE_SWITCH)
