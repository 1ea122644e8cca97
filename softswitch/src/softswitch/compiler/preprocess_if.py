# SPDX-License-Identifier: Apache-2.0
"""The value of an #if expression with C's integer operators, after macros were replaced."""

from __future__ import annotations

import re

from softswitch.compiler.diagnostics import P4Error, Pos

_LEVELS: list[tuple[str, ...]] = [
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="),
    ("<<", ">>"), ("+", "-"), ("*", "/", "%"),
]


class Condition:
    """Evaluates an #if expression by precedence climbing."""

    def __init__(self, pieces: list[str], pos: Pos) -> None:
        self.pieces, self.pos, self.i = pieces, pos, 0

    def parse(self) -> int:
        value = self.mux()
        if self.i != len(self.pieces):
            raise P4Error(self.pos, f"#if: unexpected '{self.pieces[self.i]}'")
        return value

    def peek(self) -> str:
        return self.pieces[self.i] if self.i < len(self.pieces) else ""

    def take(self) -> str:
        piece = self.peek()
        self.i += 1
        return piece

    def mux(self) -> int:
        value = self.binary(0)
        if self.peek() == "?":
            self.take()
            a = self.mux()
            if self.take() != ":":
                raise P4Error(self.pos, "#if: expected ':'")
            b = self.mux()
            return a if value else b
        return value

    def binary(self, level: int) -> int:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in _LEVELS[level]:
            op = self.take()
            left = self.apply(op, left, self.binary(level + 1))
        return left

    def apply(self, op: str, a: int, b: int) -> int:
        if op in "/%" and b == 0:
            raise P4Error(self.pos, "#if: division by zero")
        match op:
            case "||":
                return int(bool(a) or bool(b))
            case "&&":
                return int(bool(a) and bool(b))
            case "|":
                return a | b
            case "^":
                return a ^ b
            case "&":
                return a & b
            case "==":
                return int(a == b)
            case "!=":
                return int(a != b)
            case "<":
                return int(a < b)
            case ">":
                return int(a > b)
            case "<=":
                return int(a <= b)
            case ">=":
                return int(a >= b)
            case "<<":
                return a << min(b, 64)
            case ">>":
                return a >> min(b, 64)
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return a * b
            case "/":
                return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            case _:
                return a - b * (abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1))

    def unary(self) -> int:
        piece = self.take()
        match piece:
            case "!":
                return int(not self.unary())
            case "-":
                return -self.unary()
            case "+":
                return self.unary()
            case "~":
                return ~self.unary()
            case "(":
                value = self.mux()
                if self.take() != ")":
                    raise P4Error(self.pos, "#if: expected ')'")
                return value
        if piece[:1].isdigit():
            try:
                return int(piece.rstrip("uUlL"), 0)
            except ValueError:
                raise P4Error(self.pos, f"#if: '{piece}' is not an integer") from None
        if re.fullmatch(r"[A-Za-z_]\w*", piece):
            return 0  # as in C: an undefined name counts as 0
        raise P4Error(self.pos, f"#if: expected a value, got '{piece or 'end of line'}'")
