# SPDX-License-Identifier: Apache-2.0
"""Recursive descent from tokens to declarations; see parse_block.py, parse_stmt.py and parse_expr.py for the rest.

After an error the parser skips to the end of the declaration and goes on, so one run shows the errors of several.
"""

from __future__ import annotations

from softswitch.compiler import ast as A
from softswitch.compiler.diagnostics import Errors, P4Error, Pos
from softswitch.compiler.lexer import lex
from softswitch.compiler.parse_block import BlockParser
from softswitch.compiler.parse_expr import BASE_TYPES


def parse(text: str, errors: Errors) -> A.SyntaxTree:
    """Parses preprocessed text. Errors are collected; raises CompileError at the end where there were any."""
    try:
        parser = _Parser(lex(text))
    except P4Error as error:
        errors.add(error)
        errors.stop_if_any()
        raise
    program = A.SyntaxTree(parser.program(errors))
    errors.stop_if_any()
    return program


class _Parser(BlockParser):
    """Parses a whole program, one declaration after another."""

    def program(self, errors: Errors) -> list[A.Decl]:
        decls: list[A.Decl] = []
        while self.token.kind != "end":
            start = self.i
            try:
                if not self.accept(";"):
                    decls.append(self.declaration())
            except P4Error as error:
                errors.add(error)
                self.skip_declaration(start)
        return decls

    def skip_declaration(self, start: int) -> None:
        """Skips to the end, `;` or `}`, of the declaration that began at token `start`."""
        self.i = start
        depth = 0
        while self.token.kind != "end":
            text = self.take().text
            depth += (text == "{") - (text == "}")
            if depth <= 0 and (text == ";" or text == "}"):
                self.accept(";")
                return

    def declaration(self) -> A.Decl:
        notes = self.annotations()
        token = self.token
        match token.text:
            case "const":
                return self.const(notes)
            case "error" | "match_kind" if self.peek(1).text == "{":
                return self.names(notes)
            case "enum":
                return self.enum(notes)
            case "struct" | "header" | "header_union":
                return self.struct(notes)
            case "typedef":
                return self.typedef(notes)
            case "type" if self.peek(1).kind == "id":
                return self.typedef(notes)
            case "extern":
                return self.extern(notes)
            case "action":
                return self.action(notes)
            case "parser" | "control":
                return self.block_decl(notes)
            case "package":
                return self.package(notes)
        return self.function_or_instance(notes)

    def names(self, notes: list[A.Annotation]) -> A.NamesDecl:
        kind = self.take()
        self.expect("{")
        names = []
        while not self.at("}"):
            self.annotations()
            token = self.name()
            names.append((token.text, token.pos))
            if not self.accept(","):
                break
        self.expect("}")
        return A.NamesDecl(pos=kind.pos, name=kind.text, annotations=notes, kind=kind.text, names=names)

    def enum(self, notes: list[A.Annotation]) -> A.EnumDecl:
        self.expect("enum")
        syntax = None if self.peek(1).text == "{" else self.type()
        name = self.type_name()
        self.expect("{")
        members: list[tuple[str, A.Expr | None, Pos]] = []
        while not self.at("}"):
            self.annotations()
            token = self.name()
            value = self.expression() if self.accept("=") else None
            members.append((token.text, value, token.pos))
            if not self.accept(","):
                break
        self.expect("}")
        return A.EnumDecl(pos=name.pos, name=name.text, annotations=notes, syntax=syntax, members=members)

    def struct(self, notes: list[A.Annotation]) -> A.StructDecl:
        kind = self.take().text
        name = self.type_name()
        params = self.type_params()
        self.expect("{")
        fields = []
        while not self.accept("}"):
            field_notes = self.annotations()
            syntax = self.type()
            field = self.name()
            syntax = self.dimensions(syntax)
            self.expect(";")
            fields.append(A.FieldDecl(pos=field.pos, name=field.text, annotations=field_notes, syntax=syntax))
        return A.StructDecl(
            pos=name.pos, name=name.text, annotations=notes, kind=kind, type_params=params, fields=fields
        )

    def typedef(self, notes: list[A.Annotation]) -> A.TypedefDecl:
        distinct = self.take().text == "type"
        syntax = self.type()
        name = self.type_name()
        syntax = self.dimensions(syntax)
        self.expect(";")
        return A.TypedefDecl(pos=name.pos, name=name.text, annotations=notes, syntax=syntax, distinct=distinct)

    def extern(self, notes: list[A.Annotation]) -> A.Decl:
        self.expect("extern")
        # `extern T f(...)` or `extern E<T> { ... }`: a type followed by a name is a function.
        if self.token.kind == "id" and self.token.text not in BASE_TYPES:
            mark = self.i
            name = self.type_name()
            params = self.type_params()
            if self.accept("{"):
                methods = []
                while not self.accept("}"):
                    methods.append(self.method(name.text))
                self.accept(";")
                return A.ExternDecl(
                    pos=name.pos, name=name.text, annotations=notes, type_params=params, methods=methods
                )
            if self.at(";"):  # forward declaration
                self.take()
                return A.ExternDecl(pos=name.pos, name=name.text, annotations=notes, type_params=params, methods=[])
            self.i = mark
        function = self.prototype(notes)
        self.expect(";")
        return function

    def method(self, extern: str) -> A.FunctionDecl:
        notes = self.annotations()
        self.accept("abstract")  # no extern of v1model has such methods, and no other can be instantiated
        if self.token.text == extern and self.peek(1).text == "(":
            name = self.take()
            params = self.params()
            self.expect(";")
            return A.FunctionDecl(
                pos=name.pos, name=name.text, annotations=notes, type_params=[], result=None, params=params, body=None
            )
        method = self.prototype(notes)
        self.expect(";")
        return method

    def prototype(self, notes: list[A.Annotation]) -> A.FunctionDecl:
        """Parses `result name<type parameters>(parameters)`."""
        result = self.type()
        name = self.name()
        type_params = self.type_params()
        params = self.params()
        return A.FunctionDecl(
            pos=name.pos, name=name.text, annotations=notes,
            type_params=type_params, result=result, params=params, body=None,
        )

    def function_or_instance(self, notes: list[A.Annotation]) -> A.Decl:
        mark = self.i
        syntax = self.type()
        if self.at("("):
            return self.instance(syntax, notes)
        if self.token.kind == "id" and self.peek(1).text in ("(", "<"):
            self.i = mark
            function = self.prototype(notes)
            with self.scope(p.name for p in function.type_params):
                function.body = self.block()
            return function
        if self.token.kind == "id" and self.peek(1).text in ("=", ";"):
            raise P4Error(self.token.pos, "variables cannot be declared here, at the top level")
        raise self.unexpected("a declaration")

    def action(self, notes: list[A.Annotation]) -> A.ActionDecl:
        self.expect("action")
        name = self.name()
        params = self.params()
        body = self.block()
        return A.ActionDecl(pos=name.pos, name=name.text, annotations=notes, params=params, body=body)

    def block_decl(self, notes: list[A.Annotation]) -> A.BlockDecl:
        kind = self.take().text
        name = self.type_name()
        type_params = self.type_params()
        with self.scope(p.name for p in type_params):
            params = self.params()
            decl = A.BlockDecl(
                pos=name.pos, name=name.text, annotations=notes, kind=kind, type_params=type_params, params=params,
                ctor_params=[], locals=[], states=[], apply=None, is_type=False,
            )
            if self.accept(";"):
                decl.is_type = True
                return decl
            if self.at("("):
                decl.ctor_params = self.params()
            self.expect("{")
            while not self.accept("}"):
                self.block_item(decl)
        return decl

    def block_item(self, decl: A.BlockDecl) -> None:
        notes = self.annotations()
        token = self.token
        match token.text:
            case "state" if decl.kind == "parser" and self.peek(1).kind == "id":
                decl.states.append(self.state(notes))
            case "apply" if decl.kind == "control" and self.peek(1).text == "{":
                self.take()
                if decl.apply is not None:
                    raise P4Error(token.pos, f"control {decl.name} has two apply blocks")
                decl.apply = self.block()
            case "action" if decl.kind == "control":
                decl.locals.append(self.action(notes))
            case "table" if decl.kind == "control":
                decl.locals.append(self.table(notes))
            case "value_set" if decl.kind == "parser":
                decl.locals.append(self.value_set(notes))
            case ";":
                self.take()
            case _:
                local = self.local_declaration(notes)
                if local is None:
                    raise self.unexpected(f"a declaration in {decl.kind} {decl.name}")
                decl.locals.append(local)

    def package(self, notes: list[A.Annotation]) -> A.PackageDecl:
        self.expect("package")
        name = self.type_name()
        type_params = self.type_params()
        params = self.params()
        self.expect(";")
        return A.PackageDecl(
            pos=name.pos, name=name.text, annotations=notes, type_params=type_params, ctor_params=params
        )

    def type_params(self) -> list[A.TypeParam]:
        params: list[A.TypeParam] = []
        if self.at("<"):
            self.take()
            while True:
                token = self.name()
                params.append(A.TypeParam(pos=token.pos, name=token.text))
                if not self.accept(","):
                    break
            self.expect(">")
        return params

    def params(self) -> list[A.Param]:
        self.expect("(")
        params: list[A.Param] = []
        while not self.at(")"):
            notes = self.annotations()
            direction = ""
            if self.token.text in ("in", "out", "inout"):
                direction = self.take().text
            syntax = self.type()
            name = self.name()
            syntax = self.dimensions(syntax)
            default = self.expression() if self.accept("=") else None
            params.append(
                A.Param(
                    pos=name.pos, name=name.text, annotations=notes, direction=direction, syntax=syntax, default=default
                )
            )
            if not self.accept(","):
                break
        self.expect(")")
        return params
