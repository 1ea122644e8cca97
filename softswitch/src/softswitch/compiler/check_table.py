# SPDX-License-Identifier: Apache-2.0
"""Type checking of tables: keys and their match kinds, actions and their arguments, entries, properties."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from softswitch.compiler import ast as A
from softswitch.compiler import types as T
from softswitch.compiler.check_stmt import StmtChecker
from softswitch.compiler.diagnostics import P4Error, Pos, nearest


class TableChecker(StmtChecker):
    """Checks tables, actions and the key sets of entries and select cases."""

    def keyset(self, keys: list[A.Expr], types: Sequence[T.Type]) -> list[A.Expr]:
        """Checks the keys of a select case or of an entry against the types that they are compared with."""
        at = keys[0].pos
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
                if isinstance(key, A.NameExpr) and isinstance(key.decl, A.ValueSetDecl):
                    return [key]
        if len(keys) != len(types):
            raise P4Error(at, f"expected {len(types)} keys, got {len(keys)}")
        return [self.key(k, t) for k, t in zip(keys, types, strict=True)]

    def key(self, key: A.Expr, t: T.Type) -> A.Expr:
        if isinstance(key, A.DontCare | A.DefaultValue):
            key.type = t
            return A.DontCare(pos=key.pos, type=t)
        if isinstance(t, T.NewType):  # as p4c: no masks or ranges of them, and no integer becomes one here
            checked = self.expr(key)
            if checked.type is not t:
                raise P4Error(key.pos, f"expected {t}, got {checked.type}: cast it, as in ({t})3")
            return checked
        if isinstance(key, A.BinaryExpr) and key.op in ("&&&", ".."):
            base = t.base if isinstance(t, T.Enum) and t.base is not None else t
            key.left, key.right = self.key(key.left, base), self.key(key.right, base)
            key.type = t
            return key
        checked = self.expr(key, t)
        if isinstance(checked, A.NameExpr) and isinstance(checked.decl, A.ValueSetDecl):
            return checked
        if isinstance(checked.type, T.Bits) and isinstance(t, T.Enum) and t.base == checked.type:
            return checked
        return self.coerce(checked, t)

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
            if name == "default_action":
                table.default = self.action_use(prop.value, table, unless="tableonly")
            elif name in ("size", "priority_delta"):
                prop.value = self.rvalue(prop.value, T.INFINT) if self._is_infint(prop) else self.expr(prop.value)
                known = isinstance(prop.value.const, int) or self.is_static(prop.value)
                if not known or not T.is_numeric(prop.value.type) or (prop.value.const or 0) < 0:
                    raise P4Error(prop.pos, f"table property '{name}' needs a positive integer known at compile time")
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
                    entry.ref = self.action_use(entry.action, table, unless="defaultonly")
                    if entry.priority is not None:
                        entry.priority = self.expr(entry.priority)
                        self.constant(entry.priority)
                except P4Error as error:
                    self.errors.add(error)

    def is_static(self, e: A.Expr) -> bool:
        """True if a number is known once the control is instantiated: it consists of constants and of parameters of the
        constructor."""
        match e:
            case A.IntLit():
                return True
            case A.NameExpr():
                return isinstance(e.decl, A.ConstDecl) or (isinstance(e.decl, A.Param) and not e.decl.direction)
            case A.BinaryExpr():
                return self.is_static(e.left) and self.is_static(e.right)
            case A.UnaryExpr() | A.CastExpr():
                return self.is_static(e.operand)
        return e.const is not None

    def _is_infint(self, prop: A.TableProperty) -> bool:
        prop.value = self.expr(prop.value)
        return prop.value.type == T.INFINT

    def action_decl(self, e: A.Expr) -> tuple[A.ActionDecl, list[A.Arg], bool]:
        called = isinstance(e, A.CallExpr)
        name = e.function if isinstance(e, A.CallExpr) else e
        if not isinstance(name, A.NameExpr):
            raise P4Error(e.pos, "expected the name of an action")
        decl = self.lookup(name.name, name.pos, name.absolute)
        if not isinstance(decl, A.ActionDecl):
            raise P4Error(name.pos, f"'{name.name}' is not an action")
        return decl, e.args if isinstance(e, A.CallExpr) else [], called

    def action_ref(self, ref: A.ActionRef) -> None:
        """`a` or `a(x, y)` in a table's list: arguments bind the parameters that have a direction."""
        ref.decl, args, _ = self.action_decl(ref.expr)
        directed = [p for p in ref.decl.params if p.direction]
        if len(args) != len(directed):
            want = len(directed)
            raise P4Error(ref.pos, f"action {ref.decl.name} needs {want} arguments here (those with a direction)")
        ref.bound = self.bind_args(ref.decl, directed, args, ref.pos)
        applied = next((at for arg in ref.bound.values() for at in _applied(arg)), None)
        if applied is not None:
            raise P4Error(applied.pos, "a table cannot be applied in the arguments of another table's action")

    def bind_args(self, decl: A.ActionDecl, params: list[A.Param], args: list[A.Arg], pos: Pos) -> dict[str, A.Expr]:
        call = A.CallExpr(A.NameExpr(decl.name, pos=pos), [], args, pos=pos)
        self.bind(call, params, decl.name)
        return self.check_args(params, call.bound, decl.name)

    def action_use(self, e: A.Expr, table: A.TableDecl, unless: str) -> A.ActionRef:
        """Checks the action of an entry or default_action, which gives the parameters without direction their values.

        unless: the annotation in the table's list that forbids the action here.
        """
        decl, args, _ = self.action_decl(e)
        listed = next((r for r in table.actions if r.decl is decl), None)
        if listed is None:
            raise P4Error(e.pos, f"action {decl.name} is not in the actions of table {table.name}")
        if any(note.name == unless for note in listed.annotations):
            raise P4Error(e.pos, f"action {decl.name} is @{unless} in table {table.name}")
        plain = [p for p in decl.params if not p.direction]
        ref = A.ActionRef(pos=e.pos, expr=e, annotations=[], decl=decl)
        if len(args) == len(plain) or any(a.name for a in args):
            ref.bound = self.bind_args(decl, plain, args, e.pos)
        elif len(args) == len(decl.params):
            ref.bound = self.bind_args(decl, decl.params, args, e.pos)
            for p in decl.params:
                if p.direction and not _same(ref.bound[p.name], listed.bound[p.name]):
                    pos = ref.bound[p.name].pos
                    raise P4Error(pos, f"'{p.name}' is bound to something else in the actions of table {table.name}")
        else:
            raise P4Error(e.pos, f"action {decl.name} takes {len(plain)} arguments, got {len(args)}")
        for p in plain:
            ref.bound.setdefault(p.name, p.default)  # type: ignore[arg-type]
        return ref


