# SPDX-License-Identifier: Apache-2.0
"""A program as JSON of BMv2: what control planes read of it, in the words of p4c's BMv2 back end, and its P4 text.

    {"header_types": [...], "pipelines": [...], "actions": [...], ...,
     "softswitch": {"source": "#line 1 \"<core.p4>\"...", "name": "prog.p4"}}

Control planes that speak to BMv2 over Thrift know a program by this file alone: names and widths of match fields,
actions with their parameters, sizes of arrays. What only BMv2's own packet path reads (primitives, parse states,
conditions) is left empty, and tables that p4c makes of plain statements are absent; this switch compiles `source`.
Format: behavioral-model, docs/JSON_format.md, version 2.23.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from softswitch.compiler import ir
from softswitch.compiler.device_config import MEMBER, Control
from softswitch.compiler.objects import ExternObject, TableObject
from softswitch.compiler.program import LoweredProgram
from softswitch.compiler.types import Bits, Varbit

VERSION = (2, 23)
"""The version of the JSON format that is written; BMv2 1.15 reports that it supports this one."""

_COMPILER = "https://github.com/p4lang/p4c"  # BMv2's own tools compare nothing but `version`
_HASHES = ("crc32", "crc32_custom", "crc16", "crc16_custom", "random", "identity", "csum16", "xor16")  # HashAlgorithm
_ALIASES = {
    "queueing_metadata": ("enq_timestamp", "enq_qdepth", "deq_timedelta", "deq_qdepth"),
    "intrinsic_metadata":
        ("ingress_global_timestamp", "egress_global_timestamp", "mcast_grp", "egress_rid", "priority"),
}
_PACKET_PATH = ("parsers", "deparsers", "checksums", "force_arith", "extern_instances")
"""Sections that only BMv2's packet path reads."""


def sections(program: LoweredProgram, control: Control | None = None) -> str:
    """The JSON of a program without `MEMBER`, as text; with `control` where the program needs it."""
    found = _Writer(program).everything()
    lines = [f' "{name}": {json.dumps(section, ensure_ascii=False)}' for name, section in found.items()]
    if control is not None:
        lines.append(f" {control.member()}")
    return "{\n" + ",\n".join(lines) + "\n}"


def complete(sections: str, source: str, name: str) -> str:
    """The whole file: what `sections` gave, and the preprocessed text that this switch compiles."""
    own = json.dumps({"source": source, "name": name}, ensure_ascii=False)
    return f'{sections.rstrip().removesuffix("}").rstrip()},\n "program": {json.dumps(name)},\n "{MEMBER}": {own}\n}}\n'


