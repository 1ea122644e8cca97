# SPDX-License-Identifier: Apache-2.0
"""The state that all lowering passes share: the program so far, the instructions being written, names, and types."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from softswitch.compiler import ir
from softswitch.compiler import types as T
from softswitch.compiler.diagnostics import NOWHERE, Errors, P4Error, Pos, Unsupported
from softswitch.compiler.ir import U32
from softswitch.compiler.objects import TableObject
from softswitch.compiler.program import Function, LoweredProgram

MAX_STATEMENTS = 200_000

MAX_MEMORY = 1 << 20
"""Most bytes of the headers and metadata of a packet, and of the variables of a stage, which are on the stack."""


class ApplyResult:
    """The result of table.apply()."""

    def __init__(self, table: TableObject, hit: ir.Var, run: ir.Var) -> None:
        self.table, self.hit, self.run = table, hit, run


class Lowering:
    """The state of lowering one program."""

    def __init__(
        self, specialize: Callable[[Any, tuple[T.Type, ...]], T.Type], source: str, errors: Errors
    ) -> None:
        self.program = LoweredProgram(source)
        self.errors = errors
        self.function = Function("")
        self.out: list[ir.Instruction] = []
        self.bindings: dict[int, Any] = {}  # id(declaration) -> l-value, constant, instance
        self.types: dict[T.TypeVar, T.Type] = {}  # type arguments of the generic function that is being lowered
        self.substitute = T.Substitution(specialize)
        self.records: dict[Any, ir.RecordType] = {}
        self.names: dict[str, int] = {"state": 1, "to": 1, "from": 1}  # parameters of the C functions
        self.pos: Pos = NOWHERE
        self.emitted = 0
        self.in_parser = False
        self.known: dict[int, ir.LValue] = {}  # places already found, by id(syntax): the left of `op=`
        self.temps: set[int] = set()  # ids of variables that are used only once
        self.tracing = False  # whether the packet trace is wanted
        self.depth = 0  # of notes for it

    # ---- output -------------------------------------------------------------------------------------------------

    def emit(self, stmt: ir.Instruction) -> None:
        self.emitted += 1
        if self.emitted > MAX_STATEMENTS:
            raise P4Error(self.pos, f"the program grows beyond {MAX_STATEMENTS} statements when calls are inlined")
        stmt.pos = self.pos
        self.out.append(stmt)

    def note(self, what: str, name: str = "", text: str = "", value: ir.Value | None = None,
             pos: Pos | None = None) -> None:
        """Marks a step for the packet trace, where that is wanted."""
        if self.tracing:
            self.out.append(ir.Note(what, name, text, self.depth, value, pos=pos or self.pos))

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """Assigns everything that is lowered within this context to the step that was marked last."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1

    @contextmanager
    def into(self, body: list[ir.Instruction]) -> Iterator[None]:
        outer, self.out = self.out, body
        try:
            yield
        finally:
            self.out = outer

    def unique(self, name: str) -> str:
        """A C identifier that is not used yet."""
        n = self.names.get(name, 0)
        self.names[name] = n + 1
        return f"{name}_{n}" if n else f"{name}_"

    def local(self, name: str, t: ir.Type) -> ir.Var:
        var = ir.Var(t, self.unique(name))
        self.function.locals.append(var)
        self.function.memory += ir.memory_of(t)
        if self.function.memory > MAX_MEMORY:
            raise P4Error(self.pos, f"the variables of one stage take more than {MAX_MEMORY} bytes")
        return var

    def temp(self, value: ir.Value, name: str = "t") -> ir.Var:
        """Saves a value in a new variable."""
        var = self.local(name, value.type)
        self.temps.add(id(var))
        self.emit(ir.Assign(var, value))
        return var

    # ---- types --------------------------------------------------------------------------------------------------

    def actual(self, t: T.Type) -> T.Type:
        """A checked type with the parameters of generics replaced, and `type` declarations resolved."""
        t = self.substitute(t, self.types)
        while isinstance(t, T.NewType):
            t = t.base
        return t

    def type(self, t: T.Type, pos: Pos | None = None) -> ir.Type:
        t = self.actual(t)
        match t:
            case T.Bits() | T.Varbit():
                return t
            case T.Basic() if t == T.BOOL:
                return T.BOOL
            case T.Basic() if t == T.ERROR:
                return U32
            case T.Basic() if t == T.INFINT:
                return T.Bits(128, True)
            case T.Enum():
                return t.base or U32
            case T.Struct():
                key: Any = id(t)
                if key not in self.records:
                    kind = {"header_union": "union"}.get(t.kind, t.kind)
                    self.make_record(key, kind, t.name, t.fields, str(t))
                return self.records[key]
            case T.Tuple() | T.Record():
                if t not in self.records:
                    self.make_record(t, "struct", "tuple", dict(T.fields_of(t) or []), str(t))
                return self.records[t]
            case T.Stack():
                item = self.type(t.item)
                assert isinstance(item, ir.RecordType)
                stack = ir.StackType(item, t.size)
                size = ir.memory_of(stack)
                if size > MAX_MEMORY:
                    raise Unsupported(pos or self.pos, f"{t} takes {size} bytes; at most {MAX_MEMORY} are supported")
                return stack
            case T.OfTable():
                return U32
        raise Unsupported(pos or self.pos, f"a value of type {t} is not supported here")

    def make_record(self, key: Any, kind: str, name: str, fields: dict[str, T.Type], p4: str) -> None:
        lowered = {n: self.type(f) for n, f in fields.items()}
        rec = ir.RecordType(kind, self.unique(f"{kind}_{name}"), p4, lowered)
        if rec.memory > MAX_MEMORY:
            raise Unsupported(self.pos, f"a value of {p4} takes {rec.memory} bytes; at most {MAX_MEMORY} are supported")
        self.records[key] = rec
        self.program.records.append(rec)
