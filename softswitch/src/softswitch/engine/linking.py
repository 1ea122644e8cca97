# SPDX-License-Identifier: Apache-2.0
"""Links a compiled program with the runtime: as a library for this process, or as an executable.

The runtime is compiled once a machine and set of flags, in units that are made at the same time; all programs and both
kinds of results are linked from the same objects. A new program costs its own C file and a link.

    begin("exe")                       # the runtime's objects, while the front end works
    build(program, kind="exe")
"""

from __future__ import annotations

import functools
import os
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from cbuild import cc
from cbuild.cache import Cache

RUNTIME = Path(__file__).resolve().parent.parent / "runtime"


@dataclass(frozen=True)
class TranslationUnit:
    """Files of the runtime that are compiled as one translation unit, and the level at which."""

    name: str
    level: str
    files: tuple[str, ...]


# -O3 where the bytes of packets are summed in loops, -O2 for the rest of a packet's way, -O1 for what the control plane
# asks and what happens once: -O3 for all takes the compiler 1.6 times as long, and no more packets a second pass.
SHARED_UNITS = (
    TranslationUnit("packets", "-O2", ("life.c", "pipeline.c", "outgoing.c", "turn.c", "sums.c", "tables.c", "state.c",
                                     "trace.c")),
    TranslationUnit("hash", "-O3", ("hash.c",)),
    TranslationUnit("control", "-O1", ("codec.c", "entries.c", "profiles.c", "pre.c", "value_sets.c", "control.c",
                                     "info.c")),
)
"""The units with which every program is linked."""

UNITS: dict[str, tuple[TranslationUnit, ...]] = {
    "exe": (
        *SHARED_UNITS,
        TranslationUnit("io", "-O3", ("segment.c", "queue.c", "receive.c", "transmit.c", "stages.c", "io.c",
                                      "parallel.c")),
        TranslationUnit("process", "-O1", ("main.c", "requests.c", "port.c", "channel.c", "pcap.c", "confine.c",
                                           "trace_file.c")),
    ),
    "shared": (*SHARED_UNITS, TranslationUnit("capture", "-O1", ("capture.c",))),
}
"""The whole runtime of an executable, with packet I/O, and of the library that LocalEngine loads."""

CORE = tuple(file for unit in SHARED_UNITS for file in unit.files)
"""The runtime's C files that every program links with."""

TRACE = "-DSS_TRACE"
"""The flag with which program and runtime are built for the packet trace (runtime/records.h)."""

TYPES = ("-Werror=int-conversion", "-Werror=incompatible-pointer-types", "-Werror=implicit-function-declaration")
"""Flags that turn warnings of gcc 12 into errors: code that uses a number as an address."""

# -g1: the lines of a backtrace or a profile; full debug information takes a quarter of the compiler's time.
# -fPIC (of every object) without semantic interposition: the objects fit libraries, and calls stay direct.
_FLAGS = ("-g1", "-fno-semantic-interposition", "-D_GNU_SOURCE=", *TYPES)


class Compiled(Protocol):
    """The result of the compiler (softswitch.compiler.driver.Program)."""

    @property
    def c_source(self) -> str:
        """The C file that defines ss_the_program."""


def build(
    program: Compiled | str | Path,
    *,
    kind: Literal["shared", "exe"] = "shared",
    name: str = "switch",
    flags: Sequence[str] = (),
    cache_dir: Path | None = None,
    limits: cc.Limits | None = None,
) -> Path:
    """Builds a compiled program (or its C text, or C file) with the runtime: an executable, or the library that
    LocalEngine loads. `flags` hold for the runtime too; `limits` for the program alone. Raises cc.BuildError."""
    source = program if isinstance(program, str | Path) else program.c_source
    runtime = begin(kind, flags=flags, cache_dir=cache_dir)
    # With -O3 and the machine's own vector instructions, a fold is a third faster than with -O2.
    own = _compile([source], name, ["-O3", *flags], cache_dir, limits)
    return cc.build(
        [own, *(part.result() for part in runtime)], kind=kind, name=name, flags=flags, libs=["-lpthread"],
        cache_dir=cache_dir, limits=limits,
    )


def begin(
    kind: Literal["shared", "exe"], *, flags: Sequence[str] = (), cache_dir: Path | None = None
) -> list[Future[Path]]:
    """Starts to compile what the cache lacks of the runtime's objects, in threads; `build` then waits for them."""
    cache = Cache(only=cache_dir)
    return [_unit(unit, tuple(flags), cache) for unit in UNITS[kind]]


_begun: dict[tuple[TranslationUnit, tuple[str, ...], Path], Future[Path]] = {}


def _unit(unit: TranslationUnit, flags: tuple[str, ...], cache: Cache) -> Future[Path]:
    """The object of a unit, which this process makes or looks for once; again where that failed or it has gone."""
    key = unit, flags, cache.places()[0]
    known = _begun.get(key)
    if known is None or (known.done() and (known.exception() is not None or not known.result().exists())):
        files = [RUNTIME / file for file in unit.files]
        known = _begun[key] = _pool().submit(_compile, files, f"runtime-{unit.name}", [unit.level, *flags], cache.only)
    return known


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(os.cpu_count() or 1, thread_name_prefix="softswitch-cc")


def _compile(
    sources: Sequence[cc.Source], name: str, flags: Sequence[str], cache: Path | None, limits: cc.Limits | None = None
) -> Path:
    return cc.build(
        sources, kind="object", name=name, include=[RUNTIME], flags=[*_FLAGS, *flags],
        optional_flags=["-march=native"], cache_dir=cache, limits=limits,
    )