class _Writer:
    """Makes the sections of one program."""

    def __init__(self, program: LoweredProgram) -> None:
        self.program = program
        self.header_types: list[dict[str, Any]] = []
        self.headers: list[dict[str, Any]] = []
        self.stacks: list[dict[str, Any]] = []
        self.union_types: list[dict[str, Any]] = []
        self.unions: list[dict[str, Any]] = []
        self.union_stacks: list[dict[str, Any]] = []
        self.scalars: list[list[Any]] = []
        self.types: dict[int, str] = {}
        """Identity of a header type's record -> name of the type, for the types written so far."""
        self.places: dict[tuple[Any, ...], list[str]] = {}
        """Path from the variable on -> [header, field] of a scalar, or [header] of a header."""
        self.action_ids: dict[str, int] = {}

    def everything(self) -> dict[str, Any]:
        hdr, meta = self.program.state
        standard = self.program.standard
        assert isinstance(hdr.type, ir.RecordType)
        assert isinstance(meta.type, ir.RecordType)
        assert isinstance(standard, ir.RecordType)
        self.type_of_fields("scalars_0", {})
        self.headers.append(self.header("scalars", "scalars_0", metadata=True))
        self.type_of_fields("standard_metadata", standard.fields)
        self.headers.append(self.header("standard_metadata", "standard_metadata", metadata=True))
        for field in standard.fields:
            self.places["standard_metadata", field] = ["standard_metadata", field]
        self.members(hdr.type, ("hdr",), "", "")
        self.members(meta.type, ("meta",), "userMetadata.", f"{meta.type.p4}.")
        self.actions()
        pipelines = [self.pipeline(number, name) for number, name in enumerate(("ingress", "egress"))]
        self.header_types[0]["fields"] = [*self.scalars, *_padding(sum(width for _, width, _ in self.scalars), "_0")]
        calculations = list(self.calculations())
        found = {
            "header_types": self.header_types, "headers": self.headers, "header_stacks": self.stacks,
            "header_union_types": self.union_types, "header_unions": self.unions,
            "header_union_stacks": self.union_stacks, "field_lists": list(self.field_lists()),
            "errors": [[name, number] for number, name in enumerate(self.program.errors)], "enums": self.enums(),
            "parse_vsets": [
                {"name": v.name, "id": v.index, "compressed_bitwidth": sum(ir.bits_of(t) for _, _, t in v.fields),
                 "max_size": v.size}
                for v in self.program.value_sets
            ],
            "meter_arrays": [self.meter(x) for x in self.program.objects("meter") if _used(x)],
            "counter_arrays": [self.counter(x) for x in self.program.objects("counter") if _used(x)],
            "register_arrays": [
                {"name": x.name, "id": number, "size": x.size, "bitwidth": ir.bits_of(x.type)}
                for number, x in enumerate(self.program.objects("register"))
            ],
            "calculations": calculations,
            "learn_lists": [
                {"id": number, "name": digest.name,
                 "elements": [_field(["scalars", f"{digest.name}.{name}"]) for name, _ in digest.fields]}
                for number, digest in enumerate(self.program.digests, 1)
            ],
            "actions": [
                {"name": name, "id": number, "runtime_data": self.runtime_data(name), "primitives": []}
                for name, number in self.action_ids.items()
            ],
            "pipelines": pipelines,
            "field_aliases": [
                [f"{group}.{name}", ["standard_metadata", name]] for group, names in _ALIASES.items()
                for name in names if name in standard.fields
            ],
            "__meta__": {"version": list(VERSION), "compiler": _COMPILER},
        }
        return found | {name: [] for name in _PACKET_PATH}

    # ---- headers and fields -------------------------------------------------------------------------------------

    def header(self, name: str, kind: str, *, metadata: bool = False) -> dict[str, Any]:
        return {"name": name, "id": len(self.headers), "header_type": kind, "metadata": metadata, "pi_omit": True}

    def type_of_fields(self, name: str, fields: dict[str, ir.Type]) -> None:
        listed: list[list[Any]] = []
        for field, t in fields.items():
            listed.append([field, "*"] if isinstance(t, Varbit) else [field, ir.bits_of(t), _signed(t)])
        made: dict[str, Any] = {"name": name, "id": len(self.header_types), "fields": listed}
        varbit = sum(t.width for t in fields.values() if isinstance(t, Varbit))
        fixed = sum(ir.bits_of(t) for t in fields.values())
        if varbit:
            made["max_length"] = (varbit + fixed + 7) // 8
        else:
            listed += _padding(fixed, "")
        self.header_types.append(made)

    def header_type(self, record: ir.RecordType) -> str:
        """The name of a header's type, which is written when it is first met."""
        if id(record) not in self.types:
            taken = {made["name"] for made in self.header_types}
            self.types[id(record)] = record.p4 if record.p4 not in taken else record.name
            self.type_of_fields(self.types[id(record)], {name: t for _, name, t in _flat(record)})
        return self.types[id(record)]

    def members(self, record: ir.RecordType, path: tuple[str, ...], prefix: str, scalars: str) -> None:
        """Writes the headers, stacks and scalars of the struct of a state's variable; stacks come last."""
        for names, name, t in sorted(_flat(record), key=lambda leaf: isinstance(leaf[2], ir.StackType)):
            where = (*path, *names)
            match t:
                case ir.RecordType(kind="header"):
                    self.one_header(prefix + name, t, where)
                case ir.RecordType(kind="union"):
                    self.union(prefix + name, t, where)
                case ir.StackType():
                    self.stack(prefix + name, t, where)
                case ir.RecordType() | Varbit():
                    continue
                case _:
                    self.places[where] = ["scalars", scalars + name]
                    self.scalars.append([scalars + name, ir.bits_of(t), _signed(t)])

    def one_header(self, name: str, record: ir.RecordType, where: tuple[Any, ...]) -> int:
        made = self.header(name, self.header_type(record))
        self.headers.append(made)
        self.places[where] = [name]
        for path, field, _ in _flat(record):
            self.places[(*where, *path)] = [name, field]
        return int(made["id"])

    def union(self, name: str, record: ir.RecordType, where: tuple[Any, ...]) -> int:
        known = [made["name"] for made in self.union_types]
        items = {field: t for field, t in record.fields.items() if isinstance(t, ir.RecordType)}
        headers = [[field, self.header_type(t)] for field, t in items.items()]
        if record.p4 not in known:
            self.union_types.append({"name": record.p4, "id": len(known), "headers": headers})
        ids = [self.one_header(f"{name}.{field}", t, (*where, field)) for field, t in items.items()]
        made = {"name": name, "id": len(self.unions), "union_type": record.p4, "header_ids": ids, "pi_omit": True}
        self.unions.append(made)
        return len(self.unions) - 1

    def stack(self, name: str, t: ir.StackType, where: tuple[Any, ...]) -> None:
        if t.item.kind == "union":
            ids = [self.union(f"{name}[{i}]", t.item, (*where, i)) for i in range(t.size)]
            self.union_stacks.append({"name": name, "id": len(self.union_stacks), "union_type": t.item.p4,
                                      "size": t.size, "header_union_ids": ids})
        elif t.item.kind == "header":
            ids = [self.one_header(f"{name}[{i}]", t.item, (*where, i)) for i in range(t.size)]
            self.stacks.append({"name": name, "id": len(self.stacks), "header_type": self.header_type(t.item),
                                "size": t.size, "header_ids": ids})

    def temporary(self, value: ir.Value) -> list[str]:
        """A scalar for a value that has no field of its own, as p4c names the ones that it makes for keys."""
        name = f"key_{sum(1 for scalar in self.scalars if str(scalar[0]).startswith('key_'))}"
        self.scalars.append([name, ir.bits_of(value.type), _signed(value.type)])
        return ["scalars", name]

    def place(self, value: ir.Value) -> list[str] | None:
        """[header, field] of a value, or None where it is computed."""
        if isinstance(value, ir.Valid):
            header = self.places.get(_path(value.header))
            return [*header, "$valid$"] if header is not None and len(header) == 1 else None
        if not isinstance(value, ir.LValue):
            return None
        path = _path(value)
        found = self.places.get(path)
        # p4c copies the elements of stacks to a scalar, and so does not name them
        return None if found is None or len(found) != 2 or any(isinstance(step, int) for step in path) else found

    # ---- arrays, actions ----------------------------------------------------------------------------------------

    def meter(self, x: ExternObject) -> dict[str, Any]:
        made: dict[str, Any] = {"name": x.name, "id": x.index, "is_direct": x.kind == "direct_meter", "rate_count": 2,
                                "type": x.unit}
        if x.kind == "direct_meter":
            table = x.table
            return made | {"size": _size(table) if table is not None else 0, "binding": str(table or "")}
        return made | {"size": x.size}

    def counter(self, x: ExternObject) -> dict[str, Any]:
        made = {"name": x.name, "id": x.index}
        if x.kind == "direct_counter":
            return made | {"is_direct": True, "binding": str(x.table or "")}
        return made | {"size": x.size, "is_direct": False}

    def actions(self) -> None:
        for name in sorted(self.program.actions, key=lambda name: name != "NoAction"):
            self.action_ids[name] = len(self.action_ids)
        for table in self.program.tables:
            for action in table.actions:
                self.action_ids.setdefault(action.name, len(self.action_ids))

    def runtime_data(self, name: str) -> list[dict[str, Any]]:
        for table in self.program.tables:
            for action in table.actions:
                if action.name == name:
                    return [{"name": param, "bitwidth": ir.bits_of(t)} for param, t in action.params]
        return []  # of an action that is only called

    def field_lists(self) -> Iterator[dict[str, Any]]:
        for number, paths in sorted(self.program.field_lists.items()):
            places = [self.places.get(("meta", *path)) for path in paths]
            yield {"id": number, "name": f"field_list{number}", "elements": [_field(p) for p in places if p]}

    def enums(self) -> list[dict[str, Any]]:
        return [{"name": name, "entries": [[member, number] for number, member in enumerate(members)]}
                for name, members in self.program.enums.items()]

    def calculations(self) -> Iterator[dict[str, Any]]:
        """Each use of a hash, by whose name a control plane sets the parameters of a custom CRC; `crc` is its number in
        the engine, which p4c's JSON lacks. As there, those in a control's actions come first."""
        number, seen = 0, set[int]()
        for function in self.program.functions.values():
            for _, step in sorted(_hashes(function.body), key=lambda pair: not pair[0]):
                crc = step.info >> 8
                if crc and crc in seen:  # an action of several tables
                    continue
                seen.add(crc)
                suffix = f"_{number - 1}" if number else ""
                yield {"name": f"calc{suffix}", "id": number, "algo": _HASHES[step.info & 0xFF], "input": [],
                       **({"crc": crc} if crc else {})}
                number += 1

    # ---- pipelines ----------------------------------------------------------------------------------------------

    def pipeline(self, number: int, name: str) -> dict[str, Any]:
        function = self.program.functions.get(name)
        applied: dict[int, ir.Apply] = {}
        for step in _steps(function.body) if function is not None else ():
            if isinstance(step, ir.Apply):
                applied.setdefault(id(step.table), step)
        profiles = {id(step.table.profile): step for step in applied.values() if step.table.profile is not None}
        return {
            "name": name, "id": number,
            "init_table": next((step.table.name for step in applied.values()), None),
            "tables": [self.table(step) for step in applied.values()],
            "action_profiles": [self.profile(step) for step in profiles.values()],
            "conditionals": [],
        }

    def profile(self, step: ir.Apply) -> dict[str, Any]:
        profile = step.table.profile
        assert profile is not None
        made: dict[str, Any] = {"name": profile.name, "id": profile.index, "max_size": profile.size}
        if profile.kind == "action_selector":
            inputs = [_field(self.place(value) or self.temporary(value)) for value in step.selectors]
            made["selector"] = {"algo": _HASHES[profile.algorithm], "input": inputs}
        return made

    def table(self, step: ir.Apply) -> dict[str, Any]:
        table = step.table
        profile = table.profile
        kind = "simple" if profile is None else "indirect" if profile.kind == "action_profile" else "indirect_ws"
        ids = [self.action_ids[action.name] for action in table.actions]
        made: dict[str, Any] = {
            "name": table.name, "id": table.index, "key": list(self.key(step)), "match_type": _match(table),
            "type": kind,
            **({"action_profile": profile.name} if profile is not None else {}),
            "max_size": _size(table), "with_counters": table.counter is not None,
            "support_timeout": table.idle_timeout,
            "direct_meters": table.meter.name if table.meter is not None else None,
            "action_ids": ids, "actions": [action.name for action in table.actions],
            "base_default_next": None, "next_tables": {action.name: None for action in table.actions},
        }
        if profile is None:
            made["default_entry"] = {
                "action_id": ids[table.default], "action_const": table.const_default,
                "action_data": [hex(value) for value in table.default_args], "action_entry_const": table.const_default,
            }
        if table.entries:
            made["entries"] = [
                {"match_key": [_match_key(kind, bits, *key) for (kind, bits), key in
                               zip(_key_forms(table), entry.keys, strict=True)],
                 "action_entry": {"action_id": ids[entry.action], "action_data": [hex(arg) for arg in entry.args]},
                 "priority": number}
                for number, entry in enumerate(table.entries, 1)
            ]
        return made

    def key(self, step: ir.Apply) -> Iterator[dict[str, Any]]:
        named = [key for key in step.table.keys if key.match != "selector"]
        for key, value in zip(named, step.keys, strict=True):
            mask = None
            if isinstance(value, ir.BinaryOp) and value.op == "&" and isinstance(value.b, ir.Const):
                place = self.place(value.a)
                mask = _hex(value.b.value, ir.bits_of(value.type)) if place is not None else None
            else:
                place = self.place(value)
            yield {"match_type": _bmv2_match(key.match), "name": key.name,
                   "target": place or self.temporary(value), "mask": mask}


