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
    """A type parameter of a generic declaration: `T` in `extern register<T>`."""


@dataclass(eq=False, kw_only=True)
class Param(Decl):
    """A parameter of a function, method, action, parser, control or constructor, with its direction."""

    direction: str  # "", "in", "out", "inout"
    syntax: TypeSyntax
    default: Expr | None = None
    type: Type = None  # type: ignore[assignment]


@dataclass(eq=False, kw_only=True)
class TypedefDecl(Decl):
    """`typedef type name;`, which is an alias, or `type base name;`, which is a type of its own."""

    syntax: TypeSyntax
    distinct: bool  # `type` rather than `typedef`
    resolved: Type = None  # type: ignore[assignment]


@dataclass(eq=False, kw_only=True)
class EnumDecl(Decl):
    """`enum name { ... }`; with an underlying type, its `syntax`, each member has a value."""

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
    """One field of a struct, header or header_union."""

    syntax: TypeSyntax


@dataclass(eq=False, kw_only=True)
class StructDecl(Decl):
    """The declaration of a struct, header or header_union."""

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
    """`extern name { ... }`: an object that the target provides, with its constructors and methods."""

    type_params: list[TypeParam]
    methods: list[FunctionDecl]


@dataclass(eq=False, kw_only=True)
class ActionDecl(Decl):
    """`action name(parameters) { ... }`; parameters without a direction are set by the control plane."""

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
    """`package name(parameters);`: what an architecture expects `main` to be made of."""

    type_params: list[TypeParam]
    ctor_params: list[Param]


@dataclass(eq=False, kw_only=True)
class ValueSetDecl(Decl):
    """`value_set<type>(size) name;`: values that the control plane sets and that a select may match."""

    syntax: TypeSyntax
    size: Expr
    type: Type = None  # type: ignore[assignment]


@dataclass(eq=False, kw_only=True)
class SelectCase(Node):
    """One case of a select expression: `keys: state;`."""

    keys: list[Expr]
    state: str
    state_pos: Pos


@dataclass(eq=False, kw_only=True)
class StateDecl(Decl):
    """A parser state: its statements, then a plain transition (`next_state`) or a select (`select` and `cases`);
    `ends` says whether the program has either, else it rejects."""

    body: list[Stmt]
    next_state: str | None  # plain transition
    next_pos: Pos
    select: list[Expr] | None
    cases: list[SelectCase]
    ends: bool = False


@dataclass(eq=False, kw_only=True)
class KeyElement(Node):
    """One key of a table: `value: match @annotations;`."""

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
    """One of the `entries` of a table: `priority = p: keys: action(arguments);`."""

    keys: list[Expr]
    action: Expr
    priority: Expr | None
    const: bool
    annotations: list[Annotation]
    ref: ActionRef = None  # type: ignore[assignment]


@dataclass(eq=False, kw_only=True)
class TableProperty(Node):
    """A property of a table beside key, actions and entries: `name = value;`, such as size."""

    name: str
    value: Expr
    const: bool
    annotations: list[Annotation]


@dataclass(eq=False, kw_only=True)
class TableDecl(Decl):
    """`table name { ... }`: keys, actions, entries and other properties."""

    keys: list[KeyElement]
    actions: list[ActionRef]
    entries: list[EntryDecl] | None
    const_entries: bool
    properties: dict[str, TableProperty]
    default: ActionRef = None  # type: ignore[assignment]


@dataclass(eq=False)
class SyntaxTree(Node):
    """A whole program: the declarations at top level, in their order in the source."""

    decls: list[Decl]
