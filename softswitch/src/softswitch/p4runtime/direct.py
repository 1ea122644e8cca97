# SPDX-License-Identifier: Apache-2.0
"""Direct counters and meters, which belong to table entries (P4Runtime 9.3, 9.4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from finsy.proto import p4r

from softswitch.engine.entities import Default, DoAction, Entry
from softswitch.engine.errors import InvalidArgument, NotFound
from softswitch.p4runtime.metering import decode_meter, encode_count, encode_meter
from softswitch.p4runtime.schema import TableSchema
from softswitch.p4runtime.tables import asked_entries, asked_tables, decode_key, encode_key, set_counter

if TYPE_CHECKING:
    from softswitch.p4runtime.context import Context


def _direct_target(context: Context, message: p4r.TableEntry, kind: str, what: str) -> tuple[TableSchema, Entry | None]:
    if kind != "modify":
        raise InvalidArgument(f"a {what} can be modified, not {kind}ed")
    table = context.schema.table(message.table_id)
    if message.is_default_action:
        return table, None
    key, mask, priority = decode_key(table, message)
    return table, Entry(table.info, key, mask, DoAction(0), priority)


def write_direct_counter(context: Context, kind: str, message: p4r.DirectCounterEntry) -> None:
    """Sets the counter of an entry.  Raises InvalidArgument, NotFound."""
    table, entry = _direct_target(context, message.table_entry, kind, "direct counter")
    if table.info.direct_counter < 0:
        raise InvalidArgument(f"table {table.name} has no direct counter")
    set_counter(context, table.info, entry, message.data)


def write_direct_meter(context: Context, kind: str, message: p4r.DirectMeterEntry) -> None:
    """Configures the meter of an entry.  Raises InvalidArgument, NotFound."""
    table, entry = _direct_target(context, message.table_entry, kind, "direct meter")
    if table.info.direct_meter < 0:
        raise InvalidArgument(f"table {table.name} has no direct meter")
    config = decode_meter(message.config, table.name) if message.HasField("config") else None
    context.engine.write_direct_meter(table.info, entry, config)


def _direct_reads(context: Context, asked: p4r.TableEntry, has: str) -> Iterator[tuple[TableSchema, Entry | Default]]:
    for table in asked_tables(context, asked.table_id):
        if getattr(table.info, has) < 0:
            if asked.table_id:
                raise NotFound(f"table {table.name} has no {has.replace('_', ' ')}")
            continue
        if asked.is_default_action:
            yield table, context.engine.default(table.info)
        else:
            for entry in asked_entries(context, table, asked):
                yield table, entry


def _encode_target(table: TableSchema, entry: Entry | Default, message: p4r.TableEntry) -> None:
    if isinstance(entry, Entry):
        encode_key(table, entry, message)
    else:
        message.table_id, message.is_default_action = table.id, True


def read_direct_counters(context: Context, asked: p4r.DirectCounterEntry) -> Iterator[p4r.Entity]:
    """Reads the counters of one entry, of one table, or of all tables.  Raises InvalidArgument, NotFound."""
    for table, entry in _direct_reads(context, asked.table_entry, "direct_counter"):
        entity = p4r.Entity()
        _encode_target(table, entry, entity.direct_counter_entry.table_entry)
        encode_count(entry.count, entity.direct_counter_entry.data)
        yield entity


def read_direct_meters(context: Context, asked: p4r.DirectMeterEntry) -> Iterator[p4r.Entity]:
    """Reads the meters of one entry, of one table, or of all tables.  Raises InvalidArgument, NotFound."""
    for table, entry in _direct_reads(context, asked.table_entry, "direct_meter"):
        entity = p4r.Entity()
        _encode_target(table, entry, entity.direct_meter_entry.table_entry)
        if entry.meter is not None:
            encode_meter(entry.meter, entity.direct_meter_entry.config)
        yield entity