def _steps(body: Sequence[ir.Instruction]) -> Iterator[ir.Instruction]:
    """All instructions of a function, in the order in which they are written."""
    for step in body:
        yield step
        if isinstance(step, ir.If):
            yield from _steps(step.then)
            yield from _steps(step.other)
        elif isinstance(step, ir.Apply):
            for case in step.cases:
                yield from _steps(case.body)


def _hashes(body: Sequence[ir.Instruction], *, in_action: bool = False) -> Iterator[tuple[bool, ir.Extern]]:
    """The uses of a hash in a function, and whether each is in an action of a table."""
    for step in body:
        if isinstance(step, ir.If):
            yield from _hashes(step.then, in_action=in_action)
            yield from _hashes(step.other, in_action=in_action)
        elif isinstance(step, ir.Apply):
            for case in step.cases:
                yield from _hashes(case.body, in_action=True)
        elif isinstance(step, ir.Extern) and step.op == "hash" and isinstance(step.info, int):
            yield in_action, step


def _flat(record: ir.RecordType) -> list[tuple[tuple[str, ...], str, ir.Type]]:
    """The path, name and type of each field, in structs inside as well. p4c keeps the names where no struct is inside,
    and else joins the names on the path and a number."""
    leaves = list(ir.scalar_fields(record))
    if all(len(path) == 1 for path, _ in leaves):
        return [(path, path[0], t) for path, t in leaves]
    return [(path, f"_{'_'.join(path)}{number}", t) for number, (path, t) in enumerate(leaves)]


