# SPDX-License-Identifier: Apache-2.0
"""The control plane's view of a program: P4Info with the ids, names and aliases that p4c gives.

Source: P4Runtime specification, "P4Info Message", and p4c's output. Ids and aliases: p4info_ids.py.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from finsy.proto import p4i
from finsy.proto.p4.config.v1 import p4types_pb2 as p4t

from softswitch.compiler import ast as A
from softswitch.compiler import ir
from softswitch.compiler import types as T
from softswitch.compiler.diagnostics import NOWHERE, P4Error
from softswitch.compiler.objects import ExternObject, TableObject, ValueSet
from softswitch.compiler.p4info_ids import Ids, numbers
from softswitch.compiler.program import LoweredProgram

_MATCH = {"exact": p4i.MatchField.EXACT, "lpm": p4i.MatchField.LPM, "ternary": p4i.MatchField.TERNARY,
          "range": p4i.MatchField.RANGE, "optional": p4i.MatchField.OPTIONAL}
_COUNTER = {
    "packets": p4i.CounterSpec.PACKETS,
    "bytes": p4i.CounterSpec.BYTES,
    "packets_and_bytes": p4i.CounterSpec.BOTH,
}
_METER = {"packets": p4i.MeterSpec.PACKETS, "bytes": p4i.MeterSpec.BYTES}
# Annotations for which P4Info has fields.
_SELECTOR = ("max_group_size", "selector_size_semantics", "max_member_weight")
_SPOKEN = {"name", "id", "tableonly", "hidden", "alias", "p4runtime_translation", *_SELECTOR}


def _hidden(decl: Any) -> bool:
    return isinstance(decl, A.Decl) and decl.annotation("hidden") is not None


def controller_name(t: T.Struct) -> str:
    note = t.decl.annotation("controller_header")
    return note.args[0].value if note and note.args and isinstance(note.args[0], A.StrLit) else t.name


def make(program: LoweredProgram, ids: Ids) -> p4i.P4Info:
    """The program's P4Info. Raises P4Error for a number of an annotation that it has no room for."""
    try:
        return _Maker(program, ids).run()
    except ValueError as error:  # protobuf's own check
        raise P4Error(NOWHERE, f"an @id or another number in an annotation does not fit P4Info: {error}") from None


