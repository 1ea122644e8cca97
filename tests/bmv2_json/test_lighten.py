# SPDX-License-Identifier: Apache-2.0
"""The changes to p4c's program for BMv2 affect only its cost: random programs run here before and after."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from netfold.bmv2_json import lighten
from netfold.controller.switch import pipeline

Node = dict[str, Any]
WIDTHS = {"a": 8, "b": 8, "c": 16, "d": 32, "e": 1, "f": 1}
"""Metadata of the random programs; `tmp_0`, `tmp_1`... are p4c's beside them."""


def field(name: str) -> Node:
    """A reference to a field."""
    return {"type": "field", "value": ["scalars", name]}


def number(value: int) -> Node:
    """A constant."""
    return {"type": "hexstr", "value": hex(value)}


def operation(op: str, left: Node | None, right: Node) -> Node:
    """An operation, as p4c nests it."""
    return {"type": "expression", "value": {"op": op, "left": left, "right": right}}


class Switch:
    """Runs a pipeline of a program of assignments, jumps and counts as BMv2 does."""

    def __init__(self, program: Node) -> None:
        self._actions = {one["id"]: one for one in program["actions"]}
        self._pipeline = program["pipelines"][0]
        self._nodes = {one["name"]: one for one in self._pipeline["tables"] + self._pipeline["conditionals"]}
        kinds = {one["name"]: one for one in program["header_types"]}
        self._widths = {(header["name"], one[0]): one[1] for header in program["headers"]
                        for one in kinds[header["header_type"]]["fields"]}
        self._inputs = {one["name"]: one["input"] for one in program["calculations"]}
        self._fields: dict[tuple[str, str], int] = {}
        self.applied: Counter[str] = Counter()

    def run(self, values: dict[str, int]) -> dict[str, int]:
        """The named fields, after a packet that came in with these values."""
        self._fields = {("scalars", name): value for name, value in values.items()}
        at = self._pipeline["init_table"]
        while at is not None:
            node = self._nodes[at]
            self.applied[at] += 1
            if "true_next" in node:
                at = node["true_next"] if self._value(node["expression"]) else node["false_next"]
                continue
            entry = self._entry(node)
            action = self._actions[entry["action_id"]]
            self._act(action["primitives"], [int(one, 16) for one in entry["action_data"]])
            at = node["next_tables"][action["name"]]
        return {name: self._fields.get(("scalars", name), 0) for name in WIDTHS}

    def _entry(self, table: Node) -> Node:
        for entry in sorted(table.get("entries", []), key=lambda one: one["priority"]):
            if all(self._fields.get(tuple(key["target"]), 0) & int(one["mask"], 16) == int(one["key"], 16)
                   for key, one in zip(table["key"], entry["match_key"], strict=True)):
                found: Node = entry["action_entry"]
                return found
        default: Node = table["default_entry"]
        return default

    def _act(self, primitives: list[Node], data: list[int]) -> None:
        at = 0
        while at < len(primitives):
            op, words = primitives[at]["op"], primitives[at]["parameters"]
            at += 1
            if op == "_jump" or (op == "_jump_if_zero" and not self._value(words[0], data)):
                at = int(words[-1]["value"], 16)
            elif op == "assign":
                self._write(words[0]["value"], self._value(words[1], data))
            elif op == "modify_field_with_hash_based_offset":
                said = [self._value(one) for one in self._inputs[words[2]["value"]]]
                self._write(words[0]["value"], sum(value * 31**place for place, value in enumerate(said)))

    def _write(self, name: list[str], value: int) -> None:
        self._fields[name[0], name[1]] = value & ((1 << self._widths[name[0], name[1]]) - 1)

    def _value(self, node: Node, data: list[int] | None = None) -> int:
        if node["type"] == "field":
            return self._fields.get(tuple(node["value"]), 0)
        if node["type"] == "hexstr":
            return int(node["value"], 16)
        if node["type"] in ("runtime_data", "local"):
            return (data or [])[node["value"]]
        if "op" not in node["value"]:
            return self._value(node["value"], data)
        op, right = node["value"]["op"], self._value(node["value"]["right"], data)
        if op in ("b2d", "d2b"):
            return int(right != 0) if op == "d2b" else right
        if op == "not":
            return int(not right)
        left = self._value(node["value"]["left"], data)
        return {"==": int(left == right), "+": left + right, "-": left - right, "&": left & right, "|": left | right,
                "^": left ^ right, ">>": left >> min(right, 64), "and": int(bool(left and right))}[op]


