# SPDX-License-Identifier: Apache-2.0
"""The syntax tree's nodes for statements (ast.py has the whole tree)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from softswitch.compiler.ast_expr import Expr, Node

if TYPE_CHECKING:
    from softswitch.compiler.ast import Decl, VarDecl


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
