# SPDX-License-Identifier: Apache-2.0
"""The syntax tree. The checker fills in `type`, `const` and `decl`; everything else is as written."""

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
    """type: filled by the checker; const: its value where known at compile time (int, bool or str)."""

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
class Name(Expr):
    name: str
    absolute: bool = False
    decl: Any = None


@dataclass(eq=False)
class Member(Expr):
    base: Expr
    name: str
    decl: Any = None


@dataclass(eq=False)
class Index(Expr):
    base: Expr
    index: Expr


@dataclass(eq=False)
class Slice(Expr):
    base: Expr
    hi: Expr
    lo: Expr
    width: Expr | None = None  # base[lo +: width]


@dataclass(eq=False)
class Unary(Expr):
    op: str
    operand: Expr


@dataclass(eq=False)
class Binary(Expr):
    op: str
    left: Expr
    right: Expr


@dataclass(eq=False)
class Mux(Expr):
    condition: Expr
    then: Expr
    other: Expr


@dataclass(eq=False)
class Cast(Expr):
    to: TypeSyntax | None
    operand: Expr


@dataclass(eq=False)
class Arg(Node):
    value: Expr
    name: str | None = None


@dataclass(eq=False)
class Call(Expr):
    """A call or a constructor call. The checker fills `decl`, `bound` and, for generics, `type_values`."""

    function: Expr
    type_args: list[TypeSyntax]
    args: list[Arg]
    decl: Any = None
    bound: dict[str, Expr] = field(default_factory=dict)  # parameter name -> argument, in call order
    type_values: dict[str, Type] = field(default_factory=dict)
    builtin: str = ""  # "isValid", "apply", "push_front", ... where `decl` is none


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
    """`_`, or `default` in a select."""


@dataclass(eq=False)
class DefaultValue(Expr):
    """`...`: the default value of a type."""


@dataclass(eq=False)
class InvalidHeader(Expr):
    """`{#}`."""


@dataclass(eq=False)
class TypeExpr(Expr):
    """A type where an expression stands: bit<8>.minSizeInBits(), or a constructor."""

    syntax: TypeSyntax


# ---- declarations ----------------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class Decl(Node):
    name: str
    annotations: list[Annotation] = field(default_factory=list)

    def annotation(self, name: str) -> Annotation | None:
        return next((a for a in self.annotations if a.name == name), None)


@dataclass(eq=False, kw_only=True)
class TypeParam(Decl):
    pass


@dataclass(eq=False, kw_only=True)
class Param(Decl):
    direction: str  # "", "in", "out", "inout"
    syntax: TypeSyntax
    default: Expr | None = None
    type: Type = None  # type: ignore[assignment]


@dataclass(eq=False, kw_only=True)
class ConstDecl(Decl):
    syntax: TypeSyntax
    value: Expr
    type: Type = None  # type: ignore[assignment]


@dataclass(eq=False, kw_only=True)
class VarDecl(Decl):
    syntax: TypeSyntax
    value: Expr | None
    type: Type = None  # type: ignore[assignment]


@dataclass(eq=False, kw_only=True)
class InstanceDecl(Decl):
    call: Call
    body: list[Decl] | None = None
    type: Type = None  # type: ignore[assignment]


@dataclass(eq=False, kw_only=True)
class TypedefDecl(Decl):
    syntax: TypeSyntax
    distinct: bool  # `type` rather than `typedef`
    resolved: Type = None  # type: ignore[assignment]


@dataclass(eq=False, kw_only=True)
class EnumDecl(Decl):
    syntax: TypeSyntax | None
    members: list[tuple[str, Expr | None, Pos]]
    resolved: Type = None  # type: ignore[assignment]


@dataclass(eq=False, kw_only=True)
class NamesDecl(Decl):
    """error { ... } or match_kind { ... }."""

    kind: str
    names: list[tuple[str, Pos]]


@dataclass(eq=False, kw_only=True)
class FieldDecl(Decl):
    syntax: TypeSyntax


@dataclass(eq=False, kw_only=True)
class StructDecl(Decl):
    kind: str  # "struct", "header", "header_union"
    type_params: list[TypeParam]
    fields: list[FieldDecl]


