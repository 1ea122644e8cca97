# SPDX-License-Identifier: Apache-2.0
"""The types of P4_16. Structural types compare by value, declared ones by identity."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MAX_WIDTH = 1 << 16
"""Most bits of a number."""


class Type:
    """Any P4 type; str() gives its P4 syntax."""


@dataclass(frozen=True)
class Basic(Type):
    """One of bool, int (unbounded), string, error, match_kind, void, and the type of `_`."""

    name: str

    def __str__(self) -> str:
        return self.name


BOOL, INFINT, STRING = Basic("bool"), Basic("int"), Basic("string")
ERROR, MATCH_KIND, VOID = Basic("error"), Basic("match_kind"), Basic("void")
ANY = Basic("_")


@dataclass(frozen=True)
class Bits(Type):
    """The type bit<width> or int<width>."""

    width: int
    signed: bool = False

    def __str__(self) -> str:
        return f"{'int' if self.signed else 'bit'}<{self.width}>"

    def wrap(self, value: int) -> int:
        """The value modulo 2^width, in the range of this type."""
        value &= (1 << self.width) - 1
        return value - (1 << self.width) if self.signed and value >> (self.width - 1) else value


@dataclass(frozen=True)
class Varbit(Type):
    """The type varbit<width>: a bit string of at most so many bits."""

    width: int

    def __str__(self) -> str:
        return f"varbit<{self.width}>"


@dataclass(frozen=True)
class Tuple(Type):
    """The type tuple<...>, which list expressions have too."""

    items: tuple[Type, ...]

    def __str__(self) -> str:
        return f"tuple<{', '.join(map(str, self.items))}>"


@dataclass(frozen=True)
class Record(Type):
    """The type of {a = 1, b = 2} as long as its struct is not known."""

    fields: tuple[tuple[str, Type], ...]

    def __str__(self) -> str:
        return "{" + ", ".join(f"{n}: {t}" for n, t in self.fields) + "}"


@dataclass(frozen=True)
class ListOf(Type):
    """The type list<item>, of a list expression that is known at compile time."""

    item: Type

    def __str__(self) -> str:
        return f"list<{self.item}>"


@dataclass(frozen=True)
class Stack(Type):
    """A header stack, or another array."""

    item: Type
    size: int

    def __str__(self) -> str:
        return f"{self.item}[{self.size}]"


@dataclass(frozen=True, eq=False)
class TypeVar(Type):
    """A type parameter of a generic declaration, for which Substitution puts a type."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(eq=False)
class Struct(Type):
    """A struct, header or header_union (`kind`); there is one object for each set of type arguments."""

    kind: str
    name: str
    fields: dict[str, Type]
    args: tuple[Type, ...] = ()
    decl: Any = None

    def __str__(self) -> str:
        return self.name + (f"<{', '.join(map(str, self.args))}>" if self.args else "")


@dataclass(eq=False)
class Enum(Type):
    """An enum; `members` maps names to numbers: positions, or the declared values where there is a `base`."""

    name: str
    members: dict[str, int]
    base: Bits | None = None
    decl: Any = None

    def __str__(self) -> str:
        return self.name


@dataclass(eq=False)
class NewType(Type):
    """`type base name;`: a distinct type with the values of its base."""

    name: str
    base: Type
    decl: Any = None

    def __str__(self) -> str:
        return self.name


@dataclass(eq=False)
class Declared(Type):
    """The type of an instance of an extern, parser, control, package, action or table (`kind`)."""

    kind: str
    name: str
    decl: Any
    args: tuple[Type, ...] = ()
    bindings: dict[Any, Type] = field(default_factory=dict)  # TypeVar -> Type

    def __str__(self) -> str:
        return self.name + (f"<{', '.join(map(str, self.args))}>" if self.args else "")


@dataclass(frozen=True)
class OfTable(Type):
    """A type of one table: kind "result" is that of apply(), and "actions" that of action_run."""

    kind: str
    table: Any

    def __str__(self) -> str:
        return f"{self.kind} of table {self.table.name}"


def is_header(t: Type) -> bool:
    return isinstance(t, Struct) and t.kind == "header"


def is_numeric(t: Type) -> bool:
    return isinstance(t, Bits) or t is INFINT or t == INFINT


def fields_of(t: Type) -> list[tuple[str, Type]] | None:
    """The fields of a struct-like type or tuple; None for other types."""
    match t:
        case Struct():
            return list(t.fields.items())
        case Record():
            return list(t.fields)
        case Tuple():
            return [(f"f{i}", item) for i, item in enumerate(t.items)]
    return None


class Substitution:
    """Replaces type variables; declared types are specialised by `specialize(decl, args)`."""

    def __init__(self, specialize: Callable[[Any, tuple[Type, ...]], Type]) -> None:
        self.specialize = specialize

    def __call__(self, t: Type, values: Mapping[TypeVar, Type]) -> Type:
        if not values:
            return t
        match t:
            case TypeVar():
                found = values.get(t)
                return t if found is None or found is t else self(found, values) if has_vars(found) else found
            case Tuple():
                return Tuple(tuple(self(i, values) for i in t.items))
            case Record():
                return Record(tuple((n, self(i, values)) for n, i in t.fields))
            case ListOf():
                return ListOf(self(t.item, values))
            case Stack():
                return Stack(self(t.item, values), t.size)
            case Struct() | Declared() if t.args:
                args = tuple(self(a, values) for a in t.args)
                return t if args == t.args else self.specialize(t.decl, args)
        return t


def parts(t: Type) -> Iterator[Type]:
    """The types that `t` consists of."""
    match t:
        case Tuple():
            yield from t.items
        case Record():
            yield from (i for _, i in t.fields)
        case ListOf() | Stack():
            yield t.item
        case Struct() | Declared():
            yield from t.args


def has_vars(t: Type) -> bool:
    return isinstance(t, TypeVar) or any(map(has_vars, parts(t)))


def width_of(t: Type) -> int | None:
    """Bits of a value of this type; None where its size is not fixed."""
    match t:
        case Bits():
            return t.width
        case Basic():
            return 1 if t == BOOL else None
        case Enum():
            return t.base.width if t.base else None
        case NewType():
            return width_of(t.base)
        case Stack():
            width = width_of(t.item)
            return None if width is None else width * t.size
    fields = fields_of(t)
    if fields is None:
        return None
    widths = [width_of(f) for _, f in fields]
    return None if any(w is None for w in widths) else sum(w for w in widths if w is not None)


def sizes(t: Type) -> tuple[int, int]:
    """The smallest and the largest size in bits, which differ for varbits and header unions."""
    match t:
        case Varbit():
            return 0, t.width
        case Stack():
            low, high = sizes(t.item)
            return low * t.size, high * t.size
        case Struct() if t.kind == "header_union":
            both = [sizes(f) for f in t.fields.values()]
            return min((b[0] for b in both), default=0), max((b[1] for b in both), default=0)
    width = width_of(t)
    if width is not None:
        return width, width
    both = [sizes(f) for _, f in fields_of(t) or []]
    return sum(b[0] for b in both), sum(b[1] for b in both)
