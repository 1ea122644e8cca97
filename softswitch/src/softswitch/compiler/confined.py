# SPDX-License-Identifier: Apache-2.0
"""Compiles a stranger's program in a process of its own, within limits of time and memory.

A program can ask for more than any machine has: macros that double a thousand times, a table of 2^40 entries, types of
2^31 bits. The limits are the kernel's (setrlimit), so that they hold whatever the compiler does, and the process that
serves P4Runtime and the program that runs notice nothing but an error.

    program = compile_program(data)        # Raises NotCompiled, which says why
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
from dataclasses import dataclass

from finsy.proto import p4i

from softswitch.compiler import cache, device_config
from softswitch.compiler.diagnostics import CompileError

CPU_SECONDS = 30
WALL_SECONDS = 90.0
MEMORY = 1 << 30
"""Limits of a compilation: seconds of processor time and of a clock on the wall, bytes of address space."""

NAME = "pushed.p4"
"""The file name in messages if the program has no #line."""
_LINE = re.compile(r'^#line \d+ "(?:[^"<\n]*/)?([\w.+-]{1,100})"$', re.ASCII | re.MULTILINE)

_OK, REFUSED, _MEMORY, _UNREADABLE = 0, 10, 11, 12


class NotCompiled(Exception):
    """The program has errors, which the message shows with their lines."""


class NotAProgram(NotCompiled):
    """There is no P4 text in what was given."""


class TooCostly(NotCompiled):
    """The program needs more time or memory than a compilation may have."""


class CompilerFailed(NotCompiled):
    """The compiler itself failed: a fault of ours, which the message names."""


@dataclass(frozen=True)
class CompiledProgram:
    """The result of a compilation."""

    c_source: str
    p4info: p4i.P4Info
    json: str
    trace: str = ""
    """The description of the packet trace, as compiler.driver.Program has it."""


def compile_program(
    program: bytes, *, trace: bool = False, cpu_seconds: int = CPU_SECONDS, wall_seconds: float = WALL_SECONDS,
    memory: int = MEMORY,
) -> CompiledProgram:
    """Compiles preprocessed P4 text, or JSON that holds it (device_config.py), within these limits. Raises NotCompiled.
    """
    most = device_config.JSON_MAX if device_config.is_json(program) else device_config.TEXT_MAX
    if len(program) > most:
        raise TooCostly(f"the program has {len(program)} bytes, and may have {most}")
    # -P: a folder named softswitch where the switch was started is none of ours.
    command = [sys.executable, "-P", "-m", __name__, str(cpu_seconds), str(memory), str(int(trace))]
    environment = {key: value for key, value in os.environ.items() if key in ("HOME", "PATH", "XDG_CACHE_HOME", "LANG")}
    environment["PYTHONPATH"] = os.pathsep.join(p for p in sys.path if p)
    try:
        done = subprocess.run(
            command, input=program, capture_output=True, timeout=wall_seconds, env=environment, cwd="/"
        )
    except subprocess.TimeoutExpired:
        raise TooCostly(f"compiling it took more than {wall_seconds:.0f} s, and was ended") from None
    out, said = done.stdout, done.stderr.decode(errors="replace").strip()
    if done.returncode == _OK:
        c_source, json, description, p4info = cache.unpack(out)
        return CompiledProgram(
            c_source.decode(), p4i.P4Info.FromString(p4info), json.decode(), description.decode()
        )
    if done.returncode == _UNREADABLE:
        raise NotAProgram(out.decode(errors="replace"))
    if done.returncode == REFUSED:
        raise NotCompiled(out.decode(errors="replace"))
    if done.returncode == _MEMORY:
        raise TooCostly(f"compiling it takes more than the {memory >> 20} MiB of memory that it may")
    if -done.returncode in (signal.SIGXCPU, signal.SIGKILL):
        raise TooCostly(f"compiling it took more than {cpu_seconds} s of processor time, and was ended")
    if done.returncode < 0:  # a stack of C frames that ended, for example
        raise TooCostly(f"compiling it ended the compiler's process by signal {-done.returncode}: it nests too deeply")
    raise CompilerFailed(f"the compiler failed, which is a fault of softswitch: {said.rpartition(chr(10))[2]}")


def main_file(text: str) -> str:
    """The file that preprocessed text was made of, without folders: the one that its last #line names, since the switch
    of a program stands behind all that it includes; NAME where it names none, or one of other than plain characters."""
    found = _LINE.findall(text)
    return found[-1] if found else NAME


def _main(cpu_seconds: int, memory: int, trace: int) -> int:
    """The process: the program on stdin; on stdout the C text, JSON, description for the packet trace and P4Info,
    packed (cache.pack), or the errors."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    out = sys.stdout.buffer
    try:
        from softswitch.compiler.driver import compile_source
        from softswitch.compiler.preprocess import LIBRARY

        text = device_config.source(sys.stdin.buffer.read())
        program = compile_source(text, main_file(text), include=LIBRARY, trace=bool(trace))
    except device_config.UnreadableConfigError as error:
        out.write(str(error).encode(errors="replace"))
        return _UNREADABLE
    except CompileError as error:
        out.write(str(error).encode(errors="replace"))
        return REFUSED
    p4info = program.p4info.SerializeToString(deterministic=True)
    out.write(cache.pack(program.c_source.encode(), program.bmv2_json.encode(), program.trace.encode(), p4info))
    return _OK


if __name__ == "__main__":
    try:
        sys.exit(_main(*map(int, sys.argv[1:])))
    except MemoryError:  # also where the error that it led to could not be handled for want of memory
        os._exit(_MEMORY)