@dataclass(eq=False, kw_only=True)
class FunctionDecl(Decl):
    """A function, a method or constructor of an extern, or an extern function (`body` is None)."""

    type_params: list[TypeParam]
    result: TypeSyntax | None
    params: list[Param]
    body: Block | None
    result_type: Type = None  # type: ignore[assignment]
    checked: bool = False


@dataclass(eq=False, kw_only=True)
class ExternDecl(Decl):
    type_params: list[TypeParam]
    methods: list[FunctionDecl]


@dataclass(eq=False, kw_only=True)
class ActionDecl(Decl):
    params: list[Param]
    body: Block


@dataclass(eq=False, kw_only=True)
class BlockDecl(Decl):
    """A parser or control; `body` None for a bare type declaration."""

    kind: str  # "parser", "control"
    type_params: list[TypeParam]
    params: list[Param]
    ctor_params: list[Param]
    locals: list[Decl]
    states: list[StateDecl]
    apply: Block | None
    is_type: bool


@dataclass(eq=False, kw_only=True)
class PackageDecl(Decl):
    type_params: list[TypeParam]
    ctor_params: list[Param]


@dataclass(eq=False, kw_only=True)
class ValueSetDecl(Decl):
    syntax: TypeSyntax
    size: Expr
    type: Type = None  # type: ignore[assignment]


@dataclass(eq=False, kw_only=True)
class SelectCase(Node):
    keys: list[Expr]
    state: str
    state_pos: Pos


@dataclass(eq=False, kw_only=True)
class StateDecl(Decl):
    body: list[Stmt]
    next_state: str | None  # plain transition
    next_pos: Pos
    select: list[Expr] | None
    cases: list[SelectCase]


@dataclass(eq=False, kw_only=True)
class KeyElement(Node):
    value: Expr
    match: str
    annotations: list[Annotation]
    match_pos: Pos


@dataclass(eq=False, kw_only=True)
class ActionRef(Node):
    """An action in a table: `expr` is a name or a call with bound arguments."""

    expr: Expr
    annotations: list[Annotation]
    decl: ActionDecl = None  # type: ignore[assignment]
    bound: dict[str, Expr] = field(default_factory=dict)


@dataclass(eq=False, kw_only=True)
class EntryDecl(Node):
    keys: list[Expr]
    action: Expr
    priority: Expr | None
    const: bool
    annotations: list[Annotation]
    ref: ActionRef = None  # type: ignore[assignment]


@dataclass(eq=False, kw_only=True)
class TableProperty(Node):
    name: str
    value: Expr
    const: bool
    annotations: list[Annotation]


@dataclass(eq=False, kw_only=True)
class TableDecl(Decl):
    keys: list[KeyElement]
    actions: list[ActionRef]
    entries: list[EntryDecl] | None
    const_entries: bool
    properties: dict[str, TableProperty]
    default: ActionRef = None  # type: ignore[assignment]


# ---- statements ------------------------------------------------------------------------------------------------------


@dataclass(eq=False, kw_only=True)
class Stmt(Node):
    pass


@dataclass(eq=False)
class Block(Stmt):
    body: list[Stmt]


@dataclass(eq=False)
class Assign(Stmt):
    target: Expr
    value: Expr
    op: str = ""  # of `a op= b`


@dataclass(eq=False)
class CallStmt(Stmt):
    call: Expr


@dataclass(eq=False)
class DeclStmt(Stmt):
    decl: Decl


@dataclass(eq=False)
class If(Stmt):
    condition: Expr
    then: Stmt
    other: Stmt | None


@dataclass(eq=False)
class SwitchCase(Node):
    label: Expr  # DontCare for default
    body: Block | None  # None falls through to the next


@dataclass(eq=False)
class Switch(Stmt):
    value: Expr
    cases: list[SwitchCase]


@dataclass(eq=False)
class For(Stmt):
    init: list[Stmt]
    condition: Expr
    update: list[Stmt]
    body: Stmt


@dataclass(eq=False)
class ForIn(Stmt):
    variable: VarDecl | Expr
    values: Expr
    body: Stmt


@dataclass(eq=False)
class Return(Stmt):
    value: Expr | None


@dataclass(eq=False)
class Exit(Stmt):
    pass


@dataclass(eq=False)
class Break(Stmt):
    pass


@dataclass(eq=False)
class Continue(Stmt):
    pass


@dataclass(eq=False)
class Program(Node):
    decls: list[Decl]
