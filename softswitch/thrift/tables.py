# SPDX-License-Identifier: Apache-2.0
"""Tables over Thrift: entries by handle, default actions, direct counters and meters.

BMv2's handle of an entry is 32 bits: its place in the table (24 bits), and how often the place was used before (8
bits). Here the least priority wins where P4Runtime's greatest does; one is TOP_PRIORITY minus the other, as in BMv2.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

from softswitch.engine.entities import Count, Do, DoAction, DoGroup, DoMember, Entry, MeterConfig
from softswitch.engine.errors import (
    AlreadyExists,
    EngineError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
)
from softswitch.engine.program_info import ActionInfo, KeyField, MatchKind, TableInfo
from softswitch.p4runtime.context import Context
from softswitch.thrift.switch import STANDARD, Switch, fail_table

ENTRIES_MAX = 1 << 18
"""Entries of a table in one answer."""
TOP_PRIORITY = 2**31 - 1
_PLACE_BITS = 24
_TYPE = STANDARD.BmMatchParamType


def handle_of(entry: Entry) -> int:
    """BMv2's handle of an entry, as the signed number that Thrift carries."""
    unsigned = (entry.handle >> 32 & 0xFF) << _PLACE_BITS | entry.handle & 0xFFFFFF
    return unsigned - (1 << 32) if unsigned >> 31 else unsigned