def _same(a: A.Expr, b: A.Expr) -> bool:
    """True if two checked expressions have the same syntax."""
    if a.const is not None or b.const is not None:
        return bool(a.const == b.const)
    match a, b:
        case A.NameExpr(), A.NameExpr():
            return a.decl is b.decl
        case A.MemberExpr(), A.MemberExpr():
            return a.name == b.name and _same(a.base, b.base)
        case A.IndexExpr(), A.IndexExpr():
            return _same(a.base, b.base) and _same(a.index, b.index)
        case A.SliceExpr(), A.SliceExpr():
            return _same(a.base, b.base) and _same(a.hi, b.hi) and _same(a.lo, b.lo)
        case A.UnaryExpr(), A.UnaryExpr():
            return a.op == b.op and _same(a.operand, b.operand)
        case A.CastExpr(), A.CastExpr():
            return a.type == b.type and _same(a.operand, b.operand)
        case A.BinaryExpr(), A.BinaryExpr():
            return a.op == b.op and _same(a.left, b.left) and _same(a.right, b.right)
        case A.CallExpr(), A.CallExpr():
            return (
                _same(a.function, b.function)
                and len(a.args) == len(b.args)
                and all(_same(x.value, y.value) for x, y in zip(a.args, b.args, strict=True))
            )
    return False


def _applied(e: A.Expr) -> Iterator[A.CallExpr]:
    """The calls of apply() in an expression."""
    if isinstance(e, A.CallExpr):
        if e.builtin == "apply":
            yield e
        for arg in e.args:
            yield from _applied(arg.value)
    for part in vars(e).values():
        if isinstance(part, A.Expr):
            yield from _applied(part)
