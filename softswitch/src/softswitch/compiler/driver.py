# SPDX-License-Identifier: Apache-2.0
"""The entry points of the compiler.

    program = compile_file(Path("p4src/netfold.p4"))
    program.c_source, program.p4info, program.preprocessed

preprocess -> lex, parse (ast) -> check (types) -> lower (ir) -> emit_c, p4info
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from finsy.proto import p4i

from softswitch.compiler import cache
from softswitch.compiler.diagnostics import CompileError, Diagnostic, Errors, P4Error, Pos
from softswitch.compiler.preprocess import preprocess, read, shown

# The passes are imported where they run: a cached program needs none of them, and their import would take longest.
if TYPE_CHECKING:
    from softswitch.compiler.program import LoweredProgram as Lowered

__all__ = ["CompileError", "Program", "compile_file", "compile_source"]

_RECURSION = 12_000
_DIGITS = 20_000  # of the longest integer in a message: 2^65536


@dataclass(frozen=True)
class Program:
    """A compiled program.

    c_source      one C file that defines `ss_the_program` (runtime/softswitch.h)
    p4info        P4Info as p4c writes it
    sections      BMv2's JSON of it, without the program's text
    preprocessed  the whole program as one text without #include; compiling it gives the same program
    trace         the description of what it records (trace_sites.py), where it is compiled for the packet trace
    warnings      what is hardly meant so, drawn as errors are; empty where there is nothing to warn of
    """

    name: str
    c_source: str
    p4info: p4i.P4Info
    sections: str
    preprocessed: str
    trace: str = ""
    warnings: str = ""

    @property
    def bmv2_json(self) -> str:
        """The JSON of BMv2 that control planes and this switch read (bmv2_json.py)."""
        from softswitch.compiler import bmv2_json

        return bmv2_json.complete(self.sections, self.preprocessed, self.name)

    def dump_ir(self) -> str:
        """The intermediate representation as text."""
        return _lower(self.preprocessed, self.name, Errors()).dump()


def compile_file(
    path: Path, *, include: Sequence[Path] = (), defines: Mapping[str, str] | None = None, trace: bool = False,
    root: Path | None = None,
) -> Program:
    """Compiles a P4_16 file for v1model.

    include  directories for #include <...> and "...", before our own core.p4 and v1model.p4
    defines  macros, as with -D
    trace    whether the program records the packet trace (runtime/records.h)
    root     a folder that is left out of the names of its files, so that the result does not depend on where it is
    Raises CompileError, which lists and draws every error found.
    """
    return compile_source(read(path), str(path), include=include, defines=defines, trace=trace, root=root)


def compile_source(
    text: str, name: str = "<text>", *, include: Sequence[Path] | None = (), defines: Mapping[str, str] | None = None,
    trace: bool = False, root: Path | None = None,
) -> Program:
    """Compiles P4_16 text; `name` is its file name in messages and for relative includes.

    include  as in compile_file, or preprocess.LIBRARY for a program that may read no file but ours
    root     as in compile_file
    Raises CompileError.
    """
    # The passes recurse over the nesting of the program; Python keeps their frames on the heap.
    sys.setrecursionlimit(max(sys.getrecursionlimit(), _RECURSION))
    sys.set_int_max_str_digits(max(sys.get_int_max_str_digits(), _DIGITS))
    try:
        preprocessed = preprocess(text, name, include=include, defines=defines, root=root)
        name = shown(name, root)
        known = cache.load(preprocessed, name, trace=trace)
        if known is not None:
            c_source, info, sections, description, warnings = known
            return Program(name, c_source, info, sections, preprocessed, description, warnings)
        from softswitch.compiler import bmv2_json, emit_c, p4info, p4info_ids, trace_sites

        errors = Errors()
        program = _lower(preprocessed, name, errors, trace=trace)
        ids = p4info_ids.Ids(program)
        sections = bmv2_json.sections(program, p4info.control(program))
        info = p4info.make(program, ids)
        sites = trace_sites.Sites() if trace else None
        c_source = emit_c.emit(program, ids, sites)
        description = trace_sites.describe(program, sites, preprocessed) if sites is not None else ""
        found = sorted(errors.warnings, key=lambda warning: (warning.pos.file, warning.pos.line, warning.pos.col))
        warnings = "\n".join(map(str, found))
        result = Program(name, c_source, info, sections, preprocessed, description, warnings)
    except P4Error as error:
        raise CompileError([error.diagnostic]) from None
    except RecursionError:
        raise CompileError([Diagnostic(Pos(name, 1, 1), "the program nests too deeply")]) from None
    cache.store(preprocessed, name, result.c_source, result.p4info, result.sections, result.trace,
                warnings)
    return result


def _lower(preprocessed: str, name: str, errors: Errors, *, trace: bool = False) -> Lowered:
    """Runs the passes from text to IR, and collects what they warn of. Raises CompileError or P4Error."""
    from softswitch.compiler import architecture, invalid_reads
    from softswitch.compiler.check import Checker
    from softswitch.compiler.lower import lower
    from softswitch.compiler.parser import parse

    tree = parse(preprocessed, errors)
    shapes = architecture.shapes(tree)
    checker = Checker(errors)
    checker.program(tree)
    architecture.check(tree, shapes, checker.specialize)
    lowered = lower(tree, checker, name, trace=trace)
    invalid_reads.warn(tree, errors)  # it follows calls and fields, of which there are no more than that allows
    return lowered