class Drawn:
    """A random program as p4c would write it: steps and conditions, one table of constants among them."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._temporary = 0
        self._actions: list[Node] = []
        self._calculations: list[Node] = []
        self._tables: list[Node] = []
        self._conditions: list[Node] = []

    def program(self) -> Node:
        """The whole program."""
        names = [f"{'tbl' if self._rng.random() < 0.6 else 'node'}_{place}" for place in range(12)]
        names[self._rng.randrange(3, 9)] = "decisions"
        names[self._rng.randrange(9, 12)] = "tbl_last"
        for place, name in enumerate(names):
            after = [*names[place + 1:], None]
            if name.startswith("node"):
                self._conditions.append({"name": name, "id": 100 + place, "expression": self._condition(),
                                         "true_next": self._rng.choice(after), "false_next": self._rng.choice(after),
                                         "source_info": {"line": place}})
            else:
                self._table(name, place, self._rng.choice(after[:3]))
        held = [["f", 1, False], ["_padding_0", 5, False]]
        fields = [[name, bits, False] for name, bits in WIDTHS.items()]
        fields += [[f"tmp_{place}", 16, False] for place in range(self._temporary)]
        return {
            "header_types": [{"name": "scalars_0", "id": 0, "fields": fields},
                             {"name": "unused_t", "id": 1, "fields": held}],
            "headers": [{"name": "unused", "id": 0, "header_type": "unused_t", "metadata": True},
                        {"name": "scalars", "id": 1, "header_type": "scalars_0", "metadata": True}],
            "header_stacks": [], "field_lists": [{"elements": [field(name) for name in WIDTHS]}], "parsers": [],
            "calculations": self._calculations, "actions": self._actions, "field_aliases": [], "checksums": [],
            "pipelines": [{"name": "ingress", "id": 0, "init_table": names[0], "tables": self._tables,
                           "conditionals": self._conditions}]}

    def _table(self, name: str, place: int, after: str | None) -> None:
        hidden = name != "decisions"
        action = {"name": f"act_{name}", "id": place, "primitives": self._steps(), "runtime_data": []}
        if not hidden:
            action["primitives"] = [{"op": "assign", "parameters": [field("a"), {"type": "runtime_data", "value": 0}]}]
        self._actions.append(action)
        default = {"action_id": place, "action_const": True, "action_data": [] if hidden else ["0x7"],
                   "action_entry_const": True}
        table = {"name": name, "id": place, "key": [], "match_type": "exact", "with_counters": False,
                 "direct_meters": None, "action_ids": [place], "actions": [action["name"]], "base_default_next": after,
                 "next_tables": {action["name"]: after}, "default_entry": default}
        if not hidden:
            keys = ("e", "b", "f")
            table["key"] = [{"match_type": "ternary", "target": ["scalars", key], "mask": None} for key in keys]
            table["entries"] = [self._row(keys, place, priority) for priority in range(1, 12)]
        self._tables.append(table)

    def _row(self, keys: tuple[str, ...], action: int, priority: int) -> Node:
        said = [(hex(self._rng.randrange(min(4, 1 << WIDTHS[key]))), hex((1 << WIDTHS[key]) - 1))
                if self._rng.random() < 0.6 else ("0x0", "0x0") for key in keys]
        return {"priority": priority, "match_key": [{"match_type": "ternary", "key": k, "mask": m} for k, m in said],
                "action_entry": {"action_id": action, "action_data": [hex(self._rng.randrange(256))]}}

    def _steps(self) -> list[Node]:
        steps: list[Node] = []
        for _ in range(self._rng.randrange(1, 5)):
            name = self._rng.choice(list(WIDTHS))
            drawn = self._rng.random()
            if drawn < 0.4:
                steps.append({"op": "assign", "parameters": [field(name), self._sum(WIDTHS[name])]})
            elif drawn < 0.7:
                temporary, value = self._fresh(), self._rng.choice([self._sum(16), field("c"), number(5)])
                steps.append({"op": "assign", "parameters": [temporary, value]})
                if self._rng.random() < 0.5:
                    steps.append({"op": "assign", "parameters": [field(name), self._sum(WIDTHS[name])]})
                self._calculations.append({"name": f"calc_{len(self._calculations)}", "input": [temporary, field("b")]})
                calculation = {"type": "calculation", "value": self._calculations[-1]["name"]}
                result = self._fresh()
                steps.append({"op": "modify_field_with_hash_based_offset",
                              "parameters": [result, number(0), calculation, number(1 << 32)]})
                steps.append({"op": "assign", "parameters": [field("c"), result]})
            elif drawn < 0.85:
                value, temporary = self._sum(16), self._fresh()         # p4c computes it once more
                between = field(self._rng.choice("abcd"))
                steps.append({"op": "assign", "parameters": [field("c"), value]})
                steps.append({"op": "assign", "parameters": [between, self._sum(8)]})
                steps.append({"op": "assign", "parameters": [temporary, value]})
                steps.append({"op": "assign", "parameters": [field(self._rng.choice("abcd")), self._sum(8)]})
                steps.append({"op": "assign", "parameters": [field("d"), temporary]})
            else:
                unless = {"type": "expression", "value": operation("b2d", None, self._condition())}
                steps.append({"op": "_jump_if_zero", "parameters": [unless, number(len(steps) + 2)]})
                steps.append({"op": "assign", "parameters": [field(name), self._sum(WIDTHS[name])]})
        return copy.deepcopy(steps)

    def _fresh(self) -> Node:
        self._temporary += 1
        return field(f"tmp_{self._temporary - 1}")

    def _sum(self, bits: int) -> Node:
        inner = operation(self._rng.choice("+-&|^"), field(self._rng.choice("abcd")), field(self._rng.choice("abcd")))
        shifted = operation(">>", operation("&", inner, number(0xFFFFFFFF)), number(self._rng.randrange(5)))
        masked = operation("&", self._rng.choice([inner, shifted]), number((1 << bits) - 1))
        return {"type": "expression", "value": masked}

    def _condition(self) -> Node:
        kind = self._rng.random()
        if kind < 0.3:
            return operation("d2b", None, field(self._rng.choice("ef")))
        compared = operation("==", operation("&", field(self._rng.choice("abcd")), number(3)), number(1))
        return compared if kind < 0.8 else operation("and", compared, operation("d2b", None, field("e")))


@pytest.mark.parametrize("seed", range(40))
def test_a_program_does_the_same_with_less(seed: int) -> None:
    """Fields hold the same after each packet, no more nodes are visited, and fields and nodes are fewer."""
    print("seed", seed)
    rng = random.Random(seed)
    program = Drawn(rng).program()
    before, less = Switch(program), json.loads(lighten.lighten(json.dumps(program)))
    after = Switch(less)
    for _ in range(50):
        values = {name: rng.randrange(min(8, 1 << bits)) for name, bits in WIDTHS.items()}
        assert after.run(values) == before.run(values), values
    assert after.applied.total() <= before.applied.total()
    assert "decisions" not in after.applied, "a table of constants is asked"
    assert "source_info" not in json.dumps(less)
    assert [header["name"] for header in less["headers"]] == ["scalars"]
    names = {one["name"] for one in less["pipelines"][0]["tables"]}
    assert "decisions" in names, "its entries can be read still"


@pytest.mark.parametrize("made", ["{}", "[]", "not JSON", '{"actions": [{"primitives": [{}]}], "pipelines": []}'])
def test_a_program_of_unknown_form_stays_as_it_is(made: str, caplog: pytest.LogCaptureFixture) -> None:
    """The output of another p4c is still loaded, and the controller's log reports the cost."""
    assert pipeline.lightened(Path("fold.p4"), made) is None
    assert "fold.p4: p4c-bm2-ss writes programs of a form that is not known here" in caplog.text


@pytest.mark.slow
@pytest.mark.needs("p4c")
def test_the_folds_verdict_is_comparisons() -> None:
    """Its table has no packets and still its entries, and nothing is copied for the ICRC but an ID's bits of a PSN."""
    program = json.loads(pipeline.build("bmv2").device_config)
    assert len(program["headers"]) <= 26, "what is hashed has no headers of its own"
    icrc = [hashed["input"] for hashed in program["calculations"] if len(hashed["input"]) > 20]
    assert icrc
    for listed in icrc:
        assert [one["value"][1] for one in listed if one["value"][0] == "scalars"] in ([], ["tmp_16_0"], ["tmp_16_1"])
    names = {table["name"]: table for pipeline in program["pipelines"] for table in pipeline["tables"]}
    decided = names["tbl_decided_SwitchIngress.fold.verdict.verdict"]
    assert decided["key"] == []
    assert len(names["SwitchIngress.fold.verdict.verdict"]["entries"]) > 30
