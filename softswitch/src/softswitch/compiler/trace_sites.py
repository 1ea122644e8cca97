# SPDX-License-Identifier: Apache-2.0
"""The description of a program that is compiled for the packet trace: what the numbers in its records mean.

The program records numbers of *sites*, which are places in its source, with a value each (runtime/records.h). The
description, which is JSON, tells for each site what happens there, where in the source, and how to read the value;
softswitch/trace reads records by it, and docs/trace.md says what it contains.
"""

from __future__ import annotations

import json
from typing import Any

from softswitch.compiler import ir
from softswitch.compiler.c_text import width
from softswitch.compiler.diagnostics import Pos
from softswitch.compiler.program import LoweredProgram
from softswitch.compiler.types import Bits, Type, Varbit

VERSION = 1
"""Version of the description; other versions cannot be read."""


class Sites:
    """The sites of one program, in the order of their numbers."""

    def __init__(self) -> None:
        self.sites: list[dict[str, Any]] = []
        self.files: dict[str, int] = {}
        self.headers: dict[str, list[list[Any]]] = {}

    def add(self, what: str, pos: Pos, **about: Any) -> int:
        """A new site and its number; empty values are left out."""
        site: dict[str, Any] = {"what": what, "at": self.place(pos)}
        site.update((name, value) for name, value in about.items() if value not in ("", None))
        self.sites.append(site)
        return len(self.sites) - 1

    def place(self, pos: Pos) -> list[int]:
        """A place as the number of its file, line, column and length."""
        return [self.files.setdefault(pos.file, len(self.files)), pos.line, pos.col, pos.length]

    def header(self, t: ir.RecordType) -> str:
        """The name by which the description lists a header's fields: their names and bits, negative for a varbit."""
        if t.name not in self.headers:
            self.headers[t.name] = [
                [".".join(path), -f.width if isinstance(f, Varbit) else width(f)] for path, f in ir.scalar_fields(t)
            ]
        return t.name


def number(t: ir.Type | Type) -> dict[str, Any]:
    """How to read a recorded value of this type."""
    if isinstance(t, Varbit):
        return {"bits": -1}
    return {"bits": width(t), "signed": True if isinstance(t, Bits) and t.signed else None}  # type: ignore[arg-type]


def describe(program: LoweredProgram, sites: Sites, source: str) -> str:
    """The description of a program as JSON; `source` is its text, with #line marks."""
    tables = [
        {
            "name": t.name,
            "at": sites.place(t.decl.pos),
            "keys": [[k.name, k.match, width(k.type)] for k in t.keys if k.match != "selector"],
            "actions": [
                {"name": a.name, "at": sites.place(a.decl.pos), "params": [[n, width(pt)] for n, pt in a.params]}
                for a in t.actions
            ],
            "profile": t.profile.name if t.profile is not None else None,
            "const": len(t.entries) if t.const_entries else 0,
        }
        for t in program.tables
    ]
    headers, metadata = (v.type for v in program.state)
    fields = headers.fields.items() if isinstance(headers, ir.RecordType) else ()
    instances = [[name, t.size if isinstance(t, ir.StackType) else 0] for name, t in fields]
    return json.dumps({
        "version": VERSION, "program": program.source, "files": list(sites.files), "sites": sites.sites,
        "headers": sites.headers, "tables": tables, "errors": program.errors, "source": source,
        "instances": instances, "metadata": metadata.p4 if isinstance(metadata, ir.RecordType) else "",
    }, separators=(",", ":"))
