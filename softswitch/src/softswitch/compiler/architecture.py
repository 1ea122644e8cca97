# SPDX-License-Identifier: Apache-2.0
"""Holds a program to the declarations of core.p4 and v1model.p4 that come with this switch.

A pushed program is preprocessed: it contains the text of the architecture, which may thus be anybody's. The code that
is generated for externs and for standard metadata relies on their types, so an `extern` with other parameters, or a
standard_metadata_t whose fields have other sizes, would be code that nobody has thought about. Further fields of
standard_metadata_t are metadata like the user's (STANDARD has those that the switch knows), and any may be missing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator

from softswitch.compiler import ast as A
from softswitch.compiler import types as T
from softswitch.compiler.diagnostics import Errors, P4Error, Pos
from softswitch.compiler.parser import parse
from softswitch.compiler.preprocess import LIBRARY, preprocess

_VERSIONS = ("20180101", "20200408")
"""V1MODEL_VERSION of each form of v1model.p4."""

STANDARD: dict[str, T.Type] = {
    "ingress_port": T.Bits(9), "egress_spec": T.Bits(9), "egress_port": T.Bits(9), "instance_type": T.Bits(32),
    "packet_length": T.Bits(32), "enq_timestamp": T.Bits(32), "enq_qdepth": T.Bits(19), "deq_timedelta": T.Bits(32),
    "deq_qdepth": T.Bits(19), "ingress_global_timestamp": T.Bits(48), "egress_global_timestamp": T.Bits(48),
    "mcast_grp": T.Bits(16), "egress_rid": T.Bits(16), "checksum_error": T.Bits(1), "priority": T.Bits(3),
    "parser_error": T.ERROR,
}
"""The fields of standard_metadata_t that ss_packet has (runtime/softswitch.h), whose C members have their names."""

Shapes = dict[int, object]
_Declarations = dict[str, list[object]]


def shapes(program: A.SyntaxTree) -> Shapes:
    """The contents of declarations that may belong to the architecture, by id(); taken before the checker fills in
    types."""
    return {id(decl): _declared(decl) for decl in program.decls if _of_interest(decl)}


def check(program: A.SyntaxTree, shapes: Shapes, specialize: Callable[[A.StructDecl, tuple[()]], T.Type]) -> None:
    """specialize: gives the type of a struct's declaration, once it was checked.

    Raises P4Error at the first declaration of the architecture that is not ours, in the version closest to it."""
    closest: list[P4Error] | None = None
    standard = [d for d in program.decls if isinstance(d, A.StructDecl) and d.name == "standard_metadata_t"]
    fits = {id(d) for d in standard if _fits(specialize(d, ()))}
    for version in _VERSIONS:
        decls = (d for d in program.decls if id(d) in shapes and id(d) not in fits)
        foreign = list(_foreign(decls, shapes, _library(version)))
        if not foreign:
            return
        closest = foreign if closest is None or len(foreign) < len(closest) else closest
    assert closest
    raise closest[0]


def _foreign(decls: Iterable[A.Decl], shapes: Shapes, library: _Declarations) -> Iterator[P4Error]:
    for decl in decls:
        known = library.get(decl.name)
        if known is not None and shapes[id(decl)] not in known:
            yield P4Error(decl.pos, f"'{decl.name}' is a name of core.p4 or v1model.p4, and declared otherwise here: "
                                    "leave it out, and include those of this switch")


def _fits(t: T.Type) -> bool:
    """True if a struct can be standard metadata: the fields that the switch knows have their required types."""
    return isinstance(t, T.Struct) and t.kind == "struct" and all(
        _opened(t.fields.get(name, known)) == known for name, known in STANDARD.items()
    )


def _opened(t: T.Type) -> T.Type:
    while isinstance(t, T.NewType):
        t = t.base
    return t


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
    """The contents of a declaration as nested tuples, without its place and annotations."""
    if isinstance(node, Pos):
        return None
    if dataclasses.is_dataclass(node):
        fields = (f.name for f in dataclasses.fields(node) if f.name not in ("pos", "annotations"))
        return (type(node).__name__, *(_shape(getattr(node, name)) for name in fields))
    if isinstance(node, list | tuple):
        return tuple(map(_shape, node))
    return node
