# SPDX-License-Identifier: Apache-2.0
"""Macros of the C preprocessor: their definition and expansion, with # and ##."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from softswitch.compiler.diagnostics import P4Error, Pos

_TOKEN = re.compile(
    r"""(?P<id>[A-Za-z_]\w*)|(?P<num>\.?\d[\w.]*)|(?P<str>"(?:\\.|[^"\\])*(?:"|$))|(?P<paste>\#\#)"""
    r"""|(?P<space>[ \t\f\v]+)|(?P<chr>'(?:\\.|[^'\\])*(?:'|$))"""
    r"""|(?P<op><<|>>|<=|>=|==|!=|&&|\|\||.)""",
    re.VERBOSE,
)
_POSITION = frozenset({"__LINE__", "__FILE__"})
_OPERATORS = frozenset({"#", "##"})
_MAX_DEPTH = 400
_MAX_TOTAL = 2_000_000  # tokens in a whole program
_MAX_EXPANSION = 200_000  # tokens that a line may expand to; more are refused, since macros can grow exponentially


@dataclass(frozen=True)
class Macro:
    """A macro: its parameters, and the preprocessing tokens that it stands for."""

    params: tuple[str, ...] | None  # None: object-like
    body: tuple[str, ...]


def tokens(text: str) -> list[str]:
    """Splits a line into preprocessing tokens, including white space."""
    return [m.group() for m in _TOKEN.finditer(text)]


class Macros:
    """The macros that are defined at some place in the text."""

    def __init__(self, defines: Mapping[str, str]) -> None:
        self.made = 0  # tokens that macros have expanded to
        self.defined = {k: Macro(None, tuple(tokens(v))) for k, v in defines.items()}

    def define(self, rest: str, pos: Pos) -> None:
        """Defines a macro by the text after #define."""
        match = re.match(r"([A-Za-z_]\w*)(\(([^)]*)\))?(.*)", rest, re.DOTALL)
        if not match:
            raise P4Error(pos, "expected #define NAME or #define NAME(parameters)")
        name, call, params, body = match.groups()
        names = tuple(p.strip() for p in params.split(",") if p.strip()) if call else None
        self.defined[name] = Macro(names, tuple(tokens(body.strip())))

    def call_is_open(self, pieces: list[str]) -> bool:
        """True if the argument list of a function-like macro continues on the next line."""
        if self.defined.keys().isdisjoint(pieces):
            return False
        for i, piece in enumerate(pieces):
            macro = self.defined.get(piece)
            if macro and macro.params is not None:
                rest = [p for p in pieces[i + 1 :] if not p.isspace()]
                if rest and rest[0] == "(" and rest.count("(") > rest.count(")"):
                    return True
        return False

    def expand(self, pieces: Sequence[str], pos: Pos, hidden: frozenset[str]) -> list[str]:
        """Replaces macros, except those in `hidden`, which are being expanded, as in C."""
        if self.defined.keys().isdisjoint(pieces) and _POSITION.isdisjoint(pieces):
            return list(pieces)
        out: list[str] = []
        i = 0
        while i < len(pieces):
            piece = pieces[i]
            i += 1
            if piece == "__LINE__":
                out.append(str(pos.line))
                continue
            if piece == "__FILE__":
                out.append(f'"{pos.file}"')
                continue
            macro = self.defined.get(piece)
            if len(hidden) > _MAX_DEPTH:
                raise P4Error(pos, f"macros expand to macros more than {_MAX_DEPTH} deep")
            if macro is None or piece in hidden:
                out.append(piece)
                continue
            if macro.params is None:
                body = self.substitute(macro, {}, pos, hidden)
            else:
                j = i
                while j < len(pieces) and pieces[j].isspace():
                    j += 1
                if j >= len(pieces) or pieces[j] != "(":
                    out.append(piece)
                    continue
                args, i = self.arguments(pieces, j, piece, pos)
                if len(args) == 1 and not macro.params and not "".join(args[0]).strip():
                    args = []
                if len(args) != len(macro.params):
                    raise P4Error(pos, f"macro {piece} takes {len(macro.params)} arguments, got {len(args)}")
                body = self.substitute(macro, dict(zip(macro.params, args, strict=True)), pos, hidden)
            out.extend(self.expand(body, pos, hidden | {piece}))
            self.made += len(body)
            if len(out) > _MAX_EXPANSION or self.made > _MAX_TOTAL:
                raise P4Error(pos, f"macro {piece} expands to more than {_MAX_EXPANSION} tokens, or all in the program "
                                   f"to more than {_MAX_TOTAL}")
        return out

    def arguments(self, pieces: Sequence[str], at: int, name: str, pos: Pos) -> tuple[list[list[str]], int]:
        depth, args = 0, [[]]  # type: int, list[list[str]]
        for i in range(at, len(pieces)):
            piece = pieces[i]
            if piece == "(":
                depth += 1
                if depth == 1:
                    continue
            elif piece == ")":
                depth -= 1
                if depth == 0:
                    return [_trim(a) for a in args], i + 1
            elif piece == "," and depth == 1:
                args.append([])
                continue
            args[-1].append(piece)
        raise P4Error(pos, f"macro {name}: missing ')'")

    def substitute(self, macro: Macro, args: Mapping[str, list[str]], pos: Pos, hidden: frozenset[str]) -> list[str]:
        body = list(macro.body)
        out: list[str] = []
        if _OPERATORS.isdisjoint(body):
            expanded = {name: self.expand(args[name], pos, hidden) for name in args if name in body}
            for piece in body:
                if piece in expanded:
                    out += expanded[piece]
                else:
                    out.append(piece)
            return out
        i = 0
        while i < len(body):
            piece = body[i]
            following = next((k for k in range(i + 1, len(body)) if not body[k].isspace()), len(body))
            if piece == "#" and macro.params is not None and following < len(body) and body[following] in args:
                text = "".join(args[body[following]]).replace("\\", "\\\\").replace('"', '\\"')
                out.append(f'"{text}"')
                i = following + 1
            elif piece == "##" and out and following < len(body):
                while out and out[-1].isspace():
                    out.pop()
                right = args.get(body[following], [body[following]])
                left = out.pop() if out else ""
                out.extend(tokens(left + "".join(right)))
                i = following + 1
            elif piece in args:
                pasted = following < len(body) and body[following] == "##"
                out.extend(args[piece] if pasted else self.expand(args[piece], pos, hidden))
                i += 1
            else:
                out.append(piece)
                i += 1
        return out


def _trim(pieces: list[str]) -> list[str]:
    while pieces and pieces[0].isspace():
        pieces = pieces[1:]
    while pieces and pieces[-1].isspace():
        pieces = pieces[:-1]
    return pieces
