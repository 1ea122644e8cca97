# SPDX-License-Identifier: Apache-2.0
"""Takes fields out of a program in BMv2's JSON format that only p4c needed.

BMv2 sets each field of metadata to zero for each packet, and copies each for each replica.  p4c makes a field of its
own for each index of a register and for each thing that is hashed, and computes what a field holds already once more.
What is left out here is never read, or is read where it was copied from.  BMv2 hashes no field of an invalid header,
while a copy of one counts with its bits: a program may only hash headers that are valid, as p4src/icrc.p4 does.
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

Node = dict[str, Any]
Name = tuple[str, str]

OPTIONAL: Final = ("ingress_global_timestamp", "egress_global_timestamp", "priority", "parser_error")
"""Optional standard metadata: simple_switch sets it if a program has it."""
_WRITTEN_FIRST: Final = ("assign", "register_read", "modify_field_with_hash_based_offset", "modify_field_rng_uniform")
"""Primitives that write their first parameter, and nothing else."""
_WRITES_NO_FIELD: Final = ("register_write", "count", "clone_ingress_pkt_to_egress", "clone_egress_pkt_to_egress",
                           "recirculate", "truncate")
_JUMPS: Final = ("_jump", "_jump_if_zero")


def lessen(program: Node) -> None:
    """Take fields out of a program, in place."""
    used, width = _uses(program), widths(program)
    calculations = {one["name"]: one for one in program["calculations"]}
    for action in program["actions"]:
        _Copies(action["primitives"], calculations, used, width).undo()
    _forward_results(program)
    _drop_unused(program)
    _share(program)


def fields(node: Any) -> Iterator[list[str]]:
    """Each reference to a field within a part of a program, as the list that names it."""
    if isinstance(node, dict):
        if node.get("type") == "field":
            yield node["value"]
        for key, value in node.items():
            if key in ("target", "result_target") and isinstance(value, list) and value:
                yield value
            elif not (key == "value" and node.get("type") == "field"):
                yield from fields(value)
    elif isinstance(node, list):
        for value in node:
            yield from fields(value)


def _name(reference: list[str]) -> Name:
    return reference[0], reference[1]


def _uses(program: Node) -> Counter[Name]:
    """How often each field is named, but for the declarations."""
    return Counter(_name(one) for key, part in program.items()
                   if key not in ("header_types", "headers", "field_aliases") for one in fields(part))


class _Copies:
    """The copies of fields, and the values computed twice, within one action."""

    def __init__(self, primitives: list[Node], calculations: Mapping[str, Node], used: Counter[Name],
                 width: Mapping[Name, int]) -> None:
        self._primitives = primitives
        self._calculations = calculations
        self._used = used               # how often each field is named in the whole program; kept right
        self._widths = width

    def undo(self) -> None:
        """Let what reads a copy read its source, and take the copy out, where the source holds still."""
        self._name_known_values()
        begin = 0
        while begin < len(self._primitives):
            if not self._undone(begin):
                begin += 1

    def _name_known_values(self) -> None:
        """Copy from the field that holds a value already, rather than compute it once more."""
        known: dict[str, list[str]] = {}
        targets = _targets(self._primitives)
        for place, primitive in enumerate(self._primitives):
            if place in targets:
                known.clear()
            if primitive["op"] == "assign" and primitive["parameters"][1]["type"] == "expression":
                to, value = primitive["parameters"]
                text = json.dumps(value, sort_keys=True)
                holder = known.get(text)
                if holder is not None and self._width(holder) == self._width(to["value"]):
                    self._used.subtract(_name(one) for one in fields(value))
                    self._used[_name(holder)] += 1
                    primitive["parameters"][1] = {"type": "field", "value": list(holder)}
            written = _written(primitive)
            known = {text: holder for text, holder in known.items()
                     if not _may_write(written, holder) and not any(_may_write(written, one)
                                                                    for one in fields(json.loads(text)))}
            if primitive["op"] == "assign" and primitive["parameters"][1]["type"] == "expression":
                to, value = primitive["parameters"]
                if not any(_name(one) == _name(to["value"]) for one in fields(value)):
                    known.setdefault(json.dumps(value, sort_keys=True), to["value"])

    def _undone(self, place: int) -> bool:
        """Takes out the primitive at this place where its readers can read its source; returns whether it did."""
        primitive = self._primitives[place]
        if primitive["op"] != "assign" or primitive["parameters"][1]["type"] not in ("field", "hexstr"):
            return False
        to, source = primitive["parameters"]
        made = _name(to["value"])
        if not _temporary(made) or (source["type"] == "field" and self._width(source["value"]) != self._width(made)):
            return False
        readers: list[tuple[Node, str]] = []
        expected = self._used[made] - 1
        targets = _targets(self._primitives)
        for after in range(place + 1, len(self._primitives)):
            if len(readers) == expected:
                break
            if after in targets:
                return False
            one = self._primitives[after]
            readers += self._readers(one, made)
            if len(readers) == expected:
                break
            if one["op"] in _JUMPS or (source["type"] == "field" and _may_write(_written(one), source["value"])):
                return False
        if len(readers) != expected or not readers:
            return False
        if source["type"] == "hexstr" and not all(kind == "input" for _, kind in readers):
            return False
        for reader, kind in readers:
            reader.clear()
            reader.update(copy.deepcopy(source))
            if source["type"] == "hexstr" and kind == "input":
                reader["bitwidth"] = self._widths[made]
        del self._primitives[place]
        _shift_jumps(self._primitives, place)
        self._used[made] = 0
        if source["type"] == "field":
            self._used[_name(source["value"])] += len(readers) - 1
        return True

    def _readers(self, primitive: Node, made: Name) -> list[tuple[Node, str]]:
        """The places of a primitive, and of the calculation that it makes, that read a field."""
        found: list[tuple[Node, str]] = []
        for number, parameter in enumerate(primitive["parameters"]):
            if parameter["type"] == "calculation":
                found += [(one, "input") for one in self._calculations[parameter["value"]]["input"]
                          if one["type"] == "field" and _name(one["value"]) == made]
            elif not (number == 0 and primitive["op"] in _WRITTEN_FIRST):
                found += [(one, "parameter") for one in _field_nodes(parameter) if _name(one["value"]) == made]
        return found

    def _width(self, name: Any) -> int:
        return self._widths.get(_name(name), 1)


def widths(program: Node) -> dict[Name, int]:
    """The bits of each field."""
    types = {one["name"]: one["fields"] for one in program["header_types"]}
    return {(header["name"], field[0]): field[1] for header in program["headers"]
            for field in types[header["header_type"]] if isinstance(field[1], int)}


def _temporary(name: Name) -> bool:
    """True if p4c created this field to hold an intermediate value within one action."""
    header, field = name
    return (header == "scalars" and field.startswith("tmp")) or (field.startswith("f") and "_tmp" in header)


def _field_nodes(node: Any) -> Iterator[Node]:
    if isinstance(node, dict):
        if node.get("type") == "field":
            yield node
        else:
            for value in node.values():
                yield from _field_nodes(value)
    elif isinstance(node, list):
        for value in node:
            yield from _field_nodes(value)


def _written(primitive: Node) -> Name | None:
    """The field that a primitive writes; ("", "") where that is not known; None: none."""
    if primitive["op"] in _WRITTEN_FIRST:
        return _name(primitive["parameters"][0]["value"])
    if primitive["op"] in _WRITES_NO_FIELD or primitive["op"] in _JUMPS:
        return None
    return "", ""


def _may_write(written: Name | None, field: list[str]) -> bool:
    return written is not None and written in (("", ""), _name(field))


def _targets(primitives: list[Node]) -> set[int]:
    """The places that jumps lead to."""
    return {int(one["parameters"][-1]["value"], 16) for one in primitives if one["op"] in _JUMPS}


def _shift_jumps(primitives: list[Node], gone: int) -> None:
    for one in primitives:
        if one["op"] in _JUMPS and (to := int(one["parameters"][-1]["value"], 16)) > gone:
            one["parameters"][-1] = {"type": "hexstr", "value": hex(to - 1)}


def _forward_results(program: Node) -> None:
    """Where a result is put into a field of p4c's only to be moved on, put it where it goes."""
    used = _uses(program)
    width = widths(program)
    for action in program["actions"]:
        primitives = action["primitives"]
        place = 0
        while place + 1 < len(primitives):
            first, second = primitives[place], primitives[place + 1]
            if (first["op"] in _WRITTEN_FIRST and second["op"] == "assign"
                    and second["parameters"][1]["type"] == "field" and place + 1 not in _targets(primitives)):
                held = first["parameters"][0]["value"]
                to = second["parameters"][0]["value"]
                if (second["parameters"][1]["value"] == held and _temporary(_name(held)) and used[_name(held)] == 2
                        and width.get(_name(held)) == width.get(_name(to))):
                    first["parameters"][0] = second["parameters"][0]
                    del primitives[place + 1]
                    _shift_jumps(primitives, place + 1)
            place += 1


