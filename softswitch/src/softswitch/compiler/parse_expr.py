# SPDX-License-Identifier: Apache-2.0
"""Parsing of expressions, types and annotations.

P4 is not context free: in `(x) - 1` and `f<x>(y)` it matters whether x is a type. `type_names` holds every name that
was declared as a type so far; a base type needs no look-up.
"""

from __future__ import annotations

import contextlib

from softswitch.compiler import ast as A
from softswitch.compiler.cursor import RESERVED, Cursor
from softswitch.compiler.diagnostics import P4Error, Unsupported
from softswitch.compiler.lexer import Token

BASE_TYPES = {"bit", "int", "varbit", "bool", "error", "string", "void", "match_kind", "tuple", "list"}
ASSIGN_OPS = {"+=", "-=", "*=", "/=", "%=", "&=", "|=", "^=", "<<=", "|+|=", "|-|=", "++="}

_BINARY: list[tuple[str, ...]] = [
    ("||",), ("&&",), ("==", "!="), ("<", ">", "<=", ">="), ("|",), ("^",), ("&",),
    ("<<", ">>"), ("++", "+", "-", "|+|", "|-|"), ("*", "/", "%"),
]
_LEVELS = {operator: level for level, operators in enumerate(_BINARY) for operator in operators}


class ExprParser(Cursor):
    """Parses annotations, types and expressions."""

    # ---- annotations --------------------------------------------------------------------------------------------

    def annotations(self) -> list[A.Annotation]:
        found = []
        while self.at("@"):
            pos = self.take().pos
            name = self.take().text
            args: list[A.Expr] = []
            text: list[str] = []
            keys: list[str] = []
            structured = self.token.text == "["
            if self.token.text in ("(", "["):
                close = {"(": ")", "[": "]"}[self.take().text]
                start, depth = self.i, 0
                while depth or not self.at(close):
                    if self.token.kind == "end":
                        raise self.unexpected(f"'{close}' to end the annotation @{name}")
                    token = self.take()
                    depth += (token.text in "([{") - (token.text in ")]}") if token.kind == "op" else 0
                    text.append(token.text)
                end = self.i
                self.i = start
                # Annotations may contain anything; those with a known meaning contain expressions.
                with contextlib.suppress(P4Error):
                    if structured and self.peek(1).text == "=":
                        parsed = self.pairs(keys)
                    else:
                        parsed = [] if start == end else self.expressions(close)
                    args = parsed if self.i == end else []
                self.i = end
                self.expect(close)
            if name == "name" and not (len(args) == 1 and isinstance(args[0], A.StrLit | A.BinaryExpr)):
                raise P4Error(pos, '@name has one string: @name("...")')
            found.append(A.Annotation(name, args, text, structured, keys, pos=pos))
        return found

    def pairs(self, keys: list[str]) -> list[A.Expr]:
        """Parses key = value, ...; appends to `keys` and returns the values."""
        values = []
        while not self.at("]"):
            keys.append(self.take().text)
            self.expect("=")
            values.append(self.expression())
            if not self.accept(","):
                break
        return values

    # ---- types --------------------------------------------------------------------------------------------------

    def try_type(self) -> A.TypeSyntax | None:
        """Parses a type; returns None, and takes no token, where there is none."""
        mark = self.i
        try:
            return self.type()
        except P4Error:
            self.i = mark
            return None

    def type(self) -> A.TypeSyntax:
        token = self.token
        text = token.text
        result: A.TypeSyntax
        if text in ("bit", "int", "varbit"):
            self.take()
            if self.accept("<"):
                result = A.TypeSyntax(text, width=self.width(), pos=token.pos)
                self.expect(">")
            elif text == "varbit":
                raise self.unexpected("'<' and the largest size of the varbit")
            elif text == "bit":
                result = A.TypeSyntax("bit", width=A.IntLit(1, pos=token.pos), pos=token.pos)
            else:
                result = A.TypeSyntax("infint", pos=token.pos)
        elif text in ("bool", "error", "string", "void", "match_kind"):
            self.take()
            result = A.TypeSyntax(text, pos=token.pos)
        elif text in ("tuple", "list") and self.peek(1).text == "<":
            self.take()
            result = A.TypeSyntax(text, args=self.type_args(), pos=token.pos)
        elif text == "_":
            self.take()
            result = A.TypeSyntax("dontcare", pos=token.pos)
        else:
            absolute = self.accept(".")
            name = self.name() if token.kind == "id" or absolute else None
            if name is None:
                raise self.unexpected("a type")
            args = self.type_args() if self.at("<") else []
            result = A.TypeSyntax("name", name.text, args, absolute=absolute, pos=name.pos)
        return self.dimensions(result)

    def dimensions(self, syntax: A.TypeSyntax) -> A.TypeSyntax:
        """Parses `[size]`, or nothing: after a type, or after the name that is declared, where p4c takes it as well."""
        while self.at("["):
            self.take()
            size = self.expression()
            self.expect("]")
            syntax = A.TypeSyntax("stack", args=[syntax], width=size, pos=syntax.pos)
        return syntax

    def width(self) -> A.Expr:
        """Parses the width in bit<8> or bit<(expression)>; the parentheses tell `>` from the closing bracket."""
        return self.binary(8)

    def type_args(self) -> list[A.TypeSyntax]:
        self.expect("<")
        args = [self.type()]
        while self.accept(","):
            args.append(self.type())
        self.expect(">")
        return args

    def is_type(self, syntax: A.TypeSyntax) -> bool:
        """True if this is known to be a type."""
        if syntax.kind == "name":
            return syntax.name in self.type_names
        if syntax.kind == "stack":
            return self.is_type(syntax.args[0])
        return True

    def call_type_args(self) -> list[A.TypeSyntax]:
        """Parses `<T, ...>` in front of the parenthesis of a call; else takes no token."""
        if not self.at("<"):
            return []
        mark = self.i
        try:
            args = self.type_args()
            if self.at("(") and all(map(self.is_type, args)):
                return args
        except P4Error:
            pass
        self.i = mark
        return []

    # ---- expressions --------------------------------------------------------------------------------------------

    def expressions(self, close: str) -> list[A.Expr]:
        items = []
        while not self.at(close):
            items.append(self.expression())
            if not self.accept(","):
                break
        return items

    def expression(self) -> A.Expr:
        condition = self.binary(0)
        token = self.token
        if self.accept("?"):
            then = self.expression()
            self.expect(":")
            return A.MuxExpr(condition, then, self.expression(), pos=token.pos)
        return condition

    def binary_op(self, level: int) -> Token | None:
        """Takes an operator of this level or one that binds tighter; adjacent `>` `>` are a shift, `>` `>=` are `>>=`.
        """
        token = self.token
        if token.kind != "op":
            return None
        if token.text == ">":
            after = self.peek(1)
            if after.text in (">", ">=") and token.touches(after):
                if after.text == ">" and _LEVELS[">>"] >= level:
                    self.take()
                    self.take()
                    return Token("op", ">>", token.file, token.line, token.col, token.source)
                return None
        return self.take() if _LEVELS.get(token.text, -1) >= level else None

    def binary(self, level: int) -> A.Expr:
        """Parses operands of operators of this level and those that bind tighter (precedence climbing)."""
        left = self.unary()
        while (op := self.binary_op(level)) is not None:
            left = A.BinaryExpr(op.text, left, self.binary(_LEVELS[op.text] + 1), pos=op.pos)
        return left

    def unary(self) -> A.Expr:
        token = self.token
        if token.kind == "op" and token.text in ("!", "~", "-", "+"):
            self.take()
            return A.UnaryExpr(token.text, self.unary(), pos=token.pos)
        if token.text == "(" and token.kind == "op":
            cast = self.cast()
            if cast is not None:
                return cast
        return self.postfix()

    def cast(self) -> A.Expr | None:
        """Parses `(type) operand`; None where the parentheses contain an expression."""
        mark = self.i
        pos = self.take().pos
        syntax = self.try_type()
        if syntax is None or not self.at(")") or not self.is_type(syntax):
            self.i = mark
            return None
        self.take()
        if not (self.token.kind in ("id", "int", "str") or self.token.text in ("(", "!", "~", "-", "+", "{", ".")):
            self.i = mark
            return None
        return A.CastExpr(syntax, self.unary(), pos=pos)

    def postfix(self) -> A.Expr:
        expr = self.primary()
        while True:
            token = self.token
            if token.kind != "op":
                return expr
            if token.text == ".":
                self.take()
                name = self.token
                if name.kind != "id":
                    raise self.unexpected("a member's name")
                self.take()
                expr = A.MemberExpr(expr, name.text, pos=name.pos)
            elif token.text == "[":
                self.take()
                first = self.expression()
                if self.accept(":"):
                    expr = A.SliceExpr(expr, first, self.expression(), pos=token.pos)
                elif self.accept("+:"):
                    expr = A.SliceExpr(expr, first, first, self.expression(), pos=token.pos)
                else:
                    expr = A.IndexExpr(expr, first, pos=token.pos)
                self.expect("]")
            elif token.text == "(":
                expr = A.CallExpr(expr, [], self.arguments(), pos=expr.pos)
            elif token.text == "<" and isinstance(expr, A.NameExpr | A.MemberExpr):
                args = self.call_type_args()
                if not args:
                    return expr
                if isinstance(expr, A.NameExpr) and expr.name in self.type_names:
                    syntax = A.TypeSyntax("name", expr.name, args, pos=expr.pos)
                    expr = A.CallExpr(A.TypeExpr(syntax, pos=expr.pos), [], self.arguments(), pos=expr.pos)
                else:
                    expr = A.CallExpr(expr, args, self.arguments(), pos=expr.pos)
            else:
                return expr

    def arguments(self) -> list[A.Arg]:
        self.expect("(")
        args = []
        while not self.at(")"):
            token = self.token
            if token.kind == "id" and self.peek(1).text == "=":
                self.take()
                self.take()
                args.append(A.Arg(self.argument(), token.text, pos=token.pos))
            else:
                args.append(A.Arg(self.argument(), pos=token.pos))
            if not self.accept(","):
                break
        self.expect(")")
        return args

    def argument(self) -> A.Expr:
        token = self.token
        if token.text == "_" and self.peek(1).text in (",", ")"):
            self.take()
            return A.DontCare(pos=token.pos)
        return self.expression()

    def primary(self) -> A.Expr:
        token = self.token
        text, pos = token.text, token.pos
        if token.kind == "int":
            self.take()
            value, width, signed = token.value
            digits = text.lower().replace("_", "")
            if width is not None:
                digits = digits.split("s" if signed else "w", 1)[1]
            base = {"0x": 16, "0b": 2, "0o": 8}.get(digits[:2], 10)
            return A.IntLit(value, width, signed, base, pos=pos)
        if token.kind == "str":
            self.take()
            return A.StrLit(text[1:-1].replace('\\"', '"').replace("\\n", "\n").replace("\\\\", "\\"), pos=pos)
        if text in ("true", "false") and token.kind == "id":
            self.take()
            return A.BoolLit(text == "true", pos=pos)
        if text == "(":
            self.take()
            expr = self.expression()
            self.expect(")")
            return expr
        if text == "{":
            return self.braces()
        if text == "...":
            self.take()
            return A.DefaultValue(pos=pos)
        if text == "this":
            raise Unsupported(pos, "'this' is not supported")
        if text == ".":
            self.take()
            name = self.name()
            return A.NameExpr(name.text, absolute=True, pos=name.pos)
        if text == "error" and self.peek(1).text == ".":
            self.take()
            return A.TypeExpr(A.TypeSyntax("error", pos=pos), pos=pos)
        if text in BASE_TYPES and token.kind == "id" and (text not in ("list", "tuple") or self.peek(1).text == "<"):
            return A.TypeExpr(self.type(), pos=pos)
        if token.kind == "id" and text in self.type_names and self.peek(1).text == "<":
            # H<bit<8>>.minSizeInBits(), or C<T>() as an argument
            mark = self.i
            syntax = self.try_type()
            if syntax is not None and self.token.text in (".", "("):
                return A.TypeExpr(syntax, pos=pos)
            self.i = mark
        if token.kind == "id":
            if text in RESERVED:
                raise self.unexpected("an expression")
            self.take()
            return A.NameExpr(text, pos=pos)
        raise self.unexpected("an expression")

    def braces(self) -> A.Expr:
        """Parses {a, b}, {f = a, g = b}, {#} or {...}."""
        pos = self.expect("{").pos
        if self.accept("#"):
            self.expect("}")
            return A.InvalidHeader(pos=pos)
        fields: list[tuple[str, A.Expr]] = []
        items: list[A.Expr] = []
        rest = False
        while not self.at("}"):
            if self.at("..."):
                self.take()
                rest = True
                self.accept(",")
                break
            if self.token.kind == "id" and self.peek(1).text == "=":
                name = self.take().text
                self.take()
                fields.append((name, self.expression()))
            else:
                token = self.token
                if token.text == "_" and self.peek(1).text in (",", "}"):
                    self.take()
                    items.append(A.DontCare(pos=token.pos))
                else:
                    items.append(self.expression())
            if not self.accept(","):
                break
        if fields and items:
            raise P4Error(pos, "a list mixes named and unnamed fields")
        self.expect("}")
        return A.StructExpr(fields, rest, pos=pos) if fields else A.ListExpr(items, rest, pos=pos)
