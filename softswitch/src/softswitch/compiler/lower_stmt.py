# SPDX-License-Identifier: Apache-2.0
"""From typed syntax to IR: statements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from softswitch.compiler import ast as A
from softswitch.compiler import ir, stages
from softswitch.compiler import types as T
from softswitch.compiler.diagnostics import P4Error, Pos, Unsupported
from softswitch.compiler.ir import FALSE, U32
from softswitch.compiler.lower_call import CallLowering, SliceTarget
from softswitch.compiler.source_text import assignment, call, case_text, condition_text, statement_text


class StmtLowering(CallLowering):
    """Lowers statements, assignments to any l-value included."""

    def stmt(self, s: A.Stmt) -> None:
        outer, self.pos = self.pos, s.pos
        try:
            self._stmt(s)
        finally:
            self.pos = outer

    def _stmt(self, s: A.Stmt) -> None:
        match s:
            case A.BlockStmt():
                for part in s.body:
                    self.stmt(part)
            case A.AssignStmt():
                self.note_statement(assignment(s.pos))
                with self.deeper():
                    self.assign(s)
            case A.CallStmt():
                assert isinstance(s.call, A.CallExpr)
                if s.call.const is None:
                    self.call_statement(s.call)
            case A.DeclStmt():
                if isinstance(s.decl, A.VarDecl) and s.decl.value is not None:
                    self.note_statement(s.pos)
                with self.deeper():
                    self.declare(s.decl)
            case A.IfStmt():
                self.if_(s)
            case A.SwitchStmt():
                self.switch(s)
            case A.ForStmt() | A.ForInStmt():
                stages.check_statement(self.function.name, "'for'", s.pos, called=True)
                self.for_(s) if isinstance(s, A.ForStmt) else self.for_in(s)
            case A.ReturnStmt():
                self.return_(s)
            case A.ExitStmt():
                self.note("statement", text="exit")
                for frame in reversed(self.frames):
                    self.copy_back(frame)
                self.emit(ir.Goto(self.exit_label))
            case A.BreakStmt():
                self.emit(ir.Goto(self.loops[-1][0]))
            case A.ContinueStmt():
                self.emit(ir.Goto(self.loops[-1][1]))
            case _:
                raise AssertionError(s)

    def note_statement(self, pos: Pos) -> None:
        """Marks a statement that begins here."""
        if self.tracing:
            text = statement_text(pos)
            self.note("statement", text=text, pos=replace(pos, length=len(text.removesuffix(" ..."))))

    def call_statement(self, e: A.CallExpr) -> None:
        """A call that stands alone; the trace shows a table, an action or a block as such, all else as a statement."""
        if e.builtin == "apply" or isinstance(e.decl, A.ActionDecl):
            self.call(e)
            return
        self.note_statement(call(self.pos))
        with self.deeper():
            self.call(e)

    def declare(self, decl: A.Decl) -> None:
        match decl:
            case A.VarDecl():
                var = self.local(decl.name, self.type(decl.type, decl.pos))
                self.program.declared[id(var)] = decl.name
                if decl.value is not None:
                    self.store(var, decl.value)
                else:
                    self.emit(ir.Zero(var))
                self.bindings[id(decl)] = var
            case A.ConstDecl():
                pass
            case A.InstanceDecl():
                raise P4Error(decl.pos, "an instance cannot be declared among statements; move it out of the block")
            case _:
                raise AssertionError(decl)

    def assign(self, s: A.AssignStmt) -> None:
        set_target = self.target(s.target)
        place_of = ir.root(set_target if isinstance(set_target, ir.LValue) else self.place)
        if isinstance(place_of, ir.Var) and place_of.storage == "state" and "checksum" in self.function.name:
            stages.check_statement(self.function.name, "an assignment", s.pos)
        place = s.target
        while isinstance(place, A.SliceExpr):
            place = place.base
        if s.op:  # `a op= b` is a = a op b, with the place of a found once
            self.known[id(place)] = set_target if isinstance(set_target, ir.LValue) else self.place
        if isinstance(set_target, ir.LValue):
            self.store(set_target, s.value)
        else:
            set_target(self.expr(s.value))
        self.known.pop(id(place), None)

    def target(self, e: A.Expr) -> ir.LValue | SliceTarget:
        """Where to store: an l-value, or a slice of one."""
        if isinstance(e, A.SliceExpr):
            lo, width = e.lo.const, e.hi.const - e.lo.const + 1
            base = e.base
            while isinstance(base, A.SliceExpr):
                lo += base.lo.const
                base = base.base
            whole = self.target(base)
            assert isinstance(whole, ir.LValue)
            self.place = whole
            if width == ir.bits_of(whole.type):
                return SliceTarget(whole, self.cast(whole, T.Bits(width)),
                                   lambda value: self.emit(ir.Assign(whole, self.cast(value, whole.type))))
            return SliceTarget(whole, ir.Slice(T.Bits(width), whole, lo),
                               lambda value: self.emit(ir.Deposit(whole, lo, value)))
        lv = self.expr(e)
        if not isinstance(lv, ir.LValue):
            raise P4Error(e.pos, "this cannot be written to")
        return lv

    def store(self, dst: ir.LValue, e: A.Expr) -> None:
        """dst = e, lists field by field."""
        match e:
            case A.DefaultValue() | A.InvalidHeader():
                self.emit(ir.Zero(dst))
            case A.ListExpr() | A.StructExpr():
                self.store_list(dst, e)
            case A.CastExpr() if isinstance(e.operand, A.ListExpr | A.StructExpr):
                self.store(dst, e.operand)
            case _:
                value = self.expr(e)
                if value is not dst:
                    self.emit(ir.Assign(dst, self.cast(value, dst.type)))

    def store_list(self, dst: ir.LValue, e: A.ListExpr | A.StructExpr) -> None:
        t = dst.type
        # The right side is evaluated whole before anything is written: s = {s.b, s.a}.
        final, dst = dst, self.local("list", t)
        if isinstance(t, ir.StackType):
            assert isinstance(e, A.ListExpr)
            self.emit(ir.Zero(dst))
            for i, item in enumerate(e.items):
                self.store(ir.StackElement(t.item, dst, ir.const(i, U32)), item)
        else:
            assert isinstance(t, ir.RecordType)
            names = list(t.fields)
            if t.kind == "union":
                raise P4Error(e.pos, "a header_union cannot be made from a list")
            pairs = list(zip(names, e.items, strict=False)) if isinstance(e, A.ListExpr) else e.fields
            if len(pairs) < len(names) or t.kind == "header":
                self.emit(ir.Zero(dst))
            if t.kind == "header":
                self.emit(ir.SetValid(dst, True))
            for name, value in pairs:
                self.store(ir.Field(t.fields[name], dst, name), value)
        self.emit(ir.Assign(final, dst))

    def branch(self, s: A.Stmt | None) -> list[ir.Instruction]:
        body: list[ir.Instruction] = []
        if s is not None:
            with self.into(body), self.deeper():
                self.stmt(s)
        return body

    def if_(self, s: A.IfStmt) -> None:
        condition = self.expr(s.condition)
        self.note("condition", text=condition_text(s.pos), value=condition)
        if isinstance(condition, ir.Const):
            for stmt in self.branch(s.then if condition.value else s.other):
                self.out.append(stmt)
            return
        stages.check_statement(self.function.name, "'if'", s.pos, called=self.in_function)
        self.emit(ir.If(condition, self.branch(s.then), self.branch(s.other)))

    def switch(self, s: A.SwitchStmt) -> None:
        if self.in_action:
            raise Unsupported(s.pos, "'switch' cannot stand in an action, on BMv2")
        stages.check_statement(self.function.name, "'switch'", s.pos, called=True)
        t = self.actual(s.value.type)
        tests: list[tuple[ir.Value, A.SwitchCase]] = []  # condition, case
        default: A.SwitchCase | None = None
        pending: ir.Value = FALSE
        falls_to_default = False
        if isinstance(t, T.OfTable):
            assert isinstance(s.value, A.MemberExpr)
            result = self.apply_result(s.value.base)
            value: ir.Value = result.run
        else:
            value = self.expr(s.value)
            if not isinstance(value, ir.Const):
                value = self.temp(value)
        for case in s.cases:
            if isinstance(case.label, A.DontCare):
                falls_to_default = True
            else:
                if isinstance(t, T.OfTable):
                    assert isinstance(case.label, A.NameExpr)
                    decls = [a.decl for a in result.table.actions]
                    label: ir.Value = ir.const(decls.index(case.label.decl), U32)
                else:
                    label = self.expr(case.label)
                pending = self.bin("||", pending, self.bin("==", value, label, T.BOOL), T.BOOL)
            if case.body is not None:
                if falls_to_default:
                    default = case
                else:
                    tests.append((pending, case))
                pending, falls_to_default = FALSE, False
        chain: list[ir.Instruction] = self.case(default)
        for condition, taken in reversed(tests):
            if isinstance(condition, ir.Const):
                chain = self.case(taken) if condition.value else chain
                continue
            chain = [ir.If(condition, self.case(taken), chain, pos=s.pos)]
        self.out.extend(chain)

    def case(self, s: A.SwitchCase | None) -> list[ir.Instruction]:
        """The body of a case of a switch."""
        body: list[ir.Instruction] = []
        if s is not None:
            with self.into(body):
                self.note("case", text=case_text(s.pos), pos=s.pos)
            body += self.branch(s.body)
        return body

    def loop(self, body: A.Stmt, update: Callable[[], None], condition: Callable[[], ir.Value]) -> None:
        again, next_, end = self.unique("loop"), self.unique("next"), self.unique("done")
        self.emit(ir.Label(again))
        test = condition()
        self.emit(ir.If(self.un("!", test), [ir.Goto(end, pos=self.pos)], []))
        self.loops.append((end, next_))
        self.stmt(body)
        self.loops.pop()
        self.emit(ir.Label(next_))
        update()
        self.emit(ir.Goto(again, counted=True))
        self.emit(ir.Label(end))

    def for_(self, s: A.ForStmt) -> None:
        for part in s.init:
            self.stmt(part)

        def update() -> None:
            for part in s.update:
                self.stmt(part)

        self.loop(s.body, update, lambda: self.expr(s.condition))

    def for_in(self, s: A.ForInStmt) -> None:
        if isinstance(s.variable, A.VarDecl):
            var: ir.LValue = self.local(s.variable.name, self.type(s.variable.type, s.pos))
            self.bindings[id(s.variable)] = var
        else:
            lv = self.expr(s.variable)
            assert isinstance(lv, ir.LValue)
            var = lv
        values = s.values
        if isinstance(values, A.BinaryExpr):
            low = self.saved(values.left, values.right)
            high = self.temp(self.expr(values.right), "last")
            count = self.temp(low, "at")
            more = self.temp(self.bin("<=", count, high, T.BOOL), "more")

            def update() -> None:
                # ends at the last value, so that the counter never wraps
                self.emit(ir.Assign(more, self.bin("<", count, high, T.BOOL)))
                self.emit(ir.Assign(count, self.bin("+", count, ir.const(1, count.type), count.type)))

            again, next_, end = self.unique("loop"), self.unique("next"), self.unique("done")
            self.emit(ir.Label(again))
            self.emit(ir.If(self.un("!", more), [ir.Goto(end, pos=s.pos)], []))
            self.emit(ir.Assign(var, count))
            self.loops.append((end, next_))
            self.stmt(s.body)
            self.loops.pop()
            self.emit(ir.Label(next_))
            update()
            self.emit(ir.Goto(again, counted=True))
            self.emit(ir.Label(end))
            return
        items: list[A.Expr | ir.LValue]
        if isinstance(values, A.ListExpr):
            items = list(values.items)
        else:
            stack = self.expr(values)
            if not isinstance(stack.type, ir.StackType) or not isinstance(stack, ir.LValue):
                raise Unsupported(values.pos, "'for' over this is not supported")
            items = [ir.StackElement(stack.type.item, stack, ir.const(i, U32)) for i in range(stack.type.size)]
        end = self.unique("done")
        for item in items:
            next_ = self.unique("next")
            if isinstance(item, ir.LValue):
                self.emit(ir.Assign(var, item))
            else:
                self.store(var, item)
            self.loops.append((end, next_))
            self.stmt(s.body)
            self.loops.pop()
            self.emit(ir.Label(next_))
        self.emit(ir.Label(end))

    def return_(self, s: A.ReturnStmt) -> None:
        frame = self.frames[-1]
        self.note_statement(s.pos)
        if s.value is not None:
            assert frame.result is not None
            self.store(frame.result, s.value)
        frame.returned = True
        self.emit(ir.Goto(frame.label))
