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
from softswitch.compiler import p4info_notes as notes
from softswitch.compiler import types as T
from softswitch.compiler.device_config import Control
from softswitch.compiler.diagnostics import NOWHERE, P4Error
from softswitch.compiler.objects import ExternObject, TableObject, ValueSet
from softswitch.compiler.p4info_ids import Ids, explicit_id, numbers
from softswitch.compiler.program import LoweredProgram

_MATCH = {"exact": p4i.MatchField.EXACT, "lpm": p4i.MatchField.LPM, "ternary": p4i.MatchField.TERNARY,
          "range": p4i.MatchField.RANGE, "optional": p4i.MatchField.OPTIONAL}
_COUNTER = {
    "packets": p4i.CounterSpec.PACKETS,
    "bytes": p4i.CounterSpec.BYTES,
    "packets_and_bytes": p4i.CounterSpec.BOTH,
}
_METER = {"packets": p4i.MeterSpec.PACKETS, "bytes": p4i.MeterSpec.BYTES}
# Annotations of action profiles for which P4Info has fields.
_SELECTOR = ("max_group_size", "selector_size_semantics", "max_member_weight")
_STRING_KEYS = ("name", "version", "organization", "contact", "url", "arch")
_PROPERTIES = ("multicast_group_table_size", "multicast_group_table_total_replicas",
               "multicast_group_table_max_replicas_per_entry")
_DEFAULT_SIZE = 1024


def _hidden(decl: Any) -> bool:
    return any(note.name == "hidden" for note in notes.of(decl))


def _external(decl: Any, name: str) -> str:
    """The control plane's name of a type, field or parameter: @name, or its own."""
    note = next((n for n in notes.of(decl) if n.name == "name" and n.args), None)
    if note is not None and isinstance(note.args[0], A.StrLit):
        return note.args[0].value.removeprefix(".")
    return name


def _type_name(t: T.Struct | T.Enum | T.NewType) -> str:
    return _external(t.decl, t.name)


def controller_name(t: T.Struct) -> str:
    note = t.decl.annotation("controller_header")
    return note.args[0].value if note and note.args and isinstance(note.args[0], A.StrLit) else t.name


def make(program: LoweredProgram, ids: Ids) -> p4i.P4Info:
    """The program's P4Info. Raises P4Error for a number of an annotation that it has no room for."""
    try:
        return _Maker(program, ids).run()
    except ValueError as error:  # protobuf's own check
        raise P4Error(NOWHERE, f"an @id or another number in an annotation does not fit P4Info: {error}") from None


def control(program: LoweredProgram) -> Control | None:
    """The properties that P4Runtime's server needs beyond P4Info, or None."""
    headers = {}
    needed = False
    for t in program.controller_headers:
        leaves = list(_leaves(t))
        fields = []
        for (_, declared, f), number in zip(leaves, numbers([f for _, _, f in leaves]), strict=True):
            hidden, bits = _hidden(f), _plain(declared).width
            fields.append((0 if hidden else number, bits))
            needed = needed or hidden or _translated_width(declared) not in (None, bits)
        headers[controller_name(t)] = fields
    port = program.port_type
    port_type = _type_name(port) if isinstance(port, T.NewType) and _translated_width(port) is not None else ""
    return Control(headers, port_type) if needed or port_type else None


