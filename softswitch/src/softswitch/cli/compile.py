# SPDX-License-Identifier: Apache-2.0
"""softswitch compile: what a compiler gives, as files."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from softswitch.cli.options import CliOption, Defines, Includes, Program, defines, fail, p4_text, refuse, warn
from softswitch.compiler.p4info_files import FORMATS, written
from softswitch.runtime import files

if TYPE_CHECKING:
    from softswitch.compiler.driver import Program as CompiledProgram


def compile_command(
    program: Program,
    p4info: Annotated[
        Path | None, CliOption(metavar="FILE", help="Write the p4info here (.txtpb text, .bin binary, .json).")
    ] = None,
    c: Annotated[Path | None, CliOption("-o", "--c", metavar="FILE", help="Write the generated C here.")] = None,
    preprocessed: Annotated[
        Path | None,
        CliOption(metavar="FILE", help="Write here the P4 text that a controller pushes as p4_device_config."),
    ] = None,
    json: Annotated[
        Path | None,
        CliOption(metavar="FILE", help="Write here BMv2's JSON for control planes, which includes the P4 text."),
    ] = None,
    dump_ir: Annotated[bool, CliOption("--dump-ir", help="Print the typed IR.")] = False,
    define: Defines = None,
    include: Includes = None,
) -> None:
    """Compile a program; with no output named, only check it and build it into the cache."""
    from softswitch.engine.errors import EngineError
    from softswitch.p4runtime.program import begin, build_executable

    build = not (dump_ir or p4info or c or preprocessed or json)
    if build:
        begin()
    compiled = _compile(program, include, define)
    if dump_ir:
        print(compiled.dump_ir())
    try:
        outputs: list[tuple[Path | None, Callable[[], str | bytes]]] = [
            (p4info, lambda: written(compiled.p4info, FORMATS.get(p4info.suffix if p4info else "", "text"))),
            (c, lambda: compiled.c_source), (preprocessed, lambda: compiled.preprocessed),
            (json, lambda: compiled.bmv2_json)]
        for path, content in outputs:
            if path is not None:
                files.replace(path, content())
                print(f"{program}: wrote {path}", file=sys.stderr)
    except OSError as error:
        fail(f"{error.filename}: {error.strerror}; expected a file that can be written")
    if build:
        try:
            print(f"{program}: compiled to {build_executable(compiled.c_source)}")
        except EngineError as error:
            fail(str(error), 1)


def _compile(program: Path, include: list[Path] | None, define: list[str] | None) -> CompiledProgram:
    from softswitch.compiler.diagnostics import CompileError
    from softswitch.compiler.driver import compile_file

    p4_text(program)
    try:
        compiled = compile_file(program, include=include or [], defines=defines(define))
    except CompileError as error:
        refuse(error)
    warn(compiled)
    return compiled
