# SPDX-License-Identifier: Apache-2.0
"""Table entries, default actions, and the direct counters and meters that hang on them (P4Runtime 9.1)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from finsy.proto import p4r

from softswitch.entities import (
    Count,
    Default,
    Do,
    DoAction,
    DoGroup,
    DoMember,
    EngineError,
    Entry,
    InvalidArgument,
    KeyField,
    MatchKind,
    MeterConfig,
    NotFound,
    PermissionDenied,
    TableInfo,
    pack_fields,
)
from softswitch.p4runtime import bytestrings
from softswitch.p4runtime.schema import Action, Table

if TYPE_CHECKING:
    from softswitch.p4runtime.context import Context

KINDS = {p4r.Update.INSERT: "insert", p4r.Update.MODIFY: "modify", p4r.Update.DELETE: "delete"}


# ---- matches ---------------------------------------------------------------------------------------------------


def decode_match(key: KeyField, match: p4r.FieldMatch, what: str) -> tuple[int, int]:
    """A FieldMatch as the engine's (value, mask). Raises InvalidArgument, OutOfRange."""
    kind = match.WhichOneof("field_match_type")
    wanted = key.match.name.lower()
    if kind != wanted:
        raise InvalidArgument(f"{what}: expected a match of kind {wanted}, got {kind or 'none'}")
    if key.match is MatchKind.EXACT:
        return bytestrings.decode(match.exact.value, key.bits, what), key.ones
    if key.match is MatchKind.OPTIONAL:
        return bytestrings.decode(match.optional.value, key.bits, what), key.ones
    if key.match is MatchKind.LPM:
        value, length = bytestrings.decode(match.lpm.value, key.bits, what), match.lpm.prefix_len
        if length == 0:
            raise InvalidArgument(f"{what}: a prefix length of 0 is not allowed; leave the field out to match all")
        prefix = key.prefix(value, length)
        if prefix[0] != value:
            raise InvalidArgument(f"{what}: value {value:#x} has bits beyond its prefix of {length}")
        return prefix
    if key.match is MatchKind.TERNARY:
        value = bytestrings.decode(match.ternary.value, key.bits, what)
        mask = bytestrings.decode(match.ternary.mask, key.bits, what)
        if mask == 0:
            raise InvalidArgument(f"{what}: a mask of 0 is not allowed; leave the field out to match all")
        if value & ~mask:
            raise InvalidArgument(f"{what}: value {value:#x} has bits outside of its mask {mask:#x}")
        return value, mask
    low = bytestrings.decode(match.range.low, key.bits, what)
    high = bytestrings.decode(match.range.high, key.bits, what)
    if low > high:
        raise InvalidArgument(f"{what}: low end {low:#x} is above high end {high:#x}")
    if (low, high) == key.any:
        raise InvalidArgument(f"{what}: the full range is not allowed; leave the field out to match all")
    return low, high


def encode_match(field_id: int, key: KeyField, value: int, mask: int) -> p4r.FieldMatch | None:
    """The inverse; None where the field matches everything and is therefore left out."""
    match = p4r.FieldMatch(field_id=field_id)
    if key.match is MatchKind.EXACT:
        match.exact.value = bytestrings.encode(value)
        return match
    if (value, mask) == key.any or (key.match is not MatchKind.RANGE and mask == 0):
        return None
    if key.match is MatchKind.OPTIONAL:
        match.optional.value = bytestrings.encode(value)
    elif key.match is MatchKind.LPM:
        match.lpm.value = bytestrings.encode(value)
        match.lpm.prefix_len = mask.bit_count()
    elif key.match is MatchKind.TERNARY:
        match.ternary.value = bytestrings.encode(value)
        match.ternary.mask = bytestrings.encode(mask)
    else:
        match.range.low = bytestrings.encode(value)
        match.range.high = bytestrings.encode(mask)
    return match


def _decode_key(table: Table, message: p4r.TableEntry) -> tuple[bytes, bytes, int]:
    """(key, mask, priority) of an entry."""
    given: dict[int, tuple[int, int]] = {}
    for match in message.match:
        field = table.fields.get(match.field_id)
        if field is None:
            raise InvalidArgument(f"table {table.name} has no match field with id {match.field_id}")
        if field.place in given:
            raise InvalidArgument(f"table {table.name}: match field {field.key.name} is given twice")
        given[field.place] = decode_match(field.key, match, f"table {table.name}, field {field.key.name}")
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


# ---- actions ---------------------------------------------------------------------------------------------------