def _drop_unused(program: Node) -> None:
    """Take out metadata that nothing names, and headers of metadata that are empty then."""
    used = set(_uses(program))
    aliased = {_name(target) for name, target in program["field_aliases"] if target[1] not in OPTIONAL}
    whole = {one["value"] for action in program["actions"] for primitive in action["primitives"]
             for one in primitive["parameters"] if one["type"] == "header"}
    types = {one["name"]: one for one in program["header_types"]}
    gone: set[Name] = set()

    def keep(header: str, field: str) -> bool:
        if (header, field) in used or (header, field) in aliased:
            return True
        if header == "standard_metadata":
            return field not in OPTIONAL
        return header in whole and header != "scalars"

    for header in [one for one in program["headers"] if one["metadata"]]:
        kind = types[header["header_type"]]
        if sum(one["header_type"] == kind["name"] for one in program["headers"]) > 1:
            kind = {**kind, "name": header["name"] + "_t", "id": 1 + max(one["id"] for one in program["header_types"])}
            program["header_types"].append(kind)
            header["header_type"] = kind["name"]
        left = [field for field in kind["fields"] if keep(header["name"], field[0]) and "_padding" not in field[0]]
        gone |= {(header["name"], field[0]) for field in kind["fields"] if field not in left}
        kind["fields"] = _padded(left)
    program["headers"] = [one for one in program["headers"] if not one["metadata"] or one["name"] in whole
                          or [field for field in _kind(program, one)["fields"] if "_padding" not in field[0]]]
    program["field_aliases"] = [one for one in program["field_aliases"] if _name(one[1]) not in gone]
    _number_headers(program)


