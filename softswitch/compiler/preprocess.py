# SPDX-License-Identifier: Apache-2.0
"""The C preprocessor that P4 programs use: #include, #define (with # and ##), #if and relatives, -I and -D.

The result is one self-contained text. `#line N "file"` marks in it keep positions true, so an error in it is
reported where the programmer wrote it, also when the text was sent to a switch on another machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from softswitch.compiler.diagnostics import CompileError, Diagnostic, P4Error, Pos

_TOKEN = re.compile(
    r"""(?P<id>[A-Za-z_]\w*)|(?P<num>\.?\d[\w.]*)|(?P<str>"(?:\\.|[^"\\])*")|(?P<paste>\#\#)|(?P<space>[ \t\f\v]+)"""
    r"""|(?P<op><<|>>|<=|>=|==|!=|&&|\|\||.)""",
    re.VERBOSE,
)
_DIRECTIVE = re.compile(r"\s*#\s*(\w+)?(.*)", re.DOTALL)
_MAX_INCLUDE_DEPTH = 64
_MAX_EXPANSION = 200_000  # tokens a line may grow to: a macro bomb is refused, not chewed on

INCLUDE_DIR = Path(__file__).resolve().parent.parent / "include"
"""Where core.p4 and v1model.p4 are."""


@dataclass(frozen=True)
class _Macro:
    params: tuple[str, ...] | None  # None: object-like
    body: tuple[str, ...]


@dataclass
class _Condition:
    """One open #if: whether its current branch is read, and whether an earlier branch was."""

    pos: Pos
    outer: bool
    active: bool
    taken: bool
    seen_else: bool = False


def preprocess(text: str, name: str, *, include: Sequence[Path] = (), defines: Mapping[str, str] | None = None) -> str:
    """Expands `text` (called `name` in messages and for relative includes). Raises CompileError."""
    run = _Preprocessor(include, defines or {})
    try:
        run.file(text, name, 0)
    except P4Error as error:
        raise CompileError([error.diagnostic]) from None
    return "\n".join(run.out) + "\n"


def tokens(text: str) -> list[str]:
    """Splits one line into preprocessing tokens, white space included."""
    return [m.group() for m in _TOKEN.finditer(text)]


