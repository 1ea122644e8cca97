# SPDX-License-Identifier: Apache-2.0
"""Names and types: scopes, types as written turned into types, and type inference for generics."""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

from softswitch.compiler import ast as A
from softswitch.compiler import types as T
from softswitch.compiler.diagnostics import Errors, P4Error, Pos, Unsupported, nearest

Bindings = dict[T.TypeVar, T.Type]


class Scope:
    """The names of one block; the name of an overloaded function has a list of declarations."""

    def __init__(self, parent: Scope | None) -> None:
        self.parent = parent
        self.names: dict[str, Any] = {}

    def find(self, name: str) -> Any:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None

    def visible(self) -> Iterator[str]:
        scope: Scope | None = self
        while scope is not None:
            yield from scope.names
            scope = scope.parent


class Resolver(ABC):
    """Resolves names to declarations, and types in the source to types."""

    def __init__(self, errors: Errors) -> None:
        self.errors = errors
        self.where = ""  # kinds of the enclosing declarations: "parser", "control", "action", "function"
        self.globals = Scope(None)
        self.scope = self.globals
        self.error_names: list[str] = []
        self.match_kinds: list[str] = []
        self.variables: dict[int, T.TypeVar] = {}  # id(TypeParam) -> its variable
        self.made: dict[tuple[int, tuple[T.Type, ...]], T.Type] = {}  # specialised declared types
        self.substitute = T.Substitution(self.specialize)

    # ---- scopes -------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def inside(self) -> Iterator[Scope]:
        outer = self.scope
        self.scope = Scope(outer)
        try:
            yield self.scope
        finally:
            self.scope = outer

    def declare(self, decl: Any) -> None:
        names = self.scope.names
        old = names.get(decl.name)
        if isinstance(decl, A.FunctionDecl):
            if old is None:
                names[decl.name] = [decl]
                return
            if isinstance(old, list):
                old.append(decl)
                return
        if old is not None and not (isinstance(old, A.BlockDecl | A.ExternDecl) and _forward(old)):
            first = old[0] if isinstance(old, list) else old
            raise P4Error(decl.pos, f"'{decl.name}' is declared twice; first at {first.pos}")
        names[decl.name] = decl

    def lookup(self, name: str, pos: Pos, absolute: bool = False) -> Any:
        scope = self.globals if absolute else self.scope
        found = scope.find(name)
        if found is None:
            raise P4Error(pos, f"'{name}' is not declared{nearest(name, scope.visible())}")
        return found

    # ---- types --------------------------------------------------------------------------------------------------

    @abstractmethod
    def constant(self, expr: A.Expr) -> int:
        """The value of an expression that must be an integer known at compile time."""

    def resolve(self, syntax: A.TypeSyntax) -> T.Type:
        """The type that this syntax denotes. Raises P4Error."""
        match syntax.kind:
            case "bit" | "int" | "varbit":
                assert syntax.width is not None
                width = self.constant(syntax.width)
                if width < 0 or width > T.MAX_WIDTH or (width == 0 and syntax.kind == "int"):
                    at_most = f"; at most {T.MAX_WIDTH} bits are supported" if width > T.MAX_WIDTH else ""
                    raise P4Error(syntax.pos, f"{syntax.kind}<{width}> is not a type{at_most}")
                if syntax.kind == "varbit":
                    return T.Varbit(width)
                return T.Bits(width, syntax.kind == "int")
            case "bool" | "string" | "error" | "void" | "match_kind":
                return T.Basic(syntax.kind)
            case "infint":
                return T.INFINT
            case "dontcare":
                return T.ANY
            case "tuple":
                return T.Tuple(tuple(self.resolve(a) for a in syntax.args))
            case "list":
                return T.ListOf(self.resolve(syntax.args[0]))
            case "stack":
                assert syntax.width is not None
                item = self.resolve(syntax.args[0])
                size = self.constant(syntax.width)
                if size <= 0 or size > 1 << 16:
                    raise P4Error(syntax.pos, f"a stack of {size} elements")
                if not (isinstance(item, T.Struct) and item.kind in ("header", "header_union")):
                    raise Unsupported(syntax.pos, f"arrays of {item} are not supported, only stacks of headers")
                return T.Stack(item, size)
        decl = self.lookup(syntax.name, syntax.pos, syntax.absolute)
        return self.type_of_decl(decl, tuple(self.resolve(a) for a in syntax.args), syntax.pos)

    def type_of_decl(self, decl: Any, args: tuple[T.Type, ...], pos: Pos) -> T.Type:
        match decl:
            case A.TypeParam():
                return self.variable(decl)
            case A.TypedefDecl():
                if decl.resolved is None:
                    base = self.resolve(decl.syntax)
                    decl.resolved = T.NewType(decl.name, base, decl) if decl.distinct else base
                if args and isinstance(decl.resolved, T.Struct | T.Declared):
                    return self.type_of_decl(decl.resolved.decl, args, pos)
                return decl.resolved
            case A.EnumDecl():
                return decl.resolved
            case A.StructDecl() | A.ExternDecl() | A.BlockDecl() | A.PackageDecl():
                if len(args) != len(decl.type_params):
                    if not args and not isinstance(decl, A.StructDecl):
                        return self.specialize(decl, tuple(self.variable(p) for p in decl.type_params))
                    want = len(decl.type_params)
                    raise P4Error(pos, f"{decl.name} takes {want} type arguments, got {len(args)}")
                return self.specialize(decl, args)
        name = decl[0].name if isinstance(decl, list) else decl.name
        raise P4Error(pos, f"'{name}' is not a type")

    def is_type_decl(self, decl: Any) -> bool:
        return isinstance(
            decl,
            A.TypeParam | A.TypedefDecl | A.EnumDecl | A.StructDecl | A.ExternDecl | A.BlockDecl | A.PackageDecl,
        )

    def variable(self, param: A.TypeParam) -> T.TypeVar:
        return self.variables.setdefault(id(param), T.TypeVar(param.name))

    def specialize(self, decl: Any, args: tuple[T.Type, ...]) -> T.Type:
        """A declared type with these type arguments; the same object for the same arguments."""
        key = (id(decl), args)
        if key in self.made:
            return self.made[key]
        values = {self.variable(p): a for p, a in zip(decl.type_params, args, strict=True)}
        if isinstance(decl, A.StructDecl):
            struct = T.Struct(decl.kind, decl.name, {}, args, decl)
            self.made[key] = struct
            outer, self.scope = self.scope, Scope(self.globals)
            try:
                for p in decl.type_params:
                    self.scope.names[p.name] = p
                for field in decl.fields:
                    if field.name in struct.fields:
                        raise P4Error(field.pos, f"{decl.name} has two fields '{field.name}'")
                    struct.fields[field.name] = self.substitute(self.resolve(field.syntax), values)
                    self.check_field(struct, field)
            finally:
                self.scope = outer
            return struct
        kind = {A.ExternDecl: "extern", A.PackageDecl: "package"}.get(type(decl)) or decl.kind
        made = T.Declared(kind, decl.name, decl, args, dict(values))
        self.made[key] = made
        return made

    def check_field(self, struct: T.Struct, field: A.FieldDecl) -> None:
        t = struct.fields[field.name]
        if t is struct:
            raise P4Error(field.pos, f"{struct.kind} {struct.name} contains itself")
        inner = t
        while isinstance(inner, T.NewType):
            inner = inner.base
        if struct.kind == "header":
            ok = isinstance(inner, T.Bits | T.Varbit | T.TypeVar) or inner == T.BOOL
            ok = ok or (isinstance(inner, T.Enum) and inner.base is not None)
            ok = ok or (isinstance(inner, T.Struct) and inner.kind == "struct")
            if not ok:
                raise P4Error(field.pos, f"a header cannot have a field of type {t}")
        elif struct.kind == "header_union" and not (T.is_header(inner) or isinstance(inner, T.TypeVar)):
            raise P4Error(field.pos, f"a header_union has headers alone, not {t}")
        elif isinstance(inner, T.Declared) or inner in (T.VOID, T.MATCH_KIND, T.INFINT):
            raise P4Error(field.pos, f"a {struct.kind} cannot have a field of type {t}")

    # ---- inference ----------------------------------------------------------------------------------------------

    def unify(self, formal: T.Type, actual: T.Type, found: Bindings) -> bool:
        """Binds the variables of `formal` in `found` so that it becomes `actual`."""
        match formal:
            case T.TypeVar():
                known = found.get(formal)
                if known is None or known in (T.ANY, T.INFINT):
                    if actual == T.ANY:
                        return True
                    if known is None or actual != T.INFINT:
                        found[formal] = actual
                    return True
                return known == actual or actual in (T.INFINT, T.ANY) or self.assignable(known, actual)
            case T.Tuple() if isinstance(actual, T.Tuple) and len(formal.items) == len(actual.items):
                return all(self.unify(f, a, found) for f, a in zip(formal.items, actual.items, strict=True))
            case T.ListOf() if isinstance(actual, T.Tuple):
                return all(self.unify(formal.item, a, found) for a in actual.items)
            case T.ListOf() if isinstance(actual, T.ListOf):
                return self.unify(formal.item, actual.item, found)
            case T.Stack() if isinstance(actual, T.Stack):
                return formal.size == actual.size and self.unify(formal.item, actual.item, found)
            case T.Struct() | T.Declared():
                if isinstance(actual, type(formal)) and actual.decl is formal.decl:
                    return all(self.unify(f, a, found) for f, a in zip(formal.args, actual.args, strict=True))
                if isinstance(formal, T.Declared) and formal.kind in ("parser", "control"):
                    return self.unify_signature(formal, actual, found)
                fields, given = T.fields_of(formal), T.fields_of(actual)
                if fields is not None and given is not None and isinstance(actual, T.Tuple | T.Record):
                    if len(fields) != len(given):
                        return False
                    if isinstance(actual, T.Record):
                        by_name = dict(given)
                        return all(n in by_name and self.unify(f, by_name[n], found) for n, f in fields)
                    return all(self.unify(f, a, found) for (_, f), (_, a) in zip(fields, given, strict=True))
        return actual == T.ANY or self.assignable(formal, actual)

    def unify_signature(self, formal: T.Declared, actual: T.Type, found: Bindings) -> bool:
        """Binds variables by the parameters of a parser or control that is passed for one of type `formal`."""
        if not isinstance(actual, T.Declared) or actual.kind != formal.kind:
            return False
        want, have = formal.decl.params, actual.decl.params
        if len(want) != len(have):
            return False
        return all(
            self.unify(self.substitute(w.type, formal.bindings), self.substitute(h.type, actual.bindings), found)
            for w, h in zip(want, have, strict=True)
        )

    def assignable(self, to: T.Type, source: T.Type) -> bool:
        """True if a value of type `source` is converted to `to` without an explicit cast."""
        if to == source or source == T.ANY or to == T.ANY:
            return True
        if source == T.INFINT:
            if isinstance(to, T.NewType):
                return False
            return isinstance(to, T.Bits | T.TypeVar)
        if isinstance(source, T.Enum) and source.base is not None and isinstance(to, T.Bits):
            return source.base == to
        if isinstance(source, T.Tuple | T.Record):
            fields, given = T.fields_of(to), T.fields_of(source)
            if isinstance(to, T.Stack) and isinstance(source, T.Tuple):
                return len(source.items) <= to.size and all(self.assignable(to.item, i) for i in source.items)
            if isinstance(to, T.ListOf) and isinstance(source, T.Tuple):
                return all(self.assignable(to.item, i) for i in source.items)
            if fields is None or given is None or len(fields) != len(given):
                return False
            if isinstance(source, T.Record):
                by_name = dict(given)
                return all(n in by_name and self.assignable(f, by_name[n]) for n, f in fields)
            return all(self.assignable(f, a) for (_, f), (_, a) in zip(fields, given, strict=True))
        return False


def _forward(decl: A.BlockDecl | A.ExternDecl) -> bool:
    """True if this is a declaration without a body, which a later one may complete."""
    return decl.is_type if isinstance(decl, A.BlockDecl) else not decl.methods
