# SPDX-License-Identifier: Apache-2.0
"""The syntax tree's nodes for statements, and for the declarations that may stand among them (ast.py has the rest)."""

from __future__ import annotations

from dataclasses import dataclass, field

from softswitch.compiler.ast_expr import Annotation, CallExpr, Expr, Node, TypeSyntax
from softswitch.compiler.types import Type


@dataclass(eq=False, kw_only=True)
class Decl(Node):
    name: str
    annotations: list[Annotation] = field(default_factory=list)

    def annotation(self, name: str) -> Annotation | None:
        return next((a for a in self.annotations if a.name == name), None)


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
    call: CallExpr
    type: Type = None  # type: ignore[assignment]


@dataclass(eq=False, kw_only=True)
class Stmt(Node):
    pass


@dataclass(eq=False)
class BlockStmt(Stmt):
    body: list[Stmt]


@dataclass(eq=False)
class AssignStmt(Stmt):
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
class IfStmt(Stmt):
    condition: Expr
    then: Stmt
    other: Stmt | None


@dataclass(eq=False)
class SwitchCase(Node):
    label: Expr  # DontCare for default
    body: BlockStmt | None  # None falls through to the next


@dataclass(eq=False)
class SwitchStmt(Stmt):
    value: Expr
    cases: list[SwitchCase]


@dataclass(eq=False)
class ForStmt(Stmt):
    init: list[Stmt]
    condition: Expr
    update: list[Stmt]
    body: Stmt


@dataclass(eq=False)
class ForInStmt(Stmt):
    variable: VarDecl | Expr
    values: Expr
    body: Stmt


@dataclass(eq=False)
class ReturnStmt(Stmt):
    value: Expr | None


@dataclass(eq=False)
class ExitStmt(Stmt):
    pass


@dataclass(eq=False)
class BreakStmt(Stmt):
    pass


@dataclass(eq=False)
class ContinueStmt(Stmt):
    pass
