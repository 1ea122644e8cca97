# SPDX-License-Identifier: Apache-2.0
"""Parsing of the parts of parsers and controls: states, value sets, tables."""

from __future__ import annotations

from softswitch.compiler import ast as A
from softswitch.compiler.diagnostics import P4Error
from softswitch.compiler.parse_stmt import StmtParser


class BlockParser(StmtParser):
    """Parses parser states, select expressions, value sets and tables."""

    # ---- parser states ------------------------------------------------------------------------------------------

    def state(self, notes: list[A.Annotation]) -> A.StateDecl:
        self.expect("state")
        name = self.name()
        self.expect("{")
        body: list[A.Stmt] = []
        state = A.StateDecl(
            pos=name.pos, name=name.text, annotations=notes, body=body,
            next_state="reject", next_pos=name.pos, select=None, cases=[],
        )
        while not self.at("}"):
            if self.at("transition"):
                self.take()
                self.transition(state)
                state.ends = True
                break
            body.append(self.statement())
        self.expect("}")
        return state

    def transition(self, state: A.StateDecl) -> None:
        if not self.at("select"):
            token = self.name()
            state.next_state, state.next_pos = token.text, token.pos
            self.expect(";")
            return
        state.next_pos = self.take().pos
        state.next_state = None
        self.expect("(")
        state.select = self.expressions(")")
        self.expect(")")
        self.expect("{")
        while not self.at("}"):
            pos = self.token.pos
            keys = self.keyset()
            self.expect(":")
            target = self.name()
            self.expect(";")
            state.cases.append(A.SelectCase(pos=pos, keys=keys, state=target.text, state_pos=target.pos))
        self.expect("}")
        self.accept(";")

    def keyset(self) -> list[A.Expr]:
        """Parses one key, or a tuple of keys in parentheses."""
        mark = self.i
        if self.accept("("):
            keys = [self.key_expression()]
            while self.accept(","):
                if self.at(")"):
                    break
                keys.append(self.key_expression())
            # `(a) &&& b : ...` begins with a parenthesis too
            if self.accept(")") and self.token.text in (":", "@"):
                return keys
            self.i = mark
        return [self.key_expression()]

    def key_expression(self) -> A.Expr:
        token = self.token
        if token.text in ("default", "_"):
            self.take()
            return A.DontCare(pos=token.pos)
        left = self.expression()
        op = self.token
        if op.text in ("&&&", ".."):
            self.take()
            return A.BinaryExpr(op.text, left, self.expression(), pos=op.pos)
        return left

    def value_set(self, notes: list[A.Annotation]) -> A.ValueSetDecl:
        self.expect("value_set")
        self.expect("<")
        syntax = self.type()
        self.expect(">")
        self.expect("(")
        size = self.expression()
        self.expect(")")
        name = self.name()
        self.expect(";")
        return A.ValueSetDecl(pos=name.pos, name=name.text, annotations=notes, syntax=syntax, size=size)

    # ---- tables -------------------------------------------------------------------------------------------------

    def table(self, notes: list[A.Annotation]) -> A.TableDecl:
        self.expect("table")
        name = self.name()
        table = A.TableDecl(
            pos=name.pos, name=name.text, annotations=notes,
            keys=[], actions=[], entries=None, const_entries=False, properties={},
        )
        seen: set[str] = set()
        self.expect("{")
        while not self.accept("}"):
            prop_notes = self.annotations()
            const = self.accept("const")
            prop = self.name()
            if prop.text in seen:
                raise P4Error(prop.pos, f"table {table.name} has two properties '{prop.text}'")
            seen.add(prop.text)
            self.expect("=")
            if prop.text == "key":
                self.expect("{")
                while not self.accept("}"):
                    table.keys.append(self.key_element())
                self.accept(";")
            elif prop.text == "actions":
                self.expect("{")
                while not self.accept("}"):
                    action_notes = self.annotations()
                    expr = self.expression()
                    table.actions.append(A.ActionRef(pos=expr.pos, expr=expr, annotations=action_notes))
                    self.expect(";")
                self.accept(";")
            elif prop.text == "entries":
                table.entries, table.const_entries = [], const
                self.expect("{")
                while not self.accept("}"):
                    table.entries.append(self.entry())
                self.accept(";")
            else:
                value = self.expression()
                self.expect(";")
                table.properties[prop.text] = A.TableProperty(
                    pos=prop.pos, name=prop.text, value=value, const=const, annotations=prop_notes
                )
        if "actions" not in seen:
            raise P4Error(name.pos, f"table {table.name} has no property 'actions'")
        return table

    def key_element(self) -> A.KeyElement:
        value = self.expression()
        self.expect(":")
        match = self.name()
        notes = self.annotations()
        self.expect(";")
        return A.KeyElement(pos=value.pos, value=value, match=match.text, annotations=notes, match_pos=match.pos)

    def entry(self) -> A.EntryDecl:
        pos = self.token.pos
        self.annotations()
        const = self.accept("const")
        priority = None
        if self.token.text == "priority" and self.peek(1).text == "=":
            self.take()
            self.take()
            if self.accept("("):
                priority = self.expression()
                self.expect(")")
            else:
                priority = self.expression()
            self.expect(":")
        keys = self.keyset()
        self.expect(":")
        action = self.expression()
        notes = self.annotations()
        self.expect(";")
        return A.EntryDecl(pos=pos, keys=keys, action=action, priority=priority, const=const, annotations=notes)
