# SPDX-License-Identifier: Apache-2.0
"""The syntax tree's nodes for types as written and for expressions (ast.py has the whole tree)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from softswitch.compiler.diagnostics import NOWHERE, Pos
from softswitch.compiler.types import Type


@dataclass(eq=False, kw_only=True)
class Node:
    """Any node of the syntax tree, with its place in the source."""

    pos: Pos = NOWHERE


@dataclass(eq=False)
class Annotation(Node):
    """@name(args), or @name[args] where it is `structured`; `args` are expressions, `text` the raw tokens.

    keys    of @name[key = value, ...], whose values are `args`
    """

    name: str
    args: list[Expr]
    text: list[str]
    structured: bool = False
    keys: list[str] = field(default_factory=list)


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
    """An integer literal such as 5, 8w0xff or 4s7; without a `width` it is of the unbounded type int."""

    value: int
    width: int | None = None
    signed: bool = False
    base: int = 10  # in which it is written


@dataclass(eq=False)
class BoolLit(Expr):
    """The literal `true` or `false`."""

    value: bool


@dataclass(eq=False)
class StrLit(Expr):
    """A string literal, which only annotations and some arguments of externs may be."""

    value: str


@dataclass(eq=False)
class NameExpr(Expr):
    """A name, from the top level where `absolute` (`.name`); the checker sets `decl` to what it names."""

    name: str
    absolute: bool = False
    decl: Any = None


@dataclass(eq=False)
class MemberExpr(Expr):
    """`base.name`: a field, a method, a member of an enum or error, or a property such as `hit`."""

    base: Expr
    name: str
    decl: Any = None


@dataclass(eq=False)
class IndexExpr(Expr):
    """`base[index]`: an element of a header stack, array or tuple."""

    base: Expr
    index: Expr


@dataclass(eq=False)
class SliceExpr(Expr):
    """`base[hi:lo]`, the bits hi to lo of a value, or `base[lo +: width]`."""

    base: Expr
    hi: Expr
    lo: Expr
    width: Expr | None = None  # base[lo +: width]


@dataclass(eq=False)
class UnaryExpr(Expr):
    """A unary operator (`op` is one of + - ! ~) and its operand."""

    op: str
    operand: Expr


@dataclass(eq=False)
class BinaryExpr(Expr):
    """A binary operator and its operands; `op` is as in the source, also `++`, `&&&`, `..` and `|+|`."""

    op: str
    left: Expr
    right: Expr


@dataclass(eq=False)
class MuxExpr(Expr):
    """`condition ? then : other`."""

    condition: Expr
    then: Expr
    other: Expr


@dataclass(eq=False)
class CastExpr(Expr):
    """`(to) operand`; the casts that the checker inserts have no `to`."""

    to: TypeSyntax | None
    operand: Expr


@dataclass(eq=False)
class Arg(Node):
    """An argument of a call, with the parameter's name where it is given as `name = value`."""

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
    """`{ a, b }`: a list expression, whose type depends on where it stands."""

    items: list[Expr]
    rest: bool = False  # ends in `...`


@dataclass(eq=False)
class StructExpr(Expr):
    """`{ a = x, b = y }`: a value with named fields; `rest` where it ends in `...`."""

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
