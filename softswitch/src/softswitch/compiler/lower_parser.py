# SPDX-License-Identifier: Apache-2.0
"""Parsers: every state becomes a label, every transition a goto; sub-parsers are inlined where they are applied."""

from __future__ import annotations

from typing import Any

from softswitch.compiler import ast as A
from softswitch.compiler import ir
from softswitch.compiler import types as T
from softswitch.compiler.diagnostics import P4Error, Unsupported
from softswitch.compiler.elaborate import BlockInstance, Elaboration
from softswitch.compiler.ir import FALSE, TRUE
from softswitch.compiler.objects import ValueSet
from softswitch.compiler.source_text import case_text


class ParserLowering(Elaboration):
    """Lowers parsers: states, transitions, select expressions, and what they extract."""

    def parser_body(self, block: BlockInstance, reject: str) -> None:
        """States of a parser, inline; falls out at the end where it accepts."""
        decl = block.decl
        accept = self.unique("accept")
        labels = {s.name: self.unique(f"state_{s.name}") for s in decl.states}
        labels.update(accept=accept, reject=reject)
        for local in decl.locals:
            if isinstance(local, A.VarDecl | A.ConstDecl):
                self.pos = local.pos
                self.declare(local)
        done: set[str] = set()
        # `start` first, then the states in the order of the source
        for state in sorted(decl.states, key=lambda s: s.name != "start"):
            done.add(state.name)
            self.pos = state.pos
            self.emit(ir.Label(labels[state.name]))
            self.note("state", state.name, pos=state.pos)
            with self.deeper():
                for stmt in state.body:
                    self.stmt(stmt)
                self.pos = state.next_pos
                if state.select is None:
                    assert state.next_state is not None
                    self.note("next", state.next_state)
                    self.go(state.next_state, labels, done)
                else:
                    self.select(state, labels, done)
        self.emit(ir.Label(accept))

    def go(self, state: str, labels: dict[str, str], done: set[str]) -> None:
        self.emit(ir.Goto(labels[state], counted=state in done))

    def select(self, state: A.StateDecl, labels: dict[str, str], done: set[str]) -> None:
        assert state.select is not None
        values: list[ir.Value] = []
        for i, e in enumerate(state.select):
            value = self.saved(e, *state.select[i + 1 :])
            if not isinstance(value, ir.Const | ir.LValue):
                value = self.temp(value, "key")
            self.note("key", value=value, pos=e.pos)
            values.append(value)
        for case in state.cases:
            self.pos = case.pos
            condition = self.matches(case.keys, values)
            body: list[ir.Instruction] = []
            with self.into(body):
                self.note("select", case.state, text=case_text(case.pos))
                self.go(case.state, labels, done)
            if isinstance(condition, ir.Const):
                if condition.value:
                    self.out.extend(body)
                    return
                continue
            self.emit(ir.If(condition, body, []))
        # BMv2 ends parsing where no case matches, and sets no error (the specification: NoMatch).
        self.pos = state.next_pos
        self.note("select", "reject")
        self.go("reject", labels, done)

    def matches(self, keys: list[A.Expr], values: list[ir.Value]) -> ir.Value:
        """Do the select's values match the keys of a case?"""
        if len(keys) == 1 and isinstance(keys[0], A.DontCare):
            return TRUE
        if len(keys) == 1 and isinstance(keys[0], A.NameExpr) and isinstance(keys[0].decl, A.ValueSetDecl):
            return self.value_set(keys[0], values)
        found: ir.Value = TRUE
        for key, value in zip(keys, values, strict=True):
            found = self.bin("&&", found, self.matches_one(key, value), T.BOOL)
        return found

    def matches_one(self, key: A.Expr, value: ir.Value) -> ir.Value:
        if isinstance(key, A.DontCare):
            return TRUE
        if isinstance(key, A.NameExpr) and isinstance(key.decl, A.ValueSetDecl):
            return self.value_set(key, [value])
        if isinstance(key, A.BinaryExpr) and key.op == "&&&":
            mask = self.known_key(key.right, value.type)
            want = self.bin("&", self.known_key(key.left, value.type), mask, value.type)
            return self.bin("==", self.bin("&", value, mask, value.type), want, T.BOOL)
        if isinstance(key, A.BinaryExpr) and key.op == "..":
            low = self.bin(">=", value, self.known_key(key.left, value.type), T.BOOL)
            return self.bin("&&", low, self.bin("<=", value, self.known_key(key.right, value.type), T.BOOL), T.BOOL)
        return self.equal(value, self.known_key(key, value.type))

    def known_key(self, key: A.Expr, t: ir.Type) -> ir.Value:
        value = self.cast(self.expr(key), t)
        if not isinstance(value, ir.Const):
            raise P4Error(key.pos, "a key of a select must be known at compile time")
        return value

    def value_set(self, key: A.NameExpr, values: list[ir.Value]) -> ir.Value:
        found: Any = self.bindings[id(key.decl)]
        assert isinstance(found, ValueSet)
        flat = [self.cast(v, t) for v, (_, _, t) in zip(values, found.fields, strict=True)]
        result = self.local("member", T.BOOL)
        self.emit(ir.Assign(result, FALSE))
        self.emit(ir.Extern("value_set", result, flat, found))
        return result

    def packet_in(self, e: A.CallExpr, method: str) -> Any:
        """Methods of packet_in."""
        if not self.in_parser:
            raise P4Error(e.pos, f"packet_in.{method} outside a parser")
        match method:
            case "extract":
                self.extract(e)
                return None
            case "advance":
                self.emit(ir.Advance(self.expr(e.bound["sizeInBits"])))
                return None
            case "length":
                return ir.PacketLength(ir.U32)
            case "lookahead":
                result = self.local("lookahead", self.type(e.type, e.pos))
                self.emit(ir.Lookahead(result))
                return result
        raise Unsupported(e.pos, f"packet_in.{method} is not supported")

    def extract(self, e: A.CallExpr) -> None:
        size = e.bound.get("variableFieldSizeInBits")
        arg = e.bound.get("hdr") or e.bound["variableSizeHeader"]
        if isinstance(arg, A.DontCare):
            header: ir.Value = self.local("skipped", self.type(arg.type, e.pos))
        else:
            header = self.expr(arg)
        assert isinstance(header, ir.LValue)
        rec = header.type
        if not isinstance(rec, ir.RecordType) or rec.kind != "header":
            raise P4Error(e.pos, "only a header can be extracted")
        varbits = [t for _, t in ir.scalar_fields(rec) if isinstance(t, T.Varbit)]
        if (size is None) != (not varbits) or len(varbits) > 1:
            want = "needs" if varbits else "has no varbit field, so it takes no"
            raise P4Error(e.pos, f"extract: header {rec.p4} {want} a size for its varbit field")
        self.emit(ir.Extract(header, self.temp(self.expr(size), "size") if size is not None else None))
        if isinstance(arg, A.MemberExpr) and arg.name == "next" and isinstance(header, ir.StackElement):
            self.advance_stack(header)
        elif isinstance(header, ir.Field) and isinstance(header.base, ir.StackElement):
            base = arg.base if isinstance(arg, A.MemberExpr) else None  # a header of a union in a stack: unions.next.v4
            if isinstance(base, A.MemberExpr) and base.name == "next" and isinstance(base.base.type, T.Stack):
                self.advance_stack(header.base)

    def advance_stack(self, element: ir.StackElement) -> None:
        count = ir.NextIndex(ir.U32, element.base)
        self.emit(ir.Assign(count, self.bin("+", count, ir.const(1, ir.U32), ir.U32)))
