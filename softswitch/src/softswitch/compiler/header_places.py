# SPDX-License-Identifier: Apache-2.0
"""Where headers are kept, and what is known of their validity at a place of the program.

A path names what is stored: the id() of a variable's or parameter's declaration, then names of fields and indices of
elements.  An expression may mean several: `stack[i]` and `stack.next` mean every element.
"""

from __future__ import annotations

from collections.abc import Iterator

from softswitch.compiler import ast as A
from softswitch.compiler import types as T

Path = tuple[int | str, ...]


def paths(e: A.Expr) -> list[Path]:
    """The places that an expression may mean; none for a value that is computed."""
    match e:
        case A.NameExpr(decl=A.VarDecl() | A.Param() as decl):
            return [(id(decl),)]
        case A.MemberExpr(base=A.Expr(type=T.Stack() as stack)) if e.name in ("next", "last", "lastIndex"):
            return [(*path, i) for path in paths(e.base) for i in range(stack.size)]
        case A.MemberExpr(base=A.Expr(type=T.Struct())):
            return [(*path, e.name) for path in paths(e.base)]
        case A.IndexExpr(base=A.Expr(type=T.Stack() as stack)):
            known = [e.index.const] if isinstance(e.index.const, int) else range(stack.size)
            return [(*path, i) for path in paths(e.base) for i in known]
    return []


def any_element(e: A.Expr) -> bool:
    """True if an expression refers to an element of a stack that is not known before the program runs."""
    match e:
        case A.IndexExpr():
            return e.index.const is None
        case A.MemberExpr(base=A.Expr(type=T.Stack())):
            return True
    return False


def is_union(t: T.Type) -> bool:
    return isinstance(t, T.Struct) and t.kind == "header_union"


def headers(path: Path, t: T.Type) -> Iterator[Path]:
    """All headers and header unions at a path that holds a value of this type."""
    if T.is_header(t) or is_union(t):
        yield path
    if isinstance(t, T.Stack):
        for i in range(t.size):
            yield from headers((*path, i), t.item)
    elif isinstance(t, T.Struct) and t.kind != "header":
        for name, field in t.fields.items():
            yield from headers((*path, name), field)


class Validity:
    """The knowledge about each header's validity: True and False for valid and not, None for either.

    asked  headers on which isValid() was called in the enclosing statements. p4c ignores the result of such conditions,
           and so does not warn of these headers; nor does this compiler
    """

    def __init__(self, known: dict[Path, bool | None] | None = None, asked: frozenset[Path] = frozenset()) -> None:
        self.known = known or {}
        self.asked = asked

    def copy(self) -> Validity:
        return Validity(dict(self.known), self.asked)

    def same(self, other: Validity) -> bool:
        return self.known == other.known and self.asked == other.asked

    def joined(self, other: Validity) -> Validity:
        """The validity that holds on both of two paths, where they meet."""
        return Validity({path: value if other.known.get(path) == value else None
                         for path, value in self.known.items()})

    def set(self, path: Path, value: bool | None) -> None:
        self.known[path] = value
        self.asked -= {path}

    def set_all(self, path: Path, t: T.Type, value: bool) -> None:
        for header in headers(path, t):
            self.set(header, value)

    def of(self, places: list[Path]) -> bool | None:
        """True where a header at one of the places is valid, False where those at all are not."""
        found = [True if path in self.asked else self.known.get(path) for path in places]
        return True if not found or True in found else None if None in found else False

    def ask(self, e: A.Expr) -> None:
        """Notes that the validity of a header or header union was asked for."""
        self.asked |= {header for path in paths(e) for header in headers(path, e.type)}

    def set_header(self, e: A.Expr, value: bool | None) -> None:
        """Sets what an expression means: another header of the same union is then not valid."""
        if any_element(e) and value is not True:
            return  # one element of a stack is another now, and nobody knows which
        if isinstance(e, A.MemberExpr) and is_union(e.base.type):
            if any_element(e.base):
                if value is not True:
                    return
            else:
                for path in paths(e.base):
                    self.set_all(path, e.base.type, False)
                    self.set(path, value)
        for path in paths(e):
            self.set(path, value)
