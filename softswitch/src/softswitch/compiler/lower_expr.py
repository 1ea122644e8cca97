# SPDX-License-Identifier: Apache-2.0
"""From typed syntax to IR: l-values and expressions.

Lowering an expression returns a value without effects; whatever has effects (calls, table applications, lookahead) was
appended to `self.out` before. Where an operand on the right has effects, the one on the left is saved first.
Values of struct, header and stack type are always l-values: a variable of the program or a temporary.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from softswitch.compiler import ast as A
from softswitch.compiler import ir
from softswitch.compiler import types as T
from softswitch.compiler.consteval import ConstError, binary, concat, unary
from softswitch.compiler.diagnostics import P4Error, Unsupported
from softswitch.compiler.ir import FALSE, TRUE, U32
from softswitch.compiler.lower_base import ApplyResult, Lowering

_PURE = {"isValid", "minSizeInBits", "minSizeInBytes", "maxSizeInBits", "maxSizeInBytes"}


def has_effects(e: Any) -> bool:
    """True if evaluating this may change anything, or emit instructions."""
    if e is None or getattr(e, "const", None) is not None:
        return False
    match e:
        case A.CallExpr():
            if e.builtin in _PURE:
                return has_effects(e.function)
            return True
        case A.MemberExpr(name="next" | "last", base=A.Expr(type=T.Stack())):
            return True  # may raise StackOutOfBounds
        case A.MemberExpr() | A.SliceExpr():
            return has_effects(e.base)
        case A.IndexExpr():
            return has_effects(e.base) or has_effects(e.index)
        case A.UnaryExpr() | A.CastExpr():
            return has_effects(e.operand)
        case A.BinaryExpr():
            return has_effects(e.left) or has_effects(e.right)
        case A.MuxExpr():
            return any(map(has_effects, (e.condition, e.then, e.other)))
        case A.ListExpr():
            return any(map(has_effects, e.items))
        case A.StructExpr():
            return any(has_effects(v) for _, v in e.fields)
    return False


class ExprLowering(Lowering, ABC):
    """Lowers expressions."""

    def scalar_const(self, e: A.Expr) -> ir.Const | None:
        """The value of an expression that is known at compile time, or None."""
        if isinstance(e.const, bool):
            return TRUE if e.const else FALSE
        if isinstance(e.const, int):
            t = self.type(e.type, e.pos)
            if isinstance(t, T.Bits | T.Basic):
                return ir.const(e.const, t)
        return None

    def expr(self, e: A.Expr) -> ir.Value:
        known = self.scalar_const(e)
        if known is not None:
            return known
        if id(e) in self.known:
            return self.known[id(e)]
        match e:
            case A.NameExpr():
                return self.name(e)
            case A.MemberExpr():
                return self.member(e)
            case A.IndexExpr():
                return self.index(e)
            case A.SliceExpr():
                return self.slice(self.expr(e.base), e)
            case A.UnaryExpr():
                a = self.expr(e.operand)
                return self.un(e.op, a) if e.op != "+" else a
            case A.BinaryExpr():
                return self.binary(e)
            case A.MuxExpr():
                return self.mux(e)
            case A.CastExpr():
                return self.cast(self.expr(e.operand), self.type(e.type, e.pos))
            case A.CallExpr():
                result = self.call(e)
                if not isinstance(result, ir.Value):
                    raise P4Error(e.pos, "this call has no value that can be used here")
                return result
            case A.ListExpr() | A.StructExpr() | A.InvalidHeader() | A.DefaultValue():
                var = self.local("value", self.type(e.type, e.pos))
                self.store(var, e)
                return var
            case A.StrLit():
                raise P4Error(e.pos, "a string can only be an argument of log_msg or an annotation")
        raise Unsupported(e.pos, "this expression is not supported here")

    @abstractmethod
    def call(self, e: A.CallExpr) -> Any:
        """Lowers a call; defined in lower_call.py."""

    @abstractmethod
    def store(self, dst: ir.LValue, e: A.Expr) -> None:
        """Lowers an assignment; defined in lower_stmt.py."""

    def saved(self, e: A.Expr, *later: Any) -> ir.Value:
        """Lowers `e`, and saves its value where something that is evaluated later has effects."""
        value = self.expr(e)
        if isinstance(value, ir.Const) or not any(map(has_effects, later)):
            return value
        return self.temp(value)

    def name(self, e: A.NameExpr) -> ir.Value:
        if isinstance(e.decl, A.ConstDecl):
            return self.expr(e.decl.value)
        bound = self.bindings.get(id(e.decl))
        if isinstance(bound, ir.Value):
            return bound
        if isinstance(bound, A.Expr):  # a constructor argument that is a list or the like
            return self.expr(bound)
        raise P4Error(e.pos, f"'{e.name}' cannot be used as a value here")

    def member(self, e: A.MemberExpr) -> ir.Value:
        base_type = self.actual(e.base.type)
        if isinstance(base_type, T.OfTable):
            result = self.apply_result(e.base)
            if e.name == "action_run":
                return result.run
            return result.hit if e.name == "hit" else self.un("!", result.hit)
        base = self.expr(e.base)
        if isinstance(base_type, T.Stack):
            return self.stack_member(base, base_type, e)
        assert isinstance(base, ir.LValue), base
        assert isinstance(base.type, ir.RecordType)
        return ir.Field(base.type.fields[e.name], base, e.name)

    def apply_result(self, e: A.Expr) -> ApplyResult:
        if isinstance(e, A.CallExpr):
            result = self.call(e)
            assert isinstance(result, ApplyResult)
            return result
        raise P4Error(e.pos, "the result of apply() must be used at once")

    def stack_member(self, stack: ir.Value, t: T.Stack, e: A.MemberExpr) -> ir.Value:
        assert isinstance(stack, ir.LValue)
        if e.name == "size":
            return ir.const(t.size, U32)
        if not self.in_parser:
            raise P4Error(e.pos, f"'{e.name}' of a header stack can only be used in a parser")
        count = ir.NextIndex(U32, stack)
        if e.name == "nextIndex":
            return count
        if e.name == "lastIndex":
            return self.bin("-", count, ir.const(1, U32), U32)
        bad = (
            self.bin(">=", count, ir.const(t.size, U32), T.BOOL)
            if e.name == "next"
            else self.bin("==", count, ir.const(0, U32), T.BOOL)
        )
        self.raise_if(bad, "StackOutOfBounds")
        item = self.type(t.item)
        at = count if e.name == "next" else self.bin("-", count, ir.const(1, U32), U32)
        return ir.StackElement(item, stack, at)

    def raise_if(self, condition: ir.Value, error: str) -> None:
        code = ir.const(self.program.errors.index(error), U32)
        self.emit(ir.If(condition, [ir.ParserError(code, pos=self.pos)], []))

    def index(self, e: A.IndexExpr) -> ir.Value:
        base_type = self.actual(e.base.type)
        base = self.saved(e.base, e.index) if not isinstance(base_type, T.Stack) else self.expr(e.base)
        assert isinstance(base, ir.LValue)
        if isinstance(base.type, ir.RecordType):  # a tuple
            name = f"f{e.index.const}"
            return ir.Field(base.type.fields[name], base, name)
        at = self.expr(e.index)
        if not isinstance(at, ir.Const):
            at = self.temp(self.cast(at, U32), "index")
        assert isinstance(base.type, ir.StackType)
        return ir.StackElement(base.type.item, base, at)

    def slice(self, base: ir.Value, e: A.SliceExpr) -> ir.Value:
        hi, lo = e.hi.const, e.lo.const
        if isinstance(base, ir.Const):
            return ir.const(base.value >> lo, T.Bits(hi - lo + 1))
        if isinstance(base, ir.Slice):
            return ir.Slice(T.Bits(hi - lo + 1), base.a, base.lo + lo)
        if lo == 0 and hi + 1 == ir.bits_of(base.type):
            return self.cast(base, T.Bits(hi + 1))
        return ir.Slice(T.Bits(hi - lo + 1), base, lo)

    # ---- operators, folding constants ------------------------------------------------------------------------------

    def un(self, op: str, a: ir.Value) -> ir.Value:
        if isinstance(a, ir.Const):
            if op == "!":
                return FALSE if a.value else TRUE
            assert isinstance(a.type, T.Bits)
            return ir.const(unary(op, a.value, a.type), a.type)
        if op == "!" and isinstance(a, ir.UnaryOp) and a.op == "!":
            return a.a
        return ir.UnaryOp(a.type, op, a)

    def bin(self, op: str, a: ir.Value, b: ir.Value, t: ir.Type) -> ir.Value:
        if isinstance(a, ir.Const) and isinstance(b, ir.Const) and op not in ("&&", "||"):
            if op == "++":
                assert isinstance(a.type, T.Bits)
                assert isinstance(b.type, T.Bits)
                return ir.const(concat(a.value, a.type, b.value, b.type), t)
            kind = a.type if isinstance(a.type, T.Bits) else U32
            try:
                value = binary(op, _signed(a, kind), _signed(b, b.type), kind)
            except ConstError as error:
                raise P4Error(self.pos, str(error)) from None
            return ir.const(int(value), t)
        if op == "&&":
            if isinstance(a, ir.Const):
                return b if a.value else FALSE
            if isinstance(b, ir.Const) and b.value:
                return a
        if op == "||":
            if isinstance(a, ir.Const):
                return TRUE if a.value else b
            if isinstance(b, ir.Const) and not b.value:
                return a
        return ir.BinaryOp(t, op, a, b)

    def cast(self, a: ir.Value, t: ir.Type) -> ir.Value:
        if a.type == t or not ir.is_scalar(t):
            return a
        if isinstance(a, ir.Const):
            return ir.const(_signed(a, a.type), t)
        if isinstance(t, T.Bits) and isinstance(a.type, T.Bits) and t.width == 0:
            return ir.const(0, t)
        return ir.Cast(t, a)

    def binary(self, e: A.BinaryExpr) -> ir.Value:
        op = e.op
        if op in ("&&", "||"):
            return self.short_circuit(e)
        left = self.saved(e.left, e.right)
        right = self.expr(e.right)
        if op in ("==", "!="):
            same = self.equal(left, right)
            return same if op == "==" else self.un("!", same)
        if op in ("/", "%") and not (isinstance(left, ir.Const) and isinstance(right, ir.Const)):
            return self.divide(op, left, right, e)
        return self.bin(op, left, right, self.type(e.type, e.pos))

    def divide(self, op: str, left: ir.Value, right: ir.Value, e: A.BinaryExpr) -> ir.Value:
        """Division by a constant power of two becomes a shift or a mask, as in p4c; targets cannot divide otherwise."""
        if isinstance(right, ir.Const) and right.value and right.value & (right.value - 1) == 0:
            t = left.type
            if op == "/":
                return self.bin(">>", left, ir.const(right.value.bit_length() - 1, U32), t)
            return self.bin("&", left, ir.const(right.value - 1, t), t)
        if isinstance(left, ir.Const) and left.value == 0:
            return left
        raise Unsupported(e.pos, f"'{op}' of values that are not known at compile time is not supported")

    def short_circuit(self, e: A.BinaryExpr) -> ir.Value:
        left = self.expr(e.left)
        if not has_effects(e.right) or isinstance(left, ir.Const):
            if isinstance(left, ir.Const) and bool(left.value) == (e.op == "||"):
                return left
            return self.bin(e.op, left, self.expr(e.right), T.BOOL)
        result = self.temp(left)
        body: list[ir.Instruction] = []
        with self.into(body):
            self.emit(ir.Assign(result, self.expr(e.right)))
        self.emit(ir.If(result if e.op == "&&" else self.un("!", result), body, []))
        return result

    def mux(self, e: A.MuxExpr) -> ir.Value:
        condition = self.expr(e.condition)
        if isinstance(condition, ir.Const):
            return self.expr(e.then if condition.value else e.other)
        t = self.type(e.type, e.pos)
        if ir.is_scalar(t) and not has_effects(e.then) and not has_effects(e.other):
            return ir.Mux(t, condition, self.expr(e.then), self.expr(e.other))
        result = self.local("mux", t)
        branches: list[list[ir.Instruction]] = [[], []]
        for body, value in zip(branches, (e.then, e.other), strict=True):
            with self.into(body):
                self.store(result, value)
        self.emit(ir.If(condition, *branches))
        return result

    def equal(self, a: ir.Value, b: ir.Value) -> ir.Value:
        """The equality of two values of the same type."""
        t = a.type
        match t:
            case ir.StackType():
                assert isinstance(a, ir.LValue)
                assert isinstance(b, ir.LValue)
                places = [ir.const(i, U32) for i in range(t.size)]
                parts = [
                    self.equal(ir.StackElement(t.item, a, at), ir.StackElement(t.item, b, at)) for at in places
                ]
            case ir.RecordType():
                assert isinstance(a, ir.LValue)
                assert isinstance(b, ir.LValue)
                parts = [self.equal(ir.Field(f, a, n), ir.Field(f, b, n)) for n, f in t.fields.items()]
            case _:
                return self.bin("==", a, b, T.BOOL)
        same: ir.Value = TRUE
        for part in parts:
            same = self.bin("&&", same, part, T.BOOL)
        if isinstance(t, ir.RecordType) and t.kind == "header":
            va, vb = ir.Valid(T.BOOL, a), ir.Valid(T.BOOL, b)
            both = self.bin("&&", self.bin("&&", va, vb, T.BOOL), same, T.BOOL)
            neither = self.bin("&&", self.un("!", va), self.un("!", vb), T.BOOL)
            return self.bin("||", neither, both, T.BOOL)
        return same

    def valid(self, header: ir.Value) -> ir.Value:
        """isValid() of a header, or of a union, which is valid when one of its headers is."""
        assert isinstance(header, ir.LValue)
        if isinstance(header.type, ir.RecordType) and header.type.kind == "union":
            found: ir.Value = FALSE
            for name, f in header.type.fields.items():
                found = self.bin("||", found, ir.Valid(T.BOOL, ir.Field(f, header, name)), T.BOOL)
            return found
        return ir.Valid(T.BOOL, header)

    # ---- flattening ---------------------------------------------------------------------------------------------

    def flatten(self, e: A.Expr) -> list[ir.Value]:
        """The leaves of a struct, header, tuple or list, in order; a varbit is one leaf."""
        if isinstance(e, A.ListExpr):
            return [leaf for item in e.items for leaf in self.flatten(item)]
        if isinstance(e, A.StructExpr):
            order = [n for n, _ in T.fields_of(self.actual(e.type)) or []]
            values = dict(e.fields)
            return [leaf for n in order if n in values for leaf in self.flatten(values[n])]
        if isinstance(e, A.CastExpr) and isinstance(e.operand, A.ListExpr | A.StructExpr):
            return self.flatten(e.operand)
        if self.actual(e.type) == T.INFINT:
            raise P4Error(e.pos, "a number of unknown width in a list of fields; write 16w0 instead of 0")
        return leaves(self.expr(e))


def leaves(value: ir.Value) -> list[ir.Value]:
    """The scalars and varbits that a value consists of."""
    match value.type:
        case ir.RecordType() as rec:
            assert isinstance(value, ir.LValue)
            return [leaf for n, f in rec.fields.items() for leaf in leaves(ir.Field(f, value, n))]
        case ir.StackType() as arr:
            assert isinstance(value, ir.LValue)
            elements = [ir.StackElement(arr.item, value, ir.const(i, U32)) for i in range(arr.size)]
            return [leaf for element in elements for leaf in leaves(element)]
    return [value]


def _signed(c: ir.Const, t: ir.Type) -> int:
    return t.wrap(c.value) if isinstance(t, T.Bits) else c.value
