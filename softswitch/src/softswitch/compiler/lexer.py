# SPDX-License-Identifier: Apache-2.0
"""Splits preprocessed P4 text into tokens."""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

from softswitch.compiler.diagnostics import P4Error, Pos, Unsupported
from softswitch.compiler.types import MAX_WIDTH


class Token(NamedTuple):
    """A token; kind: "id" (or keyword), "int", "str", "op", "end"; an int has (value, width or None, signed)."""

    kind: str
    text: str
    file: str
    line: int
    col: int
    source: str
    value: tuple[int, int | None, bool] = (0, None, False)

    @property
    def pos(self) -> Pos:
        return Pos(self.file, self.line, self.col, max(1, len(self.text)), self.source)

    def touches(self, other: Token) -> bool:
        """True if there is no white space between this token and the one after it: `> >` is not a shift."""
        return self.line == other.line and self.col + len(self.text) == other.col


_TOKEN = re.compile(
    r"""(?P<space>[ \t\f\v\r]+)
    |(?P<int>(?:\d+[ws])?(?:0[xX][0-9a-fA-F_]+|0[bB][01_]+|0[oO][0-7_]+|0[dD][0-9_]+|\d[\d_]*)(?![A-Za-z]))
    |(?P<id>[A-Za-z_][A-Za-z0-9_]*)
    |(?P<str>"(?:\\.|[^"\\])*")
    |(?P<op>\|\+\|=|\|-\|=|<<=|\+\+=|&&&|\.\.\.|\|\+\||\|-\||<<|\+:|<=|>=|==|!=|&&|\|\||\+\+|\.\.
        |\+=|-=|\*=|/=|%=|&=|\|=|\^=|[-+*/%&|^~!<>=?:;,.(){}\[\]@\#_])
    """,
    re.VERBOSE,
)
_STRING_END = re.compile(r'(?:\\.|[^"\\])*"')
_LINE = re.compile(r'#line (\d+) "(.*)"')
_WIDTH = re.compile(r"(\d+)([ws])")
_BASES = {"x": 16, "b": 2, "o": 8, "d": 10}


def lex(text: str) -> list[Token]:
    """Splits a text into tokens; the last has the kind "end". Raises P4Error at an invalid string or number."""
    out: list[Token] = []
    file, number = "<text>", 0
    string: tuple[Token, list[str]] | None = None  # a string that goes on in the next line, and its lines so far
    for line in text.split("\n"):
        number += 1
        at = 0
        if string is not None:
            rest = _STRING_END.match(line)
            string[1].append(line if rest is None else rest.group())
            if rest is None:
                continue
            out.append(string[0]._replace(text="\n".join(string[1])))
            string, at = None, rest.end()
        elif line.startswith("#"):
            mark = _LINE.match(line)
            if mark:
                number, file = int(mark.group(1)) - 1, mark.group(2)
                continue
        while at < len(line):
            match = _TOKEN.match(line, at)
            if match is None:
                if line[at] == '"':
                    string = Token("str", '"', file, number, at + 1, line), [line[at:]]
                    break
                # not a token of P4, but allowed in annotations; the parser refuses it elsewhere
                out.append(Token("op", line[at], file, number, at + 1, line))
                at += 1
                continue
            kind = match.lastgroup or ""
            if kind == "int":
                token = Token(kind, match.group(), file, number, at + 1, line)
                out.append(token._replace(value=_number(token)))
            elif kind != "space":
                out.append(Token(kind, match.group(), file, number, at + 1, line))
            at = match.end()
    if string is not None:
        raise P4Error(string[0].pos, "a string that does not end")
    last = out[-1] if out else None
    if last is None:
        out.append(Token("end", "", file, max(number, 1), 1, ""))
    else:
        out.append(Token("end", "", last.file, last.line, last.col + len(last.text), last.source))
    return out


def _number(token: Token) -> tuple[int, int | None, bool]:
    """Parses a literal such as 8w0xff to (value, width or None, signed)."""
    text = token.text
    width: int | None = None
    signed = False
    digits = text
    prefix = _WIDTH.match(text)
    if prefix:
        width = int(prefix.group(1)) if len(prefix.group(1)) < 9 else MAX_WIDTH + 1
        signed = prefix.group(2) == "s"
        if width > MAX_WIDTH:
            raise Unsupported(token.pos, f"a literal of {prefix.group(1)[:20]} bits; at most {MAX_WIDTH} are supported")
        digits = text[prefix.end() :]
        if width == 0 and signed:  # bit<0> is a type, which has one value
            raise P4Error(token.pos, f"'{text}' has width 0")
    digits = digits.replace("_", "")
    base = _BASES.get(digits[1:2].lower(), 10) if digits[:1] == "0" else 10
    try:
        value = int(digits[2:] if digits[1:2].isalpha() else digits, base)
    except ValueError:
        most = sys.get_int_max_str_digits()
        raise P4Error(token.pos, f"'{text[:80]}' is not a number of at most {most} digits") from None
    if value.bit_length() > MAX_WIDTH:
        raise Unsupported(token.pos, f"a number of {value.bit_length()} bits; at most {MAX_WIDTH} are supported")
    if width is not None:
        value &= (1 << width) - 1
        if signed and value >> (width - 1):
            value -= 1 << width
    return value, width, signed
