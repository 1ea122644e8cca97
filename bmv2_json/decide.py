# SPDX-License-Identifier: Apache-2.0
"""Turns tables whose entries are constants, in BMv2's JSON format, into decisions: comparisons and jumps in one action.

BMv2 looks such a table up like any other: it puts the key together, searches, and, where its log is compiled in, writes
key and entry as text, even if nothing logs.  Few comparisons say the same.  The table itself stays, for who reads its
entries over P4Runtime, but no packet comes to it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

Node = dict[str, Any]
Widths = Mapping[tuple[str, str], int]

WORDS_AT_MOST: Final = 2000
"""Most primitives of a decision; a table that would need more stays a table."""


def decide(program: Node, widths: Widths) -> None:
    """Turn the tables of all pipelines of a program whose entries are constants into decisions, in place.

    widths  bits of each field of the program, by header and name
    """
    actions = {action["id"]: action for action in program["actions"]}
    for pipeline in program["pipelines"]:
        for table in list(pipeline["tables"]):
            if not _fixed(table):
                continue
            code = _Decision(table, actions, widths).code()
            if code is None:
                continue
            number = 1 + max([*actions, *(one["id"] for line in program["pipelines"]
                                          for one in line["tables"] + line["conditionals"])])
            (after,) = set(table["next_tables"].values()) | {table["base_default_next"]}
            action = {"name": f"decided_{table['name']}", "id": number, "runtime_data": [], "primitives": code}
            program["actions"].append(action)
            actions[number] = action
            name = f"tbl_decided_{table['name']}"
            pipeline["tables"].append({
                **table, "name": name, "id": number + 1, "key": [], "match_type": "exact", "max_size": 1,
                "action_ids": [number], "actions": [action["name"]], "next_tables": {action["name"]: after},
                "default_entry": {"action_id": number, "action_const": True, "action_data": [],
                                  "action_entry_const": True}})
            del pipeline["tables"][-1]["entries"]
            _lead(pipeline, table["name"], name)
            table["base_default_next"] = None
            table["next_tables"] = dict.fromkeys(table["next_tables"])


def _fixed(table: Node) -> bool:
    """True if a table's entries are constants of the program, and the same node follows each of them."""
    entry = table.get("default_entry") or {}
    return (bool(table.get("entries")) and bool(entry.get("action_entry_const"))
            and not table["with_counters"] and not table["direct_meters"]
            and len(set(table["next_tables"].values()) | {table["base_default_next"]}) == 1
            and all(key["match_type"] in ("exact", "ternary") and not key["mask"] for key in table["key"]))


def _lead(pipeline: Node, old: str, new: str) -> None:
    """Let what led to one table lead to another."""
    if pipeline["init_table"] == old:
        pipeline["init_table"] = new
    for table in pipeline["tables"]:
        table["next_tables"] = {key: new if after == old else after for key, after in table["next_tables"].items()}
        if table["base_default_next"] == old:
            table["base_default_next"] = new
    for node in pipeline["conditionals"]:
        for branch in ("true_next", "false_next"):
            if node[branch] == old:
                node[branch] = new


@dataclass(frozen=True)
class _Row:
    """An entry: the value that each key must have, None: any; and the action with its parameters."""

    values: tuple[int | None, ...]
    does: tuple[int, tuple[str, ...]]


class _Decision:
    def __init__(self, table: Node, actions: dict[int, Node], widths: Widths) -> None:
        self._actions = actions
        self._wholes = [(1 << widths[key["target"][0], key["target"][1]]) - 1 for key in table["key"]]
        """The mask of all bits of each key."""
        self._keys = [key["target"] for key in table["key"]]
        self._rows = self._read(table)
        self._default = self._does(table["default_entry"])
        self._code: list[Node] = []
        self._calls: list[tuple[Node, tuple[int, tuple[str, ...]]]] = []

    def code(self) -> list[Node] | None:
        """The primitives that do what the table does; None: it cannot be said so, or would be too long."""
        if self._rows is None:
            return None
        self._choose(self._rows)
        if len(self._code) > WORDS_AT_MOST:
            return None
        places: dict[tuple[int, tuple[str, ...]], int] = {}
        ends: list[Node] = []
        for does in dict.fromkeys(does for _, does in self._calls):
            places[does] = len(self._code)
            begin = len(self._code)
            for primitive in self._actions[does[0]]["primitives"]:
                self._code.append(_filled(primitive, does[1], begin))
            ends.append(self._jump())
        for primitive in ends:
            primitive["parameters"][-1] = _hex(len(self._code))
        for primitive, does in self._calls:
            primitive["parameters"][-1] = _hex(places[does])
        return self._code

    def _read(self, table: Node) -> list[_Row] | None:
        rows = []
        for entry in sorted(table["entries"], key=lambda one: one["priority"]):
            values: list[int | None] = []
            for key, whole in zip(entry["match_key"], self._wholes, strict=True):
                mask = int(key["mask"], 16) if "mask" in key else whole
                if mask not in (0, whole):
                    return None
                values.append(int(key["key"], 16) if mask else None)
            rows.append(_Row(tuple(values), self._does(entry["action_entry"])))
        return rows

    @staticmethod
    def _does(entry: Node) -> tuple[int, tuple[str, ...]]:
        return entry["action_id"], tuple(entry["action_data"])

    def _choose(self, rows: Sequence[_Row]) -> None:
        """Choose among rows, of which those come first that hold before the others."""
        if not rows:
            self._calls.append((self._jump(), self._default))
            return
        asked = next((place for place, value in enumerate(rows[0].values) if value is not None), None)
        if asked is None:
            self._calls.append((self._jump(), rows[0].does))
            return
        value = rows[0].values[asked]
        compare = {"op": "==", "left": {"type": "field", "value": self._keys[asked]}, "right": _hex(value or 0)}
        asks: Node = {"op": "_jump_if_zero", "parameters": [
            _expression(_expression({"op": "b2d", "left": None, "right": _expression(compare)})), _hex(0)]}
        self._code.append(asks)
        self._choose([_without(row, asked) for row in rows if row.values[asked] in (None, value)])
        asks["parameters"][-1] = _hex(len(self._code))
        self._choose([row for row in rows if row.values[asked] != value])

    def _jump(self) -> Node:
        self._code.append({"op": "_jump", "parameters": [_hex(0)]})
        return self._code[-1]


def _without(row: _Row, place: int) -> _Row:
    return _Row((*row.values[:place], None, *row.values[place + 1:]), row.does)


def _filled(primitive: Node, data: tuple[str, ...], begin: int) -> Node:
    """A primitive with an entry's parameters in their places, moved to where the action begins."""
    def fill(node: Any) -> Any:
        if isinstance(node, dict):
            if node.get("type") in ("runtime_data", "local"):
                return {"type": "hexstr", "value": data[node["value"]]}
            return {key: fill(value) for key, value in node.items()}
        if isinstance(node, list):
            return [fill(value) for value in node]
        return node

    made: Node = fill(copy.deepcopy(primitive))
    if made["op"] in ("_jump", "_jump_if_zero"):
        made["parameters"][-1] = _hex(int(made["parameters"][-1]["value"], 16) + begin)
    return made


def _expression(value: Any) -> Node:
    return {"type": "expression", "value": value}


def _hex(number: int) -> Node:
    return {"type": "hexstr", "value": hex(number)}
