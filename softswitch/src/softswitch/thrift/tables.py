# SPDX-License-Identifier: Apache-2.0
"""Tables over Thrift: entries by handle, default actions, direct counters and meters."""

import dataclasses
from typing import Any

from softswitch.engine.entities import Count, Do, DoAction, DoGroup, DoMember, Entry
from softswitch.engine.errors import (
    AlreadyExists,
    EngineError,
    InvalidArgument,
    NotFound,
    PermissionDenied,
    ResourceExhausted,
)
from softswitch.engine.program_info import TableInfo
from softswitch.p4runtime.context import Context
from softswitch.thrift.entry_structs import (
    count_of,
    counter_value,
    do_entry,
    find_action,
    find_table,
    handle_of,
    identity,
    meter_config,
    meter_rates,
    mt_entry,
    pack_params,
)
from softswitch.thrift.switch import STANDARD, Switch, fail_table

ENTRIES_MAX = 1 << 18
"""Most entries of a table in one answer."""


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
        key, mask, priority = identity(table, match_key, options)
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
        context.engine.modify(dataclasses.replace(entry, idle_timeout_ns=timeout_ms * 1_000_000))

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
            found.append(mt_entry(context, table, entry))
        return found

    def bm_mt_get_entry(self, cxt_id: int, table_name: str, entry_handle: int) -> Any:
        context, table = self._table(cxt_id, table_name)
        return mt_entry(context, table, self._entry(context, table, entry_handle))

    def bm_mt_get_entry_from_key(self, cxt_id: int, table_name: str, match_key: Any, options: Any) -> Any:
        context, table = self._table(cxt_id, table_name)
        if not match_key:
            default = self.bm_mt_get_default_entry(cxt_id, table_name)
            return STANDARD.BmMtEntry([], STANDARD.BmAddEntryOptions(0), 0, default)
        key, mask, priority = identity(table, match_key, options)
        try:
            return mt_entry(context, table, context.engine.entry(table, key, mask, priority))
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
        return do_entry(table, context.engine.default(table).do)

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
