# SPDX-License-Identifier: Apache-2.0
"""The C preprocessor that P4 programs use: #include, #define (with # and ##), #if and relatives, -I and -D.

The result is one self-contained text. Lines `#line N "file"` in it keep the positions of the source, so that errors
are reported there, also after the text was sent to a switch on another machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from softswitch.compiler.diagnostics import CompileError, Diagnostic, P4Error, Pos, Unsupported
from softswitch.compiler.macros import Macros, tokens
from softswitch.compiler.preprocess_if import Condition
from softswitch.runtime import files

_DIRECTIVE = re.compile(r"\s*#\s*(\w+)?(.*)", re.DOTALL)
_TEXT = re.compile(
    # A directive is taken by itself: a quote in `#error don't` begins no string of P4.
    r'''^[ \t]*\#(?:"(?:\\.|[^"\\\n])*"|(?!//|/\*)[^\n])*|"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/''',
    re.DOTALL | re.MULTILINE,
)
_WORDS = {"if", "ifdef", "ifndef", "elif", "else", "endif", "include", "import", "include_next", "line", "define",
          "undef", "error"}
"""The directives that have an effect; p4c ignores other lines that begin with #, such as `# words`."""

_MAX_INCLUDE_DEPTH = 64

INCLUDE_DIR = Path(__file__).resolve().parent.parent / "include"
"""The folder with core.p4 and v1model.p4."""

LIBRARY = None
"""Value of `include` that lets the program include only the switch's own files."""

_OWN_FILES = ("core.p4", "v1model.p4")


@dataclass
class _OpenIf:
    """An open #if: whether its current branch is read, and whether an earlier branch was."""

    pos: Pos
    outer: bool
    active: bool
    taken: bool
    seen_else: bool = False


def preprocess(
    text: str, name: str, *, include: Sequence[Path] | None = (), defines: Mapping[str, str] | None = None,
    root: Path | None = None,
) -> str:
    """Expands `text`; `name` is its file name in messages and for relative includes. Raises CompileError.

    include  directories for #include, besides the file's own and INCLUDE_DIR; None (LIBRARY): the program is not the
             user's, and no file is read but INCLUDE_DIR's core.p4 and v1model.p4
    root     a folder that is left out of the names of its files, so that the result does not depend on where it is
    """
    run = _Preprocessor(include, defines or {}, root)
    try:
        run.file(text, name, 0)
    except P4Error as error:
        raise CompileError([error.diagnostic]) from None
    return "\n".join(run.out) + "\n"


def shown(name: str, root: Path | None) -> str:
    """The name of a file in messages."""
    return name if root is None else name.removeprefix(f"{root}/")


def strip_comments(text: str) -> str:
    """Replaces comments by blanks, so that lines and columns stay the same; strings may go over several lines."""

    def blank(match: re.Match[str]) -> str:
        found = match.group()
        return re.sub(r"[^\n]", " ", found) if found[0] == "/" else found

    return _TEXT.sub(blank, text)


