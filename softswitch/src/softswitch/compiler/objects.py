# SPDX-License-Identifier: Apache-2.0
"""The objects of a lowered program, which P4 declares once: tables with their actions, instances of externs, digests.

Objects are numbered within their kind, as the runtime numbers them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from softswitch.compiler.diagnostics import Pos
from softswitch.compiler.types import Basic, Bits


@dataclass(eq=False)
class ActionObject:
    """An action in the list of a table; its parameters are those that entries set."""

    name: str
    decl: Any
    params: list[tuple[str, Bits | Basic]]
    refs: Any = None


@dataclass(eq=False)
class Key:
    """One key of a table: the control-plane name, match kind and type."""

    name: str
    match: str  # "exact", "lpm", ...
    type: Bits | Basic
    element: Any  # ast.KeyElement


@dataclass(eq=False)
class ConstEntry:
    """A const entry of a table; its keys are (value, mask or high end)."""

    keys: list[tuple[int, int]]
    priority: int
    action: int
    args: list[int]
    pos: Pos


@dataclass(eq=False)
class TableObject:
    """A table, with its keys, actions, constant entries and the direct resources that belong to it."""

    name: str
    decl: Any
    index: int
    keys: list[Key] = field(default_factory=list)
    actions: list[ActionObject] = field(default_factory=list)
    default: int = 0
    default_args: list[int] = field(default_factory=list)
    const_default: bool = False
    entries: list[ConstEntry] = field(default_factory=list)
    const_entries: bool = False
    size: int = 1024
    idle_timeout: bool = False
    profile: ExternObject | None = None
    counter: ExternObject | None = None
    meter: ExternObject | None = None

    def __str__(self) -> str:
        return self.name


@dataclass(eq=False)
class ExternObject:
    """An instance of an extern; `index` is its number within its kind, direct and indirect ones together."""

    kind: str
    name: str
    decl: Any
    index: int
    size: int = 0
    type: Any = None  # type of a register's cells
    declared: Any = None  # and as it is declared
    unit: str = "packets"
    table: TableObject | None = None
    algorithm: int = 0
    max_group_size: int = 0
    is_global: bool = False  # declared outside of controls and parsers

    def __str__(self) -> str:
        return self.name


@dataclass(eq=False)
class ValueSet:
    """A parser's value set, whose members the control plane sets."""

    name: str
    decl: Any
    index: int
    size: int
    fields: list[tuple[str, str, Bits | Basic]]  # name, match kind, type

    def __str__(self) -> str:
        return self.name


@dataclass(eq=False)
class Digest:
    """A digest: the leaves of its struct, as (path, type)."""

    name: str
    index: int
    type: Any
    fields: list[tuple[str, Bits | Basic]]
    places: list[tuple[str, str]] = field(default_factory=list)  # stage and action (or "") of every call

    def __str__(self) -> str:
        return self.name