def decode_params(action: Action, message: p4r.Action) -> bytes:
    """Parameters in byte form. Raises InvalidArgument, OutOfRange."""
    values: dict[int, int] = {}
    for param in message.params:
        known = action.params.get(param.param_id)
        if known is None:
            raise InvalidArgument(f"action {action.name} has no parameter with id {param.param_id}")
        if known.place in values:
            raise InvalidArgument(f"action {action.name}: parameter {known.name} is given twice")
        what = f"action {action.name}, parameter {known.name}"
        values[known.place] = bytestrings.decode(param.value, known.bits, what)
    missing = [p.name for p in action.params.values() if p.place not in values]
    if missing:
        raise InvalidArgument(f"action {action.name}: missing {', '.join(missing)}")
    bits = [p.bits for p in action.params.values()]
    return pack_fields([values[i] for i in range(len(bits))], bits, f"action {action.name}")


def encode_action(action: Action, params: bytes, message: p4r.Action) -> None:
    """Fills an Action message from parameters in byte form."""
    message.action_id = action.id
    at = 0
    for param in action.params.values():
        size = (param.bits + 7) // 8
        value = int.from_bytes(params[at : at + size], "big")
        at += size
        message.params.add(param_id=param.id, value=bytestrings.encode(value))


def decode_table_action(table: Table, message: p4r.Action, *, default: bool = False) -> DoAction:
    """An action that an entry of the table, or its default, may run."""
    known = table.actions.get(message.action_id)
    if known is None:
        raise InvalidArgument(f"table {table.name} has no action with id {message.action_id:#010x}")
    if not (known.as_default if default else known.in_entries):
        where = "default action" if default else "action of an entry"
        raise InvalidArgument(f"table {table.name}: {known.action.name} must not be its {where}")
    return DoAction(known.info.index, decode_params(known.action, message))


def _decode_do(context: Context, table: Table, message: p4r.TableEntry) -> Do:
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
    if kind == "action_profile_member_id":
        return DoMember(message.action.action_profile_member_id)
    if not table.profile.selector:
        raise InvalidArgument(
            f"table {table.name}: action profile {table.profile.name} has no selector, so no groups"
        )
    if kind == "action_profile_group_id":
        return DoGroup(message.action.action_profile_group_id)
    return context.one_shot.create(table, message.action.action_profile_action_set)


def _encode_do(context: Context, table: Table, do: Do, message: p4r.TableAction) -> None:
    if isinstance(do, DoAction):
        encode_action(context.schema.actions[table.info.actions[do.action].id], do.params, message.action)
    elif isinstance(do, DoMember):
        message.action_profile_member_id = do.member
    elif not context.one_shot.describe(table, do, message):
        message.action_profile_group_id = do.group


# ---- meters and counters ---------------------------------------------------------------------------------------


def decode_meter(message: p4r.MeterConfig, what: str) -> MeterConfig:
    """Raises InvalidArgument: rates and bursts must be positive and the peak at least the committed one."""
    if message.eburst:
        raise InvalidArgument(f"{what}: eburst belongs to single-rate meters; this one has two rates")
    rates = (message.cir, message.cburst, message.pir, message.pburst)
    if min(rates) < 0:
        raise InvalidArgument(f"{what}: rates and bursts must not be negative, got {rates}")
    if message.pir < message.cir:
        raise InvalidArgument(f"{what}: peak rate {message.pir} is below committed rate {message.cir}")
    return MeterConfig(*rates)


def encode_meter(config: MeterConfig, message: p4r.MeterConfig) -> None:
    message.cir, message.cburst, message.pir, message.pburst = config.cir, config.cburst, config.pir, config.pburst


def encode_count(count: Count, message: p4r.CounterData) -> None:
    message.packet_count, message.byte_count = count.packets, count.bytes
    message.SetInParent()


def decode_count(message: p4r.CounterData, what: str) -> Count:
    if message.packet_count < 0 or message.byte_count < 0:
        raise InvalidArgument(f"{what}: counts must not be negative")
    return Count(message.packet_count, message.byte_count)


# ---- table entries ---------------------------------------------------------------------------------------------


def _const_guard(table: Table) -> None:
    if table.info.const_entries:
        raise PermissionDenied(f"table {table.name} has const entries")