def _bytes_of(value: int, bits: int) -> bytes:
    return value.to_bytes((bits + 7) // 8, "big")


def shortest(value: int) -> bytes:
    """A value in as few bytes as hold it, at least one: so BMv2 tells action parameters."""
    return value.to_bytes(max(1, (value.bit_length() + 7) // 8), "big")


def find_table(context: Context, name: str) -> TableInfo:
    """The table of exactly this name."""
    found = next((t for t in context.engine.info.tables if t.name == name), None)
    return found if found is not None else fail_table("INVALID_TABLE_NAME")


def find_action(table: TableInfo, name: str) -> ActionInfo:
    """The action of exactly this name."""
    found = next((a for a in table.actions if a.name == name), None)
    return found if found is not None else fail_table("INVALID_ACTION_NAME")


def pack_params(action: ActionInfo, data: Sequence[bytes] | None) -> bytes:
    """Action parameters in byte form; bits above a parameter's width are cut off, as BMv2 does when it uses them."""
    given = data or []
    if len(given) != len(action.param_bits):
        fail_table("BAD_ACTION_DATA")
    return action.pack([int.from_bytes(one, "big") & ((1 << bits) - 1)
                        for one, bits in zip(given, action.param_bits, strict=True)])


def _value(data: bytes | None, key: KeyField) -> int:
    if data is None or len(data) != (key.bits + 7) // 8:
        fail_table("BAD_MATCH_KEY")
    return int.from_bytes(data, "big") & key.ones


def _field(key: KeyField, param: Any) -> tuple[int, int]:
    """(value, mask) of one field of a match key."""
    match key.match:
        case MatchKind.EXACT:
            if param.type == _TYPE.VALID and param.valid is not None and key.bits == 1:
                return int(bool(param.valid.key)), key.ones
            if param.type == _TYPE.EXACT and param.exact is not None:
                return _value(param.exact.key, key), key.ones
        case MatchKind.LPM:
            if param.type == _TYPE.LPM and param.lpm is not None:
                length = param.lpm.prefix_length
                if length is not None and 0 <= length <= key.bits:
                    return key.prefix(_value(param.lpm.key, key), length)
        case MatchKind.TERNARY | MatchKind.OPTIONAL:
            if param.type == _TYPE.TERNARY and param.ternary is not None:
                mask = _value(param.ternary.mask, key)
                if key.match is MatchKind.TERNARY or mask in (0, key.ones):
                    return _value(param.ternary.key, key) & mask, mask
        case MatchKind.RANGE:
            if param.type == _TYPE.RANGE and param.range is not None:
                low, high = _value(param.range.start, key), _value(param.range.end_, key)
                if low <= high:
                    return low, high
    return fail_table("BAD_MATCH_KEY")


def _param(key: KeyField, value: int, mask: int) -> Any:
    low, high = _bytes_of(value, key.bits), _bytes_of(mask, key.bits)
    match key.match:
        case MatchKind.EXACT:
            return STANDARD.BmMatchParam(_TYPE.EXACT, exact=STANDARD.BmMatchParamExact(low))
        case MatchKind.LPM:
            return STANDARD.BmMatchParam(_TYPE.LPM, lpm=STANDARD.BmMatchParamLPM(low, mask.bit_count()))
        case MatchKind.RANGE:
            return STANDARD.BmMatchParam(_TYPE.RANGE, range=STANDARD.BmMatchParamRange(low, high))
        case _:
            return STANDARD.BmMatchParam(_TYPE.TERNARY, ternary=STANDARD.BmMatchParamTernary(low, high))


def _identity(table: TableInfo, match_key: Sequence[Any] | None, options: Any) -> tuple[bytes, bytes, int]:
    """Key, mask and priority of an entry."""
    given = match_key or []
    if len(given) != len(table.keys):
        fail_table("BAD_MATCH_KEY")
    key, mask = table.pack_key([_field(key, param) for key, param in zip(table.keys, given, strict=True)])
    if not table.has_priority:
        return key, mask, 0
    priority = options.priority if options is not None and options.priority is not None else 0
    if priority < 0:
        raise InvalidArgument(f"table {table.name}: expected a priority from 0 on, got {priority}")
    return key, mask, TOP_PRIORITY - priority


def _do_entry(context: Context, table: TableInfo, do: Do) -> Any:
    """What an entry does, as BmActionEntry."""
    kinds = STANDARD.BmActionEntryType
    if isinstance(do, DoAction):
        action = table.actions[do.action]
        return STANDARD.BmActionEntry(kinds.ACTION_DATA, action.name,
                                      [shortest(value) for value in action.unpack(do.params)])
    if isinstance(do, DoMember):
        return STANDARD.BmActionEntry(kinds.MBR_HANDLE, mbr_handle=signed(do.member))
    return STANDARD.BmActionEntry(kinds.GRP_HANDLE, grp_handle=signed(do.group))


def signed(ident: int) -> int:
    """An id of 32 bits as the signed number that Thrift carries."""
    return ident - (1 << 32) if ident >> 31 else ident


def _mt_entry(context: Context, table: TableInfo, entry: Entry) -> Any:
    """An entry, as BmMtEntry."""
    priority = TOP_PRIORITY - entry.priority if table.has_priority else -1
    if table.has_priority and table.const_entries:  # p4c numbers the program's own from 1 on
        priority = 1 + sum(other.priority > entry.priority for other in context.engine.entries(table))
    match = [_param(key, *pair) for key, pair in zip(table.keys, entry.fields, strict=True)]
    found = STANDARD.BmMtEntry(match, STANDARD.BmAddEntryOptions(priority), handle_of(entry),
                               _do_entry(context, table, entry.do))
    if entry.idle_timeout_us:
        limit = 2**31 - 1
        found.life = STANDARD.BmMtEntryLife(min(entry.idle_timeout_us // 1000, limit),
                                            min(entry.since_hit_us // 1000, limit))
    return found


def meter_config(rates: Sequence[Any] | None, fail: Any) -> MeterConfig:
    """BMv2's two rates (units a microsecond) as the engine's. `fail` raises for a name."""
    given = rates or []
    if len(given) != 2:
        fail("BAD_RATES_LIST")
    numbers = []
    for rate in given:
        value, burst = rate.units_per_micros, rate.burst_size
        if value is None or not 0 <= value < 1e12:
            fail("INVALID_INFO_RATE_VALUE")
        if burst is None or burst < 0:
            fail("INVALID_BURST_SIZE_VALUE")
        numbers.append((value, burst))
    (cir, cburst), (pir, pburst) = numbers
    if pir < cir:
        fail("INVALID_INFO_RATE_VALUE")
    whole = all(abs(rate * 1e6 - round(rate * 1e6)) < 1e-6 for rate in (cir, pir))
    slow = not whole and pir <= 1e6  # a fraction of a unit a second counts
    scale = 1e12 if slow else 1e6
    return MeterConfig(round(cir * scale), cburst, round(pir * scale), pburst, slow)


def meter_rates(config: MeterConfig | None) -> list[Any]:
    """The engine's meter as BMv2's rates; none where it was not configured."""
    if config is None:
        return []
    limit = 2**31 - 1
    scale = 1e12 if config.slow else 1e6
    return [STANDARD.BmMeterRateConfig(rate / scale, min(burst, limit))
            for rate, burst in ((config.cir, config.cburst), (config.pir, config.pburst))]


class Tables:
    """The methods bm_mt_* of match tables."""

    def __init__(self, switch: Switch) -> None:
        self._switch = switch

    # ---- helpers ---------------------------------------------------------------------------------------------

    def _table(self, cxt_id: int, name: str, *, indirect: bool | None = None) -> tuple[Context, TableInfo]:
        """The table; `indirect` says what it must be, and None that both will do."""
        context = self._switch.context()
        table = find_table(context, name)
        if indirect is not None and indirect != (table.profile >= 0):
            fail_table("WRONG_TABLE_TYPE")
        return context, table

    def _entry(self, context: Context, table: TableInfo, handle: int, *, expires: bool = True) -> Entry:
        """The entry of a handle. `expires`: not for an earlier entry of the same place, where BMv2 looks at it."""
        try:
            entry = context.engine.entry_at(table, handle & 0xFFFFFF)
        except NotFound:
            fail_table("INVALID_HANDLE")
        if expires and handle_of(entry) & 0xFFFFFFFF != handle & 0xFFFFFFFF:
            fail_table("EXPIRED_HANDLE")
        return entry

    def _changed(self, context: Context, old: Entry | None, *, deleted: bool) -> None:
        """P4Runtime's own state of an entry that was overwritten or deleted."""
        if old is not None:
            context.one_shot.abandon(old.do)
            if deleted:
                context.metadata.pop((old.table.id, old.key, old.mask, old.priority), None)

    def _modify(self, context: Context, entry: Entry, do: Do) -> None:
        try:
            context.engine.modify(dataclasses.replace(entry, do=do))
        except PermissionDenied:
            fail_table("IMMUTABLE_TABLE_ENTRIES")
        except NotFound:
            fail_table("INVALID_MBR_HANDLE" if isinstance(do, DoMember) else "INVALID_GRP_HANDLE")
        if do != entry.do:
            self._changed(context, entry, deleted=False)

    def _insert(self, context: Context, table: TableInfo, match_key: Any, options: Any, do: Do) -> int:
        if table.const_entries:
            fail_table("IMMUTABLE_TABLE_ENTRIES")
        if not table.keys:
            fail_table("NO_TABLE_KEY")
        key, mask, priority = _identity(table, match_key, options)
        entry = Entry(table, key, mask, do, priority)
        try:
            handle = context.engine.insert(entry)
        except AlreadyExists:
            fail_table("DUPLICATE_ENTRY")
        except ResourceExhausted:
            fail_table("TABLE_FULL")
        except NotFound:
            fail_table("INVALID_MBR_HANDLE" if isinstance(do, DoMember) else "INVALID_GRP_HANDLE")
        return handle_of(dataclasses.replace(entry, handle=handle))

    def _delete(self, cxt_id: int, table_name: str, handle: int, *, indirect: bool) -> None:
        context, table = self._table(cxt_id, table_name, indirect=indirect)
        if table.const_entries:
            fail_table("IMMUTABLE_TABLE_ENTRIES")
        entry = self._entry(context, table, handle)
        context.engine.delete(entry)
        self._changed(context, entry, deleted=True)

    def _set_ttl(self, cxt_id: int, table_name: str, handle: int, timeout_ms: int, *, indirect: bool) -> None:
        context, table = self._table(cxt_id, table_name, indirect=indirect)
        if not table.idle_timeout:
            fail_table("AGEING_DISABLED")
        entry = self._entry(context, table, handle)
        if timeout_ms < 0:
            raise InvalidArgument(f"table {table_name}: expected a timeout from 0 ms on, got {timeout_ms}")
        context.engine.modify(dataclasses.replace(entry, idle_timeout_us=timeout_ms * 1000))

    def _reset_default(self, cxt_id: int, table_name: str, *, indirect: bool) -> None:
        context, table = self._table(cxt_id, table_name, indirect=indirect)
        context.engine.set_default(table, None)

    # ---- entries ---------------------------------------------------------------------------------------------

    def bm_mt_get_num_entries(self, cxt_id: int, table_name: str) -> int:
        context, table = self._table(cxt_id, table_name)
        return sum(1 for _ in context.engine.entries(table))

    def bm_mt_clear_entries(self, cxt_id: int, table_name: str, reset_default_entry: bool) -> None:
        context, table = self._table(cxt_id, table_name)
        if table.const_entries:
            fail_table("IMMUTABLE_TABLE_ENTRIES")
        gone = list(context.engine.entries(table)) if table.profile >= 0 or context.metadata else []
        context.engine.clear(table)
        for entry in gone:
            self._changed(context, entry, deleted=True)
        if reset_default_entry and not table.const_default:
            context.engine.set_default(table, None)

    def bm_mt_add_entry(self, cxt_id: int, table_name: str, match_key: Any, action_name: str, action_data: Any,
                        options: Any) -> int:
        context, table = self._table(cxt_id, table_name, indirect=False)
        action = find_action(table, action_name)
        do = DoAction(action.index, pack_params(action, action_data))
        return self._insert(context, table, match_key, options, do)

    def bm_mt_delete_entry(self, cxt_id: int, table_name: str, entry_handle: int) -> None:
        self._delete(cxt_id, table_name, entry_handle, indirect=False)

    def bm_mt_modify_entry(self, cxt_id: int, table_name: str, entry_handle: int, action_name: str,
                           action_data: Any) -> None:
        context, table = self._table(cxt_id, table_name, indirect=False)
        if table.const_entries:
            fail_table("IMMUTABLE_TABLE_ENTRIES")
        action = find_action(table, action_name)
        do = DoAction(action.index, pack_params(action, action_data))
        self._modify(context, self._entry(context, table, entry_handle), do)

    def bm_mt_set_entry_ttl(self, cxt_id: int, table_name: str, entry_handle: int, timeout_ms: int) -> None:
        self._set_ttl(cxt_id, table_name, entry_handle, timeout_ms, indirect=False)

    def bm_mt_get_entries(self, cxt_id: int, table_name: str) -> list[Any]:
        context, table = self._table(cxt_id, table_name)
        found: list[Any] = []
        for entry in context.engine.entries(table):
            if len(found) == ENTRIES_MAX:
                raise ResourceExhausted(f"table {table_name} has more than {ENTRIES_MAX} entries: expected fewer in an "
                                        "answer; read them over P4Runtime")
            found.append(_mt_entry(context, table, entry))
        return found

    def bm_mt_get_entry(self, cxt_id: int, table_name: str, entry_handle: int) -> Any:
        context, table = self._table(cxt_id, table_name)
        return _mt_entry(context, table, self._entry(context, table, entry_handle))

    def bm_mt_get_entry_from_key(self, cxt_id: int, table_name: str, match_key: Any, options: Any) -> Any:
        context, table = self._table(cxt_id, table_name)
        if not match_key:
            default = self.bm_mt_get_default_entry(cxt_id, table_name)
            return STANDARD.BmMtEntry([], STANDARD.BmAddEntryOptions(0), 0, default)
        key, mask, priority = _identity(table, match_key, options)
        try:
            return _mt_entry(context, table, context.engine.entry(table, key, mask, priority))
        except NotFound:
            fail_table("BAD_MATCH_KEY")

    # ---- default actions -------------------------------------------------------------------------------------

    def bm_mt_set_default_action(self, cxt_id: int, table_name: str, action_name: str, action_data: Any) -> None:
        context, table = self._table(cxt_id, table_name, indirect=False)
        action = find_action(table, action_name)
        if table.const_default:
            fail_table("DEFAULT_ENTRY_IS_CONST")
        context.engine.set_default(table, DoAction(action.index, pack_params(action, action_data)))

    def bm_mt_reset_default_entry(self, cxt_id: int, table_name: str) -> None:
        self._reset_default(cxt_id, table_name, indirect=False)

    def bm_mt_get_default_entry(self, cxt_id: int, table_name: str) -> Any:
        context, table = self._table(cxt_id, table_name)
        if table.profile >= 0:  # BMv2 has none before somebody sets a member
            return STANDARD.BmActionEntry(STANDARD.BmActionEntryType.NONE)
        return _do_entry(context, table, context.engine.default(table).do)

    # ---- tables with an action profile -----------------------------------------------------------------------

    def bm_mt_indirect_add_entry(self, cxt_id: int, table_name: str, match_key: Any, mbr_handle: int,
                                 options: Any) -> int:
        context, table = self._table(cxt_id, table_name, indirect=True)
        return self._insert(context, table, match_key, options, DoMember(mbr_handle & 0xFFFFFFFF))

    def bm_mt_indirect_ws_add_entry(self, cxt_id: int, table_name: str, match_key: Any, grp_handle: int,
                                    options: Any) -> int:
        context, table = self._with_selector(cxt_id, table_name)
        return self._insert(context, table, match_key, options, self._filled(context, table, grp_handle))

    def bm_mt_indirect_modify_entry(self, cxt_id: int, table_name: str, entry_handle: int, mbr_handle: int) -> None:
        context, table = self._table(cxt_id, table_name, indirect=True)
        self._modify(context, self._entry(context, table, entry_handle), DoMember(mbr_handle & 0xFFFFFFFF))

    def bm_mt_indirect_ws_modify_entry(self, cxt_id: int, table_name: str, entry_handle: int,
                                       grp_handle: int) -> None:
        context, table = self._with_selector(cxt_id, table_name)
        do = self._filled(context, table, grp_handle)
        self._modify(context, self._entry(context, table, entry_handle), do)

    def _with_selector(self, cxt_id: int, table_name: str) -> tuple[Context, TableInfo]:
        context, table = self._table(cxt_id, table_name, indirect=True)
        if not context.engine.info.profiles[table.profile].selector:
            fail_table("WRONG_TABLE_TYPE")
        return context, table

    def _filled(self, context: Context, table: TableInfo, grp_handle: int) -> DoGroup:
        """A group that has members: BMv2 lets no entry use another."""
        try:
            (group,) = context.engine.groups(context.engine.info.profiles[table.profile], grp_handle & 0xFFFFFFFF)
        except NotFound:
            fail_table("INVALID_GRP_HANDLE")
        if not group.members:
            fail_table("EMPTY_GRP")
        return DoGroup(group.group)

    def bm_mt_indirect_delete_entry(self, cxt_id: int, table_name: str, entry_handle: int) -> None:
        self._delete(cxt_id, table_name, entry_handle, indirect=True)

    def bm_mt_indirect_set_entry_ttl(self, cxt_id: int, table_name: str, entry_handle: int, timeout_ms: int) -> None:
        self._set_ttl(cxt_id, table_name, entry_handle, timeout_ms, indirect=True)

    def bm_mt_indirect_set_default_member(self, cxt_id: int, table_name: str, mbr_handle: int) -> None:
        self._no_default(cxt_id, table_name)

    def bm_mt_indirect_ws_set_default_group(self, cxt_id: int, table_name: str, grp_handle: int) -> None:
        self._no_default(cxt_id, table_name)

    def bm_mt_indirect_reset_default_entry(self, cxt_id: int, table_name: str) -> None:
        self._reset_default(cxt_id, table_name, indirect=True)

    def _no_default(self, cxt_id: int, table_name: str) -> None:
        self._table(cxt_id, table_name, indirect=True)
        raise EngineError(f"table {table_name}: a member or group as default is not supported: P4Runtime has none")

    # ---- direct counters and meters --------------------------------------------------------------------------

    def bm_mt_read_counter(self, cxt_id: int, table_name: str, entry_handle: int) -> Any:
        context, table = self._table(cxt_id, table_name)
        if table.direct_counter < 0:
            fail_table("COUNTERS_DISABLED")
        count = self._entry(context, table, entry_handle, expires=False).count
        return counter_value(count)

    def bm_mt_reset_counters(self, cxt_id: int, table_name: str) -> None:
        context, table = self._table(cxt_id, table_name)
        if table.direct_counter < 0:
            fail_table("COUNTERS_DISABLED")
        for entry in context.engine.entries(table):
            context.engine.write_direct_counter(table, entry, Count())

    def bm_mt_write_counter(self, cxt_id: int, table_name: str, entry_handle: int, value: Any) -> None:
        context, table = self._table(cxt_id, table_name)
        if table.direct_counter < 0:
            fail_table("COUNTERS_DISABLED")
        entry = self._entry(context, table, entry_handle, expires=False)
        context.engine.write_direct_counter(table, entry, count_of(value))

    def bm_mt_set_meter_rates(self, cxt_id: int, table_name: str, entry_handle: int, rates: Any) -> None:
        context, table = self._table(cxt_id, table_name)
        if table.direct_meter < 0:
            fail_table("METERS_DISABLED")
        entry = self._entry(context, table, entry_handle, expires=False)
        config = meter_config(rates, lambda _: fail_table("ERROR"))
        context.engine.write_direct_meter(table, entry, config)

    def bm_mt_get_meter_rates(self, cxt_id: int, table_name: str, entry_handle: int) -> list[Any]:
        context, table = self._table(cxt_id, table_name)
        if table.direct_meter < 0:
            fail_table("METERS_DISABLED")
        return meter_rates(self._entry(context, table, entry_handle, expires=False).meter)


def counter_value(count: Count) -> Any:
    """A counter cell as BmCounterValue, of signed numbers."""
    return STANDARD.BmCounterValue(*(n - (1 << 64) if n >> 63 else n for n in (count.bytes, count.packets)))


def count_of(value: Any) -> Count:
    """BmCounterValue as a counter cell."""
    top = (1 << 64) - 1
    if value is None:
        raise InvalidArgument("expected a BmCounterValue, got none")
    return Count((value.packets or 0) & top, (value.bytes or 0) & top)