def _path(value: ir.Value) -> tuple[Any, ...]:
    """The names, and numbers of stack elements, from a variable of the packet's state to one of its parts."""
    match value:
        case ir.Var():
            return (value.name,) if value.storage != "local" else (None, value.name)
        case ir.Field():
            return (*_path(value.base), value.name)
        case ir.StackElement():
            index = value.index
            return (*_path(value.base), index.value if isinstance(index, ir.Const) else None)
    return (None,)


def _signed(t: ir.Type) -> bool:
    return isinstance(t, Bits) and t.signed


def _padding(bits: int, suffix: str) -> list[list[Any]]:
    """The field that fills fields of so many bits up to whole bytes, if any."""
    return [[f"_padding{suffix}", -bits % 8, False]] if bits % 8 else []


def _field(place: Sequence[str]) -> dict[str, Any]:
    return {"type": "field", "value": list(place)}


def _hex(value: int, bits: int) -> str:
    """A number in as many digits as its bytes have."""
    return f"0x{value:0{2 * ((bits + 7) // 8)}x}"


def _used(x: ExternObject) -> bool:
    """True if a counter or meter is visible to the control plane: p4c drops direct ones of tables that are not
    applied."""
    return not x.kind.startswith("direct") or (x.table is not None and x.table.index >= 0)


def _size(table: TableObject) -> int:
    """p4c leaves no room beside the entries that the program itself gives a table, and ignores a size that means none.
    """
    return len(table.entries) or (table.size if table.keys else 0) or 1024


def _bmv2_match(match: str) -> str:
    return "ternary" if match == "optional" else match


def _key_forms(table: TableObject) -> list[tuple[str, int]]:
    return [(_bmv2_match(key.match), ir.bits_of(key.type)) for key in table.keys if key.match != "selector"]


def _match(table: TableObject) -> str:
    """The match type of a table: that of its key that asks for most."""
    kinds = {kind for kind, _ in _key_forms(table)}
    return next((kind for kind in ("range", "ternary", "lpm") if kind in kinds), "exact")


def _match_key(kind: str, bits: int, value: int, second: int) -> dict[str, Any]:
    """A key of a constant entry; `second` is its mask, or the high end of a range."""
    if kind == "range":
        return {"match_type": kind, "start": _hex(value, bits), "end": _hex(second, bits)}
    made: dict[str, Any] = {"match_type": kind, "key": _hex(value, bits)}
    if kind == "lpm":
        made["prefix_length"] = second.bit_count()
    elif kind == "ternary":
        made["mask"] = _hex(second, bits)
    return made
