# SPDX-License-Identifier: Apache-2.0
"""The syntax tree: declarations here, and the nodes for expressions and statements, which this module exports too.

The checker fills in `type`, `const` and `decl`; everything else is as the program has it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from softswitch.compiler.ast_expr import *  # noqa: F403
from softswitch.compiler.ast_expr import Annotation, Expr, Node, TypeSyntax
from softswitch.compiler.ast_stmt import *  # noqa: F403
from softswitch.compiler.ast_stmt import BlockStmt, Decl, Stmt
from softswitch.compiler.diagnostics import Pos
from softswitch.compiler.types import Type


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
    body: BlockStmt | None
    result_type: Type = None  # type: ignore[assignment]
    checked: bool = False


@dataclass(eq=False, kw_only=True)
class ExternDecl(Decl):
    type_params: list[TypeParam]
    methods: list[FunctionDecl]


@dataclass(eq=False, kw_only=True)
class ActionDecl(Decl):
    params: list[Param]
    body: BlockStmt


@dataclass(eq=False, kw_only=True)
class BlockDecl(Decl):
    """A parser or control; `body` None for a bare type declaration."""

    kind: str  # "parser", "control"
    type_params: list[TypeParam]
    params: list[Param]
    ctor_params: list[Param]
    locals: list[Decl]
    states: list[StateDecl]
    apply: BlockStmt | None
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


@dataclass(eq=False)
class SyntaxTree(Node):
    decls: list[Decl]
