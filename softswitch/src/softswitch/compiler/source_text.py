# SPDX-License-Identifier: Apache-2.0
"""The source of a statement or condition as one line, which the packet trace shows."""

from __future__ import annotations

import re
from dataclasses import replace

from softswitch.compiler.diagnostics import Pos

_TARGET = re.compile(r"[A-Za-z_][\w.]*(?:\[[^\[\]]*\][\w.]*)*\s*[-+*/%&|^<>]*\Z")
_OBJECT = re.compile(r"[A-Za-z_][\w.]*(?:\[[^\[\]]*\][\w.]*)*\.\Z")
_OPEN, _CLOSE = "([{", ")]}"
_SKIP = re.compile(r'"(?:\\.|[^"\\])*"|/\*.*?\*/|//.*|.')


def statement_text(pos: Pos) -> str:
    """A statement from its first character up to its semicolon; `...` at the end where it goes on in another line."""
    return _until(pos.text[pos.col - 1 :], ";")


def assignment(pos: Pos) -> Pos:
    """Where an assignment begins, by the place of its operator."""
    return _back(pos, _TARGET)


def call(pos: Pos) -> Pos:
    """Where a call begins, by the place of its last name: `a.b.count(0)` begins with a."""
    return _back(pos, _OBJECT)


def _back(pos: Pos, pattern: re.Pattern[str]) -> Pos:
    end = pos.col - 1
    reach = 256  # a line may hold all that a macro makes, hundreds of thousands of characters
    while (found := pattern.search(pos.text, begin := max(0, end - reach), end)) and begin and found.start() == begin:
        reach *= 4  # what was found may begin before the window
    return replace(pos, col=found.start() + 1, length=len(found[0].rstrip()) + pos.length) if found else pos


def condition_text(pos: Pos) -> str:
    """The text in the parentheses of an `if` at this place."""
    _, found, rest = pos.text[pos.col - 1 :].partition("(")
    return _until(rest, ")") if found else "..."


def case_text(pos: Pos) -> str:
    """The label of a case of a switch, or the keys of a case of a select."""
    return _until(pos.text[pos.col - 1 :], ":")


def _until(text: str, end: str) -> str:
    """The text up to `end`, where that stands outside of brackets, strings and comments."""
    depth = 0
    for piece in _SKIP.finditer(text):
        char = piece[0]
        if depth == 0 and char == end:
            return text[: piece.start()].strip()
        depth += (char in _OPEN) - (char in _CLOSE)
    return f"{text.strip()} ..."
