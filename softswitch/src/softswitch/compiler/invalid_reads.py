# SPDX-License-Identifier: Apache-2.0
"""Warns of fields of headers that are not valid, or that may be so, where p4c warns of them.

It follows FindUninitialized in p4c's frontends/p4/simplifyDefUse.cpp.  A parser, control or function takes every header
that comes in for valid and each that it only gives out for invalid; a variable is invalid until it is set.  Tables,
actions, functions and controls are followed again where they are applied and called.  Whoever asks isValid() anywhere
in a condition is trusted, and what an extern or a parser gives out is valid.  What the actions of a table do, and what
an action does behind its first branch, is not followed into the caller: programs decide there by metadata, and a
warning would be a false alarm as often as not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial

from softswitch.compiler import ast as A
from softswitch.compiler import types as T
from softswitch.compiler.diagnostics import Errors, Pos
from softswitch.compiler.header_places import Path, Validity, headers, paths

_Callable = A.ActionDecl | A.FunctionDecl | A.BlockDecl


def warn(program: A.SyntaxTree, errors: Errors) -> None:
    """Adds the warnings of a program that was checked, one for each place."""
    seen: set[Pos] = set()
    for decl in program.decls:
        follower = _Follower(errors, seen)
        match decl:
            case A.BlockDecl(is_type=False, kind="parser"):
                follower.parser(decl)
            case A.BlockDecl(is_type=False) | A.FunctionDecl(body=A.BlockStmt()):
                follower.params(decl.params)
                follower.body(decl)


class _Follower:
    """Follows one parser, control or function."""

    def __init__(self, errors: Errors, seen: set[Pos]) -> None:
        self.errors = errors
        self.seen = seen
        self.now = Validity()
        self.silent = False  # while the states of a parser are not known yet
        self.ended = False  # by return or exit: nothing after it runs

    # ---- blocks -------------------------------------------------------------------------------------------------

    def params(self, params: Sequence[A.Param]) -> None:
        for p in params:
            self.now.set_all((id(p),), p.type, p.direction != "out")

    def locals(self, decls: Iterable[A.Decl]) -> None:
        for decl in decls:
            if isinstance(decl, A.VarDecl):
                self.variable(decl)

    def body(self, decl: _Callable) -> None:
        if isinstance(decl, A.BlockDecl):
            self.locals(decl.locals)
        self.stmt(decl.apply if isinstance(decl, A.BlockDecl) else decl.body)

    def parser(self, decl: A.BlockDecl) -> None:
        """Follows every state until what holds at its start is known, then warns."""
        self.params(decl.params)
        self.locals(decl.locals)
        states = {state.name: state for state in decl.states}
        at_start = {"start": self.now}
        todo = ["start"]
        self.silent = True
        while todo:
            state = states[todo.pop(0)]
            self.now = at_start[state.name].copy()
            self.state(state)
            follow = [case.state for case in state.cases] if state.next_state is None else [state.next_state]
            for name in follow:
                if name not in states:
                    continue  # accept or reject
                old = at_start.get(name)
                new = self.now.copy() if old is None else old.joined(self.now)
                if old is None or not new.same(old):
                    at_start[name] = new
                    todo.append(name)
        self.silent = False
        for name, now in at_start.items():
            self.now = now.copy()
            self.state(states[name])

    def state(self, state: A.StateDecl) -> None:
        for stmt in state.body:
            self.stmt(stmt)
        for key in state.select or ():
            self.expr(key)

    # ---- statements ---------------------------------------------------------------------------------------------

    def stmt(self, s: A.Stmt | None) -> None:
        if s is None or self.ended:
            return
        match s:
            case A.BlockStmt():
                for part in s.body:
                    self.stmt(part)
            case A.AssignStmt():
                self.expr(s.target)
                self.expr(s.value)
                if not s.op:
                    self.assign(s.target, s.value)
            case A.CallStmt():
                self.expr(s.call)
            case A.DeclStmt(decl=A.VarDecl() as decl):
                self.variable(decl)
            case A.IfStmt():
                self.branches(s)
            case A.SwitchStmt():
                self.switch(s)
            case A.ForStmt():
                for part in (*s.init, A.CallStmt(s.condition), s.body, *s.update):
                    self.stmt(part)
            case A.ForInStmt():
                self.expr(s.values)
                variable = s.variable
                at = [(id(variable),)] if isinstance(variable, A.VarDecl) else paths(variable)
                for path in at:
                    self.now.set_all(path, variable.type, True)
                self.stmt(s.body)
                self.ended = False
            case A.ReturnStmt():
                if s.value is not None:
                    self.expr(s.value)
                self.ended = True
            case A.ExitStmt():
                self.ended = True

    def variable(self, decl: A.VarDecl) -> None:
        if decl.value is None:
            self.now.set_all((id(decl),), decl.type, False)
            return
        self.expr(decl.value)
        self.assign(_name(decl), decl.value)

    def branches(self, s: A.IfStmt) -> None:
        asked = self.now.asked
        self.expr(s.condition)
        if isinstance(s.condition.const, bool):
            self.stmt(s.then if s.condition.const else s.other)
        else:
            self.one_of([partial(self.stmt, s.then), partial(self.stmt, s.other)], asked)

    def switch(self, s: A.SwitchStmt) -> None:
        asked = self.now.asked
        self.expr(s.value)
        cases = [case for case in s.cases if case.body is not None]
        ways = [partial(self.stmt, case.body) for case in cases]
        if not any(isinstance(case.label, A.DontCare) for case in cases):
            ways.append(partial(self.stmt, None))
        self.now = self.now.copy()
        self.one_of(ways, asked)

    def one_of(self, ways: Sequence[Callable[[], None]], asked: frozenset[Path]) -> None:
        """Follows ways of which the program takes one; `asked` is what was asked for before it chose.

        The first changes what holds now in its place, and the result is a new object: who has kept the old one knows
        of the first way alone (`enter`).
        """
        start, ended, result = self.now.copy(), True, None
        for way in ways:
            self.now, self.ended = self.now if result is None else start.copy(), False
            way()
            ended = ended and self.ended
            result = self.now if result is None else result.joined(self.now)
        self.now = start if result is None else result
        self.now.asked = asked
        self.ended = ended

    # ---- assignments --------------------------------------------------------------------------------------------

    def assign(self, target: A.Expr, value: A.Expr) -> None:
        """Applies an assignment to the validity of the headers in its target."""
        while isinstance(value, A.CastExpr):
            value = value.operand
        t = target.type
        if T.is_header(t):
            self.now.set_header(target, self.validity(value))
        elif isinstance(value, A.InvalidHeader):
            self.now.set_header(target, False)
        elif isinstance(value, A.ListExpr | A.StructExpr) and isinstance(t, T.Struct):
            given = dict(value.fields if isinstance(value, A.StructExpr) else zip(t.fields, value.items, strict=False))
            for name, field in t.fields.items():
                if name in given:
                    self.assign(A.MemberExpr(target, name, type=field), given[name])
        elif isinstance(value, A.ListExpr) and isinstance(t, T.Stack):
            for i, item in enumerate(value.items):
                at = A.IntLit(i, type=T.Bits(32), const=i)
                self.assign(A.IndexExpr(target, at, type=t.item), item)
        else:
            self.copied(target, value)

    def copied(self, target: A.Expr, value: A.Expr) -> None:
        """Every header of a value that is no header itself, as it is where it comes from."""
        sources = paths(value)
        for into in paths(target):
            for path in headers(into, target.type):
                rest = path[len(into):]
                self.now.set(path, self.now.of([(*source, *rest) for source in sources]) if sources else True)

    def validity(self, value: A.Expr) -> bool | None:
        if isinstance(value, A.InvalidHeader):
            return False
        places = paths(value)
        return self.now.of(places) if places else True

    # ---- expressions --------------------------------------------------------------------------------------------

    def expr(self, e: A.Expr) -> None:
        """Follows what an expression reads and calls."""
        match e:
            case A.CallExpr():
                self.call(e)
            case A.MemberExpr():
                self.expr(e.base)
                if T.is_header(e.base.type):
                    self.read(e.base)
            case A.IndexExpr():
                self.expr(e.index)
                self.expr(e.base)
            case A.SliceExpr():
                self.expr(e.base)
            case A.UnaryExpr() | A.CastExpr():
                self.expr(e.operand)
            case A.BinaryExpr():
                self.expr(e.left)
                self.expr(e.right)
            case A.MuxExpr():
                for part in (e.condition, e.then, e.other):
                    self.expr(part)
            case A.ListExpr():
                for item in e.items:
                    self.expr(item)
            case A.StructExpr():
                for _, item in e.fields:
                    self.expr(item)

    def read(self, header: A.Expr) -> None:
        places = paths(header)
        valid = self.now.of(places) if places else True
        if valid is True or self.silent or header.pos in self.seen:
            return
        self.seen.add(header.pos)
        self.errors.warn(header.pos, f"a field of a header that {'is' if valid is False else 'may be'} invalid here: a "
                                     "read gives any value, a write is lost; ask isValid() first")

    def call(self, e: A.CallExpr) -> None:
        base = e.function.base if isinstance(e.function, A.MemberExpr) else None
        if e.builtin and base is not None and not isinstance(e.decl, A.BlockDecl | A.TableDecl):
            self.expr(base)
            self.header_method(e.builtin, base)
            return
        if isinstance(e.decl, A.TableDecl):
            self.table(e.decl)
            return
        params: Sequence[A.Param] = getattr(e.decl, "params", ())
        given = [(p, e.bound[p.name]) for p in params if p.name in e.bound]
        for p, arg in given:
            if p.direction != "out":
                self.expr(arg)
        if isinstance(e.decl, A.ActionDecl) or (isinstance(e.decl, A.FunctionDecl) and e.decl.body is not None) \
                or (isinstance(e.decl, A.BlockDecl) and e.decl.apply is not None):
            self.enter(e.decl, given)
            return
        for p, arg in given:
            if p.direction in ("out", "inout"):
                self.expr(arg)
                self.given_out(arg)

    def header_method(self, name: str, base: A.Expr) -> None:
        match name:
            case "isValid":
                self.now.ask(base)
            case "setValid" | "setInvalid":
                self.now.set_header(base, name == "setValid")
            case "push_front" | "pop_front":
                for path in paths(base):
                    self.now.set_all(path, base.type, True)

    def given_out(self, arg: A.Expr) -> None:
        """Marks a header as valid that an extern or a parser has filled."""
        if T.is_header(arg.type):
            self.now.set_header(arg, True)
        else:
            for path in paths(arg):
                self.now.set_all(path, arg.type, True)

    def table(self, table: A.TableDecl) -> None:
        for key in table.keys:
            self.expr(key.value)
        before = self.now
        for ref in table.actions:
            self.now = before.copy()
            self.enter(ref.decl, [(p, ref.bound[p.name]) for p in ref.decl.params if p.name in ref.bound])
        self.now = before

    def enter(self, decl: _Callable, given: Sequence[tuple[A.Param, A.Expr]]) -> None:
        """Follows what is called, with its arguments; what the control plane gives an action is valid."""
        named = {id(p): arg for p, arg in given}
        for p in decl.params:
            arg = named.get(id(p))
            if arg is None or p.direction == "out":
                self.now.set_all((id(p),), p.type, p.direction != "out")
            else:
                self.assign(_name(p), arg)
        before = self.now
        self.body(decl)
        self.ended = False
        if isinstance(decl, A.ActionDecl):
            self.now = before
        for p, arg in given:
            if p.direction in ("out", "inout"):
                self.expr(arg)
                self.assign(arg, _name(p))


def _name(decl: A.Param | A.VarDecl) -> A.NameExpr:
    return A.NameExpr(decl.name, decl=decl, type=decl.type, pos=decl.pos)
