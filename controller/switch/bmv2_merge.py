# SPDX-License-Identifier: Apache-2.0
"""Joins what p4c splits: tables without keys and conditions between two real tables of a pipeline become one action.

p4c makes a table without a key of every action that is called outside of a table, and a node of every `if` outside of
an action.  BMv2 looks each up, locks it, and, where its log is compiled in, writes its key and its source as text, even
if nothing logs.  Within an action the same `if` is a jump, which costs a fifth.

    before   tbl -> if -> tbl -> if -> TABLE -> tbl -> if -> tbl
    after    [tbl, if, tbl, if]     -> TABLE -> [tbl, if, tbl]

A run that can go on to several tables says in a field which, and conditions after it choose by that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

Node = dict[str, Any]
Primitive = dict[str, Any]

EXIT_FIELD: Final = "$next"
"""The metadata field by which a merged action says which table is next."""
EXIT_BITS: Final = 8
_JUMPS: Final = ("_jump", "_jump_if_zero")


def merge(program: Node) -> None:
    """Merge the nodes of all pipelines of a program in BMv2's JSON format, in place."""
    counter = _Counter(program)
    kind = next(one["header_type"] for one in program["headers"] if one["name"] == "scalars")
    fields = next(one for one in program["header_types"] if one["name"] == kind)["fields"]
    fields.insert(0, [EXIT_FIELD, EXIT_BITS, False])
    for pipeline in program["pipelines"]:
        _Pipeline(program, pipeline, counter).merge()


class _Counter:
    """Numbers for new objects, which no object of their kind has."""

    def __init__(self, program: Node) -> None:
        self._next = 1 + max(
            [item["id"] for pipeline in program["pipelines"] for item in pipeline["tables"] + pipeline["conditionals"]]
            + [action["id"] for action in program["actions"]],
            default=0,
        )

    def __call__(self) -> int:
        self._next += 1
        return self._next


