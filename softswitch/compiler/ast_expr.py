# SPDX-License-Identifier: Apache-2.0
"""The syntax tree's nodes for types as written and for expressions (ast.py has the whole tree)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from softswitch.compiler.diagnostics import NOWHERE, Pos
from softswitch.compiler.types import Type


@dataclass(eq=False, kw_only=True)
class Node:
    pos: Pos = NOWHERE


@dataclass(eq=False)
class Annotation(Node):
    """@name(args) or @name[args]; `args` are expressions, `text` the raw tokens."""

    name: str
    args: list[Expr]
    text: list[str]


# ---- types as written ------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class TypeSyntax(Node):
    """A type as written. kind: "bit" "int" "varbit" (with `width`), "bool" "error" "string" "void" "match_kind",
    "infint", "tuple", "list", "stack" (args[0], width), "name" (name, args), "dontcare"."""

    kind: str
    name: str = ""
    args: list[TypeSyntax] = field(default_factory=list)
    width: Expr | None = None
    absolute: bool = False


# ---- expressions -----------------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class Expr(Node):
    """An expression; the checker sets `type`, and `const` to its value where this is known at compile time."""

    type: Type = None  # type: ignore[assignment]
    const: Any = None


@dataclass(eq=False)
class IntLit(Expr):
    value: int
    width: int | None = None
    signed: bool = False


@dataclass(eq=False)
class BoolLit(Expr):
    value: bool


@dataclass(eq=False)
class StrLit(Expr):
    value: str


@dataclass(eq=False)
class NameExpr(Expr):
    name: str
    absolute: bool = False
    decl: Any = None


@dataclass(eq=False)
class MemberExpr(Expr):
    base: Expr
    name: str
    decl: Any = None


@dataclass(eq=False)
class IndexExpr(Expr):
    base: Expr
    index: Expr


@dataclass(eq=False)
class SliceExpr(Expr):
    base: Expr
    hi: Expr
    lo: Expr
    width: Expr | None = None  # base[lo +: width]


@dataclass(eq=False)
class UnaryExpr(Expr):
    op: str
    operand: Expr


@dataclass(eq=False)
class BinaryExpr(Expr):
    op: str
    left: Expr
    right: Expr


@dataclass(eq=False)
class MuxExpr(Expr):
    condition: Expr
    then: Expr
    other: Expr


@dataclass(eq=False)
class CastExpr(Expr):
    to: TypeSyntax | None
    operand: Expr


@dataclass(eq=False)
class Arg(Node):
    value: Expr
    name: str | None = None


@dataclass(eq=False)
class CallExpr(Expr):
    """A call or a constructor call. The checker sets `decl`, `bound` and, for generics, `type_values`."""

    function: Expr
    type_args: list[TypeSyntax]
    args: list[Arg]
    decl: Any = None
    bound: dict[str, Expr] = field(default_factory=dict)  # parameter name -> argument, in call order
    type_values: dict[str, Type] = field(default_factory=dict)
    builtin: str = ""  # "isValid", "apply", "push_front", ... where `decl` is None


@dataclass(eq=False)
class ListExpr(Expr):
    items: list[Expr]
    rest: bool = False  # ends in `...`


@dataclass(eq=False)
class StructExpr(Expr):
    fields: list[tuple[str, Expr]]
    rest: bool = False


@dataclass(eq=False)
class DontCare(Expr):
    """`_`, or `default` in a select expression."""


@dataclass(eq=False)
class DefaultValue(Expr):
    """`...`: the default value of a type."""


@dataclass(eq=False)
class InvalidHeader(Expr):
    """`{#}`."""


@dataclass(eq=False)
class TypeExpr(Expr):
    """A type in the place of an expression: bit<8>.minSizeInBits(), or a constructor."""

    syntax: TypeSyntax
