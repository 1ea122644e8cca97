# SPDX-License-Identifier: Apache-2.0
"""Table entries and default actions (P4Runtime 9.1)."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from finsy.proto import p4r

from softswitch.engine.entities import Default, Do, DoAction, DoGroup, DoMember, Entry
from softswitch.engine.errors import EngineError, InvalidArgument, NotFound, PermissionDenied
from softswitch.engine.program_info import MatchKind, TableInfo
from softswitch.p4runtime.actions import decode_table_action, encode_action
from softswitch.p4runtime.matches import decode_match, encode_match
from softswitch.p4runtime.metering import counted, decode_count, decode_meter, encode_count, encode_meter
from softswitch.p4runtime.schema import TableSchema

if TYPE_CHECKING:
    from softswitch.p4runtime.context import Context, Identity

KINDS = {p4r.Update.INSERT: "insert", p4r.Update.MODIFY: "modify", p4r.Update.DELETE: "delete"}


def decode_key(table: TableSchema, message: p4r.TableEntry, *, new: bool = False) -> tuple[bytes, bytes, int]:
    """Decodes (key, mask, priority) of an entry, which is a `new` one or one that should be there already.

    Raises InvalidArgument, OutOfRange; NotFound or ResourceExhausted for strings (translation.py).
    """
    given: dict[int, tuple[int, int]] = {}
    for match in message.match:
        field = table.fields.get(match.field_id)
        if field is None:
            raise InvalidArgument(f"table {table.name} has no match field with id {match.field_id}")
        if field.place in given:
            raise InvalidArgument(f"table {table.name}: match field {field.key.name} is given twice")
        what = f"table {table.name}, field {field.key.name}"
        given[field.place] = decode_match(field.key, match, what, field.codec, new=new)
    pairs = []
    for place, key in enumerate(table.info.keys):
        if place not in given and key.match is MatchKind.EXACT:
            raise InvalidArgument(f"table {table.name}: exact match field {key.name} is missing")
        pairs.append(given.get(place) or key.any)
    if table.info.has_priority:
        if message.priority <= 0:
            raise InvalidArgument(
                f"table {table.name} has ternary, range or optional fields: its entries need a "
                f"priority above 0, got {message.priority}"
            )
    elif message.priority:
        raise InvalidArgument(
            f"table {table.name} has exact and lpm fields only: priority must be 0, got {message.priority}"
        )
    key_bytes, mask = table.info.pack_key(pairs)
    return key_bytes, mask, message.priority


def _decode_do(context: Context, table: TableSchema, message: p4r.TableEntry) -> Do:
    kind = message.action.WhichOneof("type")
    if kind is None:
        raise InvalidArgument(f"table {table.name}: the entry has no action")
    if table.profile is None:
        if kind != "action":
            raise InvalidArgument(f"table {table.name} has no action profile: expected an action, got {kind}")
        return decode_table_action(table, message.action.action)
    if kind == "action":
        raise InvalidArgument(
            f"table {table.name} takes its actions from action profile {table.profile.name}: "
            "expected a member, a group or an action set"
        )
    if kind != "action_profile_action_set":
        context.one_shot.refuse_beside_sets(table.profile)
    if kind == "action_profile_member_id":
        return DoMember(message.action.action_profile_member_id)
    if not table.profile.selector:
        raise InvalidArgument(
            f"table {table.name}: action profile {table.profile.name} has no selector, so no groups"
        )
    if kind == "action_profile_group_id":
        return DoGroup(message.action.action_profile_group_id)
    return context.one_shot.create(table, message.action.action_profile_action_set)


def _encode_do(context: Context, table: TableSchema, do: Do, message: p4r.TableAction) -> None:
    if isinstance(do, DoAction):
        encode_action(context.schema.actions[table.info.actions[do.action].id], do.params, message.action)
    elif isinstance(do, DoMember):
        message.action_profile_member_id = do.member
    elif not context.one_shot.describe(table, do, message):
        message.action_profile_group_id = do.group


# ---- table entries ---------------------------------------------------------------------------------------------


def _const_guard(table: TableSchema) -> None:
    if table.info.const_entries:
        raise PermissionDenied(f"table {table.name} has const entries")


def _idle_guard(message: p4r.TableEntry, *, supported: bool) -> None:
    """Refuses fields that must be unset (P4Runtime 9.1.1, 9.1.5), in the words of BMv2's server, which control planes
    compare."""
    if message.idle_timeout_ns and not supported:
        raise InvalidArgument("idle_timeout_ns must be set to 0 for tables which do not support idle timeout")
    if message.HasField("time_since_last_hit"):
        raise InvalidArgument("has_time_since_last_hit must not be set in WriteRequest")


def _check_direct(table: TableInfo, message: p4r.TableEntry) -> None:
    """Refuses a meter or counter that `_write_direct` could not write, since a write that fails changes nothing."""
    if message.HasField("meter_config"):
        if table.direct_meter < 0:
            raise InvalidArgument(f"table {table.name} has no direct meter")
        decode_meter(message.meter_config, table.name)
    if message.HasField("counter_data"):
        if table.direct_counter < 0:
            raise InvalidArgument(f"table {table.name} has no direct counter")
        decode_count(message.counter_data, table.name)


def _modify_const(context: Context, table: TableSchema, message: p4r.TableEntry) -> None:
    """Writes the meter and counter of a const entry, nothing else of which changes (P4Runtime, "Constant Tables")."""
    if message.HasField("action") or message.metadata or message.controller_metadata or message.idle_timeout_ns:
        _const_guard(table)
    _idle_guard(message, supported=False)
    _check_direct(table.info, message)
    _write_direct(context, table.info, context.engine.entry(table.info, *decode_key(table, message)), message)


def decode_entry(context: Context, kind: str, message: p4r.TableEntry) -> Entry:
    """Decodes an entry to insert, modify or delete. Raises EngineError."""
    table = context.schema.table(message.table_id)
    _const_guard(table)
    key, mask, priority = decode_key(table, message, new=kind == "insert")
    if kind == "delete":
        return Entry(table.info, key, mask, DoAction(0), priority)
    _idle_guard(message, supported=table.info.idle_timeout)
    if message.idle_timeout_ns < 0:
        raise InvalidArgument(f"table {table.name}: idle timeout {message.idle_timeout_ns} ns is negative")
    _check_direct(table.info, message)
    do = _decode_do(context, table, message)
    return Entry(
        table.info,
        key,
        mask,
        do,
        priority,
        message.controller_metadata & (2**64 - 1),
        message.idle_timeout_ns,
    )


def write_entries(context: Context, kind: str, messages: list[p4r.TableEntry]) -> list[EngineError | None]:
    """Executes writes of one kind and returns an error or None for each; default actions are written one by one."""
    results: list[EngineError | None] = [None] * len(messages)
    ready: list[tuple[int, Entry]] = []
    for i, message in enumerate(messages):
        try:
            if message.is_default_action:
                flush_entries(context, kind, messages, ready, results)
                ready = []
                _write_default(context, kind, message)
            elif kind == "modify" and (table := context.schema.table(message.table_id)).info.const_entries:
                _modify_const(context, table, message)
            else:
                ready.append((i, decode_entry(context, kind, message)))
        except EngineError as error:
            results[i] = error
    flush_entries(context, kind, messages, ready, results)
    return results


def _identity(entry: Entry) -> Identity:
    return entry.table.id, entry.key, entry.mask, entry.priority


def flush_entries(
    context: Context,
    kind: str,
    messages: list[p4r.TableEntry],
    ready: list[tuple[int, Entry]],
    results: list[EngineError | None],
) -> None:
    """Writes decoded entries in one batch, then their metadata, counters and meters."""
    held: dict[Identity, Do | None] = {}
    if kind != "insert":
        held = {_identity(entry): context.one_shot.of_entry(entry) for _, entry in ready if entry.table.profile >= 0}
    replies = context.engine.write_entries(kind, [entry for _, entry in ready])
    for (i, entry), reply in zip(ready, replies, strict=True):
        message = messages[i]
        identity = _identity(entry)
        if isinstance(reply, EngineError):
            results[i] = reply
            context.one_shot.abandon(entry.do)
            continue
        old, held[identity] = held.get(identity), entry.do
        if old is not None:
            context.one_shot.abandon(old)
        if message.metadata and kind != "delete":
            context.metadata[identity] = message.metadata
        else:
            context.metadata.pop(identity, None)
        try:
            if kind != "delete":
                _write_direct(context, entry.table, entry, message)
        except EngineError as error:
            results[i] = error


def _write_default(context: Context, kind: str, message: p4r.TableEntry) -> None:
    table = context.schema.table(message.table_id)
    if kind != "modify":
        raise InvalidArgument(f"table {table.name}: a default action can be modified, not {kind}ed")
    if message.match or message.priority:
        raise InvalidArgument(f"table {table.name}: a default action has neither match nor priority")
    if message.idle_timeout_ns:
        raise InvalidArgument(f"table {table.name}: idle_timeout_ns: a default action never ages, expected 0")
    _idle_guard(message, supported=True)
    if table.info.const_default:
        raise PermissionDenied(f"table {table.name}: its default action is const")
    _check_direct(table.info, message)
    kind_of = message.action.WhichOneof("type")
    if kind_of is None:  # back to the program's, without metadata
        context.engine.set_default(table.info, None)
        context.default_metadata.pop(table.id, None)
    elif kind_of == "action":
        context.engine.set_default(table.info, decode_table_action(table, message.action.action, default=True))
        context.default_metadata[table.id] = message.controller_metadata, message.metadata
    else:
        raise InvalidArgument(f"table {table.name}: a default action must be an action, got {kind_of}")
    _write_direct(context, table.info, None, message)


def _write_direct(context: Context, table: TableInfo, entry: Entry | None, message: p4r.TableEntry) -> None:
    """Writes the meter and counter of an entry, or (None) of the default action; without a meter it is unmetered."""
    if table.direct_meter >= 0:
        given = message.HasField("meter_config")
        config = decode_meter(message.meter_config, table.name) if given else None
        context.engine.write_direct_meter(table, entry, config)
    if message.HasField("counter_data"):
        set_counter(context, table, entry, message.counter_data)


def set_counter(context: Context, table: TableInfo, entry: Entry | None, data: p4r.CounterData) -> None:
    """Sets the direct counter of an entry, or (None) of the default action.  Raises InvalidArgument, NotFound."""
    engine, written = context.engine, decode_count(data, table.name)
    found = engine.default(table) if entry is None else engine.entry(table, entry.key, entry.mask, entry.priority)
    counter = engine.info.counters[table.direct_counter]
    engine.write_direct_counter(table, entry, counted(counter, written, found.count))


def encode_key(table: TableSchema, entry: Entry, message: p4r.TableEntry) -> None:
    """Fills in what identifies an entry: table id, match and priority."""
    message.table_id = table.id
    pairs = entry.fields
    for field in table.fields.values():
        match = encode_match(field.id, field.key, *pairs[field.place], field.codec)
        if match is not None:
            message.match.append(match)
    if table.info.has_priority:
        message.priority = entry.priority


def encode_entry(
    context: Context, table: TableSchema, entry: Entry, asked: p4r.TableEntry, message: p4r.TableEntry
) -> None:
    """Fills in a whole TableEntry; counters, meters and times only where they are set in `asked`."""
    encode_key(table, entry, message)
    _encode_do(context, table, entry.do, message.action)
    message.controller_metadata = entry.cookie
    message.idle_timeout_ns = entry.idle_timeout_ns
    message.metadata = context.metadata.get(_identity(entry), b"")
    message.is_const = table.info.const_entries
    if asked.HasField("time_since_last_hit") and table.info.idle_timeout:
        message.time_since_last_hit.elapsed_ns = entry.since_hit_us * 1000
    _encode_direct(table, entry, asked, message)


def encode_idle(context: Context, table: TableSchema, entry: Entry, message: p4r.TableEntry) -> None:
    """Fills in an entry for its idle notification, without counters and meters."""
    encode_entry(context, table, entry, p4r.TableEntry(time_since_last_hit=p4r.TableEntry.IdleTimeout()), message)


def _encode_direct(table: TableSchema, entry: Entry | Default, asked: p4r.TableEntry, message: p4r.TableEntry) -> None:
    if asked.HasField("counter_data") and table.info.direct_counter >= 0:
        encode_count(entry.count, message.counter_data)
    if asked.HasField("meter_config") and table.info.direct_meter >= 0 and entry.meter is not None:
        encode_meter(entry.meter, message.meter_config)


def asked_tables(context: Context, ident: int) -> list[TableSchema]:
    """The table of this id, or all tables for 0.  Raises InvalidArgument."""
    return [context.schema.table(ident)] if ident else list(context.schema.tables.values())


def asked_entries(context: Context, table: TableSchema, asked: p4r.TableEntry) -> Iterator[Entry]:
    """The entries that a read selects: one by its match, or all, with the given priority, metadata and action."""
    if asked.match:
        with contextlib.suppress(NotFound):  # like BMv2, a read of an entry that does not exist returns nothing
            found = context.engine.entry(table.info, *decode_key(table, asked))
            if _selected(context, table, asked, found):
                yield found
        return
    for entry in context.engine.entries(table.info):
        if isinstance(entry.do, DoGroup) and context.one_shot.is_gone(table, entry.do):  # written since its page came
            with contextlib.suppress(NotFound):
                now = context.engine.entry(table.info, entry.key, entry.mask, entry.priority)
                if _selected(context, table, asked, now):
                    yield now
        elif _selected(context, table, asked, entry):
            yield entry


def _selected(context: Context, table: TableSchema, asked: p4r.TableEntry, entry: Entry) -> bool:
    if asked.priority and entry.priority != asked.priority:
        return False
    if asked.controller_metadata and entry.cookie != asked.controller_metadata & (2**64 - 1):
        return False
    if asked.metadata and context.metadata.get(_identity(entry)) != asked.metadata:
        return False
    action = asked.action.action.action_id
    return not action or (isinstance(entry.do, DoAction) and table.info.actions[entry.do.action].id == action)


def read_entries(context: Context, asked: p4r.TableEntry) -> Iterator[p4r.Entity]:
    """Reads table entries, or the default action where is_default_action is set."""
    if asked.table_id == 0 and asked.match:
        raise InvalidArgument("a read with a match must name its table")
    for table in asked_tables(context, asked.table_id):
        if asked.is_default_action:
            default = context.engine.default(table.info)
            entity = p4r.Entity()
            message = entity.table_entry
            message.table_id, message.is_default_action = table.id, True
            message.is_const = table.info.const_default
            message.controller_metadata, message.metadata = context.default_metadata.get(table.id, (0, b""))
            _encode_do(context, table, default.do, message.action)
            _encode_direct(table, default, asked, message)
            yield entity
            continue
        for entry in asked_entries(context, table, asked):
            entity = p4r.Entity()
            encode_entry(context, table, entry, asked, entity.table_entry)
            yield entity
