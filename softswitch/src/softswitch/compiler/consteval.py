# SPDX-License-Identifier: Apache-2.0
"""Operators on values known at compile time, as unbounded integers; the caller wraps them to the type's width."""

from __future__ import annotations

from softswitch.compiler.types import MAX_WIDTH, Bits, Type


class ConstError(Exception):
    """The operation has no value, for example a division by zero."""


def saturate(value: int, t: Bits) -> int:
    """The nearest value of type `t`."""
    low = -(1 << (t.width - 1)) if t.signed else 0
    high = (1 << (t.width - t.signed)) - 1
    return min(max(value, low), high)


def binary(op: str, a: int, b: int, t: Type) -> int | bool:
    """`a op b` for integers of type `t`; comparisons give a bool. Raises ConstError."""
    fixed = t if isinstance(t, Bits) else None
    match op:
        case "+":
            r = a + b
        case "-":
            r = a - b
        case "*":
            r = a * b
        case "|+|" | "|-|":
            assert fixed is not None
            return saturate(a + b if op == "|+|" else a - b, fixed)
        case "/" | "%":
            if b == 0:
                raise ConstError("division by zero")
            if a < 0 or b < 0:
                raise ConstError(f"'{op}' is not defined for negative numbers")
            r = a // b if op == "/" else a % b
        case "<<" | ">>":
            if b < 0:
                raise ConstError("shift by a negative number")
            if op == "<<" and b > 1 << 16 and fixed is None:
                raise ConstError(f"shift by {b} is too large")
            if fixed is not None:
                b = min(b, fixed.width)
            r = a << b if op == "<<" else a >> b
        case "&":
            r = a & b
        case "|":
            r = a | b
        case "^":
            r = a ^ b
        case "==":
            return a == b
        case "!=":
            return a != b
        case "<":
            return a < b
        case "<=":
            return a <= b
        case ">":
            return a > b
        case ">=":
            return a >= b
        case _:
            raise ConstError(f"operator {op} on constants")
    if fixed is None and r.bit_length() > MAX_WIDTH:
        raise ConstError(f"a number of {r.bit_length()} bits is too large: at most {MAX_WIDTH} are supported")
    return fixed.wrap(r) if fixed else r


def unary(op: str, a: int, t: Type) -> int:
    r = {"-": -a, "~": ~a, "+": a}[op]
    return t.wrap(r) if isinstance(t, Bits) else r


def concat(a: int, ta: Bits, b: int, tb: Bits) -> int:
    """`a ++ b`, with the signedness of `a`."""
    r = ((a & ((1 << ta.width) - 1)) << tb.width) | (b & ((1 << tb.width) - 1))
    return Bits(ta.width + tb.width, ta.signed).wrap(r)
