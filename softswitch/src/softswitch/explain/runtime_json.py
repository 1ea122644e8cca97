# SPDX-License-Identifier: Apache-2.0
"""Entries as p4lang's tutorials write them (`s1-runtime.json`): tables, multicast groups and clone sessions by name.

    {"table_entries": [{"table": "MyIngress.ipv4_lpm", "match": {"hdr.ipv4.dstAddr": ["10.0.1.1", 32]},
                        "action_name": "MyIngress.ipv4_forward",
                        "action_params": {"dstAddr": "08:00:00:00:01:11", "port": 1}}]}
"""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from softswitch.engine.engine import Engine
from softswitch.engine.entities import CloneSession, DoAction, Entry, Multicast
from softswitch.engine.errors import EngineError, InvalidArgument
from softswitch.engine.program_info import KeyField, MatchKind, TableInfo
from softswitch.stf.values import any_value, by_ending, field_index

_MAC = re.compile(r"[0-9a-fA-F]{1,2}([:-][0-9a-fA-F]{1,2}){5}")
_KNOWN = {"target", "p4info", "bmv2_json", "table_entries", "multicast_group_entries", "clone_session_entries"}


class RuntimeJsonError(Exception):
    """The file is not what the tutorials' controller takes; the message says where."""


def load(engine: Engine, text: str, params: Mapping[int, Sequence[str]], name: str) -> None:
    """Writes the entries of a file; `params` has the parameters' names of each action by p4info id.

    Raises RuntimeJsonError, with what the switch says of an entry that it refuses.
    """
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RuntimeJsonError(f"{name}: this is no JSON: {error}") from None
    if not isinstance(data, dict) or not set(data) <= _KNOWN:
        got = ", ".join(sorted(set(data) - _KNOWN)) if isinstance(data, dict) else type(data).__name__
        raise RuntimeJsonError(f"{name}: expected an object with {', '.join(sorted(_KNOWN))}; got {got:.200}")
    writers: dict[str, Callable[[dict[str, Any]], None]] = {
        "table_entries": lambda one: _table_entry(engine, one, params),
        "multicast_group_entries": lambda one: _multicast(engine, one),
        "clone_session_entries": lambda one: _clone(engine, one),
    }
    for kind, write in writers.items():
        entries = data.get(kind, [])
        if not isinstance(entries, list):
            raise RuntimeJsonError(f"{name}: {kind}: expected a list, got {entries!r:.100}")
        for place, one in enumerate(entries):
            try:
                write(one)
            except (EngineError, ValueError, OverflowError) as error:
                raise RuntimeJsonError(f"{name}: {kind}[{place}]: {error}") from None
            except (KeyError, TypeError, AttributeError, IndexError) as error:
                raise RuntimeJsonError(f"{name}: {kind}[{place}]: a member is missing or of another kind than "
                                       f"expected: {error!r:.200}") from None


def _table_entry(engine: Engine, one: dict[str, Any], params: Mapping[int, Sequence[str]]) -> None:
    table = by_ending(engine.info.tables, str(one["table"]), "table")
    do = _do(table, one, params)
    if one.get("default_action"):
        engine.set_default(table, do)
        return
    fields = [any_value(key) for key in table.keys]
    given = one.get("match") or {}
    for field, value in given.items():
        index = field_index(table, field)
        fields[index] = _match(table.keys[index], value)
    exact = {key.name for key in table.keys if key.match is MatchKind.EXACT}
    missing = exact - {table.keys[field_index(table, field)].name for field in given}
    if missing:
        raise InvalidArgument(f"table {table.name}: expected a value for {', '.join(sorted(missing))}")
    key, mask = table.pack_key(fields)
    priority = int(one.get("priority") or 0)
    if table.has_priority and priority <= 0:
        raise InvalidArgument(f"table {table.name} needs a priority above 0, got {priority}")
    engine.insert(Entry(table, key, mask, do, priority))


def _do(table: TableInfo, one: dict[str, Any], params: Mapping[int, Sequence[str]]) -> DoAction:
    action = by_ending(table.actions, str(one["action_name"]), f"action of table {table.name}")
    names, given = params.get(action.id, ()), one.get("action_params") or {}
    if set(names) != set(given):
        raise InvalidArgument(f"action {action.name} takes ({', '.join(names)}), got ({', '.join(map(str, given))})")
    return DoAction(action.index, action.pack([_number(given[name]) for name in names]))


def _match(key: KeyField, value: Any) -> tuple[int, int]:
    """(value, mask) of a field: a value, or [value, prefix length], [value, mask], [low, high]."""
    match key.match:
        case MatchKind.EXACT | MatchKind.OPTIONAL:
            return _number(value[0] if isinstance(value, list) and len(value) == 1 else value), key.ones
        case MatchKind.LPM:
            first, length = value
            return key.prefix(_number(first), int(length))
    first, second = value
    return _number(first), _number(second)


def _number(value: Any) -> int:
    """A value as the tutorials write it: a number, digits, a MAC, IPv4 or IPv6 address. Raises ValueError."""
    if isinstance(value, int):
        return int(value)
    if not isinstance(value, str):
        raise ValueError(f"expected a number or an address, got {value!r:.100}")
    if _MAC.fullmatch(value):
        return int.from_bytes(bytes(int(part, 16) for part in re.split("[:-]", value)), "big")
    if "." in value or ":" in value:
        return int(ipaddress.ip_address(value))
    return int(value, 0)


def _member(one: dict[str, Any], name: str, default: int | None = None) -> int:
    """A member that is a number of 32 bits. Raises KeyError where it is missing and has no default, ValueError."""
    value = _number(one[name] if default is None else one.get(name, default))
    if not 0 <= value < 1 << 32:
        raise ValueError(f"{name}: expected a number of 32 bits, got {value}")
    return value


def _replicas(one: dict[str, Any]) -> tuple[tuple[int, int], ...]:
    return tuple((_member(replica, "egress_port"), _member(replica, "instance", 0)) for replica in one["replicas"])


def _multicast(engine: Engine, one: dict[str, Any]) -> None:
    engine.write_multicast("insert", Multicast(_member(one, "multicast_group_id"), _replicas(one)))


def _clone(engine: Engine, one: dict[str, Any]) -> None:
    session = CloneSession(_member(one, "clone_session_id"), _replicas(one), _member(one, "packet_length_bytes", 0))
    engine.write_clone_session("insert", session)
