# SPDX-License-Identifier: Apache-2.0
"""Type checking of statements: what may stand where, and the types of what they assign, return and compare."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

from softswitch.compiler import ast as A
from softswitch.compiler import types as T
from softswitch.compiler.check_call import CallChecker
from softswitch.compiler.diagnostics import Errors, P4Error, nearest


class StmtChecker(CallChecker):
    """Checks the statements of functions, actions, controls and parser states, and the declarations among them."""

    def __init__(self, errors: Errors) -> None:
        super().__init__(errors)
        self.result: T.Type | None = None  # result type of the function that is being checked
        self.loops = 0

    @abstractmethod
    def local(self, decl: A.Decl) -> None:
        """A declaration that may stand in a block."""

    @abstractmethod
    def poison(self, decl: A.Decl) -> None:
        """Declares a name whose declaration had an error, so that its uses are not reported as well."""

    def checked(self, stmt: A.Stmt) -> None:
        """Checks a statement, and continues after an error in it."""
        try:
            self.stmt(stmt)
        except P4Error as error:
            self.errors.add(error)
            if isinstance(stmt, A.DeclStmt) and stmt.decl.name not in self.scope.names:
                self.poison(stmt.decl)

    def block(self, block: A.BlockStmt) -> None:
        with self.inside():
            for stmt in block.body:
                self.checked(stmt)

    def stmt(self, s: A.Stmt) -> None:
        match s:
            case A.BlockStmt():
                self.block(s)
            case A.AssignStmt():
                self.assign(s)
            case A.CallStmt():
                s.call = self.expr(s.call)
                if isinstance(s.call, A.CallExpr) and s.call.builtin == "new":
                    raise P4Error(s.pos, "an instance needs a name")
            case A.DeclStmt():
                if isinstance(self.scope.find(s.decl.name), A.Param):
                    raise P4Error(s.decl.pos, f"'{s.decl.name}' would hide the parameter of that name")
                self.local(s.decl)
            case A.IfStmt():
                s.condition = self.condition(s.condition)
                with self.inside():
                    self.checked(s.then)
                if s.other is not None:
                    with self.inside():
                        self.checked(s.other)
            case A.SwitchStmt() | A.ForStmt() | A.ForInStmt() if self.where == "parser":
                raise P4Error(s.pos, "a parser's state has no switch and no loop, but select and transitions")
            case A.SwitchStmt():
                self.switch(s)
            case A.ForStmt():
                with self.inside():
                    for part in s.init:
                        self.stmt(part)
                    s.condition = self.condition(s.condition)
                    for part in s.update:
                        self.stmt(part)
                    self.loop_body(s.body)
            case A.ForInStmt():
                self.for_in(s)
            case A.ReturnStmt():
                self.return_(s)
            case A.ExitStmt():
                if self.where in ("parser", "function"):
                    raise P4Error(s.pos, f"'exit' in a {self.where}")
            case A.BreakStmt() | A.ContinueStmt():
                if not self.loops:
                    raise P4Error(s.pos, "'break' and 'continue' belong in a loop")
            case _:
                raise AssertionError(s)

    def loop_body(self, body: A.Stmt) -> None:
        self.loops += 1
        try:
            with self.inside():
                self.checked(body)
        finally:
            self.loops -= 1

    def for_in(self, s: A.ForInStmt) -> None:
        with self.inside():
            if isinstance(s.variable, A.VarDecl):
                self.local(s.variable)
                t = s.variable.type
            else:
                s.variable = self.expr(s.variable)
                self.lvalue(s.variable)
                t = s.variable.type
            if isinstance(s.values, A.BinaryExpr) and s.values.op == "..":
                s.values.left, s.values.right = self.rvalue(s.values.left, t), self.rvalue(s.values.right, t)
                s.values.type = t
            else:
                s.values = self.expr(s.values)
                vt = s.values.type
                if isinstance(vt, T.Tuple) and isinstance(s.values, A.ListExpr):
                    s.values.items = [self.rvalue(i, t) for i in s.values.items]
                    s.values.type = T.ListOf(t)
                elif not (isinstance(vt, T.Stack | T.ListOf) and vt.item == t):
                    raise P4Error(s.values.pos, f"cannot run '{t}' over {vt}")
            self.loop_body(s.body)

    def assign(self, s: A.AssignStmt) -> None:
        s.target = self.expr(s.target)
        self.lvalue(s.target)
        self.slice_bounds(s.target)
        t = s.target.type
        if s.op:
            target: A.Expr = s.target
            value = A.BinaryExpr(s.op, target, s.value, pos=s.pos)
            if s.op in ("<<", ">>"):
                value.right = self.expr(s.value)
            s.value = self.rvalue(value, t)
        else:
            s.value = self.initial(s.value, t)

    def slice_bounds(self, target: A.Expr) -> None:
        """Refuses constants' names as bounds of a slice that is assigned to, as p4c does; elsewhere it takes them."""
        while isinstance(target, A.SliceExpr):
            for bound in (target.hi, target.lo):
                if isinstance(bound, A.NameExpr):
                    raise P4Error(bound.pos, f"'{bound.name}' bounds a slice that is assigned to: p4c takes no name of "
                                             "a constant there; write the number, or #define it")
            target = target.base

    def return_(self, s: A.ReturnStmt) -> None:
        if self.result is None or self.where == "parser":
            raise P4Error(s.pos, "'return' outside a function, action or control")
        if s.value is None:
            if self.result != T.VOID:
                raise P4Error(s.pos, f"'return' needs a value of type {self.result}")
        elif self.result == T.VOID:
            raise P4Error(s.value.pos, "this block returns no value")
        else:
            s.value = self.initial(s.value, self.result)

    def switch(self, s: A.SwitchStmt) -> None:
        s.value = self.expr(s.value)
        t = s.value.type
        if not (isinstance(t, T.Bits | T.Enum) or t == T.INFINT or (isinstance(t, T.OfTable) and t.kind == "actions")):
            raise P4Error(s.value.pos, f"switch of a {t}: it needs a bit, int or enum, or a table's action_run")
        seen: set[Any] = set()
        for case in s.cases:
            if "default" in seen:
                raise P4Error(case.pos, "a case behind 'default', which must be the last")
            if isinstance(case.label, A.DontCare):
                key: Any = "default"
            elif isinstance(t, T.OfTable) and t.kind == "actions":
                label = case.label
                names = [r.decl.name for r in t.table.actions if r.decl is not None]  # those without have an error
                if not isinstance(label, A.NameExpr) or label.name not in names:
                    got = label.name if isinstance(label, A.NameExpr) else "this"
                    raise P4Error(label.pos, f"'{got}' is not an action of table {t.table.name}{nearest(got, names)}")
                label.decl = next(r.decl for r in t.table.actions if r.decl and r.decl.name == label.name)
                label.type = t
                key = label.name
            else:
                case.label = self.rvalue(case.label, t)
                key = case.label.const
                if key is None:
                    raise P4Error(case.label.pos, "a switch label must be known at compile time")
            if key in seen:
                raise P4Error(case.pos, "two cases of a switch are equal")
            seen.add(key)
            if case.body is not None:
                self.checked(case.body)
