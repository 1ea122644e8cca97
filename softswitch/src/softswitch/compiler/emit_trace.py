# SPDX-License-Identifier: Apache-2.0
"""C for the packet trace: what a program that is compiled for it records, besides what it does.

Every step that the lowering has marked (ir.Note) and every effect that nobody had to mark (assignments, headers,
externs) is a site, which the program records by a call of ss_trace_site, ss_trace_value or ss_trace_bytes.
"""

from __future__ import annotations

from typing import Any

from softswitch.compiler import ir
from softswitch.compiler.c_text import is_wide, limbs, width
from softswitch.compiler.diagnostics import NOWHERE
from softswitch.compiler.emit_stmt import StmtEmitter
from softswitch.compiler.trace_sites import Sites, number
from softswitch.compiler.types import Bits, Varbit

_INDEXED = ("register_read", "register_write", "count", "meter", "clone", "truncate")
"""Operations whose first argument is recorded: an index, a session, or a length."""


class TraceEmitter(StmtEmitter):
    """Adds the calls of the packet trace to what the other emitters write."""

    sites: Sites
    declared: dict[int, str]  # id of a variable -> the name by which the program declares it
    here = NOWHERE

    def stmt(self, s: ir.Instruction) -> None:
        self.here = s.pos
        match s:
            case ir.Note():
                self.note(s)
                return
            case ir.ParserError():
                self.record("parser_error", value=s.error)
            case ir.Extern():
                self.extern_and_result(s)
                return
        super().stmt(s)
        match s:
            case ir.Assign(dst=dst) | ir.Deposit(dst=dst) | ir.Lookahead(dst=dst):
                self.written(dst)
            case ir.SetValid():
                self.record("valid" if s.valid else "invalid", s.header)
            case ir.Shift():
                self.record("push" if s.count > 0 else "pop", s.stack, count=abs(s.count))
            case ir.Advance():
                self.record("advance", value=s.bits)

    def note(self, s: ir.Note) -> None:
        self.record(s.what, name=s.name, text=s.text, depth=s.depth, value=s.value)

    # ---- records ------------------------------------------------------------------------------------------------

    def record(self, what: str, place: ir.Value | None = None, *, value: ir.Value | None = None, **about: Any) -> None:
        """Writes the call that records a step: of which part of the packet, and with which value."""
        if place is not None:
            about["name"] = self.name_of(place)
        if value is None:
            self.line(f"ss_trace_site(sw, {self.sites.add(what, self.here, **about)});")
            return
        t = value.type
        site = self.sites.add(what, self.here, **about, **number(t))
        if isinstance(t, Varbit):
            text = self.lv(value)
            self.line(f"ss_trace_bytes(sw, {site}, {text}.data, {text}.bits / 8);")
        elif is_wide(t):
            self.line(f"ss_trace_bytes(sw, {site}, {self.pointer(value)}, {8 * limbs(width(t))});")
        elif isinstance(t, Bits) and t.width > 64:
            temp = self.fresh("v")
            self.line(f"{self.ctype(t.width)} {temp} = {self.x(value)};")
            self.line(f"ss_trace_bytes(sw, {site}, &{temp}, 16);")
        else:
            self.line(f"ss_trace_value(sw, {site}, {self.x(value)});")

    def written(self, dst: ir.LValue) -> None:
        """Records what an l-value holds now, if the program has a name for it."""
        root = ir.root(dst)
        if not isinstance(root, ir.Var) or isinstance(dst, ir.NextIndex):
            return
        if root.storage == "local" and id(root) not in self.declared:
            return
        scalar = ir.is_scalar(dst.type) or isinstance(dst.type, Varbit)
        self.record("set", dst, value=dst if scalar else None)

    def name_of(self, place: ir.Value) -> str:
        """The name of an l-value; an index that is not constant is `[?]`, and is recorded before."""
        match place:
            case ir.Var(storage="packet"):
                return "standard_metadata"
            case ir.Var():
                return self.declared.get(id(place), place.name)
            case ir.Field():
                return f"{self.name_of(place.base)}.{place.name}"
            case ir.StackElement(index=ir.Const()):
                return f"{self.name_of(place.base)}[{place.index.value}]"  # type: ignore[attr-defined]
            case ir.StackElement():
                name = self.name_of(place.base)
                self.record("index", value=place.index)
                return f"{name}[?]"
        return str(place)

    # ---- what other emitters tell -------------------------------------------------------------------------------

    def fail(self, error: str) -> str:
        text = super().fail(error)
        site = self.sites.add("parser_error", self.here, bits=32)
        return f"{{ ss_trace_value(sw, {site}, {self.errors.index(error)}); {text} }}"

    def extracted(self, header: ir.LValue, size: str) -> None:
        assert isinstance(header.type, ir.RecordType)
        name = self.name_of(header)
        site = self.sites.add("extract", self.here, name=name, header=self.sites.header(header.type),
                              stack=True if isinstance(header, ir.StackElement) else None)
        self.line(f"ss_trace_bytes(sw, {site}, c - ({size}), {size});")

    def emitted(self, header: ir.LValue) -> None:
        self.record("emit", header)

    def extern_and_result(self, s: ir.Extern) -> None:
        if s.op not in ("log", "value_set", "checksum"):  # these have a record of the runtime, or a step of their own
            about: dict[str, Any] = {"name": getattr(s.info, "name", "")}
            if s.op == "hash":
                about.update((n, a.value) for n, a in zip(("base", "max"), s.args, strict=False)
                             if isinstance(a, ir.Const))
            self.record(s.op, value=s.args[0] if s.op in _INDEXED else None, **about)
        super().stmt(s)
        if s.op == "register_write":
            self.record("written", value=s.args[1])
        if s.out is not None and s.op != "value_set":
            self.record("computed" if s.op == "checksum" else "result", value=s.out)
            self.written(s.out)