def strip_comments(text: str) -> str:
    """Replaces comments by a blank, keeping line ends and columns."""

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        return found if found[0] == '"' else re.sub(r"[^\n]", " ", found)

    return re.sub(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', blank, text, flags=re.DOTALL)


class _Preprocessor:
    def __init__(self, include: Sequence[Path], defines: Mapping[str, str]) -> None:
        self.include = [*include, INCLUDE_DIR]
        self.macros = {k: _Macro(None, tuple(tokens(v))) for k, v in defines.items()}
        self.out: list[str] = []
        self.at: tuple[str, int] = ("", 0)  # the file and line that the next output line would be taken for

    # ---- files and lines ----------------------------------------------------------------------------------------

    def file(self, text: str, name: str, depth: int) -> None:
        conditions: list[_Condition] = []
        lines = strip_comments(text.replace("\r\n", "\n")).split("\n")
        number, shown = 0, name
        offset = 0  # a #line in the text shifts the numbers
        while number < len(lines):
            start = number
            line = lines[number]
            number += 1
            while line.endswith("\\") and number < len(lines):
                line = line[:-1] + lines[number]
                number += 1
            pos = Pos(shown, start + 1 + offset, 1, max(1, len(line)), line)
            directive = _DIRECTIVE.fullmatch(line)
            if directive:
                word, rest = directive.group(1) or "", directive.group(2).strip()
                if self.condition(word, rest, conditions, pos):
                    continue
                if conditions and not conditions[-1].active:
                    continue
                if word == "include":
                    self.include_file(rest, name, depth, pos)
                elif word == "line" or (not word and rest[:1].isdigit()):
                    match = re.match(r'(\d+)(?:\s+"([^"]*)")?', rest)
                    if not match:
                        raise P4Error(pos, 'expected #line NUMBER "FILE"')
                    shown = match.group(2) or shown
                    offset = int(match.group(1)) - number - 1
                else:
                    self.directive(word, rest, pos)
                continue
            if conditions and not conditions[-1].active:
                continue
            expanded = line
            if _TOKEN.search(line):
                pieces = tokens(line)
                while self.call_is_open(pieces) and number < len(lines):
                    pieces += [" ", *tokens(lines[number])]
                    number += 1
                expanded = "".join(self.expand(pieces, pos, frozenset()))
            self.put(expanded, shown, start + 1 + offset, number + 1 + offset)
        if conditions:
            raise P4Error(conditions[-1].pos, "#if without #endif")

    def put(self, line: str, file: str, number: int, following: int) -> None:
        """Writes a line so that the lexer sees it at `file`:`number`."""
        if not line.strip():
            return
        if self.at[0] == file and 0 <= number - self.at[1] < 4:
            self.out.extend([""] * (number - self.at[1]))
        else:
            self.out.append(f'#line {number} "{file}"')
        self.out.append(line.rstrip())
        self.at = (file, number + 1)

    def include_file(self, rest: str, name: str, depth: int, pos: Pos) -> None:
        rest = rest if rest[:1] in '"<' else "".join(self.expand(tokens(rest), pos, frozenset())).strip()
        match = re.fullmatch(r'"([^"]+)"|<([^>]+)>', rest)
        if not match:
            raise P4Error(pos, 'expected #include "FILE" or #include <FILE>')
        if depth >= _MAX_INCLUDE_DEPTH:
            raise P4Error(pos, f"includes nest deeper than {_MAX_INCLUDE_DEPTH}: does the file include itself?")
        wanted = match.group(1) or match.group(2)
        places = [Path(name).parent, *self.include] if match.group(1) else self.include
        for place in places:
            path = place / wanted
            if path.is_file():
                try:
                    text = path.read_text()
                except (OSError, UnicodeDecodeError) as error:
                    raise P4Error(pos, f"cannot read {path}: {error}") from None
                # The library's files keep a short name: the result must not depend on where we are installed.
                shown = f"<{wanted}>" if place == INCLUDE_DIR else str(path)
                self.file(text, shown, depth + 1)
                return
        raise P4Error(pos, f"no file '{wanted}' in {', '.join(str(p) for p in places)}")

    # ---- directives ---------------------------------------------------------------------------------------------

    def condition(self, word: str, rest: str, stack: list[_Condition], pos: Pos) -> bool:
        """Handles the #if family; true if it was one."""
        if word in ("if", "ifdef", "ifndef"):
            outer = not stack or stack[-1].active
            value = outer and (
                self.evaluate(rest, pos) if word == "if" else (rest.split(" ")[0] in self.macros) == (word == "ifdef")
            )
            stack.append(_Condition(pos, outer, bool(value), bool(value)))
        elif word in ("elif", "else", "endif"):
            if not stack:
                raise P4Error(pos, f"#{word} without #if")
            top = stack[-1]
            if word == "endif":
                stack.pop()
            elif top.seen_else:
                raise P4Error(pos, f"#{word} after #else")
            else:
                top.seen_else = word == "else"
                open_ = top.outer and not top.taken
                top.active = open_ and (word == "else" or self.evaluate(rest, pos))
                top.taken = top.taken or top.active
        else:
            return False
        return True

    def directive(self, word: str, rest: str, pos: Pos) -> None:
        if word == "define":
            match = re.match(r"([A-Za-z_]\w*)(\(([^)]*)\))?(.*)", rest, re.DOTALL)
            if not match:
                raise P4Error(pos, "expected #define NAME or #define NAME(parameters)")
            name, call, params, body = match.groups()
            names = tuple(p.strip() for p in params.split(",") if p.strip()) if call else None
            self.macros[name] = _Macro(names, tuple(tokens(body.strip())))
        elif word == "undef":
            self.macros.pop(rest, None)
        elif word == "error":
            raise P4Error(pos, f"#error {rest}")
        elif word not in ("pragma", "warning", "", "ident"):
            raise P4Error(pos, f"unknown directive #{word}")

    def evaluate(self, text: str, pos: Pos) -> bool:
        text = re.sub(
            r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))",
            lambda m: "1" if (m.group(1) or m.group(2)) in self.macros else "0",
            text,
        )
        expanded = [t for t in self.expand(tokens(text), pos, frozenset()) if not t.isspace()]
        return bool(_Condition_parser(expanded, pos).parse())

    # ---- macros -------------------------------------------------------------------------------------------------

    def call_is_open(self, pieces: list[str]) -> bool:
        """Does a function-like macro's argument list go on in the next line?"""
        for i, piece in enumerate(pieces):
            macro = self.macros.get(piece)
            if macro and macro.params is not None:
                rest = [p for p in pieces[i + 1 :] if not p.isspace()]
                if rest and rest[0] == "(" and rest.count("(") > rest.count(")"):
                    return True
        return False

    def expand(self, pieces: Sequence[str], pos: Pos, hidden: frozenset[str]) -> list[str]:
        """Replaces macros; `hidden` are those being expanded, which C leaves alone."""
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
            macro = self.macros.get(piece)
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
            if len(out) > _MAX_EXPANSION:
                raise P4Error(pos, f"macro {piece} expands to more than {_MAX_EXPANSION} tokens")
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

    def substitute(self, macro: _Macro, args: Mapping[str, list[str]], pos: Pos, hidden: frozenset[str]) -> list[str]:
        body = list(macro.body)
        out: list[str] = []
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


