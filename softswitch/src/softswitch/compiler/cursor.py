# SPDX-License-Identifier: Apache-2.0
"""The parser's position in its tokens, and the names that it knows as types."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

from softswitch.compiler.diagnostics import P4Error
from softswitch.compiler.lexer import Token

RESERVED = {
    "action", "bit", "bool", "break", "const", "continue", "control", "default", "else", "enum", "exit", "extern",
    "false", "for", "header", "header_union", "if", "in", "inout", "int", "out", "package", "parser", "return",
    "select", "string", "struct", "switch", "table", "this", "transition", "true", "tuple", "typedef", "value_set",
    "varbit", "void",
}
"""Words that cannot be names, in contrast to `apply`, `key`, `type`, `state`..."""


class Cursor:
    """A position in a list of tokens, whose last one has the kind "end"."""

    def __init__(self, tokens: list[Token]) -> None:
        self.tokens = tokens
        self.i = 0
        self.type_names: set[str] = set()

    @property
    def token(self) -> Token:
        return self.tokens[self.i]

    def peek(self, ahead: int) -> Token:
        return self.tokens[min(self.i + ahead, len(self.tokens) - 1)]

    def take(self) -> Token:
        token = self.tokens[self.i]
        if token.kind != "end":
            self.i += 1
        return token

    def at(self, text: str) -> bool:
        token = self.tokens[self.i]
        return token.text == text and token.kind != "str"

    def accept(self, text: str) -> bool:
        if self.at(text):
            self.i += 1
            return True
        return False

    def expect(self, text: str) -> Token:
        if not self.at(text):
            raise self.unexpected(f"'{text}'")
        return self.take()

    def unexpected(self, expected: str) -> P4Error:
        token = self.token
        got = "end of file" if token.kind == "end" else f"'{token.text}'"
        return P4Error(token.pos, f"expected {expected}, got {got}")

    def name(self) -> Token:
        token = self.token
        if token.kind != "id":
            raise self.unexpected("a name")
        if token.text in RESERVED:
            raise P4Error(token.pos, f"expected a name, got the reserved word '{token.text}'")
        return self.take()

    def type_name(self) -> Token:
        """Takes the name in the declaration of a type, which is known as a type from here on."""
        token = self.name()
        self.type_names.add(token.text)
        return token

    @contextlib.contextmanager
    def scope(self, names: Iterable[str]) -> Iterator[None]:
        """Makes type parameters known as types while the block runs."""
        added = [n for n in names if n not in self.type_names]
        self.type_names.update(added)
        try:
            yield
        finally:
            self.type_names.difference_update(added)