class _Preprocessor:
    """Runs the directives of one program and of what it includes, and expands macros in its text."""

    def __init__(self, include: Sequence[Path] | None, defines: Mapping[str, str], root: Path | None) -> None:
        self.root = root
        self.own_files_only = include is LIBRARY
        self.include = [*(include or ()), INCLUDE_DIR]
        self.macros = Macros(defines)
        self.out: list[str] = []
        self.at: tuple[str, int] = ("", 0)  # the file and line that the next output line would be taken for
        self.in_string = False  # whether a string literal goes on in the next line
        self.included: set[Path] = set()

    # ---- files and lines ----------------------------------------------------------------------------------------

    def file(self, text: str, name: str, depth: int) -> None:
        conditions: list[_OpenIf] = []
        lines = strip_comments(text.replace("\r\n", "\n")).split("\n")
        number, named = 0, shown(name, self.root)
        offset = 0  # a #line in the text shifts the numbers
        while number < len(lines):
            start = number
            line = lines[number]
            number += 1
            while line.endswith("\\") and number < len(lines):
                line = line[:-1] + lines[number]
                number += 1
            pos = Pos(named, start + 1 + offset, 1, max(1, len(line)), line)
            directive = _DIRECTIVE.fullmatch(line)
            word = (directive.group(1) or "") if directive else ""
            if directive and not (self.in_string and word not in _WORDS):
                rest = directive.group(2).strip()
                if self.in_string:
                    self.out.append("")
                if self.condition(word, rest, conditions, pos):
                    continue
                if conditions and not conditions[-1].active:
                    continue
                if word in ("include", "import"):
                    self.include_file(rest, name, depth, pos, once=word == "import")
                elif word == "line" or word.isdigit():
                    match = re.match(r'(\d+)(?:\s+"([^"]*)")?', rest if word == "line" else f"{word} {rest}")
                    if not match:
                        raise P4Error(pos, 'expected #line NUMBER "FILE"')
                    named = match.group(2) or named
                    offset = int(match.group(1)) - number - 1
                else:
                    self.directive(word, rest, pos)
                continue
            if conditions and not conditions[-1].active:
                if self.in_string:  # a C preprocessor leaves the line empty
                    self.out.append("")
                continue
            expanded = line
            if line:
                pieces = tokens(line)
                while self.macros.call_is_open(pieces) and number < len(lines):
                    pieces += [" ", *tokens(lines[number])]
                    number += 1
                expanded = "".join(self.macros.expand(pieces, pos, frozenset()))
            self.put(expanded, named, start + 1 + offset, number + 1 + offset)
        if conditions:
            raise P4Error(conditions[-1].pos, "#if without #endif")

    def put(self, line: str, file: str, number: int, following: int) -> None:
        """Adds a line, and marks that it is from `file`:`number` where the lexer would not know."""
        if self.in_string:
            # What is inside a string over several lines are tokens to a C preprocessor: blanks between them are one.
            line = "".join(" " * (len(piece) if at == 0 else 1) if piece.isspace() else piece
                           for at, piece in enumerate(tokens(line)))
            self.in_string = _opens_string('"' + line)
            self.out.append(line if self.in_string and '"' in line else line.rstrip())
            self.at = (file, following)
            return
        if not line.strip():
            return
        if self.at[0] == file and 0 <= number - self.at[1] < 4:
            self.out.extend([""] * (number - self.at[1]))
        else:
            self.out.append(f'#line {number} "{file}"')
        self.in_string = _opens_string(line)
        self.out.append(line if self.in_string else line.rstrip())
        self.at = (file, number + 1)

    def include_file(self, rest: str, name: str, depth: int, pos: Pos, *, once: bool = False) -> None:
        rest = rest if rest[:1] in '"<' else "".join(self.macros.expand(tokens(rest), pos, frozenset())).strip()
        match = re.fullmatch(r'"([^"]+)"|<([^>]+)>', rest)
        if not match:
            raise P4Error(pos, 'expected #include "FILE" or #include <FILE>')
        if depth >= _MAX_INCLUDE_DEPTH:
            raise P4Error(pos, f"includes nest deeper than {_MAX_INCLUDE_DEPTH}: does the file include itself?")
        wanted = match.group(1) or match.group(2)
        if self.own_files_only and wanted not in _OWN_FILES:
            raise P4Error(pos, f"#include of '{wanted}': a pushed program may include core.p4 and v1model.p4 alone; "
                               "push what `softswitch compile --preprocessed` writes")
        beside = match.group(1) and not self.own_files_only
        places = [Path(name).parent, *self.include] if beside else self.include
        for place in places:
            path = place / wanted
            if path.is_file():
                if once and path in self.included:
                    return
                self.included.add(path)
                try:
                    text = files.read_text(path)
                except (OSError, UnicodeDecodeError) as error:
                    raise P4Error(pos, f"cannot read {path}: {error}") from None
                # The library's files have short names: the result must not depend on where softswitch is installed.
                self.file(text, f"<{wanted}>" if place == INCLUDE_DIR else str(path), depth + 1)
                return
        raise P4Error(pos, f"no file '{wanted}' in {', '.join(str(p) for p in places)}")

    # ---- directives ---------------------------------------------------------------------------------------------

    def condition(self, word: str, rest: str, stack: list[_OpenIf], pos: Pos) -> bool:
        """Handles #if and its relatives; returns whether the directive was one of them."""
        if word in ("if", "ifdef", "ifndef"):
            outer = not stack or stack[-1].active
            defined = rest.split(" ")[0] in self.macros.defined
            value = outer and (self.evaluate(rest, pos) if word == "if" else defined == (word == "ifdef"))
            stack.append(_OpenIf(pos, outer, bool(value), bool(value)))
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
            self.macros.define(rest, pos)
        elif word == "undef":
            self.macros.defined.pop(rest, None)
        elif word == "error":
            raise P4Error(pos, f"#error {rest}")
        elif word == "include_next":
            raise Unsupported(pos, "#include_next is not supported: use #include")

    def evaluate(self, text: str, pos: Pos) -> bool:
        text = re.sub(
            r"\bdefined\s*(?:\(\s*(\w+)\s*\)|(\w+))",
            lambda m: "1" if (m.group(1) or m.group(2)) in self.macros.defined else "0",
            text,
        )
        expanded = [t for t in self.macros.expand(tokens(text), pos, frozenset()) if not t.isspace()]
        return bool(Condition(expanded, pos).parse())


def _opens_string(line: str) -> bool:
    """True if a string literal begins in this line, which has no comments, and does not end in it."""
    return '"' in line and re.fullmatch(r'(?:[^"]|"(?:\\.|[^"\\])*")*', line, re.DOTALL) is None


def read(path: Path) -> str:
    """The text of a program. Raises CompileError where it cannot be read.

    What is no UTF-8, such as a comment in another encoding, is read as U+FFFD.
    """
    try:
        return files.read_text(path, errors="replace")
    except OSError as error:
        raise CompileError([Diagnostic(Pos(str(path), 0, 1), f"cannot read it: {error.strerror}")]) from None
