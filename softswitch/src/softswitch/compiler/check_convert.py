# SPDX-License-Identifier: Apache-2.0
"""Implicit casts: where a value of another type is expected than is given, a cast node is inserted."""

from __future__ import annotations

from abc import abstractmethod

from softswitch.compiler import ast as A
from softswitch.compiler import types as T
from softswitch.compiler.diagnostics import P4Error
from softswitch.compiler.resolve import Resolver
from softswitch.compiler.types import has_vars


class Converter(Resolver):
    """Inserts the implicit casts of P4_16, and rejects values that cannot become the type that is expected."""

    @abstractmethod
    def expr(self, e: A.Expr, expected: T.Type | None = None) -> A.Expr:
        """Checks an expression; `expected` gives list expressions a type, which they do not have by themselves."""

    def constant(self, expr: A.Expr) -> int:
        checked = self.expr(expr)
        if not isinstance(checked.const, int) or isinstance(checked.const, bool):
            raise P4Error(expr.pos, "expected an integer known at compile time")
        return checked.const

    def rvalue(self, expr: A.Expr, expected: T.Type) -> A.Expr:
        """Checks `expr`, and converts it to the type `expected` where it is given."""
        return self.coerce(self.expr(expr, expected), expected)

    def initial(self, expr: A.Expr, expected: T.Type) -> A.Expr:
        """As `rvalue`, for what is assigned, initialised or returned: an integer becomes a `type` of bit or int there.

        It does so nowhere else, in p4c, and not where the `type` is made of a typedef.
        """
        if isinstance(expected, T.NewType) and expected.decl.syntax.kind in ("bit", "int"):
            checked = self.expr(expr, expected)
            if checked.type == T.INFINT and not isinstance(checked, A.MuxExpr):
                number = self.coerce(checked, expected.base)
                return A.CastExpr(None, number, pos=expr.pos, type=expected, const=number.const)
        return self.rvalue(expr, expected)

    def condition(self, expr: A.Expr) -> A.Expr:
        checked = self.expr(expr, T.BOOL)
        if checked.type != T.BOOL:
            raise P4Error(expr.pos, f"expected a bool, got {checked.type}")
        return checked

    def coerce(self, expr: A.Expr, to: T.Type) -> A.Expr:
        """Inserts the implicit cast from the expression's type to `to`. Raises P4Error where there is none."""
        source = expr.type
        if source == to or to == T.ANY:
            return expr
        if isinstance(expr, A.DefaultValue | A.DontCare | A.InvalidHeader):
            if isinstance(expr, A.InvalidHeader) and not can_be_invalid(to):
                raise P4Error(expr.pos, f"{{#}} is an invalid header, but {to} is wanted")
            expr.type = to
            return expr
        no_list = isinstance(expr, A.NameExpr | A.MemberExpr | A.IndexExpr | A.CallExpr)
        value_of_tuple = isinstance(source, T.Tuple) and no_list
        if not self.assignable(to, source) or (value_of_tuple and isinstance(to, T.Struct)):
            raise P4Error(expr.pos, f"expected {to}, got {source}")
        if isinstance(expr, A.ListExpr | A.StructExpr):
            self.coerce_items(expr, to)
            return expr
        if source == T.INFINT and isinstance(to, T.Bits) and isinstance(expr.const, int):
            value = expr.const
            low = -(1 << (to.width - 1)) if to.width else 0
            if value >= 1 << to.width or value < low:
                self.errors.warn(expr.pos, f"{value:#x} does not fit in {to}, and becomes {to.wrap(value):#x}")
            expr.const, expr.type = to.wrap(value), to
            return expr
        if isinstance(expr, A.MuxExpr) and source == T.INFINT:
            expr.then, expr.other = self.coerce(expr.then, to), self.coerce(expr.other, to)
            expr.type = to
            return expr
        cast = A.CastExpr(None, expr, pos=expr.pos, type=to)
        if isinstance(expr.const, int) and isinstance(to, T.Bits):
            cast.const = to.wrap(expr.const)
        return cast

    def coerce_items(self, expr: A.ListExpr | A.StructExpr, to: T.Type) -> None:
        if isinstance(to, T.TypeVar):
            return
        if isinstance(expr, A.ListExpr):
            if isinstance(to, T.Stack | T.ListOf):
                expr.items = [self.coerce(i, to.item) for i in expr.items]
            else:
                fields = T.fields_of(to)
                assert fields is not None
                expr.items = [self.coerce(i, t) for i, (_, t) in zip(expr.items, fields, strict=False)]
        else:
            types = dict(T.fields_of(to) or [])
            expr.fields = [(n, self.coerce(e, types[n])) for n, e in expr.fields]
        expr.type = to

    def underlying(self, e: A.Expr) -> T.Type:
        t = e.type
        if isinstance(t, T.Enum) and t.base is not None:
            return t.base
        return t

    def numeric(self, e: A.Expr) -> A.Expr:
        """Replaces a value of a serialisable enum by its number where a number is expected."""
        if isinstance(e.type, T.Enum) and e.type.base is not None:
            return self.coerce(e, e.type.base)
        return e

    def castable(self, source: T.Type, to: T.Type) -> bool:
        if (isinstance(to, T.NewType) or isinstance(source, T.NewType)) and source is not to:
            if isinstance(source, T.NewType) and (source.base == to or has_vars(to)):
                return True
            base = to.base if isinstance(to, T.NewType) else None
            return base == source or (source == T.INFINT and isinstance(base, T.Bits)) or has_vars(source)
        if isinstance(source, T.Enum) and source.base is not None and source is not to:
            return self.castable(source.base, to)
        if isinstance(to, T.Enum) and to.base is not None and source is not to:
            return self.castable(source, to.base)
        if source == to or isinstance(source, T.TypeVar) or isinstance(to, T.TypeVar):
            return True
        if source == T.INFINT:
            return isinstance(to, T.Bits) or to == T.BOOL
        if isinstance(source, T.Bits) and isinstance(to, T.Bits):
            return source.signed == to.signed or source.width == to.width
        if isinstance(source, T.Bits) and to == T.BOOL:
            return source == T.Bits(1)
        if isinstance(source, T.Bits) and to == T.INFINT:
            return True
        if source == T.BOOL:
            return to == T.Bits(1)
        return self.assignable(to, source)


def can_be_invalid(t: T.Type) -> bool:
    return isinstance(t, T.Struct) and t.kind in ("header", "header_union")
