# SPDX-License-Identifier: Apache-2.0
"""The syntax tree's nodes for statements, and for the declarations that may stand among them (ast.py has the rest)."""

from __future__ import annotations

from dataclasses import dataclass, field

from softswitch.compiler.ast_expr import Annotation, CallExpr, Expr, Node, TypeSyntax
from softswitch.compiler.types import Type


@dataclass(eq=False, kw_only=True)
class Decl(Node):
    """Any declaration, with its name and annotations."""

    name: str
    annotations: list[Annotation] = field(default_factory=list)

    def annotation(self, name: str) -> Annotation | None:
        return next((a for a in self.annotations if a.name == name), None)


@dataclass(eq=False, kw_only=True)
class ConstDecl(Decl):
    """`const type name = value;`."""

    syntax: TypeSyntax
    value: Expr
    type: Type = None  # type: ignore[assignment]


@dataclass(eq=False, kw_only=True)
class VarDecl(Decl):
    """`type name = value;`, or `type name;` with an undefined value."""

    syntax: TypeSyntax
    value: Expr | None
    type: Type = None  # type: ignore[assignment]


@dataclass(eq=False, kw_only=True)
class InstanceDecl(Decl):
    """`Type(arguments) name;`: an instance of an extern, parser, control or package."""

    call: CallExpr
    type: Type = None  # type: ignore[assignment]


@dataclass(eq=False, kw_only=True)
class Stmt(Node):
    """Any statement."""


@dataclass(eq=False)
class BlockStmt(Stmt):
    """`{ ... }`: statements with a scope of their own."""

    body: list[Stmt]


@dataclass(eq=False)
class AssignStmt(Stmt):
    """`target = value;`, or `target op= value;`."""

    target: Expr
    value: Expr
    op: str = ""  # of `a op= b`


@dataclass(eq=False)
class CallStmt(Stmt):
    """A call that stands as a statement."""

    call: Expr


@dataclass(eq=False)
class DeclStmt(Stmt):
    """A declaration of a constant, variable or instance among statements."""

    decl: Decl


@dataclass(eq=False)
class IfStmt(Stmt):
    """`if (condition) then else other`."""

    condition: Expr
    then: Stmt
    other: Stmt | None


@dataclass(eq=False)
class SwitchCase(Node):
    """One case of a switch statement: `label: { ... }`."""

    label: Expr  # DontCare for default
    body: BlockStmt | None  # None falls through to the next


@dataclass(eq=False)
class SwitchStmt(Stmt):
    """`switch (value) { ... }`, over the action that a table ran or over values."""

    value: Expr
    cases: list[SwitchCase]


@dataclass(eq=False)
class ForStmt(Stmt):
    """`for (init; condition; update) body`."""

    init: list[Stmt]
    condition: Expr
    update: list[Stmt]
    body: Stmt


@dataclass(eq=False)
class ForInStmt(Stmt):
    """`for (variable in values) body`, over a range, list or header stack."""

    variable: VarDecl | Expr
    values: Expr
    body: Stmt


@dataclass(eq=False)
class ReturnStmt(Stmt):
    """`return;` or `return value;`."""

    value: Expr | None


@dataclass(eq=False)
class ExitStmt(Stmt):
    """`exit;`, which ends the execution of all blocks that are being applied."""


@dataclass(eq=False)
class BreakStmt(Stmt):
    """`break;`, which ends the innermost loop."""


@dataclass(eq=False)
class ContinueStmt(Stmt):
    """`continue;`, which goes on with the next iteration of the innermost loop."""
