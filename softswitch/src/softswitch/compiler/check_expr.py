# SPDX-License-Identifier: Apache-2.0
"""Type checking of expressions: every node gets its type; names, members, elements, slices, lists."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from softswitch.compiler import ast as A
from softswitch.compiler import types as T
from softswitch.compiler.check_convert import can_be_invalid
from softswitch.compiler.check_operator import OperatorChecker
from softswitch.compiler.diagnostics import P4Error, nearest


class ExprChecker(OperatorChecker):
    """Gives each expression its type, and its value where that is known at compile time."""

    # ---- dispatch -----------------------------------------------------------------------------------------------

    def expr(self, e: A.Expr, expected: T.Type | None = None) -> A.Expr:
        """Checks an expression; `expected` gives list expressions a type, which they do not have by themselves."""
        if e.type is not None:
            return e
        match e:
            case A.IntLit():
                e.type = T.INFINT if e.width is None else T.Bits(e.width, e.signed)
                e.const = e.value
            case A.BoolLit():
                e.type, e.const = T.BOOL, e.value
            case A.StrLit():
                e.type, e.const = T.STRING, e.value
            case A.NameExpr():
                self.check_name(e)
            case A.MemberExpr():
                self.check_member(e)
            case A.IndexExpr():
                self.check_index(e)
            case A.SliceExpr():
                self.check_slice(e)
            case A.UnaryExpr():
                self.check_unary(e)
            case A.BinaryExpr():
                self.check_binary(e)
            case A.MuxExpr():
                self.check_mux(e, expected)
            case A.CastExpr():
                return self.check_cast(e)
            case A.CallExpr():
                self.check_call(e)
            case A.ListExpr() | A.StructExpr():
                self.check_list(e, expected)
            case A.InvalidHeader():
                if expected is not None and expected != T.ANY and not can_be_invalid(expected):
                    raise P4Error(e.pos, f"{{#}} is an invalid header, but {expected} is wanted")
                e.type = expected or T.ANY
            case A.DontCare() | A.DefaultValue():
                e.type = expected or T.ANY
            case A.TypeExpr():
                raise P4Error(e.pos, "expected a value, got a type")
            case _:
                raise AssertionError(e)
        return e

    # ---- names and members --------------------------------------------------------------------------------------

    def check_name(self, e: A.NameExpr) -> None:
        e.decl = decl = self.lookup(e.name, e.pos, e.absolute)
        match decl:
            case A.ConstDecl():
                e.type, e.const = decl.type, decl.value.const
            case A.VarDecl() | A.Param() | A.InstanceDecl() | A.ValueSetDecl():
                e.type = decl.type
            case A.TableDecl():
                e.type = T.Declared("table", decl.name, decl)
            case A.ActionDecl():
                e.type = T.Declared("action", decl.name, decl)
            case _:
                what = "a function" if isinstance(decl, list) else "a type"
                raise P4Error(e.pos, f"expected a value, but '{e.name}' is {what}")
        if e.type is None:
            raise P4Error(e.pos, f"'{e.name}' is used in its own declaration")

    def type_named(self, e: A.Expr) -> T.Type | None:
        """The type that an expression names, or None where it is a value."""
        if isinstance(e, A.TypeExpr):
            return self.resolve(e.syntax)
        if isinstance(e, A.NameExpr):
            found = (self.globals if e.absolute else self.scope).find(e.name)
            if found is not None and self.is_type_decl(found):
                return self.type_of_decl(found, (), e.pos)
        return None

    def check_member(self, e: A.MemberExpr) -> None:
        named = self.type_named(e.base)
        if named is not None:
            while isinstance(named, T.NewType):
                named = named.base
            if isinstance(named, T.Enum):
                if e.name not in named.members:
                    raise P4Error(e.pos, f"enum {named} has no member '{e.name}'{nearest(e.name, named.members)}")
                e.type, e.const = named, named.members[e.name]
                return
            if named == T.ERROR:
                if e.name not in self.error_names:
                    raise P4Error(e.pos, f"no error '{e.name}' is declared{nearest(e.name, self.error_names)}")
                e.type, e.const = T.ERROR, self.error_names.index(e.name)
                return
            raise P4Error(e.pos, f"type {named} has no members")
        e.base = self.expr(e.base)
        base = e.base.type
        while isinstance(base, T.NewType):
            base = base.base
        fields = T.fields_of(base)
        if fields is not None:
            for name, t in fields:
                if name == e.name:
                    e.type = t
                    if isinstance(e.base, A.NameExpr) and isinstance(e.base.decl, A.ConstDecl):
                        e.const = _member_const(e.base.decl.value, name)
                    return
            kind = base.kind if isinstance(base, T.Struct) else "type"
            raise P4Error(e.pos, f"no field '{e.name}' in {kind} {base}{nearest(e.name, [n for n, _ in fields])}")
        if isinstance(base, T.Stack):
            if e.name in ("next", "last"):
                e.type = base.item
                return
            if e.name in ("lastIndex", "size", "nextIndex"):
                e.type = T.Bits(32)
                e.const = base.size if e.name == "size" else None
                return
            raise P4Error(e.pos, f"a header stack has no member '{e.name}'")
        if isinstance(base, T.OfTable) and base.kind == "result":
            if e.name in ("hit", "miss"):
                e.type = T.BOOL
                return
            if e.name == "action_run":
                e.type = T.OfTable("actions", base.table)
                return
            raise P4Error(e.pos, f"the result of apply() has hit, miss and action_run, not '{e.name}'")
        raise P4Error(e.pos, f"a value of type {base} has no member '{e.name}'")

    def check_index(self, e: A.IndexExpr) -> None:
        e.base = self.expr(e.base)
        base = e.base.type
        e.index = self.expr(e.index)
        if isinstance(base, T.Tuple):
            i = self.constant(e.index)
            if not 0 <= i < len(base.items):
                raise P4Error(e.pos, f"index {i} in a tuple of {len(base.items)}")
            e.type = base.items[i]
            return
        if not isinstance(base, T.Stack):
            raise P4Error(e.pos, f"a value of type {base} cannot be indexed")
        if isinstance(e.index.type, T.Enum) and e.index.type.base:
            e.index = self.coerce(e.index, e.index.type.base)
        if not T.is_numeric(e.index.type):
            raise P4Error(e.index.pos, f"expected an integer as index, got {e.index.type}")
        if e.index.const is not None and not 0 <= e.index.const < base.size:
            raise P4Error(e.index.pos, f"index {e.index.const} in a stack of {base.size}")
        e.index = self.coerce(e.index, T.Bits(32)) if e.index.type == T.INFINT else e.index
        e.type = base.item

    def check_slice(self, e: A.SliceExpr) -> None:
        e.base = self.expr(e.base)
        base = self.underlying(e.base)
        if e.width is not None:
            lo = self.constant(e.lo)
            hi = lo + self.constant(e.width) - 1
            e.hi = A.IntLit(hi, pos=e.pos, type=T.INFINT, const=hi)
        hi, lo = self.constant(e.hi), self.constant(e.lo)
        if base == T.INFINT:
            if e.base.const is None:
                raise P4Error(e.pos, "a slice of an integer of unknown width")
        elif not isinstance(base, T.Bits):
            raise P4Error(e.pos, f"a slice of a {base}; only bit and int have slices")
        elif hi >= base.width:
            raise P4Error(e.pos, f"bit {hi} of a {base}")
        if lo < 0 or hi < lo:
            raise P4Error(e.pos, f"slice [{hi}:{lo}]: the first bit must not be below the last")
        e.type = T.Bits(hi - lo + 1)
        if e.base.const is not None:
            e.const = e.type.wrap(e.base.const >> lo)

    def check_list(self, e: A.ListExpr | A.StructExpr, expected: T.Type | None) -> None:
        base = expected
        while isinstance(base, T.NewType):
            base = base.base
        if isinstance(e, A.StructExpr):
            types = dict(T.fields_of(base) or []) if isinstance(base, T.Struct | T.Record) else {}
            seen = set()
            for name, value in e.fields:
                if name in seen:
                    raise P4Error(value.pos, f"field '{name}' is given twice")
                seen.add(name)
                if types and name not in types:
                    raise P4Error(value.pos, f"{base} has no field '{name}'{nearest(name, types)}")
            e.fields = [(n, self.expr(v, types.get(n))) for n, v in e.fields]
            if types and (e.rest or set(types) <= seen) and expected is not None:
                e.fields = [(n, self.coerce(v, types[n])) for n, v in e.fields]
                e.type = expected
            elif types:
                missing = ", ".join(n for n in types if n not in seen)
                raise P4Error(e.pos, f"{base} needs values for {missing} too")
            else:
                e.type = T.Record(tuple((n, v.type) for n, v in e.fields))
            return
        if isinstance(base, T.Stack | T.ListOf):
            items: Sequence[T.Type] = [base.item] * len(e.items)
            if isinstance(base, T.Stack) and len(e.items) > base.size:
                raise P4Error(e.pos, f"{len(e.items)} values for {base}")
        else:
            items = [t for _, t in (T.fields_of(base) or [])] if base is not None else []
            if items and (len(e.items) > len(items) or (len(e.items) < len(items) and not e.rest)):
                raise P4Error(e.pos, f"{base} has {len(items)} fields, got {len(e.items)} values")
        if items and expected is not None and not isinstance(base, T.Basic):
            e.items = [self.rvalue(v, t) for v, t in zip(e.items, items, strict=False)]
            e.type = expected
        else:
            e.items = [self.expr(v) for v in e.items]
            e.type = T.Tuple(tuple(v.type for v in e.items))

    @abstractmethod
    def check_call(self, e: A.CallExpr) -> None:
        """Checks a call; defined in check_call.py."""


def _member_const(value: A.Expr, name: str) -> int | bool | None:
    """A field of a constant struct."""
    if isinstance(value, A.CastExpr):
        value = value.operand
    if isinstance(value, A.StructExpr):
        return next((v.const for n, v in value.fields if n == name), None)
    if isinstance(value, A.ListExpr):
        fields = [n for n, _ in T.fields_of(value.type) or []]
        return value.items[fields.index(name)].const if name in fields[: len(value.items)] else None
    return None
