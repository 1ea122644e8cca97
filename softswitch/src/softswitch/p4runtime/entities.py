# SPDX-License-Identifier: Apache-2.0
"""Write and Read: passes each update or entity to the module that serves it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

from finsy.proto import p4r

from softswitch.engine.errors import EngineError, InvalidArgument, Unimplemented
from softswitch.p4runtime import arrays, direct, profiles, replication, tables, value_sets
from softswitch.p4runtime.context import Context

READ_PART = 16_384
"""Most entities that are read at once: writes wait for them, and they are in memory together."""

_Write = Callable[[Context, str, Any], None]
_Read = Callable[[Context, Any], Iterator[p4r.Entity]]

_SERVED: dict[str, tuple[_Write, _Read]] = {
    "action_profile_member": (profiles.write_member, profiles.read_members),
    "action_profile_group": (profiles.write_group, profiles.read_groups),
    "meter_entry": (arrays.write_meter, arrays.read_meters),
    "direct_meter_entry": (direct.write_direct_meter, direct.read_direct_meters),
    "counter_entry": (arrays.write_counter, arrays.read_counters),
    "direct_counter_entry": (direct.write_direct_counter, direct.read_direct_counters),
    "multicast_group_entry": (replication.write_group, replication.read_groups),
    "clone_session_entry": (replication.write_session, replication.read_sessions),
    "value_set_entry": (value_sets.write, value_sets.read),
    "register_entry": (arrays.write_register, arrays.read_registers),
    "digest_entry": (lambda context, kind, message: context.digests.configure(kind, message),
                     lambda context, asked: context.digests.configurations(asked.digest_id)),
}


def _unpack(entity: p4r.Entity) -> tuple[str, Any]:
    """The kind of an entity and its message; the replication engine's two kinds of entries are kinds of their own."""
    kind = entity.WhichOneof("entity")
    if kind is None:
        raise InvalidArgument("the entity is empty: expected a table entry, or another kind of p4.v1.Entity")
    message = getattr(entity, kind)
    if kind == "packet_replication_engine_entry":
        kind = message.WhichOneof("type")
        if kind is None:
            raise InvalidArgument("the packet replication engine entry is empty: expected a multicast group or a clone "
                                  "session")
        message = getattr(message, kind)
    return kind, message


def write(context: Context, updates: Iterable[p4r.Update]) -> list[EngineError | None]:
    """Executes updates in order, also after one has failed, and returns an error or None for each."""
    with context.changing:
        return _write(context, updates)


def _write(context: Context, updates: Iterable[p4r.Update]) -> list[EngineError | None]:
    """Consecutive table writes of one kind go to the switch in one batch."""
    updates = list(updates)
    results: list[EngineError | None] = []
    at = 0
    while at < len(updates):
        end = at
        while (
            end < len(updates)
            and updates[end].type == updates[at].type
            and updates[end].entity.HasField("table_entry")
        ):
            end += 1
        kind = tables.KINDS.get(updates[at].type)
        if end > at and kind is not None:
            results += tables.write_entries(context, kind, [u.entity.table_entry for u in updates[at:end]])
            at = end
            continue
        results.append(_write_one(context, kind, updates[at]))
        at += 1
    return results


def _write_one(context: Context, kind: str | None, update: p4r.Update) -> EngineError | None:
    try:
        if kind is None:
            raise InvalidArgument("the update has no type: expected INSERT, MODIFY or DELETE")
        what, message = _unpack(update.entity)
        if what not in _SERVED:
            raise Unimplemented(f"{what} is not supported")
        _SERVED[what][0](context, kind, message)
    except EngineError as error:
        return error
    return None


def read_in_parts(context: Context, asked: Iterable[p4r.Entity]) -> Iterator[list[p4r.Entity]]:
    """The same as `read`, while others write: each part is of one state."""
    found = read(context, asked)
    while True:
        with context.changing:
            part = list(islice(found, READ_PART))
        if not part:
            return
        yield part


def read(context: Context, asked: Iterable[p4r.Entity]) -> Iterator[p4r.Entity]:
    """Reads all entities that match. Raises EngineError, as NotFound for what does not exist (no table entry)."""
    for entity in asked:
        kind, message = _unpack(entity)
        if kind == "table_entry":
            yield from tables.read_entries(context, message)
        elif kind in _SERVED:
            yield from _SERVED[kind][1](context, message)
        else:
            raise Unimplemented(f"{kind} is not supported")
