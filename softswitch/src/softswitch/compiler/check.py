# SPDX-License-Identifier: Apache-2.0
"""Checks a program: its declarations, in their order in the source, and parser states."""

from __future__ import annotations

from collections.abc import Sequence

from softswitch.compiler import ast as A
from softswitch.compiler import types as T
from softswitch.compiler.check_table import TableChecker
from softswitch.compiler.diagnostics import P4Error, nearest


class Checker(TableChecker):
    """The checker of one program; after `program`, the tree has types, and `globals` has the top-level names."""

    def program(self, program: A.SyntaxTree) -> None:
        """Checks the whole program. Raises CompileError with every error found."""
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
        t = decl.type if isinstance(decl, A.InstanceDecl) else None
        if isinstance(t, T.Declared) and t.kind in ("parser", "control"):
            raise P4Error(decl.pos, f"'{decl.name}': a {t.kind} cannot be instantiated at the top level")

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
            if (isinstance(p.type, T.Declared) or p.type in (T.INFINT, T.STRING)) and p.direction:
                raise P4Error(p.pos, f"a parameter of type {p.type} has no direction")
            if p.default is not None and p.direction in ("out", "inout"):
                raise P4Error(p.pos, f"'{p.name}' is {p.direction}: it cannot have a default value")

    def no_blocks(self, params: Sequence[A.Param], constructor: bool = False) -> None:
        """Refuses parameters of parser or control type, which only constructors may have, as signatures."""
        for p in params:
            if not isinstance(p.type, T.Declared) or p.type.kind == "extern":
                continue
            if not (constructor and isinstance(p.type.decl, A.BlockDecl) and p.type.decl.is_type):
                raise P4Error(p.pos, f"parameter '{p.name}' cannot be of type {p.type.kind} {p.type}")

    def signature(self, decl: A.FunctionDecl) -> None:
        with self.inside():
            for p in decl.type_params:
                self.declare(p)
            self.params(decl.params)
            self.no_blocks(decl.params)
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
            if decl.result_type != T.VOID and not _returns(decl.body):
                raise P4Error(decl.pos, f"function '{decl.name}' does not return a value on all paths")
        self.declare(decl)

    def action(self, decl: A.ActionDecl) -> None:
        self.action_params(decl)
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

    def action_params(self, decl: A.ActionDecl) -> None:
        self.params(decl.params)
        data = None
        for p in decl.params:
            if isinstance(p.type, T.Declared) or p.type == T.INFINT:
                raise P4Error(p.pos, f"parameter '{p.name}' of an action cannot be of type {p.type}")
            if p.direction and data is not None:
                raise P4Error(p.pos, f"'{p.name}' must stand before '{data}', which has no direction: an action's "
                                     "parameters without one are the last")
            data = data if p.direction else p.name

    def block_decl(self, decl: A.BlockDecl) -> None:
        self.params([*decl.params, *decl.ctor_params])
        self.no_blocks(decl.params)
        self.no_blocks(decl.ctor_params, constructor=True)
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
                        if local.name not in self.scope.names:  # so that later uses are not reported as errors
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
                if isinstance(decl.type, T.Declared):
                    raise P4Error(decl.pos, f"a constant cannot be of type {decl.type}")
                decl.value = self.initial(decl.value, decl.type)
                scalar = isinstance(decl.type, T.Bits) or decl.type in (T.INFINT, T.BOOL)
                if scalar and decl.value.const is None:
                    pos = decl.value.pos
                    raise P4Error(pos, f"the value of constant '{decl.name}' is not known at compile time")
            case A.VarDecl():
                decl.type = self.resolve(decl.syntax)
                if decl.type in (T.INFINT, T.VOID, T.STRING) or isinstance(decl.type, T.Declared):
                    raise P4Error(decl.pos, f"a variable cannot be of type {decl.type}")
                if decl.value is not None:
                    decl.value = self.initial(decl.value, decl.type)
            case A.InstanceDecl():
                checked = self.expr(decl.call)
                if not isinstance(checked.type, T.Declared):
                    raise P4Error(decl.pos, f"{checked.type} cannot be instantiated")
                decl.type = checked.type
            case A.TypedefDecl():
                base = self.resolve(decl.syntax)
                if decl.distinct and not (isinstance(base, T.Bits | T.NewType | T.TypeVar) or base == T.BOOL):
                    raise P4Error(decl.pos, f"'type' makes a new type of bit, int or bool alone, not of {base}")
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
            members[name] = i if base is None or value is None else self.constant(value)
            if base is not None and base.wrap(members[name]) != members[name]:
                raise P4Error(pos, f"{members[name]} of '{name}' does not fit {base}")
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
            if not state.ends:
                self.errors.warn(state.pos, f"state {state.name} has no transition, and so rejects the packet: add "
                                            "`transition accept;`, or where it goes on")
            try:
                self.state(state, names)
            except P4Error as error:
                self.errors.add(error)
        if not _reachable(decl.states) & {"accept", "reject"}:
            raise P4Error(decl.pos, f"parser {decl.name} reaches neither accept nor reject")

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
            for e in state.select:
                if not (isinstance(e.type, T.Bits | T.Enum | T.TypeVar) or e.type in (T.BOOL, T.INFINT)):
                    raise P4Error(e.pos, f"select of a {e.type}: only bit, int, bool and enum can be selected on")
            for case in state.cases:
                if case.state not in names:
                    raise P4Error(case.state_pos, f"no state '{case.state}'{nearest(case.state, names)}")
                case.keys = self.keyset(case.keys, types)


def _returns(stmt: A.Stmt) -> bool:
    """True if every path through a statement ends in `return`; loops and switches do not count, as in p4c."""
    match stmt:
        case A.ReturnStmt():
            return True
        case A.BlockStmt():
            return any(map(_returns, stmt.body))
        case A.IfStmt():
            return stmt.other is not None and _returns(stmt.then) and _returns(stmt.other)
    return False


def _reachable(states: Sequence[A.StateDecl]) -> set[str]:
    """The names of the states that can be reached from `start`."""
    known = {s.name: s for s in states}
    found, todo = set[str](), ["start"]
    while todo:
        name = todo.pop()
        if name in found:
            continue
        found.add(name)
        if name in known:
            state = known[name]
            # a select without a matching case rejects
            todo += [c.state for c in state.cases] if state.next_state is None else [state.next_state]
    return found
