# SPDX-License-Identifier: Apache-2.0
"""Writes the C file of a program: types, the description for the runtime, and seven functions."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable

from softswitch.compiler import ir
from softswitch.compiler.c_text import INCLUDES, c_comment, c_name, c_string, verify, width
from softswitch.compiler.cell_reads import referring_reads
from softswitch.compiler.diagnostics import NOWHERE, Unsupported
from softswitch.compiler.emit_extern import stride
from softswitch.compiler.emit_stmt import MAX_ADDED, StmtEmitter, emitted_bytes
from softswitch.compiler.emit_trace import TraceEmitter
from softswitch.compiler.objects import ActionObject, ExternObject, TableObject
from softswitch.compiler.p4info_ids import Ids
from softswitch.compiler.program import Function, LoweredProgram
from softswitch.compiler.trace_sites import Sites
from softswitch.compiler.types import BOOL, Bits
from softswitch.compiler.wire_values import has_pointers, in_wire_order

_MATCH = {"exact": "SS_EXACT", "lpm": "SS_LPM", "ternary": "SS_TERNARY", "range": "SS_RANGE", "optional": "SS_OPTIONAL"}
_UNIT = {"packets": "SS_PACKETS", "bytes": "SS_BYTES", "packets_and_bytes": "SS_PACKETS_AND_BYTES"}
_MAX_TEXT = 8 << 20
_SIGNATURES = {
    "parse": "static void parse(ss_switch *sw, void *state_, const uint8_t *frame, uint32_t len)",
    "deparse": "static void deparse(ss_switch *sw, void *state_, uint8_t *out, ss_parts *parts)",
}


def emit(program: LoweredProgram, ids: Ids, sites: Sites | None = None) -> str:
    """The C source of a program; with `sites`, which it fills, one that records the packet trace. Raises P4Error for
    the few errors that only this pass can find."""
    return (_Emitter(program, ids) if sites is None else _TracingEmitter(program, ids, sites)).run()


class _Emitter(StmtEmitter):
    """Writes the C file of one lowered program."""

    def __init__(self, program: LoweredProgram, ids: Ids) -> None:
        super().__init__(program.errors)
        self.program = program
        self.ids = ids

    def run(self) -> str:
        functions: list[str] = []
        for name, function in self.program.functions.items():
            functions += self.emit_function(name, function)
        infos = self.infos()
        keep = self.keep_fields()
        extra = [self.program.extra] if self.program.extra is not None else []
        variables = [*self.program.state, *extra]
        first = c_name(variables[0].name)
        head = [
            c_comment(f"Made from {os.path.basename(self.program.source)} by softswitch. Not meant to be edited."),
            INCLUDES,
            *self.types(),
            "typedef struct {",
            "    ss_packet packet;",
            *(f"    {'SS_LINE ' if i == 0 else ''}{self.declare(v.type, c_name(v.name))};"
              for i, v in enumerate(variables)),
            *(["    uint32_t parsed; /* bytes of the frame in front of the payload */"] if self.may_overflow else []),
            "} state;",
            "",
            *self.file_level,
            "",
            "static void init(void *state_)",
            "{",
            "    state *s = state_;",
            f"    memset(&s->{first}, 0, sizeof *s - offsetof(state, {first}));",
            "}",
            "",
            "static void reset_metadata(void *state_)",
            "{",
            "    state *s = state_;",
            *(f"    memset(&s->{c_name(v.name)}, 0, sizeof s->{c_name(v.name)});" for v in variables[1:]),
            "}",
            "",
        ]
        text = "\n".join([*head, *functions, *keep, *infos]) + "\n"
        if len(text) > _MAX_TEXT:
            raise Unsupported(NOWHERE, f"the program becomes {len(text)} bytes of C; at most {_MAX_TEXT} are supported")
        return verify(text)

    def types(self) -> list[str]:
        lines: list[str] = []
        stacks = {t for t in self.all_types() if isinstance(t, ir.StackType)}
        for rec in self.program.records:
            name = c_name(rec.name)
            lines.append(f"struct {name} {{ {c_comment(f'{rec.kind} {rec.p4}')}")
            if rec.kind == "header":
                lines.append("    bool _valid;")
            lines += (f"    {self.declare_field(t, c_name(n))};" for n, t in rec.fields.items())
            if not rec.fields and rec.kind != "header":
                lines.append("    char _nothing;")
            lines.append("};")
            for stack in sorted((s for s in stacks if s.item is rec), key=lambda s: s.size):
                lines.append(
                    f"struct {name}_stack{stack.size} {{ uint32_t next; struct {name} e[{stack.size + 1}]; }};"
                )
        return [*lines, ""]

    def all_types(self) -> Iterable[ir.Type]:
        for rec in self.program.records:
            yield from rec.fields.values()
        for function in self.program.functions.values():
            yield from (v.type for v in function.locals)

    # ---- functions ----------------------------------------------------------------------------------------------

    def emit_function(self, name: str, function: Function) -> list[str]:
        self.function = function
        self.referring = referring_reads(function.body)
        self.lines, self.depth, self.shown = [], 1, None
        self.targets = {function.exit} | set(_targets(function.body))
        self.may_overflow = emitted_bytes(self.program.functions["deparse"].body) > MAX_ADDED
        self.stmts(function.body)
        body = _without_unused(self.lines, c_name(function.exit))
        used = set(_words(body))
        self.lines = [_SIGNATURES.get(name, f"static void {name}(ss_switch *sw, void *state_)"), "{"]
        self.line("state *s = state_;")
        self.line("ss_packet *p = &s->packet;")
        if "steps" in used:
            self.line("uint32_t steps = 0;")
        if name == "parse":
            self.line("const uint8_t *c = frame, *end = frame + len;")
        if name == "deparse":
            self.line("uint8_t *o = out;")
            self.line("ss_parts_begin(parts);")
            if self.may_overflow:
                self.line("const uint8_t *limit = out + SS_MAX_ADDED + s->parsed;")
        for var in function.locals:
            if c_name(var.name) in used:
                # no pointer is ever wild
                value = "" if not has_pointers(var.type) else " = NULL" if ir.is_scalar(var.type) else " = { 0 }"
                self.line(f"{self.declare(var.type, c_name(var.name))}{value};")
        self.line("(void)sw; (void)s; (void)p;")
        self.lines += body
        if name == "parse":
            self.line("p->payload = c;")
            if self.may_overflow:
                self.line("s->parsed = (uint32_t)(c - frame);")
            self.line("p->payload_len = (uint32_t)(end - c);")
        if name == "deparse":
            self.line("ss_parts_end(parts, out, o);")
        self.lines += ["}", ""]
        return self.lines

    def keep_fields(self) -> list[str]:
        lines = ["static void keep_fields(void *to_, const void *from_, uint32_t list)", "{"]
        lines += [
            "    state *to = to_;",
            "    const state *from = from_;",
            "    (void)to; (void)from;",
            "    switch (list) {",
        ]
        for number, paths in sorted(self.program.field_lists.items()):
            lines.append(f"    case {number}:")
            for path in paths:
                member = ".".join(map(c_name, ("meta", *path)))
                lines.append(f"        memcpy(&to->{member}, &from->{member}, sizeof to->{member});")
            lines.append("        break;")
        return [*lines, "    }", "}", ""]

    # ---- description ------------------------------------------------------------------------------------------------

    def infos(self) -> list[str]:
        p = self.program
        out: list[str] = []
        rows = [self.table_info(t, out) for t in p.tables]
        self.array(out, "ss_table_info", "tables", rows)
        ids = self.ids
        registers = p.objects("register")
        self.array(out, "ss_register_info", "registers_info", [self.register_info(r) for r in registers])
        for kind in ("counter", "meter"):
            self.array(out, f"ss_{kind}_info", f"{kind}s", [self.array_info(c) for c in p.objects(kind)])
        self.array(out, "ss_profile_info", "profiles", [self.profile_info(x) for x in p.objects("profile")])
        digests = []
        for d in p.digests:
            bits = ", ".join(str(width(t)) for _, t in d.fields) or "0"
            out.append(f"static const uint32_t digest_{d.index}_bits[] = {{ {bits} }};")
            digests.append(f"{{ {c_string(d.name)}, {ids.of(d)}u, {len(d.fields)}, digest_{d.index}_bits }}")
        self.array(out, "ss_digest_info", "digests", digests)
        sets = []
        for v in p.value_sets:
            keys = ", ".join(f"{{ {c_string(n)}, {_MATCH[m]}, {width(t)} }}" for n, m, t in v.fields)
            out.append(f"static const ss_key_field value_set_{v.index}_keys[] = {{ {keys} }};")
            sets.append(f"{{ {c_string(v.name)}, {ids.of(v)}u, {v.size}, {len(v.fields)}, value_set_{v.index}_keys }}")
        self.array(out, "ss_value_set_info", "value_sets", sets)
        errors = ", ".join(c_string(e) for e in p.errors)
        out.append(f"static const char *const errors[] = {{ {errors} }};")
        sizes = {"packet_in": -1, "packet_out": -1}
        for t in p.controller_headers:
            note = t.decl.annotation("controller_header")
            sizes[note.args[0].value] = _bits(t)
        lists = (
            ("tables", "tables", p.tables), ("registers", "registers_info", p.objects("register")),
            ("counters", "counters", p.objects("counter")), ("meters", "meters", p.objects("meter")),
            ("profiles", "profiles", p.objects("profile")), ("digests", "digests", p.digests),
            ("value_sets", "value_sets", p.value_sets), ("errors", "errors", p.errors),
        )
        out += [
            "",
            "const ss_program ss_the_program = {",
            f"    .abi = SS_ABI, .source = {c_string(p.source)}, .state_size = sizeof(state),",
            "    .init = init, .reset_metadata = reset_metadata,",
            "    .parse = parse, .verify_checksum = verify_checksum, .ingress = ingress, .egress = egress,",
            "    .compute_checksum = compute_checksum, .deparse = deparse, .keep_fields = keep_fields,",
            *(
                f"    .n_{field} = {len(items)}, .{field} = {name if items else 'NULL'},"
                for field, name, items in lists
            ),
            f"    .packet_in_bits = {sizes['packet_in']}, .packet_out_bits = {sizes['packet_out']},",
            "};",
        ]
        return out

    def register_info(self, r: ExternObject) -> str:
        about = f"{width(r.type)}, {stride(r.type)}, {_c(in_wire_order(r.type))}"
        return f"{{ {c_string(r.name)}, {self.ids.of(r)}u, {r.size}, {about} }}"

    def array_info(self, c: ExternObject) -> str:
        """The C initialiser that describes a counter or meter."""
        size = c.size or (c.table.size if c.table else 0)
        return f"{{ {c_string(c.name)}, {self.ids.of(c)}u, {size}, {_UNIT[c.unit]}, {self.table_index(c)} }}"

    def profile_info(self, x: ExternObject) -> str:
        selector = _c(x.kind == "action_selector")
        return f"{{ {c_string(x.name)}, {self.ids.of(x)}u, {x.size}, {selector}, {x.max_group_size}, {x.algorithm} }}"

    def table_index(self, c: ExternObject) -> int:
        if not c.kind.startswith("direct"):
            return -1
        return c.table.index if c.table is not None else -1

    def array(self, out: list[str], ctype: str, name: str, rows: list[str]) -> None:
        if rows:
            out.append(f"static const {ctype} {name}[] = {{")
            out += (f"    {row}," for row in rows)
            out.append("};")

    def table_info(self, t: TableObject, out: list[str]) -> str:
        name = f"table_{t.index}"
        keys = [k for k in t.keys if k.match != "selector"]
        self.array(out, "ss_key_field", f"{name}_keys", [
            f"{{ {c_string(k.name)}, {_MATCH[k.match]}, {width(k.type)} }}" for k in keys])
        actions = []
        for i, a in enumerate(t.actions):
            bits = "NULL"
            if a.params:
                bits = f"{name}_action_{i}_bits"
                widths = ", ".join(str(width(pt)) for _, pt in a.params)
                out.append(f"static const uint32_t {bits}[] = {{ {widths} }};")
            actions.append(f"{{ {c_string(a.name)}, {self.ids.action(a.name)}u, {len(a.params)}, {bits} }}")
        self.array(out, "ss_action_info", f"{name}_actions", actions)
        entries = []
        for entry in t.entries:
            key, mask = b"", b""
            for (value, other), k in zip(entry.keys, keys, strict=True):
                size = (width(k.type) + 7) // 8
                key += value.to_bytes(size, "big")
                mask += other.to_bytes(size, "big")
            params = _data(entry.args, t.actions[entry.action])
            entries.append(f"{{ {_bytes(key)}, {_bytes(mask)}, {entry.priority}, {entry.action}, {_bytes(params)} }}")
        self.array(out, "ss_const_entry", f"{name}_entries", entries)
        default = _bytes(_data(t.default_args, t.actions[t.default]))
        return (
            f"{{ .name = {c_string(t.name)}, .id = {self.ids.of(t)}u, "
            f".n_keys = {len(keys)}, .keys = {f'{name}_keys' if keys else 'NULL'}, "
            f".n_actions = {len(actions)}, .actions = {f'{name}_actions' if actions else 'NULL'}, "
            f".default_action = {t.default}, .default_params = {default}, .const_default = {_c(t.const_default)}, "
            f".n_const_entries = {len(entries)}, .const_entries = {f'{name}_entries' if entries else 'NULL'}, "
            f".has_const_entries = {_c(t.const_entries)}, .size = {t.size}, .idle_timeout = {_c(t.idle_timeout)}, "
            f".profile = {_index(t.profile)}, "
            f".direct_counter = {_index(t.counter)}, .direct_meter = {_index(t.meter)} }}"
        )


class _TracingEmitter(TraceEmitter, _Emitter):
    """Writes the C file of a program that was lowered for the packet trace."""

    def __init__(self, program: LoweredProgram, ids: Ids, sites: Sites) -> None:
        super().__init__(program, ids)
        self.sites = sites
        self.declared = program.declared


def _c(value: bool) -> str:
    return "true" if value else "false"


def _index(x: ExternObject | None) -> int:
    return x.index if x is not None else -1


def _data(values: list[int], action: ActionObject) -> bytes:
    """Encodes action data in the byte form of the runtime."""
    out = b""
    for value, (_, t) in zip(values, action.params, strict=True):
        out += value.to_bytes((width(t) + 7) // 8, "big")
    return out


def _bytes(data: bytes) -> str:
    if not data:
        return "NULL"
    return "(const uint8_t[]){ " + ", ".join(map(str, data)) + " }"


def _bits(t: object) -> int:
    from softswitch.compiler.types import Type, width_of

    assert isinstance(t, Type)
    return width_of(t) or 0


def _targets(body: list[ir.Instruction]) -> Iterable[str]:
    for s in body:
        match s:
            case ir.Goto():
                yield s.name
            case ir.If():
                yield from _targets(s.then)
                yield from _targets(s.other)
            case ir.Apply():
                for case in s.cases:
                    yield from _targets(case.body)


def _without_unused(lines: list[str], exit_label: str) -> list[str]:
    """Removes unused results of tables, and the exit label where no goto leads to it."""
    count = Counter(_words(lines))
    results = re.compile(r"\s*(\w+) = \w+\.(hit|action);")
    return [
        text
        for text in lines
        if not ((m := results.fullmatch(text)) and count[m.group(1)] == 1)
        and not (text == f"{exit_label}: ;" and count[exit_label] == 1)
    ]


def _words(lines: list[str]) -> Iterable[str]:
    for line in lines:
        yield from re.findall(r"\w+", line)


__all__ = ["BOOL", "Bits", "emit"]
