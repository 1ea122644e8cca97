# SPDX-License-Identifier: Apache-2.0
"""The verdicts of p4c and softswitch on a program: whether it compiles, and whether the P4Info is the same.

Neither may be trusted to end, so both run apart: p4c as a process of its own, ours in the process of the caller, which
run.py starts for many programs and ends where one takes too long.
"""

from __future__ import annotations

import subprocess
import tempfile
import traceback
from dataclasses import dataclass
from pathlib import Path

from finsy.proto import p4i
from google.protobuf import text_format

from cbuild import cc
from foreign.programs import ForeignProgram
from softswitch.compiler.diagnostics import CompileError
from softswitch.compiler.driver import Program, compile_source
from softswitch.compiler.preprocess import read
from softswitch.engine.linking import RUNTIME, TYPES

P4C_SECONDS = 120.0


@dataclass(frozen=True)
class Verdict:
    """A compiler's verdict on a program."""

    said: str
    """yes, refused, crash, timeout; and of ours also `C` where gcc refuses what it makes."""
    message: str = ""
    p4info: p4i.P4Info | None = None


def p4c(program: ForeignProgram, folder: Path) -> Verdict:
    """p4c's verdict; where it is yes, program.json and program.txtpb are in the folder."""
    info = folder / "program.txtpb"
    # Without its folder: p4c's preprocessor does not take a path with spaces.
    command = ["p4c-bm2-ss", *(f"-I{path}" for path in program.include), program.file.name,
               "-o", folder / "program.json", "--p4runtime-files", info]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=P4C_SECONDS,
                              cwd=program.file.parent)
    except subprocess.TimeoutExpired:
        return Verdict("timeout")
    if done.returncode != 0:
        crashed = done.returncode < 0 or "Compiler Bug" in done.stderr
        return Verdict("crash" if crashed else "refused", done.stderr[-4000:])
    return Verdict("yes", done.stderr[-20000:], text_format.Parse(info.read_text(), p4i.P4Info()))


def ours(program: ForeignProgram) -> tuple[Verdict, Program | None]:
    """Our verdict, from the P4 text to C that a C compiler takes without the warnings that we make errors."""
    try:
        made = compile_source(read(program.file), str(program.file), include=program.include)
    except CompileError as error:
        return Verdict("refused", str(error)[:4000]), None
    except Exception:
        return Verdict("crash", traceback.format_exc()[-6000:]), None
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "program.c"
        source.write_text(made.c_source)
        done = subprocess.run([*cc.find_compiler().command, "-std=gnu11", "-fsyntax-only", *TYPES, f"-I{RUNTIME}",
                               source], capture_output=True, text=True)
    if done.returncode != 0:
        return Verdict("C", done.stderr[:4000]), None
    info = text_format.MessageToString(made.p4info).replace(str(program.file), program.file.name)  # as p4c was given it
    return Verdict("yes", "", text_format.Parse(info, p4i.P4Info())), made


def difference(ours: p4i.P4Info, theirs: p4i.P4Info) -> str:
    """How two P4Infos differ: "" where they are equal, "order" where only by order, or both texts' first lines that
    differ."""
    if ours == theirs:
        return ""
    if _sorted(ours) == _sorted(theirs):
        return "order"
    mine, other = (text_format.MessageToString(_sorted(info)).splitlines() for info in (ours, theirs))
    lines = [f"ours {a.strip()!r}, p4c {b.strip()!r}" for a, b in zip(mine, other, strict=False) if a != b]
    return lines[0] if lines else f"{len(mine)} lines, p4c {len(other)}"


def _sorted(info: p4i.P4Info) -> p4i.P4Info:
    copy = p4i.P4Info()
    copy.CopyFrom(info)
    for field, value in copy.ListFields():
        if field.is_repeated and field.message_type is not None and "preamble" in field.message_type.fields_by_name:
            value.sort(key=lambda item: (item.preamble.id, item.preamble.name))
    return copy