def decode_entry(context: Context, kind: str, message: p4r.TableEntry) -> Entry:
    """An entry to insert, modify or delete."""
    table = context.schema.table(message.table_id)
    _const_guard(table)
    key, mask, priority = _decode_key(table, message)
    if kind == "delete":
        return Entry(table.info, key, mask, DoAction(0), priority)
    if message.idle_timeout_ns and not table.info.idle_timeout:
        raise InvalidArgument(f"table {table.name} does not support idle timeouts")
    if message.idle_timeout_ns < 0:
        raise InvalidArgument(f"table {table.name}: idle timeout {message.idle_timeout_ns} ns is negative")
    if message.HasField("meter_config") and table.info.direct_meter < 0:
        raise InvalidArgument(f"table {table.name} has no direct meter")
    if message.HasField("counter_data") and table.info.direct_counter < 0:
        raise InvalidArgument(f"table {table.name} has no direct counter")
    do = _decode_do(context, table, message)
    return Entry(
        table.info,
        key,
        mask,
        do,
        priority,
        message.controller_metadata & (2**64 - 1),
        -(-message.idle_timeout_ns // 1000),
    )


def write_entries(context: Context, kind: str, messages: list[p4r.TableEntry]) -> list[EngineError | None]:
    """Many writes of one kind; an error or None for each. Default actions go one by one."""
    results: list[EngineError | None] = [None] * len(messages)
    ready: list[tuple[int, Entry]] = []
    for i, message in enumerate(messages):
        try:
            if message.is_default_action:
                flush_entries(context, kind, messages, ready, results)
                ready = []
                _write_default(context, kind, message)
            else:
                ready.append((i, decode_entry(context, kind, message)))
        except EngineError as error:
            results[i] = error
    flush_entries(context, kind, messages, ready, results)
    return results


def flush_entries(
    context: Context,
    kind: str,
    messages: list[p4r.TableEntry],
    ready: list[tuple[int, Entry]],
    results: list[EngineError | None],
) -> None:
    """Sends decoded entries in one batch and does what an entry brings along."""
    before = [
        context.one_shot.of_entry(entry) if kind != "insert" and entry.table.profile >= 0 else None
        for _, entry in ready
    ]
    replies = context.engine.write_entries(kind, [entry for _, entry in ready])
    for (i, entry), old, reply in zip(ready, before, replies, strict=True):
        message = messages[i]
        identity = (entry.table.id, entry.key, entry.mask, entry.priority)
        if isinstance(reply, EngineError):
            results[i] = reply
            context.one_shot.abandon(entry.do)
            continue
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
    if table.info.const_default:
        raise PermissionDenied(f"table {table.name}: its default action is const")
    kind_of = message.action.WhichOneof("type")
    if kind_of is None:
        context.engine.set_default(table.info, None)
    elif kind_of == "action":
        context.engine.set_default(table.info, decode_table_action(table, message.action.action, default=True))
    else:
        raise InvalidArgument(f"table {table.name}: a default action must be an action, got {kind_of}")
    _write_direct(context, table.info, None, message)


def _write_direct(context: Context, table: TableInfo, entry: Entry | None, message: p4r.TableEntry) -> None:
    """The meter and counter that come with an entry (None: the default action); without meter it is unmetered."""
    if table.direct_meter >= 0:
        given = message.HasField("meter_config")
        config = decode_meter(message.meter_config, table.name) if given else None
        context.engine.write_direct_meter(table, entry, config)
    if message.HasField("counter_data"):
        context.engine.write_direct_counter(table, entry, decode_count(message.counter_data, table.name))


def encode_key(table: Table, entry: Entry, message: p4r.TableEntry) -> None:
    """Fills table id, match and priority: what identifies an entry."""
    message.table_id = table.id
    pairs = entry.fields
    for field in table.fields.values():
        match = encode_match(field.id, field.key, *pairs[field.place])
        if match is not None:
            message.match.append(match)
    if table.info.has_priority:
        message.priority = entry.priority


def encode_entry(
    context: Context, table: Table, entry: Entry, asked: p4r.TableEntry, message: p4r.TableEntry
) -> None:
    """Fills a whole TableEntry; counters, meters and times where `asked` has them set."""
    encode_key(table, entry, message)
    _encode_do(context, table, entry.do, message.action)
    message.controller_metadata = entry.cookie
    message.idle_timeout_ns = entry.idle_timeout_us * 1000
    message.metadata = context.metadata.get((table.id, entry.key, entry.mask, entry.priority), b"")
    message.is_const = table.info.const_entries
    if asked.HasField("time_since_last_hit") and table.info.idle_timeout:
        message.time_since_last_hit.elapsed_ns = entry.since_hit_us * 1000
    _encode_direct(table, entry, asked, message)


def encode_idle(context: Context, table: Table, entry: Entry, message: p4r.TableEntry) -> None:
    """An entry as its idle notification shows it: all but counters and meters."""
    encode_entry(context, table, entry, p4r.TableEntry(time_since_last_hit=p4r.TableEntry.IdleTimeout()), message)


def _encode_direct(table: Table, entry: Entry | Default, asked: p4r.TableEntry, message: p4r.TableEntry) -> None:
    if asked.HasField("counter_data") and table.info.direct_counter >= 0:
        encode_count(entry.count, message.counter_data)
    if asked.HasField("meter_config") and table.info.direct_meter >= 0 and entry.meter is not None:
        encode_meter(entry.meter, message.meter_config)


def _asked_tables(context: Context, ident: int) -> list[Table]:
    return [context.schema.table(ident)] if ident else list(context.schema.tables.values())


def _asked_entries(context: Context, table: Table, asked: p4r.TableEntry) -> Iterator[Entry]:
    """The entries that a read names: one by its match, or all with the given priority, metadata and action."""
    if asked.match:
        key, mask, priority = _decode_key(table, asked)
        yield context.engine.entry(table.info, key, mask, priority)
        return
    for entry in context.engine.entries(table.info):
        if asked.priority and entry.priority != asked.priority:
            continue
        if asked.controller_metadata and entry.cookie != asked.controller_metadata & (2**64 - 1):
            continue
        yield entry


def read_entries(context: Context, asked: p4r.TableEntry) -> Iterator[p4r.Entity]:
    """TableEntry reads; with is_default_action the default instead of the entries."""
    if asked.table_id == 0 and asked.match:
        raise InvalidArgument("a read with a match must name its table")
    for table in _asked_tables(context, asked.table_id):
        if asked.is_default_action:
            default = context.engine.default(table.info)
            entity = p4r.Entity()
            message = entity.table_entry
            message.table_id, message.is_default_action = table.id, True
            message.is_const = table.info.const_default
            _encode_do(context, table, default.do, message.action)
            _encode_direct(table, default, asked, message)
            yield entity
            continue
        for entry in _asked_entries(context, table, asked):
            entity = p4r.Entity()
            encode_entry(context, table, entry, asked, entity.table_entry)
            yield entity


# ---- direct counters and meters --------------------------------------------------------------------------------


def _direct_target(context: Context, message: p4r.TableEntry, kind: str, what: str) -> tuple[Table, Entry | None]:
    if kind != "modify":
        raise InvalidArgument(f"a {what} can be modified, not {kind}ed")
    table = context.schema.table(message.table_id)
    if message.is_default_action:
        return table, None
    key, mask, priority = _decode_key(table, message)
    return table, Entry(table.info, key, mask, DoAction(0), priority)


def write_direct_counter(context: Context, kind: str, message: p4r.DirectCounterEntry) -> None:
    table, entry = _direct_target(context, message.table_entry, kind, "direct counter")
    if table.info.direct_counter < 0:
        raise InvalidArgument(f"table {table.name} has no direct counter")
    context.engine.write_direct_counter(table.info, entry, decode_count(message.data, table.name))


def write_direct_meter(context: Context, kind: str, message: p4r.DirectMeterEntry) -> None:
    table, entry = _direct_target(context, message.table_entry, kind, "direct meter")
    if table.info.direct_meter < 0:
        raise InvalidArgument(f"table {table.name} has no direct meter")
    config = decode_meter(message.config, table.name) if message.HasField("config") else None
    context.engine.write_direct_meter(table.info, entry, config)


def _direct_reads(context: Context, asked: p4r.TableEntry, has: str) -> Iterator[tuple[Table, Entry | Default]]:
    for table in _asked_tables(context, asked.table_id):
        if getattr(table.info, has) < 0:
            if asked.table_id:
                raise NotFound(f"table {table.name} has no {has.replace('_', ' ')}")
            continue
        if asked.is_default_action:
            yield table, context.engine.default(table.info)
        else:
            for entry in _asked_entries(context, table, asked):
                yield table, entry


def _encode_target(table: Table, entry: Entry | Default, message: p4r.TableEntry) -> None:
    if isinstance(entry, Entry):
        encode_key(table, entry, message)
    else:
        message.table_id, message.is_default_action = table.id, True


def read_direct_counters(context: Context, asked: p4r.DirectCounterEntry) -> Iterator[p4r.Entity]:
    for table, entry in _direct_reads(context, asked.table_entry, "direct_counter"):
        entity = p4r.Entity()
        _encode_target(table, entry, entity.direct_counter_entry.table_entry)
        encode_count(entry.count, entity.direct_counter_entry.data)
        yield entity


def read_direct_meters(context: Context, asked: p4r.DirectMeterEntry) -> Iterator[p4r.Entity]:
    for table, entry in _direct_reads(context, asked.table_entry, "direct_meter"):
        entity = p4r.Entity()
        _encode_target(table, entry, entity.direct_meter_entry.table_entry)
        if entry.meter is not None:
            encode_meter(entry.meter, entity.direct_meter_entry.config)
        yield entity
