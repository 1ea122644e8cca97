# SPDX-License-Identifier: Apache-2.0
"""Positions in a P4 program, and errors that show them.

fold.p4:12:9: error: no field 'dstAddr' in header ethernet_t; did you mean 'dst'?
   12 |     hdr.eth.dstAddr = 0;
      |             ^^^^^^^
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from softswitch.runtime.printable import clean


@dataclass(frozen=True, slots=True)
class Pos:
    """A place in the source: 1-based line and column, length in characters, and the whole line."""

    file: str
    line: int
    col: int
    length: int = 1
    text: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


NOWHERE = Pos("<builtin>", 0, 1)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """A message about a place in the source."""

    pos: Pos
    message: str
    kind: Literal["error", "warning"] = "error"

    def __str__(self) -> str:
        pos = self.pos
        head = clean(f"{pos.file}:{pos.line}:{pos.col}: {self.kind}: {self.message}", keep="\n\t")
        if not pos.text:
            return head
        number = f"{pos.line:5d}"
        pad = "".join("\t" if c == "\t" else " " for c in pos.text[: pos.col - 1])
        carets = "^" * max(1, min(pos.length, len(pos.text) - pos.col + 1))
        text = "".join(c if c.isprintable() or c == "\t" else "?" for c in pos.text)
        return f"{head}\n{number} | {text}\n{' ' * len(number)} | {pad}{carets}"


class P4Error(Exception):
    """An error in the program; it is caught where checking can continue with the rest."""

    def __init__(self, pos: Pos, message: str) -> None:
        super().__init__(message)
        self.diagnostic = Diagnostic(pos, message)


class Unsupported(P4Error):
    """The program may be right, but this compiler, or BMv2, whose programs it takes, refuses it.

    The message begins with "unsupported: ", which tells a refusal from a mistake.
    """

    def __init__(self, pos: Pos, message: str) -> None:
        super().__init__(pos, f"unsupported: {message}")


class CompileError(Exception):
    """The program has errors; `diagnostics` lists them, and str() shows them with their lines.

    Remedy: correct the program at the file, line and column that each line names.  Unsupported features are refused by
    name, with the word "unsupported"; docs/softswitch.md lists them.
    """

    def __init__(self, diagnostics: Iterable[Diagnostic]) -> None:
        self.diagnostics = list(diagnostics)
        super().__init__("\n".join(str(d) for d in self.diagnostics))


@dataclass
class Errors:
    """Collects errors, so that one run reports all; stops after `limit`, since later ones are mostly follow-ups.

    warnings  what p4c warns of, too: the program means something, but hardly what was meant; as many at most
    """

    limit: int = 20
    found: list[Diagnostic] = field(default_factory=list)
    warnings: list[Diagnostic] = field(default_factory=list)

    def warn(self, pos: Pos, message: str) -> None:
        """Adds a warning, once: what is generic is checked for each of its uses."""
        warning = Diagnostic(pos, message, "warning")
        if pos.line and warning not in self.warnings and len(self.warnings) < self.limit:
            self.warnings.append(warning)

    def add(self, error: P4Error) -> None:
        """Adds an error, once. Raises CompileError when there are too many."""
        if error.diagnostic not in self.found:
            self.found.append(error.diagnostic)
        if len(self.found) >= self.limit:
            self.stop_if_any()

    def stop_if_any(self) -> None:
        """Raises CompileError where any error was found."""
        if self.found:
            raise CompileError(sorted(self.found, key=lambda d: (d.pos.file, d.pos.line, d.pos.col)))


def nearest(name: str, known: Iterable[str]) -> str:
    """The text `; did you mean 'x'?` with the known name closest to a misspelt one, or no text."""
    import difflib

    match = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"; did you mean '{match[0]}'?" if match else ""
