# SPDX-License-Identifier: Apache-2.0
"""Parsing of statements and of the declarations that may stand among them."""

from __future__ import annotations

from softswitch.compiler import ast as A
from softswitch.compiler.diagnostics import P4Error, Pos, Unsupported
from softswitch.compiler.parse_expr import ASSIGN_OPS, ExprParser


class StmtParser(ExprParser):
    """Parses statements, and constants, variables and instances."""

    def const(self, notes: list[A.Annotation]) -> A.ConstDecl:
        self.expect("const")
        syntax = self.type()
        name = self.name()
        syntax = self.dimensions(syntax)
        self.expect("=")
        value = self.expression()
        self.expect(";")
        return A.ConstDecl(pos=name.pos, name=name.text, annotations=notes, syntax=syntax, value=value)

    def local_declaration(self, notes: list[A.Annotation]) -> A.Decl | None:
        """Parses a constant, variable or instance; None where the next tokens are none of them."""
        if self.at("const"):
            return self.const(notes)
        syntax = self.try_type()
        if syntax is None:
            return None
        if self.at("("):
            return self.instance(syntax, notes)
        name = self.name()
        syntax = self.dimensions(syntax)
        value = self.expression() if self.accept("=") else None
        self.expect(";")
        return A.VarDecl(pos=name.pos, name=name.text, annotations=notes, syntax=syntax, value=value)

    def instance(self, syntax: A.TypeSyntax, notes: list[A.Annotation]) -> A.InstanceDecl:
        """Parses `Type(arguments) name;` from the parenthesis on."""
        args = self.arguments()
        name = self.name()
        if self.at("="):
            raise Unsupported(name.pos, "instances with an initializer block are not supported")
        self.expect(";")
        call = A.CallExpr(A.TypeExpr(syntax, pos=syntax.pos), [], args, pos=syntax.pos)
        return A.InstanceDecl(pos=name.pos, name=name.text, annotations=notes, call=call)

    def block(self) -> A.BlockStmt:
        self.annotations()
        pos = self.expect("{").pos
        body: list[A.Stmt] = []
        while not self.accept("}"):
            body.append(self.statement())
        return A.BlockStmt(body, pos=pos)

    def statement(self) -> A.Stmt:
        notes = self.annotations()
        token = self.token
        match token.text:
            case "{":
                return self.block()
            case ";":
                self.take()
                return A.BlockStmt([], pos=token.pos)
            case "if":
                return self.if_()
            case "switch":
                return self.switch()
            case "for":
                return self.for_()
            case "return":
                self.take()
                value = None if self.at(";") else self.expression()
                self.expect(";")
                return A.ReturnStmt(value, pos=token.pos)
            case "exit" | "break" | "continue":
                self.take()
                self.expect(";")
                kinds: dict[str, type[A.Stmt]] = {"exit": A.ExitStmt, "break": A.BreakStmt, "continue": A.ContinueStmt}
                return kinds[token.text](pos=token.pos)
            case "const":
                return A.DeclStmt(self.const(notes), pos=token.pos)
        if self.declares():
            decl = self.local_declaration(notes)
            assert decl is not None
            return A.DeclStmt(decl, pos=token.pos)
        stmt = self.simple_statement()
        self.expect(";")
        return stmt

    def declares(self) -> bool:
        """True if the next tokens are `Type name` or `Type(arguments) name`, not an assignment or call."""
        mark = self.i
        syntax = self.try_type()
        try:
            if syntax is None:
                return False
            if self.token.kind == "id" and self.peek(1).text in ("=", ";", "in", "["):
                return True
            if self.at("(") and syntax.kind == "name":  # an instance, or a call f(...)
                self.arguments()
                return self.token.kind == "id" and self.peek(1).text in (";", "=")
            return False
        except P4Error:
            return False
        finally:
            self.i = mark

    def simple_statement(self) -> A.Stmt:
        """Parses an assignment or a call, without the semicolon."""
        target = self.expression()
        token = self.token
        if token.text == "=":
            self.take()
            return A.AssignStmt(target, self.expression(), pos=token.pos)
        op = self.assign_op()
        if op:
            return A.AssignStmt(target, self.expression(), op, pos=token.pos)
        if not isinstance(target, A.CallExpr):
            raise self.unexpected("'=' or a call" if token.text != ";" else "an assignment or a call before")
        return A.CallStmt(target, pos=target.pos)

    def assign_op(self) -> str:
        text = self.token.text
        if text in ASSIGN_OPS:
            self.take()
            return text[:-1]
        if text == ">" and self.peek(1).text == ">=" and self.token.touches(self.peek(1)):
            self.take()
            self.take()
            return ">>"
        return ""

    def if_(self) -> A.IfStmt:
        pos = self.expect("if").pos
        self.expect("(")
        condition = self.expression()
        self.expect(")")
        then = self.branch()
        other = self.branch() if self.accept("else") else None
        return A.IfStmt(condition, then, other, pos=pos)

    def branch(self) -> A.Stmt:
        """Parses a statement that is no declaration, which would have no use there."""
        found = self.statement()
        if isinstance(found, A.DeclStmt):
            raise P4Error(found.pos, "a declaration cannot be a branch of 'if': it would end there; put it in a block")
        return found

    def switch(self) -> A.SwitchStmt:
        pos = self.expect("switch").pos
        self.expect("(")
        value = self.expression()
        self.expect(")")
        self.expect("{")
        cases = []
        while not self.accept("}"):
            token = self.token
            label: A.Expr
            if token.text in ("default", "_"):
                self.take()
                label = A.DontCare(pos=token.pos)
            else:
                label = self.expression()
            self.expect(":")
            body = self.block() if self.token.text in ("{", "@") else None
            cases.append(A.SwitchCase(label, body, pos=token.pos))
        return A.SwitchStmt(value, cases, pos=pos)

    def for_(self) -> A.Stmt:
        pos = self.expect("for").pos
        self.expect("(")
        mark = self.i
        notes = self.annotations()
        syntax = self.try_type()
        if syntax is not None and self.token.kind == "id" and self.peek(1).text == "in":
            name = self.take()
            self.take()
            variable = A.VarDecl(pos=name.pos, name=name.text, annotations=notes, syntax=syntax, value=None)
            return self.for_in(pos, variable)
        self.i = mark
        if self.token.kind == "id" and self.peek(1).text == "in":
            raise P4Error(self.token.pos, "'for ... in' declares a variable of its own: for (bit<8> i in ...)")
        init: list[A.Stmt] = []
        while not self.at(";"):
            if self.declares():
                declared = self.try_type()
                assert declared is not None
                name = self.name()
                self.expect("=")
                decl = A.VarDecl(pos=name.pos, name=name.text, syntax=declared, value=self.expression())
                init.append(A.DeclStmt(decl, pos=name.pos))
            else:
                init.append(self.simple_statement())
            if not self.accept(","):
                break
        self.expect(";")
        condition = self.expression()
        self.expect(";")
        update: list[A.Stmt] = []
        while not self.at(")"):
            update.append(self.simple_statement())
            if not self.accept(","):
                break
        self.expect(")")
        return A.ForStmt(init, condition, update, self.statement(), pos=pos)

    def for_in(self, pos: Pos, variable: A.VarDecl | A.Expr) -> A.Stmt:
        values = self.expression()
        op = self.token
        if self.accept(".."):
            values = A.BinaryExpr("..", values, self.expression(), pos=op.pos)
        self.expect(")")
        return A.ForInStmt(variable, values, self.statement(), pos=pos)
