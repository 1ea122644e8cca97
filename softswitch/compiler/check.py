# SPDX-License-Identifier: Apache-2.0
"""Checks declarations and statements: names, types, directions, tables, states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from softswitch.compiler import ast as A
from softswitch.compiler import types as T
from softswitch.compiler.check_call import CallChecker
from softswitch.compiler.diagnostics import Errors, P4Error, Pos, nearest

_TABLE_PROPERTIES = {
    "size", "default_action", "implementation", "counters", "meters", "support_timeout", "largest_priority_wins",
    "priority_delta",
}  # fmt: skip


class Checker(CallChecker):
    """One program's checker; after `program` the tree is typed and `globals` holds the top-level names."""

    def __init__(self, errors: Errors) -> None:
        super().__init__(errors)
        self.result: T.Type | None = None  # of the function that is being checked
        self.where = ""  # "parser", "control", "action", "function"
        self.loops = 0

    def program(self, program: A.Program) -> None:
        """Raises CompileError with every error found."""
        for decl in program.decls:
            try:
                self.top_level(decl)
            except P4Error as error:
                self.errors.add(error)
        self.errors.stop_if_any()

    # ---- declarations -------------------------------------------------------------------------------------------

    def top_level(self, decl: A.Decl) -> None:
        match decl:
            case A.NamesDecl():
                known = self.error_names if decl.kind == "error" else self.match_kinds
                for name, pos in decl.names:
                    if name in known:
                        raise P4Error(pos, f"{decl.kind} '{name}' is declared twice")
                    known.append(name)
                return
            case A.FunctionDecl():
                self.function(decl)
                return
            case A.ExternDecl() | A.BlockDecl() | A.PackageDecl() | A.StructDecl():
                self.declare(decl)
                self.type_declaration(decl)
                return
            case A.ActionDecl():
                self.action(decl)
                return
        self.local(decl)

    def type_declaration(self, decl: A.Decl) -> None:
        with self.inside():
            for p in getattr(decl, "type_params", []):
                self.declare(p)
            match decl:
                case A.StructDecl():
                    self.specialize(decl, tuple(self.variable(p) for p in decl.type_params))
                case A.ExternDecl():
                    for method in decl.methods:
                        self.signature(method)
                case A.PackageDecl():
                    self.params(decl.ctor_params)
                case A.BlockDecl():
                    self.block_decl(decl)

    def params(self, params: Sequence[A.Param]) -> None:
        seen: set[str] = set()
        for p in params:
            if p.name in seen:
                raise P4Error(p.pos, f"two parameters '{p.name}'")
            seen.add(p.name)
            p.type = self.resolve(p.syntax)
            if p.default is not None:
                p.default = self.rvalue(p.default, p.type)
            if isinstance(p.type, T.Declared) and p.direction:
                raise P4Error(p.pos, f"a parameter of type {p.type} has no direction")

    def signature(self, decl: A.FunctionDecl) -> None:
        with self.inside():
            for p in decl.type_params:
                self.declare(p)
            self.params(decl.params)
            decl.result_type = self.resolve(decl.result) if decl.result else T.VOID

    def function(self, decl: A.FunctionDecl) -> None:
        self.signature(decl)
        if decl.body is not None:
            with self.inside():
                for p in decl.type_params:
                    self.declare(p)
                for param in decl.params:
                    self.declare(param)
                outer = self.result, self.where
                self.result, self.where = decl.result_type, "function"
                try:
                    self.block(decl.body)
                finally:
                    self.result, self.where = outer
        self.declare(decl)

    def action(self, decl: A.ActionDecl) -> None:
        self.params(decl.params)
        with self.inside():
            for p in decl.params:
                self.declare(p)
            outer = self.result, self.where
            self.result, self.where = T.VOID, "action"
            try:
                self.block(decl.body)
            finally:
                self.result, self.where = outer
        self.declare(decl)

    def block_decl(self, decl: A.BlockDecl) -> None:
        self.params([*decl.params, *decl.ctor_params])
        if decl.is_type:
            return
        for p in [*decl.params, *decl.ctor_params]:
            self.declare(p)
        outer = self.result, self.where
        self.result, self.where = T.VOID, decl.kind
        try:
            with self.inside():
                for local in decl.locals:
                    try:
                        self.local(local)
                    except P4Error as error:
                        self.errors.add(error)
                        if local.name not in self.scope.names:  # later uses are not errors of their own
                            self.poison(local)
                if decl.kind == "parser":
                    self.states(decl)
                elif decl.apply is None:
                    raise P4Error(decl.pos, f"control {decl.name} has no apply block")
                else:
                    self.block(decl.apply)
        finally:
            self.result, self.where = outer

    def poison(self, decl: A.Decl) -> None:
        if isinstance(decl, A.VarDecl | A.InstanceDecl) and decl.type is None:
            decl.type = T.ANY
        self.scope.names[decl.name] = decl

    def local(self, decl: A.Decl) -> None:
        """A declaration that may stand in a block."""
        match decl:
            case A.ConstDecl():
                decl.type = self.resolve(decl.syntax)
                decl.value = self.rvalue(decl.value, decl.type)
                scalar = isinstance(decl.type, T.Bits) or decl.type in (T.INFINT, T.BOOL)
                if scalar and decl.value.const is None:
                    pos = decl.value.pos
                    raise P4Error(pos, f"the value of constant '{decl.name}' is not known at compile time")
            case A.VarDecl():
                decl.type = self.resolve(decl.syntax)
                if decl.type in (T.INFINT, T.VOID, T.STRING) or isinstance(decl.type, T.Declared):
                    raise P4Error(decl.pos, f"a variable cannot be of type {decl.type}")
                if decl.value is not None:
                    decl.value = self.rvalue(decl.value, decl.type)
            case A.InstanceDecl():
                checked = self.expr(decl.call)
                if not isinstance(checked.type, T.Declared):
                    raise P4Error(decl.pos, f"{checked.type} cannot be instantiated")
                decl.type = checked.type
            case A.TypedefDecl():
                base = self.resolve(decl.syntax)
                decl.resolved = T.NewType(decl.name, base, decl) if decl.distinct else base
            case A.EnumDecl():
                self.enum(decl)
            case A.ActionDecl():
                self.action(decl)
                return
            case A.TableDecl():
                self.table(decl)
            case A.ValueSetDecl():
                decl.type = self.resolve(decl.syntax)
                decl.size = self.rvalue(decl.size, T.INFINT)
            case _:
                raise P4Error(decl.pos, f"'{decl.name}' cannot be declared here")
        self.declare(decl)

    def enum(self, decl: A.EnumDecl) -> None:
        base: T.Bits | None = None
        if decl.syntax is not None:
            resolved = self.resolve(decl.syntax)
            if not isinstance(resolved, T.Bits):
                raise P4Error(decl.pos, f"an enum's type is bit or int, not {resolved}")
            base = resolved
        members: dict[str, int] = {}
        for i, (name, value, pos) in enumerate(decl.members):
            if name in members:
                raise P4Error(pos, f"enum {decl.name} has two members '{name}'")
            if base is None and value is not None:
                raise P4Error(pos, "a member with a value needs an enum with a type: enum bit<8> ...")
            if base is not None and value is None:
                raise P4Error(pos, f"enum {decl.name} has a type, so '{name}' needs a value")
            members[name] = i if base is None or value is None else base.wrap(self.constant(value))
        decl.resolved = T.Enum(decl.name, members, base, decl)

    # ---- parser states ------------------------------------------------------------------------------------------

    def states(self, decl: A.BlockDecl) -> None:
        names = {"accept", "reject"}
        for state in decl.states:
            if state.name in names:
                raise P4Error(state.pos, f"parser {decl.name} has two states '{state.name}'")
            names.add(state.name)
        if "start" not in names:
            raise P4Error(decl.pos, f"parser {decl.name} has no state 'start'")
        for state in decl.states:
            try:
                self.state(state, names)
            except P4Error as error:
                self.errors.add(error)

    def state(self, state: A.StateDecl, names: set[str]) -> None:
        with self.inside():
            for stmt in state.body:
                self.checked(stmt)
            if state.select is None:
                if state.next_state not in names:
                    raise P4Error(
                        state.next_pos, f"no state '{state.next_state}'{nearest(state.next_state or '', names)}"
                    )
                return
            state.select = [self.expr(e) for e in state.select]
            types = [e.type for e in state.select]
            for case in state.cases:
                if case.state not in names:
                    raise P4Error(case.state_pos, f"no state '{case.state}'{nearest(case.state, names)}")
                case.keys = self.keyset(case.keys, types)

    def keyset(self, keys: list[A.Expr], types: Sequence[T.Type]) -> list[A.Expr]:
        """Checks the keys of a select case or an entry against the types that they are compared with."""
        if len(keys) == len(types) == 1 and isinstance(keys[0], A.ListExpr):
            keys = keys[0].items
        if len(keys) == 1 and len(types) != 1:
            if isinstance(keys[0], A.DontCare):
                keys[0].type = T.ANY
                return keys
            if isinstance(keys[0], A.ListExpr):
                keys = keys[0].items
            else:
                key = self.expr(keys[0])
                if isinstance(key, A.Name) and isinstance(key.decl, A.ValueSetDecl):
                    return [key]
        if len(keys) != len(types):
            raise P4Error(keys[0].pos, f"expected {len(types)} keys, got {len(keys)}")
        return [self.key(k, t) for k, t in zip(keys, types, strict=True)]

    def key(self, key: A.Expr, t: T.Type) -> A.Expr:
        while isinstance(t, T.NewType):
            t = t.base
        if isinstance(key, A.DontCare | A.DefaultValue):
            key.type = t
            return A.DontCare(pos=key.pos, type=t)
        if isinstance(key, A.Binary) and key.op in ("&&&", ".."):
            base = t.base if isinstance(t, T.Enum) and t.base is not None else t
            key.left, key.right = self.key(key.left, base), self.key(key.right, base)
            key.type = t
            return key
        checked = self.expr(key, t)
        if isinstance(checked, A.Name) and isinstance(checked.decl, A.ValueSetDecl):
            return checked
        if isinstance(checked.type, T.NewType):
            checked = A.Cast(None, checked, pos=key.pos, type=checked.type.base, const=checked.const)
        if isinstance(checked.type, T.Bits) and isinstance(t, T.Enum) and t.base == checked.type:
            return checked
        return self.coerce(checked, t)

    # ---- tables -------------------------------------------------------------------------------------------------

    def table(self, table: A.TableDecl) -> None:
        for k in table.keys:
            k.value = self.expr(k.value)
            t = k.value.type
            while isinstance(t, T.NewType):
                t = t.base
            if not (isinstance(t, T.Bits | T.Enum) or t in (T.BOOL, T.ERROR)):
                raise P4Error(k.pos, f"a key cannot be of type {k.value.type}")
            if k.match not in self.match_kinds:
                raise P4Error(k.match_pos, f"no match_kind '{k.match}'{nearest(k.match, self.match_kinds)}")
        seen: set[str] = set()
        for ref in table.actions:
            self.action_ref(ref)
            if ref.decl.name in seen:
                raise P4Error(ref.pos, f"table {table.name} lists action '{ref.decl.name}' twice")
            seen.add(ref.decl.name)
        for name, prop in table.properties.items():
            if name not in _TABLE_PROPERTIES:
                raise P4Error(prop.pos, f"table property '{name}' is not supported{nearest(name, _TABLE_PROPERTIES)}")
            if name == "default_action":
                table.default = self.action_use(prop.value, table)
            elif name in ("size", "priority_delta"):
                prop.value = self.rvalue(prop.value, T.INFINT) if self._is_infint(prop) else self.expr(prop.value)
                if not isinstance(prop.value.const, int):
                    raise P4Error(prop.pos, f"table property '{name}' needs an integer known at compile time")
            else:
                prop.value = self.expr(prop.value)
        if table.entries is not None:
            types = [k.value.type for k in table.keys]
            if not types:
                raise P4Error(table.pos, f"table {table.name} has entries, but no key")
            for entry in table.entries:
                try:
                    entry.keys = self.keyset(entry.keys, types)
                    if len(entry.keys) < len(types):  # `_` for all of them
                        entry.keys = [A.DontCare(pos=entry.pos, type=t) for t in types]
                    entry.ref = self.action_use(entry.action, table)
                    if entry.priority is not None:
                        entry.priority = self.expr(entry.priority)
                        self.constant(entry.priority)
                except P4Error as error:
                    self.errors.add(error)

    def _is_infint(self, prop: A.TableProperty) -> bool:
        prop.value = self.expr(prop.value)
        return prop.value.type == T.INFINT

    def action_decl(self, e: A.Expr) -> tuple[A.ActionDecl, list[A.Arg], bool]:
        called = isinstance(e, A.Call)
        name = e.function if isinstance(e, A.Call) else e
        if not isinstance(name, A.Name):
            raise P4Error(e.pos, "expected the name of an action")
        decl = self.lookup(name.name, name.pos, name.absolute)
        if not isinstance(decl, A.ActionDecl):
            raise P4Error(name.pos, f"'{name.name}' is not an action")
        return decl, e.args if isinstance(e, A.Call) else [], called

    def action_ref(self, ref: A.ActionRef) -> None:
        """`a` or `a(x, y)` in a table's list: arguments bind the parameters that have a direction."""
        ref.decl, args, _ = self.action_decl(ref.expr)
        directed = [p for p in ref.decl.params if p.direction]
        if len(args) != len(directed):
            want = len(directed)
            raise P4Error(ref.pos, f"action {ref.decl.name} needs {want} arguments here (those with a direction)")
        ref.bound = self.bind_args(ref.decl, directed, args, ref.pos)

    def bind_args(self, decl: A.ActionDecl, params: list[A.Param], args: list[A.Arg], pos: Pos) -> dict[str, A.Expr]:
        call = A.Call(A.Name(decl.name, pos=pos), [], args, pos=pos)
        self.bind(call, params, decl.name)
        return self.check_args(params, call.bound, decl.name)

    def action_use(self, e: A.Expr, table: A.TableDecl) -> A.ActionRef:
        """The action of an entry or default_action: gives the parameters without direction their values."""
        decl, args, _ = self.action_decl(e)
        listed = next((r for r in table.actions if r.decl is decl), None)
        if listed is None:
            raise P4Error(e.pos, f"action {decl.name} is not in the actions of table {table.name}")
        plain = [p for p in decl.params if not p.direction]
        ref = A.ActionRef(pos=e.pos, expr=e, annotations=[], decl=decl)
        if len(args) == len(plain) or any(a.name for a in args):
            ref.bound = self.bind_args(decl, plain, args, e.pos)
        elif len(args) == len(decl.params):
            ref.bound = self.bind_args(decl, decl.params, args, e.pos)
        else:
            raise P4Error(e.pos, f"action {decl.name} takes {len(plain)} arguments, got {len(args)}")
        for p in plain:
            ref.bound.setdefault(p.name, p.default)  # type: ignore[arg-type]
        return ref

    # ---- statements ---------------------------------------------------------------------------------------------

    def checked(self, stmt: A.Stmt) -> None:
        """Checks a statement and goes on after an error in it."""
        try:
            self.stmt(stmt)
        except P4Error as error:
            self.errors.add(error)
            if isinstance(stmt, A.DeclStmt) and stmt.decl.name not in self.scope.names:
                self.poison(stmt.decl)

    def block(self, block: A.Block) -> None:
        with self.inside():
            for stmt in block.body:
                self.checked(stmt)

    def stmt(self, s: A.Stmt) -> None:
        match s:
            case A.Block():
                self.block(s)
            case A.Assign():
                self.assign(s)
            case A.CallStmt():
                s.call = self.expr(s.call)
                if isinstance(s.call, A.Call) and s.call.builtin == "new":
                    raise P4Error(s.pos, "an instance needs a name")
            case A.DeclStmt():
                self.local(s.decl)
            case A.If():
                s.condition = self.condition(s.condition)
                with self.inside():
                    self.checked(s.then)
                if s.other is not None:
                    with self.inside():
                        self.checked(s.other)
            case A.Switch():
                self.switch(s)
            case A.For():
                with self.inside():
                    for part in s.init:
                        self.stmt(part)
                    s.condition = self.condition(s.condition)
                    for part in s.update:
                        self.stmt(part)
                    self.loop_body(s.body)
            case A.ForIn():
                self.for_in(s)
            case A.Return():
                self.return_(s)
            case A.Exit():
                if self.where in ("parser", "function"):
                    raise P4Error(s.pos, f"'exit' in a {self.where}")
            case A.Break() | A.Continue():
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

    def for_in(self, s: A.ForIn) -> None:
        with self.inside():
            if isinstance(s.variable, A.VarDecl):
                self.local(s.variable)
                t = s.variable.type
            else:
                s.variable = self.expr(s.variable)
                self.lvalue(s.variable)
                t = s.variable.type
            if isinstance(s.values, A.Binary) and s.values.op == "..":
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

    def assign(self, s: A.Assign) -> None:
        s.target = self.expr(s.target)
        self.lvalue(s.target)
        t = s.target.type
        if s.op:
            target: A.Expr = s.target
            value = A.Binary(s.op, target, s.value, pos=s.pos)
            if s.op in ("<<", ">>"):
                value.right = self.expr(s.value)
            s.value = self.rvalue(value, t)
        else:
            s.value = self.rvalue(s.value, t)

    def return_(self, s: A.Return) -> None:
        if self.result is None or self.where == "parser":
            raise P4Error(s.pos, "'return' outside a function, action or control")
        if s.value is None:
            if self.result != T.VOID:
                raise P4Error(s.pos, f"'return' needs a value of type {self.result}")
        elif self.result == T.VOID:
            raise P4Error(s.value.pos, "this block returns no value")
        else:
            s.value = self.rvalue(s.value, self.result)

    def switch(self, s: A.Switch) -> None:
        s.value = self.expr(s.value)
        t = s.value.type
        seen: set[Any] = set()
        for case in s.cases:
            if isinstance(case.label, A.DontCare):
                key: Any = "default"
            elif isinstance(t, T.OfTable) and t.kind == "actions":
                label = case.label
                names = [r.decl.name for r in t.table.actions]
                if not isinstance(label, A.Name) or label.name not in names:
                    got = label.name if isinstance(label, A.Name) else "this"
                    raise P4Error(label.pos, f"'{got}' is not an action of table {t.table.name}{nearest(got, names)}")
                label.decl = next(r.decl for r in t.table.actions if r.decl.name == label.name)
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
