# SPDX-License-Identifier: Apache-2.0
"""Links a compiled program with the runtime: as a library for this process, or as an executable."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

from cbuild import cc

RUNTIME = Path(__file__).resolve().parent.parent / "runtime"
CORE = ("pipeline.c", "tables.c", "entries.c", "profiles.c", "state.c", "pre.c", "value_sets.c", "hash.c", "control.c",
        "info.c")
"""The runtime's C files that every program links with."""


TYPES = ("-Werror=int-conversion", "-Werror=incompatible-pointer-types", "-Werror=implicit-function-declaration")
"""What gcc 12 only warns of: code that takes a number for an address."""


class Compiled(Protocol):
    """The result of the compiler (softswitch.compiler.driver.Program)."""

    @property
    def c_source(self) -> str:
        """The C file that defines ss_the_program."""


def build(
    program: Compiled | str | Path,
    *,
    extra: Sequence[str] = ("capture.c",),
    kind: cc.Kind = "shared",
    name: str = "switch",
    flags: Sequence[str] = (),
    cache_dir: Path | None = None,
    limits: cc.Limits | None = None,
) -> Path:
    """Builds a compiled program (or its C text, or C file) with the runtime; `extra` names more files of runtime/.

    The default is the library that LocalEngine loads; it links with the runtime as a library of its own, which
    is built once, so that a new program costs its own C file alone. Raises cc.BuildError.
    """
    source = program if isinstance(program, str | Path) else program.c_source
    own: list[cc.Source] = [source, *(RUNTIME / file for file in extra)]
    core = [RUNTIME / file for file in CORE]
    # With -O3 and the machine's own vector instructions, a fold is a third faster than with -O2.
    def link(sources: Sequence[cc.Source], kind: cc.Kind, name: str, libs: Sequence[str] = ()) -> Path:
        return cc.build(
            sources, kind=kind, name=name, include=[RUNTIME], flags=["-g", "-O3", *TYPES, *flags],
            optional_flags=["-march=native"], libs=libs, cache_dir=cache_dir, limits=limits,
        )

    if kind == "exe":
        return link([*own, *core], kind, name)
    return link(own, kind, name, [str(link(core, "shared", "runtime"))])