class _Pipeline:
    def __init__(self, program: Node, pipeline: Node, number: _Counter) -> None:
        self._program = program
        self._pipeline = pipeline
        self._number = number
        self._actions = {action["id"]: action for action in program["actions"]}
        self._tables = {table["name"]: table for table in pipeline["tables"]}
        self._conditions = {node["name"]: node for node in pipeline["conditionals"]}
        self._exit_field = ["scalars", EXIT_FIELD]

    def merge(self) -> None:
        """Put a merged action into the place of each run of nodes that can be merged."""
        heads: dict[str, str] = {}
        kept = [table for table in self._pipeline["tables"] if not self._mergeable(table["name"])]
        begins = [self._pipeline["init_table"]] + [after for table in kept for after in _successors(table)]
        new_tables: list[Node] = []
        new_conditions: list[Node] = []
        used: set[int] = {one for table in kept for one in table["action_ids"]}
        for begin in dict.fromkeys(begins):
            if begin is not None and self._mergeable(begin):
                order, exits = self._run(begin)
                table, conditions = self._merged(order, exits)
                heads[begin] = table["name"]
                new_tables.append(table)
                new_conditions += conditions
        for table in kept:
            _redirect(table, heads)
        gone = {one for table in self._pipeline["tables"] for one in table["action_ids"]} - used
        self._pipeline["init_table"] = heads.get(self._pipeline["init_table"], self._pipeline["init_table"])
        self._pipeline["tables"] = kept + new_tables
        self._pipeline["conditionals"] = new_conditions
        self._program["actions"] = [action for action in self._program["actions"] if action["id"] not in gone]

    def _mergeable(self, name: str) -> bool:
        """Whether a node is a condition, or a table of p4c's own that does one fixed thing."""
        if name in self._conditions:
            return True
        table = self._tables[name]
        entry = table.get("default_entry") or {}
        return (name.startswith("tbl_") and not table["key"] and len(table["action_ids"]) == 1
                and bool(entry.get("action_const")) and not entry.get("action_data")
                and not table["with_counters"] and not table["direct_meters"]
                and all(one["op"] != "exit" for one in self._actions[table["action_ids"][0]]["primitives"]))

    def _run(self, begin: str) -> tuple[list[str], list[str | None]]:
        """What can be reached by nodes that can be merged, each before those that follow it, and where it ends."""
        order: list[str] = []
        exits: dict[str | None, None] = {}
        seen: set[str] = set()

        def visit(name: str) -> None:
            seen.add(name)
            # the false branch first, so that the true one comes right after its condition
            for after in reversed(list(self._after(name))):
                if after is None or not self._mergeable(after):
                    exits.setdefault(after)
                elif after not in seen:
                    visit(after)
            order.append(name)

        visit(begin)
        return order[::-1], sorted(exits, key=lambda name: name is None)

    def _after(self, name: str) -> Iterable[str | None]:
        if name in self._conditions:
            return self._conditions[name]["true_next"], self._conditions[name]["false_next"]
        return (next(iter(_successors(self._tables[name]))),)

    def _merged(self, order: list[str], exits: list[str | None]) -> tuple[Node, list[Node]]:
        """The table whose action does what a run of nodes does, and the conditions that choose what is next."""
        code: list[Primitive] = []
        places: dict[str | None, int] = {}
        jumps: list[tuple[Primitive, str | None]] = []

        def jump(to: str | None, unless: Any = None) -> None:
            words = [] if unless is None else [_expression(_expression({"op": "b2d", "left": None, "right": unless}))]
            primitive = {"op": "_jump" if unless is None else "_jump_if_zero", "parameters": [*words, _hex(0)]}
            jumps.append((primitive, to))
            code.append(primitive)

        for name, following in zip(order, [*order[1:], exits[0]], strict=True):
            places[name] = len(code)
            if name in self._conditions:
                node = self._conditions[name]
                if node["true_next"] == following:
                    jump(node["false_next"], node["expression"])
                else:
                    jump(node["true_next"], _expression({"op": "not", "left": None, "right": node["expression"]}))
                    if node["false_next"] != following:
                        jump(node["false_next"])
            else:
                begin = len(code)
                for primitive in self._actions[self._tables[name]["action_ids"][0]]["primitives"]:
                    code.append(_moved(primitive, begin))
                (after,) = self._after(name)
                if after != following:
                    jump(after)
        ends: list[Primitive] = []
        for number, after in enumerate(exits):
            places[after] = len(code)
            if len(exits) > 1:
                code.append({"op": "assign", "parameters": [_field(self._exit_field), _hex(number)]})
                if number < len(exits) - 1:
                    ends.append({"op": "_jump", "parameters": [_hex(0)]})
                    code.append(ends[-1])
        for primitive, to in jumps:
            primitive["parameters"][-1] = _hex(places[to])
        for primitive in ends:
            primitive["parameters"][-1] = _hex(len(code))
        name = f"tbl_merged_{self._pipeline['name']}_{order[0]}"
        action = {"name": f"merged_{self._pipeline['name']}_{order[0]}", "id": self._number(), "runtime_data": [],
                  "primitives": code}
        self._program["actions"].append(action)
        conditions = self._choices(name, exits)
        first = conditions[0]["name"] if conditions else exits[0]
        table = {
            "name": name, "id": self._number(), "key": [], "match_type": "exact", "type": "simple", "max_size": 1,
            "with_counters": False, "support_timeout": False, "direct_meters": None, "action_ids": [action["id"]],
            "actions": [action["name"]], "base_default_next": first, "next_tables": {action["name"]: first},
            "default_entry": {"action_id": action["id"], "action_const": True, "action_data": [],
                              "action_entry_const": True},
        }
        return table, conditions

    def _choices(self, name: str, exits: list[str | None]) -> list[Node]:
        conditions: list[Node] = []
        for number, after in enumerate(exits[:-1]):
            equal = {"op": "==", "left": _field(self._exit_field), "right": _hex(number)}
            conditions.append({"name": f"{name}_{number}", "id": self._number(), "expression": _expression(equal),
                               "true_next": after, "false_next": f"{name}_{number + 1}"})
        if conditions:
            conditions[-1]["false_next"] = exits[-1]
        return conditions


def _successors(table: Node) -> list[str | None]:
    return list(dict.fromkeys([*table["next_tables"].values(), table["base_default_next"]]
                              if "__HIT__" not in table["next_tables"] else table["next_tables"].values()))


def _redirect(table: Node, heads: dict[str, str]) -> None:
    table["base_default_next"] = heads.get(table["base_default_next"], table["base_default_next"])
    table["next_tables"] = {key: heads.get(after, after) for key, after in table["next_tables"].items()}


def _moved(primitive: Primitive, begin: int) -> Primitive:
    if primitive["op"] not in _JUMPS:
        return primitive
    *words, to = primitive["parameters"]
    return {**primitive, "parameters": [*words, _hex(int(to["value"], 16) + begin)]}


def _expression(value: Any) -> Node:
    return {"type": "expression", "value": value}


def _field(name: list[str]) -> Node:
    return {"type": "field", "value": name}


def _hex(number: int) -> Node:
    return {"type": "hexstr", "value": hex(number)}
