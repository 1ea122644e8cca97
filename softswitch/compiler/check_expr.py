# SPDX-License-Identifier: Apache-2.0
"""Type checking of expressions: every node gets its type, implicit casts become Cast nodes, constants are folded."""

from __future__ import annotations

from collections.abc import Sequence

from softswitch.compiler import ast as A
from softswitch.compiler import consteval
from softswitch.compiler import types as T
from softswitch.compiler.diagnostics import P4Error, nearest
from softswitch.compiler.resolve import Resolver

MAX_WIDTH = 1 << 16
_COMPARE = ("<", "<=", ">", ">=")


class ExprChecker(Resolver):
    # ---- entry points -------------------------------------------------------------------------------------------

    def constant(self, expr: A.Expr) -> int:
        checked = self.expr(expr)
        if not isinstance(checked.const, int) or isinstance(checked.const, bool):
            raise P4Error(expr.pos, "expected an integer known at compile time")
        return checked.const

    def rvalue(self, expr: A.Expr, expected: T.Type) -> A.Expr:
        """Checks `expr` where a value of type `expected` is wanted."""
        return self.coerce(self.expr(expr, expected), expected)

    def condition(self, expr: A.Expr) -> A.Expr:
        checked = self.expr(expr, T.BOOL)
        if checked.type != T.BOOL:
            raise P4Error(expr.pos, f"expected a bool, got {checked.type}")
        return checked

    def coerce(self, expr: A.Expr, to: T.Type) -> A.Expr:
        """Inserts the implicit cast from the expression's type to `to`, or says that there is none."""
        source = expr.type
        if source == to or to == T.ANY:
            return expr
        if isinstance(expr, A.DefaultValue | A.DontCare | A.InvalidHeader):
            if isinstance(expr, A.InvalidHeader) and not _can_be_invalid(to):
                raise P4Error(expr.pos, f"{{#}} is an invalid header, but {to} is wanted")
            expr.type = to
            return expr
        if not self.assignable(to, source):
            raise P4Error(expr.pos, f"expected {to}, got {source}")
        if isinstance(expr, A.ListExpr | A.StructExpr):
            self.coerce_items(expr, to)
            return expr
        if source == T.INFINT and isinstance(to, T.Bits) and isinstance(expr.const, int):
            value = expr.const
            low = -(1 << (to.width - 1)) if to.width else 0
            if value >= 1 << to.width or value < low:
                pass  # p4c warns and wraps
            expr.const, expr.type = to.wrap(value), to
            return expr
        if isinstance(expr, A.Mux) and source == T.INFINT:
            expr.then, expr.other = self.coerce(expr.then, to), self.coerce(expr.other, to)
            expr.type = to
            return expr
        cast = A.Cast(None, expr, pos=expr.pos, type=to)
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

    # ---- dispatch -----------------------------------------------------------------------------------------------

    def expr(self, e: A.Expr, expected: T.Type | None = None) -> A.Expr:
        """Checks one expression; `expected` helps list expressions, which have no type of their own."""
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
            case A.Name():
                self.check_name(e)
            case A.Member():
                self.check_member(e)
            case A.Index():
                self.check_index(e)
            case A.Slice():
                self.check_slice(e)
            case A.Unary():
                self.check_unary(e)
            case A.Binary():
                self.check_binary(e)
            case A.Mux():
                self.check_mux(e, expected)
            case A.Cast():
                return self.check_cast(e)
            case A.Call():
                self.check_call(e)
            case A.ListExpr() | A.StructExpr():
                self.check_list(e, expected)
            case A.DontCare() | A.DefaultValue() | A.InvalidHeader():
                e.type = expected or T.ANY
            case A.TypeExpr():
                raise P4Error(e.pos, "expected a value, got a type")
            case _:
                raise AssertionError(e)
        return e

    # ---- names and members --------------------------------------------------------------------------------------

    def check_name(self, e: A.Name) -> None:
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
        """The type that an expression names, or None if it is a value."""
        if isinstance(e, A.TypeExpr):
            return self.resolve(e.syntax)
        if isinstance(e, A.Name):
            found = (self.globals if e.absolute else self.scope).find(e.name)
            if found is not None and self.is_type_decl(found):
                return self.type_of_decl(found, (), e.pos)
        return None

    def check_member(self, e: A.Member) -> None:
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
                    if isinstance(e.base, A.Name) and isinstance(e.base.decl, A.ConstDecl):
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

    def check_index(self, e: A.Index) -> None:
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

    def check_slice(self, e: A.Slice) -> None:
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

    def underlying(self, e: A.Expr) -> T.Type:
        t = e.type
        if isinstance(t, T.Enum) and t.base is not None:
            return t.base
        return t

    # ---- operators ----------------------------------------------------------------------------------------------

    def check_unary(self, e: A.Unary) -> None:
        e.operand = self.expr(e.operand)
        t = e.operand.type
        if e.op == "!":
            if t != T.BOOL:
                raise P4Error(e.pos, f"'!' needs a bool, got {t}")
            e.type = T.BOOL
            e.const = None if e.operand.const is None else not e.operand.const
            return
        e.operand = self.numeric(e.operand)
        t = e.operand.type
        if not T.is_numeric(t) or (e.op == "~" and t == T.INFINT):
            raise P4Error(e.pos, f"'{e.op}' needs a bit or int of known width, got {t}")
        e.type = t
        if e.operand.const is not None:
            e.const = consteval.unary(e.op, e.operand.const, t)

    def numeric(self, e: A.Expr) -> A.Expr:
        """A serialisable enum stands for its number where a number is wanted."""
        if isinstance(e.type, T.Enum) and e.type.base is not None:
            return self.coerce(e, e.type.base)
        return e

    def check_binary(self, e: A.Binary) -> None:
        op = e.op
        e.left, e.right = self.expr(e.left), self.expr(e.right)
        if op in ("&&", "||"):
            for side in (e.left, e.right):
                if side.type != T.BOOL:
                    raise P4Error(side.pos, f"'{op}' needs bools, got {side.type}")
            e.type = T.BOOL
            if isinstance(e.left.const, bool):
                e.const = e.right.const if e.left.const == (op == "&&") else e.left.const
            return
        if op in ("==", "!="):
            self.equalize(e)
            self.fold(e, T.BOOL)
            return
        e.left, e.right = self.numeric(e.left), self.numeric(e.right)
        left, right = e.left.type, e.right.type
        for side in (e.left, e.right):
            if not T.is_numeric(side.type) and not (op == "++" and side.type == T.STRING):
                raise P4Error(side.pos, f"'{op}' needs numbers, got {side.type}")
        if op in ("<<", ">>"):
            if isinstance(right, T.Bits) and right.signed and e.right.const is None:
                raise P4Error(e.right.pos, f"a shift by a signed value ({right}); cast it to bit<{right.width}>")
            if left == T.INFINT and e.right.const is None:
                raise P4Error(e.left.pos, "a shift of an integer of unknown width; give it one, as in 8w1")
            self.fold(e, left)
            return
        if op == "++":
            if left == right == T.STRING:
                e.type = T.STRING
                if e.left.const is not None and e.right.const is not None:
                    e.const = e.left.const + e.right.const
                return
            for side in (e.left, e.right):
                if not isinstance(side.type, T.Bits):
                    raise P4Error(side.pos, "'++' needs operands of known width")
            assert isinstance(left, T.Bits)
            assert isinstance(right, T.Bits)
            e.type = T.Bits(left.width + right.width, left.signed)
            if e.type.width > MAX_WIDTH:
                raise P4Error(e.pos, f"{e.type} is too wide: at most {MAX_WIDTH} bits")
            if e.left.const is not None and e.right.const is not None:
                e.const = consteval.concat(e.left.const, left, e.right.const, right)
            return
        self.same_width(e)
        t = e.left.type
        if op in _COMPARE:
            self.fold(e, T.BOOL)
            return
        if op in ("|+|", "|-|") and t == T.INFINT:
            raise P4Error(e.pos, f"'{op}' needs operands of known width")
        if op in ("&", "|", "^") and t == T.INFINT and (e.left.const is None or e.right.const is None):
            raise P4Error(e.pos, f"'{op}' needs operands of known width")
        if op in ("/", "%") and isinstance(t, T.Bits) and t.signed:
            raise P4Error(e.pos, f"'{op}' is not defined for {t}")
        if op in ("&&&", ".."):
            e.type = t
            return
        self.fold(e, t)

    def same_width(self, e: A.Binary) -> None:
        if e.left.type == T.INFINT and e.right.type != T.INFINT:
            e.left = self.coerce(e.left, e.right.type)
        elif e.right.type == T.INFINT and e.left.type != T.INFINT:
            e.right = self.coerce(e.right, e.left.type)
        if e.left.type != e.right.type:
            raise P4Error(e.pos, f"'{e.op}' needs operands of one type, got {e.left.type} and {e.right.type}")

    def equalize(self, e: A.Binary) -> None:
        """Brings the sides of == and != to one type."""
        if e.left.type != e.right.type:
            if self.assignable(e.left.type, e.right.type) and not isinstance(e.left, A.ListExpr | A.StructExpr):
                e.right = self.coerce(e.right, e.left.type)
            elif self.assignable(e.right.type, e.left.type):
                e.left = self.coerce(e.left, e.right.type)
            elif not (isinstance(e.left.type, T.Varbit) and isinstance(e.right.type, T.Varbit)):
                raise P4Error(e.pos, f"cannot compare {e.left.type} with {e.right.type}")
        if isinstance(e.left.type, T.Declared) or e.left.type in (T.ANY, T.VOID):
            raise P4Error(e.pos, f"values of type {e.left.type} cannot be compared")

    def fold(self, e: A.Binary, result: T.Type) -> None:
        e.type = result
        a, b = e.left.const, e.right.const
        if a is None or b is None:
            if e.op in ("/", "%") and b == 0 and b is not None:
                raise P4Error(e.right.pos, "division by zero")
            return
        if isinstance(a, str):
            e.const = (a == b) == (e.op == "==")
            return
        try:
            e.const = consteval.binary(e.op, a, b, e.left.type)
        except consteval.ConstError as error:
            raise P4Error(e.pos, str(error)) from None

    def check_mux(self, e: A.Mux, expected: T.Type | None) -> None:
        e.condition = self.condition(e.condition)
        e.then, e.other = self.expr(e.then, expected), self.expr(e.other, expected)
        if e.then.type != e.other.type:
            if self.assignable(e.then.type, e.other.type):
                e.other = self.coerce(e.other, e.then.type)
            elif self.assignable(e.other.type, e.then.type):
                e.then = self.coerce(e.then, e.other.type)
            else:
                raise P4Error(e.pos, f"the branches of ?: have types {e.then.type} and {e.other.type}")
        e.type = e.then.type
        if isinstance(e.condition.const, bool):
            e.const = (e.then if e.condition.const else e.other).const

    def check_cast(self, e: A.Cast) -> A.Expr:
        assert e.to is not None
        to = self.resolve(e.to)
        e.operand = self.expr(e.operand, to)
        source = e.operand.type
        e.type = to
        if isinstance(e.operand, A.ListExpr | A.StructExpr | A.InvalidHeader | A.DefaultValue):
            return self.coerce(e.operand, to)
        if not self.castable(source, to):
            raise P4Error(e.pos, f"no cast from {source} to {to}")
        value = e.operand.const
        while isinstance(to, T.NewType):
            to = to.base
        if isinstance(to, T.Enum) and to.base is not None:
            to = to.base
        if isinstance(value, int) and isinstance(to, T.Bits):
            e.const = to.wrap(int(value))
        elif isinstance(value, int) and to == T.BOOL:
            e.const = bool(value)
        elif value is not None and (source == to or to == T.INFINT):
            e.const = int(value)
        return e

    def castable(self, source: T.Type, to: T.Type) -> bool:
        if isinstance(source, T.NewType) or isinstance(to, T.NewType):
            base = source.base if isinstance(source, T.NewType) else source
            target = to.base if isinstance(to, T.NewType) else to
            return self.castable(base, target)
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

    def check_call(self, e: A.Call) -> None:
        raise NotImplementedError


def _can_be_invalid(t: T.Type) -> bool:
    return isinstance(t, T.Struct) and t.kind in ("header", "header_union")


def _member_const(value: A.Expr, name: str) -> int | bool | None:
    """A field of a constant struct."""
    if isinstance(value, A.Cast):
        value = value.operand
    if isinstance(value, A.StructExpr):
        return next((v.const for n, v in value.fields if n == name), None)
    if isinstance(value, A.ListExpr):
        fields = [n for n, _ in T.fields_of(value.type) or []]
        return value.items[fields.index(name)].const if name in fields[: len(value.items)] else None
    return None
