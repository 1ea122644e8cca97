# SPDX-License-Identifier: Apache-2.0
"""Holds a program to the declarations of core.p4 and v1model.p4 that come with this switch.

A pushed program is preprocessed: it contains the text of the architecture, which may thus be anybody's. The code that
is generated for externs and for standard metadata relies on their types, so an `extern` with other parameters, or a
standard_metadata_t with other fields, would be code that nobody has thought about.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Iterator

from softswitch.compiler import ast as A
from softswitch.compiler.diagnostics import Errors, P4Error, Pos
from softswitch.compiler.parser import parse
from softswitch.compiler.preprocess import LIBRARY, preprocess

_VERSIONS = ("20180101", "20200408")
"""V1MODEL_VERSION of each of the forms that v1model.p4 has."""

Shapes = dict[int, object]
_Declarations = dict[str, list[object]]


def shapes(program: A.SyntaxTree) -> Shapes:
    """What the declarations say that may be the architecture's, by id(); taken before the checker fills in types."""
    return {id(decl): _declared(decl) for decl in program.decls if _of_interest(decl)}


def check(program: A.SyntaxTree, shapes: Shapes) -> None:
    """Raises P4Error at the first declaration of the architecture that is not ours, in the version closest to it."""
    closest: list[P4Error] | None = None
    for version in _VERSIONS:
        foreign = list(_foreign(program.decls, shapes, _library(version)))
        if not foreign:
            return
        closest = foreign if closest is None or len(foreign) < len(closest) else closest
    assert closest
    raise closest[0]


def _foreign(decls: Iterable[A.Decl], shapes: Shapes, library: _Declarations) -> Iterator[P4Error]:
    for decl in decls:
        if id(decl) not in shapes:
            continue
        known = library.get(decl.name)
        if known is not None and shapes[id(decl)] not in known:
            yield P4Error(decl.pos, f"'{decl.name}' is a name of core.p4 or v1model.p4, and declared otherwise here: "
                                    "leave it out, and include those of this switch")


def _of_interest(decl: A.Decl) -> bool:
    if isinstance(decl, A.FunctionDecl):
        return decl.body is None
    return isinstance(decl, A.ExternDecl | A.StructDecl | A.EnumDecl | A.TypedefDecl | A.PackageDecl | A.BlockDecl)


@functools.cache
def _library(version: str) -> _Declarations:
    """The declarations of our v1model.p4, by name; functions may have several."""
    text = preprocess("#include <v1model.p4>\n", "<v1model>", include=LIBRARY, defines={"V1MODEL_VERSION": version})
    known: _Declarations = {}
    for decl in parse(text, Errors()).decls:
        if _of_interest(decl):
            known.setdefault(decl.name, []).append(_declared(decl))
    return known


def _declared(decl: A.Decl) -> object:
    """The shape of a declaration of the architecture; no parser or control of it has a body."""
    return "a body" if isinstance(decl, A.BlockDecl) and not decl.is_type else _shape(decl)


def _shape(node: object) -> object:
    """What a declaration says, as nested tuples, without its place and annotations."""
    if isinstance(node, Pos):
        return None
    if dataclasses.is_dataclass(node):
        fields = (f.name for f in dataclasses.fields(node) if f.name not in ("pos", "annotations"))
        return (type(node).__name__, *(_shape(getattr(node, name)) for name in fields))
    if isinstance(node, list | tuple):
        return tuple(map(_shape, node))
    return node