_LEVELS: list[tuple[str, ...]] = [
    ("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", ">", "<=", ">="),
    ("<<", ">>"), ("+", "-"), ("*", "/", "%"),
]  # fmt: skip


class _Condition_parser:
    """Evaluates an #if expression by precedence climbing."""

    def __init__(self, pieces: list[str], pos: Pos) -> None:
        self.pieces, self.pos, self.i = pieces, pos, 0

    def parse(self) -> int:
        value = self.mux()
        if self.i != len(self.pieces):
            raise P4Error(self.pos, f"#if: unexpected '{self.pieces[self.i]}'")
        return value

    def peek(self) -> str:
        return self.pieces[self.i] if self.i < len(self.pieces) else ""

    def take(self) -> str:
        piece = self.peek()
        self.i += 1
        return piece

    def mux(self) -> int:
        value = self.binary(0)
        if self.peek() == "?":
            self.take()
            a = self.mux()
            if self.take() != ":":
                raise P4Error(self.pos, "#if: expected ':'")
            b = self.mux()
            return a if value else b
        return value

    def binary(self, level: int) -> int:
        if level == len(_LEVELS):
            return self.unary()
        left = self.binary(level + 1)
        while self.peek() in _LEVELS[level]:
            op = self.take()
            left = self.apply(op, left, self.binary(level + 1))
        return left

    def apply(self, op: str, a: int, b: int) -> int:
        if op in "/%" and b == 0:
            raise P4Error(self.pos, "#if: division by zero")
        match op:
            case "||":
                return int(bool(a) or bool(b))
            case "&&":
                return int(bool(a) and bool(b))
            case "|":
                return a | b
            case "^":
                return a ^ b
            case "&":
                return a & b
            case "==":
                return int(a == b)
            case "!=":
                return int(a != b)
            case "<":
                return int(a < b)
            case ">":
                return int(a > b)
            case "<=":
                return int(a <= b)
            case ">=":
                return int(a >= b)
            case "<<":
                return a << min(b, 64)
            case ">>":
                return a >> min(b, 64)
            case "+":
                return a + b
            case "-":
                return a - b
            case "*":
                return a * b
            case "/":
                return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)
            case _:
                return a - b * (abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1))

    def unary(self) -> int:
        piece = self.take()
        match piece:
            case "!":
                return int(not self.unary())
            case "-":
                return -self.unary()
            case "+":
                return self.unary()
            case "~":
                return ~self.unary()
            case "(":
                value = self.mux()
                if self.take() != ")":
                    raise P4Error(self.pos, "#if: expected ')'")
                return value
        if piece[:1].isdigit():
            try:
                return int(piece.rstrip("uUlL"), 0)
            except ValueError:
                raise P4Error(self.pos, f"#if: '{piece}' is not an integer") from None
        if re.fullmatch(r"[A-Za-z_]\w*", piece):
            return 0  # as in C: an undefined name counts as 0
        raise P4Error(self.pos, f"#if: expected a value, got '{piece or 'end of line'}'")


def read(path: Path) -> str:
    """A program's text. Raises CompileError where it cannot be read."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CompileError([Diagnostic(Pos(str(path), 0, 1), f"cannot read: {error}")]) from None
