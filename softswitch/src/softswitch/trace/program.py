# SPDX-License-Identifier: Apache-2.0
"""The description of a traced program (compiler/trace_sites.py): what the numbers in its records mean."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

from softswitch.compiler.trace_sites import VERSION

_MOST_BITS = 1 << 20
_LATEST_US = 1 << 56


class TraceError(Exception):
    """A recording, or the description of a program, is damaged or of another version.

    Remedy: record anew: the recording is damaged, or of another version.
    """


@dataclass(frozen=True, slots=True)
class Place:
    """A place in the P4 source: 1-based line and column, and a length in characters."""

    file: str
    line: int
    column: int
    length: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    @property
    def brief(self) -> str:
        """The place without the folder of the file."""
        return f"{PurePath(self.file).name}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Site:
    """A place in a program that is recorded, and how to read its value; `bits` is 0 without one, -1 for bytes."""

    what: str
    place: Place
    name: str = ""
    text: str = ""
    depth: int | None = None  # of a step that may contain others
    bits: int = 0
    signed: bool = False
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TracedKey:
    """A key field of a table."""

    name: str
    match: str
    bits: int


@dataclass(frozen=True, slots=True)
class TracedAction:
    """An action of a table, with the names and bits of its parameters."""

    name: str
    place: Place
    params: list[tuple[str, int]]


@dataclass(frozen=True, slots=True)
class TracedTable:
    """A table: its keys in the order of the program, its actions by number, and how many const entries it has."""

    name: str
    place: Place
    keys: list[TracedKey]
    actions: list[TracedAction]
    profile: str = ""
    const: int = 0


class TracedProgram:
    """A program's description: its sites, tables, headers and errors, and its whole source as one text."""

    def __init__(self, description: str | bytes) -> None:
        """Reads the JSON that compiler.driver.Program.trace has. Raises TraceError."""
        try:
            data = json.loads(description)
            if data["version"] != VERSION:
                raise TraceError(f"the program was compiled for version {data['version']!r} of the packet trace; this "
                                 f"softswitch reads version {VERSION}: record it again")
            self.name = str(data["program"])
            self.source = str(data["source"])
            self.started_us = _number(data.get("started_us", 0), _LATEST_US)
            """Start of the switch in microseconds since 1970; 0 if unknown."""
            self._files = [str(name) for name in data["files"]]
            self.sites = [self._site(site) for site in data["sites"]]
            self.tables = [self._table(table) for table in data["tables"]]
            self.errors = [str(name) for name in data["errors"]]
            self.headers = {
                str(name): [(str(f), _number(bits)) for f, bits in fields] for name, fields in data["headers"].items()
            }
            self.instances = [(str(name), _number(size)) for name, size in data["instances"]]
            """The headers of a packet in order; the second number is the size of a stack, or 0."""
            self.metadata = str(data["metadata"])
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
            raise TraceError(f"the description of the traced program is damaged: {error!r}") from None

    def _place(self, at: list[int]) -> Place:
        file, line, column, length = at
        return Place(self._files[file], _number(line), _number(column), _number(length))

    def _site(self, data: dict[str, Any]) -> Site:
        known = ("what", "at", "name", "text", "depth", "bits", "signed")
        about = {key: value for key, value in data.items() if key not in known}
        depth = _number(data["depth"]) if "depth" in data else None
        return Site(str(data["what"]), self._place(data["at"]), str(data.get("name", "")), str(data.get("text", "")),
                    depth, _number(data.get("bits", 0)), bool(data.get("signed")), about)

    def _table(self, data: dict[str, Any]) -> TracedTable:
        keys = [TracedKey(str(n), str(match), _number(bits)) for n, match, bits in data["keys"]]
        actions = [
            TracedAction(str(a["name"]), self._place(a["at"]), [(str(n), _number(bits)) for n, bits in a["params"]])
            for a in data["actions"]
        ]
        profile, const = str(data["profile"] or ""), _number(data["const"])
        return TracedTable(str(data["name"]), self._place(data["at"]), keys, actions, profile, const)


def _number(value: Any, most: int = _MOST_BITS) -> int:
    """A number of a description, which may be untrusted. Raises ValueError if it is too large to be intended."""
    if not isinstance(value, int) or not -most <= value <= most:
        raise ValueError(f"{str(value)[:40]} is out of range")
    return value