def _kind(program: Node, header: Node) -> Node:
    return next(one for one in program["header_types"] if one["name"] == header["header_type"])


def _padded(kept: list[list[Any]]) -> list[list[Any]]:
    rest = -sum(field[1] for field in kept) % 8
    return [*kept, ["_padding", rest, False]] if rest else kept


def _number_headers(program: Node) -> None:
    new = {header["id"]: number for number, header in enumerate(program["headers"])}
    for header in program["headers"]:
        header["id"] = new[header["id"]]
    for stack in program["header_stacks"]:
        stack["header_ids"] = [new[one] for one in stack["header_ids"]]
    for number, kind in enumerate(program["header_types"]):
        kind["id"] = number


def _share(program: Node) -> None:
    """Let fields of p4c's that live within one action each, and in different ones, be the same field."""
    outside = {_name(one) for key, part in program.items()
               if key not in ("header_types", "headers", "field_aliases", "actions", "calculations")
               for one in fields(part)}
    inputs = {one["name"]: one["input"] for one in program["calculations"]}
    by_action: list[set[Name]] = []
    for action in program["actions"]:
        made = {parameter["value"] for primitive in action["primitives"] for parameter in primitive["parameters"]
                if parameter["type"] == "calculation"}
        by_action.append({_name(one) for one in fields(action["primitives"])} |
                         {_name(one) for calculation in made for one in fields(inputs[calculation])})
    homes = Counter(name for names in by_action for name in names)
    width = widths(program)
    renamed: dict[Name, Name] = {}
    for action, names in zip(program["actions"], by_action, strict=True):
        taken: Counter[int] = Counter()
        for name in sorted(names):
            if (_temporary(name) and homes[name] == 1 and name not in outside
                    and _written_before_read(action["primitives"], inputs, name)):
                bits = width[name]
                renamed[name] = ("scalars", f"tmp_{bits}_{taken[bits]}")
                taken[bits] += 1
    _rename(program, renamed.get)
    scalars = next(one for one in program["header_types"]
                   if one["name"] == next(h for h in program["headers"] if h["name"] == "scalars")["header_type"])
    scalars["fields"] = [field for field in scalars["fields"] if "_padding" not in field[0]]
    shared = {new: width[old] for old, new in renamed.items()}
    scalars["fields"] += [[new[1], bits, False] for new, bits in shared.items()]
    _drop_unused(program)


def _written_before_read(primitives: list[Node], inputs: dict[str, Any], name: Name) -> bool:
    """True if an action writes this field before it reads it, with no jump that could lead between the two."""
    written = False
    targets = _targets(primitives)
    for place, primitive in enumerate(primitives):
        if place in targets:
            written = False
        reads = [parameter for number, parameter in enumerate(primitive["parameters"])
                 if not (number == 0 and primitive["op"] in _WRITTEN_FIRST)]
        reads += [one for parameter in primitive["parameters"] if parameter["type"] == "calculation"
                  for one in inputs[parameter["value"]]]
        if not written and any(_name(one) == name for one in fields(reads)):
            return False
        if _written(primitive) == name:
            written = True
    return True


def _rename(program: Node, new: Callable[[Name], Name | None]) -> None:
    for key, part in program.items():
        if key not in ("header_types", "headers", "field_aliases"):
            for one in fields(part):
                found = new(_name(one))
                if found is not None:
                    one[:] = found