class _Maker:
    """Makes the P4Info of one program."""

    def __init__(self, program: LoweredProgram, ids: Ids) -> None:
        self.program, self.ids = program, ids
        self.info = p4i.P4Info()

    def run(self) -> p4i.P4Info:
        info = self.info
        info.pkg_info.arch = "v1model"
        for note in self.program.annotations:
            if note.name == "pkginfo":
                self.pkg_info(note)
        for table in self.program.tables:
            if not _hidden(table.decl):
                self.table(table)
        for name, decl in self.program.actions.items():
            if not _hidden(decl):
                self.action(name, decl)
        for objects in self.program.externs.values():
            for x in objects:
                if not _hidden(x.decl):
                    self.extern(x)
        for t in self.program.controller_headers:
            self.controller_header(t)
        for v in self.program.value_sets:
            self.value_set(v)
        for d in self.program.digests:
            message = info.digests.add()
            self.preamble(message.preamble, self.ids.of(d), d.name, None)
            self.data_type(message.type_spec, d.type)
        return info

    def pkg_info(self, note: A.Annotation) -> None:
        """@pkginfo(name="...", version="...")"""
        text = note.text
        for i in range(len(text) - 2):
            if text[i + 1] == "=" and text[i] in ("name", "version", "organization", "contact", "url"):
                setattr(self.info.pkg_info, text[i], text[i + 2].strip('"'))

    def preamble(self, message: Any, id_: int, name: str, decl: Any) -> None:
        message.id, message.name, message.alias = id_, name, self.ids.alias(name)
        self.annotations(message, getattr(decl, "annotations", None) or [])

    def annotations(self, message: Any, notes: Iterable[A.Annotation]) -> None:
        for note in notes:
            if note.name == "brief" or note.name == "description":
                if note.args and isinstance(note.args[0], A.StrLit) and hasattr(message, "doc"):
                    setattr(message.doc, note.name, note.args[0].value)
            elif note.name not in _SPOKEN:
                args = f"({_join(note.text)})" if note.text else ""
                message.annotations.append(f"@{note.name}{args}")

    def table(self, table: TableObject) -> None:
        self.info.type_info.SetInParent()  # p4c writes this for every type that it has looked at
        m = self.info.tables.add()
        self.preamble(m.preamble, self.ids.of(table), table.name, table.decl)
        keys = [k for k in table.keys if k.match != "selector"]
        ids = numbers([k.element for k in keys])
        for key, number in zip(keys, ids, strict=True):
            field = m.match_fields.add(id=number, name=key.name)
            self.annotations(field, key.element.annotations)
            self.bits_and_type(field, key.element.value.type, key.type)
            field.match_type = _MATCH[key.match]
        for action in table.actions:
            ref = m.action_refs.add(id=self.ids.action(action.name))
            names = {n.name for n in action.refs.annotations}
            if "tableonly" in names:
                ref.scope = p4i.ActionRef.TABLE_ONLY
            elif "defaultonly" in names:
                ref.scope = p4i.ActionRef.DEFAULT_ONLY
            for note in action.refs.annotations:
                args = f"({_join(note.text)})" if note.text else ""
                ref.annotations.append(f"@{note.name}{args}")
        default = table.actions[table.default]
        m.initial_default_action.action_id = self.ids.action(default.name)
        ids = numbers([p for p in default.decl.params if not p.direction])
        for (_, t), number, value in zip(default.params, ids, table.default_args, strict=True):
            size = (ir.bits_of(t) + 7) // 8
            m.initial_default_action.arguments.add(param_id=number, value=value.to_bytes(size, "big"))
        if table.const_default:
            m.const_default_action_id = self.ids.action(default.name)
        if table.profile is not None:
            m.implementation_id = self.ids.of(table.profile)
        for direct in (table.counter, table.meter):
            if direct is not None:
                m.direct_resource_ids.append(self.ids.of(direct))
        m.size = table.size
        if table.idle_timeout:
            m.idle_timeout_behavior = p4i.Table.NOTIFY_CONTROL
        m.is_const_table = table.const_entries
        m.has_initial_entries = bool(table.entries)

    def bits_and_type(self, field: Any, declared: T.Type, lowered: ir.Type) -> None:
        """The width of a field, and the name of its `type` with @p4runtime_translation, which may change the width."""
        self.info.type_info.SetInParent()
        bits = ir.bits_of(lowered)
        if isinstance(declared, T.Enum) and declared.base is not None:
            self.serializable_enum(declared)
        if declared == T.ERROR:
            bits = 0
            self.error_type()
        if isinstance(declared, T.NewType):
            field.type_name.name = declared.name
            translated = self.new_type(declared)
            bits = bits if translated is None else translated
        field.bitwidth = bits

    def new_type(self, t: T.NewType) -> int | None:
        """Adds a `type`, and returns the width that @p4runtime_translation gives it (0: a string), if any."""
        spec = self.info.type_info.new_types[t.name]
        note = t.decl.annotation("p4runtime_translation")
        if note is not None and len(note.args) == 2:
            uri, width = note.args
            spec.translated_type.uri = uri.value if isinstance(uri, A.StrLit) else ""
            if isinstance(width, A.IntLit):
                spec.translated_type.sdn_bitwidth = width.value
                return width.value
            spec.translated_type.sdn_string.SetInParent()
            return 0
        base = t.base
        while isinstance(base, T.NewType):
            base = base.base
        self.data_type(spec.original_type, base)
        return None

    def error_type(self) -> None:
        if not self.info.type_info.error.members:
            self.info.type_info.error.members.extend(self.program.errors)

    def serializable_enum(self, t: T.Enum) -> None:
        assert t.base is not None
        if t.name in self.info.type_info.serializable_enums:
            return
        message = self.info.type_info.serializable_enums[t.name]
        message.underlying_type.bitwidth = t.base.width
        size = (t.base.width + 7) // 8
        for name, value in t.members.items():
            number = value & ((1 << t.base.width) - 1)
            message.members.add(name=name, value=number.to_bytes(size, "big"))

    def action(self, name: str, decl: A.ActionDecl) -> None:
        m = self.info.actions.add()
        self.preamble(m.preamble, self.ids.action(name), name, decl)
        listed = any(a.decl is decl for t in self.program.tables for a in t.actions)
        # an action that is only called takes no data from the control plane
        params = [p for p in decl.params if not p.direction and listed]
        for p, number in zip(params, numbers(params), strict=True):
            message = m.params.add(id=number, name=p.name)
            self.annotations(message, p.annotations)
            self.bits_and_type(message, p.type, _plain(p.type))

    def extern(self, x: ExternObject) -> None:
        info, id_ = self.info, self.ids.of(x)
        match x.kind:
            case "counter":
                c = info.counters.add(size=x.size)
                c.spec.unit = _COUNTER[x.unit]
                self.preamble(c.preamble, id_, x.name, x.decl)
            case "direct_counter":
                if x.table is not None and x.table.index >= 0:
                    d = info.direct_counters.add(direct_table_id=self.ids.of(x.table))
                    d.spec.unit = _COUNTER[x.unit]
                    self.preamble(d.preamble, id_, x.name, x.decl)
            case "meter":
                meter = info.meters.add(size=x.size)
                meter.spec.unit = _METER[x.unit]
                self.preamble(meter.preamble, id_, x.name, x.decl)
            case "direct_meter":
                if x.table is not None and x.table.index >= 0:
                    dm = info.direct_meters.add(direct_table_id=self.ids.of(x.table))
                    dm.spec.unit = _METER[x.unit]
                    self.preamble(dm.preamble, id_, x.name, x.decl)
            case "register":
                r = info.registers.add(size=x.size)
                self.preamble(r.preamble, id_, x.name, x.decl)
                self.data_type(r.type_spec, x.type)
            case "action_profile" | "action_selector":
                tables = [self.ids.of(t) for t in self.program.tables if t.profile is x]
                profile = info.action_profiles.add(size=x.size, with_selector=x.kind == "action_selector")
                profile.table_ids.extend(tables)
                self.selector_size(profile, x)
                self.preamble(profile.preamble, id_, x.name, x.decl)

    def selector_size(self, profile: Any, x: ExternObject) -> None:
        """Sets the fields for @max_group_size, @selector_size_semantics and @max_member_weight."""
        notes = {n.name: n.args[0] for n in getattr(x.decl, "annotations", None) or [] if n.args}
        size, semantics, weight = (notes.get(n) for n in _SELECTOR)
        if isinstance(size, A.IntLit):
            profile.max_group_size = size.value
        if isinstance(semantics, A.StrLit) and semantics.value == "sum_of_members":
            profile.sum_of_members.SetInParent()
            if isinstance(weight, A.IntLit):
                profile.sum_of_members.max_member_weight = weight.value
        elif isinstance(semantics, A.StrLit):
            profile.sum_of_weights.SetInParent()

    def data_type(self, spec: p4t.P4DataTypeSpec, t: T.Type) -> None:
        """Describes the type of a register or digest, with the structs that it contains."""
        self.info.type_info.SetInParent()
        match t:
            case T.Bits(signed=False):
                spec.bitstring.bit.bitwidth = t.width
            case T.Bits():
                spec.bitstring.int.bitwidth = t.width
            case T.Varbit():
                spec.bitstring.varbit.max_bitwidth = t.width
            case T.Tuple():
                spec.tuple.SetInParent()
                for item in t.items:
                    self.data_type(spec.tuple.members.add(), item)
            case T.NewType():
                spec.new_type.name = t.name
                self.new_type(t)
            case T.Enum():
                if t.base is None:
                    spec.enum.name = t.name
                    enum = self.info.type_info.enums[t.name]
                    if not enum.members:
                        for name in t.members:
                            enum.members.add(name=name)
                else:
                    spec.serializable_enum.name = t.name
                    self.serializable_enum(t)
            case T.Struct(kind="struct"):
                spec.struct.name = t.name
                if t.name not in self.info.type_info.structs:
                    message = self.info.type_info.structs[t.name]
                    for name, f in t.fields.items():
                        self.data_type(message.members.add(name=name).type_spec, f)
            case T.Struct(kind="header"):
                spec.header.name = t.name
                if t.name not in self.info.type_info.headers:
                    header = self.info.type_info.headers[t.name]
                    for name, f in t.fields.items():
                        member = header.members.add(name=name)
                        if isinstance(f, T.Bits):
                            member.type_spec.bit.bitwidth = f.width
            case _ if t == T.BOOL:
                spec.bool.SetInParent()
            case _ if t == T.ERROR:
                spec.error.SetInParent()
                self.error_type()

    def controller_header(self, t: T.Struct) -> None:
        m = self.info.controller_packet_metadata.add()
        name = controller_name(t)
        self.preamble(m.preamble, self.ids.ids["controller_header", t.name], name, t.decl)
        leaves = list(_leaves(t))
        for (name, declared, f), number in zip(leaves, numbers([f for _, _, f in leaves]), strict=True):
            field = m.metadata.add(id=number, name=name)
            self.annotations(field, f.annotations)
            self.bits_and_type(field, declared, _plain(declared))

    def value_set(self, v: ValueSet) -> None:
        m = self.info.value_sets.add(size=v.size)
        self.preamble(m.preamble, self.ids.of(v), v.name, v.decl)
        for number, (name, match, t) in enumerate(v.fields, 1):
            field = m.match.add(id=number, bitwidth=ir.bits_of(t), match_type=_MATCH[match])
            if len(v.fields) > 1 or isinstance(v.decl.type, T.Struct):
                field.name = name


def _leaves(t: T.Struct, path: str = "") -> Iterable[tuple[str, T.Type, A.FieldDecl]]:
    """The fields of a header, also in nested structs: (dotted name, type, declaration)."""
    for f in t.decl.fields:
        inner = t.fields[f.name]
        if isinstance(inner, T.Struct):
            yield from _leaves(inner, f"{path}{f.name}.")
        else:
            yield f"{path}{f.name}", inner, f


def _plain(t: T.Type) -> T.Bits:
    """The type as a number of bits."""
    while isinstance(t, T.NewType):
        t = t.base
    if t == T.ERROR or (isinstance(t, T.Enum) and t.base is None):
        return T.Bits(32)
    return T.Bits(T.width_of(t) or 0)


def _join(text: list[str]) -> str:
    return " ".join(text).replace(" , ", ", ")
