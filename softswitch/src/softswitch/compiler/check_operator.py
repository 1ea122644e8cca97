# SPDX-License-Identifier: Apache-2.0
"""Type checking of operators and casts; operations on constants are folded."""

from __future__ import annotations

from softswitch.compiler import ast as A
from softswitch.compiler import consteval
from softswitch.compiler import types as T
from softswitch.compiler.check_convert import Converter
from softswitch.compiler.diagnostics import P4Error
from softswitch.compiler.types import MAX_WIDTH

_COMPARE = ("<", "<=", ">", ">=")


class OperatorChecker(Converter):
    """Checks the operands of operators and casts, and folds those that are constant."""

    def check_unary(self, e: A.UnaryExpr) -> None:
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

    def check_binary(self, e: A.BinaryExpr) -> None:
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
            if e.right.const is not None and e.right.const < 0:
                raise P4Error(e.right.pos, f"a shift by the negative amount {e.right.const}")
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

    def same_width(self, e: A.BinaryExpr) -> None:
        if e.left.type == T.INFINT and e.right.type != T.INFINT:
            e.left = self.coerce(e.left, e.right.type)
        elif e.right.type == T.INFINT and e.left.type != T.INFINT:
            e.right = self.coerce(e.right, e.left.type)
        if e.left.type != e.right.type:
            raise P4Error(e.pos, f"'{e.op}' needs operands of one type, got {e.left.type} and {e.right.type}")

    def equalize(self, e: A.BinaryExpr) -> None:
        """Converts the operands of == and != to one type."""
        if e.left.type != e.right.type:
            if self.assignable(e.left.type, e.right.type) and not isinstance(e.left, A.ListExpr | A.StructExpr):
                e.right = self.coerce(e.right, e.left.type)
            elif self.assignable(e.right.type, e.left.type):
                e.left = self.coerce(e.left, e.right.type)
            elif not (isinstance(e.left.type, T.Varbit) and isinstance(e.right.type, T.Varbit)):
                raise P4Error(e.pos, f"cannot compare {e.left.type} with {e.right.type}")
        if isinstance(e.left.type, T.OfTable):
            raise P4Error(e.pos, "the result of apply() cannot be compared; action_run belongs in a switch")
        if isinstance(e.left.type, T.Declared) or e.left.type in (T.ANY, T.VOID):
            raise P4Error(e.pos, f"values of type {e.left.type} cannot be compared")

    def fold(self, e: A.BinaryExpr, result: T.Type) -> None:
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

    def check_mux(self, e: A.MuxExpr, expected: T.Type | None) -> None:
        e.condition = self.condition(e.condition)
        e.then, e.other = self.expr(e.then, expected), self.expr(e.other, expected)
        if e.then.type != e.other.type:
            if self.assignable(e.then.type, e.other.type):
                e.other = self.coerce(e.other, e.then.type)
            elif self.assignable(e.other.type, e.then.type):
                e.then = self.coerce(e.then, e.other.type)
            else:
                raise P4Error(e.pos, f"the branches of ?: have types {e.then.type} and {e.other.type}")
        if e.then.type == T.INFINT and e.condition.const is None:
            raise P4Error(e.pos, "the branches of ?: have no width; give one, as in 8w1")
        e.type = e.then.type
        if isinstance(e.condition.const, bool):
            e.const = (e.then if e.condition.const else e.other).const

    def check_cast(self, e: A.CastExpr) -> A.Expr:
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