class _Maker:
    """Makes the P4Info of one program."""

    def __init__(self, program: LoweredProgram, ids: Ids) -> None:
        self.program, self.ids = program, ids
        self.info = p4i.P4Info()

    def run(self) -> p4i.P4Info:
        info, seen = self.info, self.ids.visible
        self.pkg_info()
        for table in seen.tables:
            if not _hidden(table.decl):
                self.table(table)
        for name, decl in seen.actions.items():
            if not _hidden(decl):
                self.action(name, decl)
        if self.program.calls_externs or any(isinstance(x.decl, A.InstanceDecl) for x in seen.externs):
            info.type_info.SetInParent()  # p4c writes this where it has looked for types
        for x in seen.externs:
            self.extern(x)
        for t in self.program.controller_headers:
            if not _hidden(t.decl):
                self.controller_header(t)
        for v in seen.value_sets:
            self.value_set(v)
        for d in seen.digests:
            message = info.digests.add()
            self.preamble(message.preamble, self.ids.of(d), d.name, None)
            self.data_type(message.type_spec, d.type)
        return info

    def pkg_info(self) -> None:
        """Fills in the package's information from @pkginfo(name="...", version="...") and @platform_property(...)."""
        info = self.info.pkg_info
        info.arch = "v1model"
        for note in self.program.annotations:
            if note.name == "pkginfo":
                for key, text in notes.pairs(note):
                    if key in _STRING_KEYS and text.startswith('"'):
                        setattr(info, key, notes.string(text))
            elif note.name == "platform_property":
                info.platform_properties.SetInParent()
                for key, text in notes.pairs(note):
                    if key in _PROPERTIES:
                        setattr(info.platform_properties, key, int(text, 0))
        notes.add(info, self.program.annotations, self.program.evaluate, without=("pkginfo", "platform_property"))

    def preamble(self, message: Any, id_: int, name: str, decl: Any, *, without: Iterable[str] = ()) -> None:
        message.id, message.name, message.alias = id_, name, self.ids.alias(name)
        self.annotate(message, decl, without=without)

    def annotate(self, message: Any, decl: Any, *, without: Iterable[str] = ()) -> None:
        """Adds the annotations of a declaration to its message."""
        notes.add(message, notes.of(decl), self.program.evaluate, without=without)

    def table(self, table: TableObject) -> None:
        self.info.type_info.SetInParent()  # p4c writes this for every type that it has looked at
        m = self.info.tables.add()
        self.preamble(m.preamble, self.ids.of(table), table.name, table.decl)
        ids = numbers([k.element for k in table.keys])
        for key, number in zip(table.keys, ids, strict=True):
            if key.match == "selector":
                continue
            field = m.match_fields.add(id=number, name=key.name)
            self.annotate(field, key.element)
            self.bits_and_type(field, key.element.value.type, key.type)
            field.match_type = _MATCH[key.match]
        for action in table.actions:
            ref = m.action_refs.add(id=self.ids.action(action.name))
            names = {n.name for n in notes.of(action.refs)}
            if "tableonly" in names:
                ref.scope = p4i.ActionRef.TABLE_ONLY
            elif "defaultonly" in names:
                ref.scope = p4i.ActionRef.DEFAULT_ONLY
            self.annotate(ref, action.refs)
        default = table.actions[table.default]
        m.initial_default_action.action_id = self.ids.action(default.name)
        params = [p for p in default.decl.params if not p.direction]
        for place, (p, (_, t), value) in enumerate(zip(params, default.params, table.default_args, strict=False), 1):
            given = explicit_id(p)
            number = place if given is None else given
            size = ((_translated_width(p.type) or ir.bits_of(t)) + 7) // 8
            m.initial_default_action.arguments.add(param_id=number, value=value.to_bytes(size, "big"))
        if table.const_default:
            m.const_default_action_id = self.ids.action(default.name)
        if table.profile is not None:
            m.implementation_id = self.ids.of(table.profile)
        if table.counter is not None:
            c = self.info.direct_counters.add(direct_table_id=m.preamble.id)
            c.spec.unit = _COUNTER[table.counter.unit]
            self.preamble(c.preamble, self.ids.of(table.counter), table.counter.name, table.counter.decl)
            m.direct_resource_ids.append(c.preamble.id)
        if table.meter is not None:
            d = self.info.direct_meters.add(direct_table_id=m.preamble.id)
            d.spec.unit = _METER[table.meter.unit]
            self.preamble(d.preamble, self.ids.of(table.meter), table.meter.name, table.meter.decl)
            m.direct_resource_ids.append(d.preamble.id)
        m.size = table.size or _DEFAULT_SIZE
        if table.idle_timeout:
            m.idle_timeout_behavior = p4i.Table.NOTIFY_CONTROL
        m.is_const_table = table.const_entries
        m.has_initial_entries = bool(table.entries)

    def bits_and_type(self, field: Any, declared: T.Type, lowered: ir.Type) -> None:
        """The width of a field, and the name of its `type` with @p4runtime_translation, which may change the width."""
        self.info.type_info.SetInParent()
        self.data_type(p4t.P4DataTypeSpec(), declared)  # for the types that it adds to type_info
        if isinstance(declared, T.NewType):
            field.type_name.name = _type_name(declared)
        width = _translated_width(declared)
        if width is None:
            width = 0 if declared == T.ERROR else ir.bits_of(lowered)
        field.bitwidth = width

    def new_type(self, t: T.NewType) -> None:
        """Adds a `type` to type_info."""
        name = _type_name(t)
        if name in self.info.type_info.new_types:
            return
        spec = self.info.type_info.new_types[name]
        base = t.base
        while isinstance(base, T.NewType):
            base = base.base
        original = p4t.P4DataTypeSpec()
        self.data_type(original, base)
        self.annotate(spec, t.decl, without=("p4runtime_translation",))
        note = t.decl.annotation("p4runtime_translation")
        if note is None:
            spec.original_type.CopyFrom(original)
            return
        uri, width = translation(note)
        spec.translated_type.uri = uri
        if width:
            spec.translated_type.sdn_bitwidth = width
        else:
            spec.translated_type.sdn_string.SetInParent()

    def error_type(self) -> None:
        if not self.info.type_info.error.members:
            self.info.type_info.error.members.extend(self.program.errors)

    def serializable_enum(self, t: T.Enum) -> None:
        assert t.base is not None
        if _type_name(t) in self.info.type_info.serializable_enums:
            return
        message = self.info.type_info.serializable_enums[_type_name(t)]
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
            message = m.params.add(id=number, name=_external(p, p.name))
            self.annotate(message, p)
            self.bits_and_type(message, p.type, _plain(p.type))
            if isinstance(p.type, T.Enum) and p.type.base is None:
                message.type_name.name = _type_name(p.type)
                message.ClearField("bitwidth")

    def extern(self, x: ExternObject) -> None:
        info, id_ = self.info, self.ids.of(x)
        match x.kind:
            case "counter":
                c = info.counters.add(size=x.size)
                c.spec.unit = _COUNTER[x.unit]
                self.preamble(c.preamble, id_, x.name, x.decl)
            case "meter":
                meter = info.meters.add(size=x.size)
                meter.spec.unit = _METER[x.unit]
                self.preamble(meter.preamble, id_, x.name, x.decl)
            case "register":
                r = info.registers.add(size=x.size)
                self.preamble(r.preamble, id_, x.name, x.decl)
                self.data_type(r.type_spec, x.declared)
            case "action_profile" | "action_selector":
                named = sorted((t.name, self.ids.of(t)) for t in self.ids.visible.tables if t.profile is x)
                profile = info.action_profiles.add(size=x.size, with_selector=x.kind == "action_selector")
                profile.table_ids.extend(ident for _, ident in named)
                if x.kind == "action_selector":
                    self.selector_size(profile, x)
                self.preamble(profile.preamble, id_, x.name, x.decl, without=_SELECTOR)

    def selector_size(self, profile: Any, x: ExternObject) -> None:
        """Sets the fields for @max_group_size, @selector_size_semantics and @max_member_weight."""
        given = {n.name: n.args[0] for n in notes.of(x.decl) if n.args}
        size, semantics, weight = (given.get(n) for n in _SELECTOR)
        if isinstance(size, A.IntLit):
            profile.max_group_size = size.value
        if isinstance(semantics, A.StrLit) and semantics.value.lower() == "sum_of_members":
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
                spec.new_type.name = _type_name(t)
                self.new_type(t)
            case T.Enum(base=None):
                spec.enum.name = _type_name(t)
                enum = self.info.type_info.enums[_type_name(t)]
                if not enum.members:
                    for name in t.members:
                        enum.members.add(name=name)
            case T.Enum():
                spec.serializable_enum.name = _type_name(t)
                self.serializable_enum(t)
            case T.Struct():
                self.struct(spec, t)
            case T.Stack(item=T.Struct() as item):
                stack = spec.header_union_stack if item.kind == "header_union" else spec.header_stack
                stack.size = t.size
                getattr(stack, item.kind).name = _type_name(item)
                self.data_type(p4t.P4DataTypeSpec(), item)
            case _ if t == T.BOOL:
                spec.bool.SetInParent()
            case _ if t == T.ERROR:
                spec.error.SetInParent()
                self.error_type()

    def struct(self, spec: p4t.P4DataTypeSpec, t: T.Struct) -> None:
        """Describes a struct, header or union by its name, and adds it to type_info."""
        name, info = _type_name(t), self.info.type_info
        fields = {f.name: _external(f, f.name) for f in t.decl.fields}
        match t.kind:
            case "struct":
                spec.struct.name = name
                if name not in info.structs:
                    message = info.structs[name]
                    for field, f in t.fields.items():
                        self.data_type(message.members.add(name=fields[field]).type_spec, f)
            case "header":
                spec.header.name = name
                if name not in info.headers:
                    header = info.headers[name]
                    for path, leaf, decl in _leaves(t):
                        member = header.members.add(name=path if "." in path else _external(decl, path))
                        inner = p4t.P4DataTypeSpec()
                        self.data_type(inner, leaf)
                        member.type_spec.CopyFrom(inner.bitstring)
            case _:
                spec.header_union.name = name
                if name not in info.header_unions:
                    union = info.header_unions[name]
                    for field, f in t.fields.items():
                        inner = p4t.P4DataTypeSpec()
                        self.data_type(inner, f)
                        union.members.add(name=fields[field]).header.CopyFrom(inner.header)

    def controller_header(self, t: T.Struct) -> None:
        m = self.info.controller_packet_metadata.add()
        name = controller_name(t)
        m.preamble.id, m.preamble.name, m.preamble.alias = self.ids.ids["controller_header", t.name], name, name
        self.annotate(m.preamble, t.decl)
        leaves = list(_leaves(t))
        for (name, declared, f), number in zip(leaves, numbers([f for _, _, f in leaves]), strict=True):
            if _hidden(f):
                continue
            field = m.metadata.add(id=number, name=name if "." in name else _external(f, name))
            self.annotate(field, f)
            self.bits_and_type(field, declared, _plain(declared))

    def value_set(self, v: ValueSet) -> None:
        m = self.info.value_sets.add(size=v.size)
        self.preamble(m.preamble, self.ids.of(v), v.name, v.decl)
        fields = v.decl.type.decl.fields if isinstance(v.decl.type, T.Struct) else [None] * len(v.fields)
        for number, decl, (name, match, t) in zip(numbers(fields), fields, v.fields, strict=True):
            field = m.match.add(id=number, bitwidth=ir.bits_of(t), match_type=_MATCH[match])
            if decl is not None:
                field.name = _external(decl, name)
                self.annotate(field, decl, without=("match",))


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


def translation(note: A.Annotation) -> tuple[str, int]:
    """The URI of @p4runtime_translation(uri, type), and the type's width, or 0 where it is a string. Raises P4Error."""
    parts = notes.parts(note)
    if len(parts) == 2 and len(parts[0]) == 1 and parts[0][0].startswith('"'):
        uri, kind = notes.string(parts[0][0]), parts[1]
        if kind in (["string"], ['"string"']):
            return uri, 0
        number = "".join(kind[2:-1] if kind[:2] == ["bit", "<"] else kind)
        if number.isdigit() and int(number) > 0:
            return uri, int(number)
    raise P4Error(note.pos, "@p4runtime_translation: expected a string, and 'string' or bit<W>")


def _translated_width(t: T.Type) -> int | None:
    """The width that @p4runtime_translation gives a `type`: 0 for a string, None where there is no translation."""
    note = t.decl.annotation("p4runtime_translation") if isinstance(t, T.NewType) else None
    return None if note is None else translation(note)[1]
