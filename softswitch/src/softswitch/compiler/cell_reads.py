# SPDX-License-Identifier: Apache-2.0
"""Which reads of a register may refer to its cell, instead of copying it.

What a variable refers to must never change while anyone holds it. So a read into a local variable may refer to the
cell where the variable is used only within the same straight list of instructions, before anything is written to that
register, and only to compute or to write from: not to be held by another variable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from softswitch.compiler import ir
from softswitch.compiler.wire_values import in_wire_order, refers


@dataclasses.dataclass
class _Held:
    """The state of a variable at some place of a list: the cell that it was read from, and whether the cell may have
    changed."""

    read: ir.Extern | None
    stale: bool = False


def referring_reads(body: list[ir.Instruction]) -> set[int]:
    """The ids of those instructions of a function that read a register and may refer to the cell."""
    search = _Search()
    search.list(body)
    return {
        id(read) for read in search.reads if id(read) not in search.copies and id(read.out) not in search.far
    }


class _Search:
    """Walks through the lists of instructions of a function."""

    def __init__(self) -> None:
        self.reads: list[ir.Extern] = []
        self.copies: set[int] = set()  # ids of the reads whose cell may change, or that others hold
        self.far: set[int] = set()  # ids of the variables that are used in a list that did not set them

    def list(self, body: list[ir.Instruction]) -> tuple[set[int], set[int]]:
        """Looks at one list; returns the ids of the variables that it mentions and of the registers that it writes."""
        held: dict[int, _Held] = {}
        mentioned: set[int] = set()
        written: set[int] = set()
        for s in body:
            out = _target(s)
            used = {id(v) for v in _variables(s, without=out)}
            for var in used:
                self.use(var, held.get(var), s)
            inner: set[int] = set()
            writes = {id(s.info)} if isinstance(s, ir.Extern) and s.op == "register_write" else set()
            for part in _lists(s):
                more = self.list(part)
                inner |= more[0]
                writes |= more[1]
            for var in inner:
                held.pop(var, None)  # who uses it behind must set it anew
            for what in held.values():
                what.stale = what.stale or (what.read is not None and id(what.read.info) in writes)
            if isinstance(s, ir.Label):
                held.clear()
            if out is not None:
                read = s if isinstance(s, ir.Extern) and s.op == "register_read" and in_wire_order(out.type) else None
                if read is not None:
                    self.reads.append(read)
                held[id(out)] = _Held(read)
                used.add(id(out))
            mentioned |= used | inner
            written |= writes
        return mentioned, written

    def use(self, var: int, held: _Held | None, s: ir.Instruction) -> None:
        if held is None:
            self.far.add(var)
        elif held.read is not None and (held.stale or (isinstance(s, ir.Assign) and refers(s.src))):
            self.copies.add(id(held.read))


def _target(s: ir.Instruction) -> ir.Var | None:
    """The local variable that an instruction sets as a whole."""
    match s:
        case ir.Assign(dst=ir.Var(storage="local") as var) | ir.Zero(dst=ir.Var(storage="local") as var):
            return var
        case ir.Extern(op="register_read", out=ir.Var(storage="local") as var):
            return var
    return None


def _lists(s: ir.Instruction) -> Iterator[list[ir.Instruction]]:
    match s:
        case ir.If():
            yield s.then
            yield s.other
        case ir.Apply():
            yield from (case.body for case in s.cases)


def _variables(x: Any, without: ir.Var | None = None) -> Iterator[ir.Var]:
    """The variables that an instruction mentions by itself; not the one that it sets, and not those of its lists."""
    match x:
        case ir.Var():
            yield x
        case ir.Value() | ir.Instruction():
            for f in dataclasses.fields(x):
                if f.name in ("then", "other", "cases", "pos", "type", "info"):
                    continue
                value = getattr(x, f.name)
                if value is not without or f.name not in ("dst", "out"):
                    yield from _variables(value)
        case list():
            for item in x:
                yield from _variables(item)
