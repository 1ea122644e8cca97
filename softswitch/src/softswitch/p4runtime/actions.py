# SPDX-License-Identifier: Apache-2.0
"""Actions with their parameters (P4Runtime 9.1.2), between Action messages and byte form."""

from __future__ import annotations

from finsy.proto import p4r

from softswitch.engine.byte_form import pack_fields
from softswitch.engine.entities import DoAction
from softswitch.engine.errors import InvalidArgument, PermissionDenied
from softswitch.p4runtime.schema import ActionSchema, TableSchema


def decode_params(action: ActionSchema, message: p4r.Action) -> bytes:
    """Decodes the parameters of an action to byte form. Raises InvalidArgument, OutOfRange."""
    values: dict[int, int] = {}
    for param in message.params:
        known = action.params.get(param.param_id)
        if known is None:
            raise InvalidArgument(f"action {action.name} has no parameter with id {param.param_id}")
        if known.place in values:
            raise InvalidArgument(f"action {action.name}: parameter {known.name} is given twice")
        what = f"action {action.name}, parameter {known.name}"
        values[known.place] = known.codec.decode(param.value, what)
    missing = [p.name for p in action.params.values() if p.place not in values]
    if missing:
        raise InvalidArgument(f"action {action.name}: missing {', '.join(missing)}")
    bits = [p.codec.bits for p in action.params.values()]
    return pack_fields([values[i] for i in range(len(bits))], bits, f"action {action.name}")


def encode_action(action: ActionSchema, params: bytes, message: p4r.Action) -> None:
    """Fills an Action message from parameters in byte form."""
    message.action_id = action.id
    at = 0
    for param in action.params.values():
        size = (param.codec.bits + 7) // 8
        value = int.from_bytes(params[at : at + size], "big")
        at += size
        message.params.add(param_id=param.id, value=param.codec.encode(value))


def decode_table_action(table: TableSchema, message: p4r.Action, *, default: bool = False) -> DoAction:
    """Decodes an action that an entry of the table, or its default action, may run. Raises InvalidArgument,
    and PermissionDenied where the program allows it elsewhere in the table alone."""
    known = table.actions.get(message.action_id)
    if known is None:
        raise InvalidArgument(f"table {table.name} has no action with id {message.action_id:#010x}")
    if not (known.as_default if default else known.in_entries):
        where = "default action" if default else "action of an entry"
        raise PermissionDenied(f"table {table.name}: {known.action.name} must not be its {where}")
    return DoAction(known.info.index, decode_params(known.action, message))
