# SPDX-License-Identifier: Apache-2.0
"""Builds C sources into a shared library, a program or an object file, once: results are cached by content.

    library = build([Path("fold.c"), "int answer(void) { return 42; }"], kind="shared", name="fold")
    part = build([Path("fold.c"), Path("io.c")], kind="object")
    program = build([part, "int main(void) { return 42; }"], kind="exe")

The compiler is $SOFTSWITCH_CC (a command line), else the first of gcc, clang, cc that really compiles
something here (a machine may have a gcc without headers), else the one in the wheel `ziglang` (the extra
`compiler`), which needs nothing of the system.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import itertools
import os
import platform
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cbuild.cache import Cache

COMPILE_TIMEOUT = 300.0
"""Seconds a compiler may take before it is stopped (cold ziglang on a busy machine takes about 10)."""

LOCK_TIMEOUT = 330.0
"""Seconds to wait for another process that builds the same thing."""

HERE = Path(__file__).resolve().parent

_PROBE = "#include <stdint.h>\n#include <string.h>\nuint64_t probe(uint64_t x) { return x + 1; }\n"

_LIMITED = re.compile("out of memory|CPU time limit|Killed|terminated signal|memory exhausted|virtual memory")
"""Messages of gcc, clang and ld when a limit ended them."""

Source = Path | str
Kind = Literal["shared", "exe", "object"]

_CPU = ("flags", "Features", "model name")

SEARCHED = ("CPATH", "C_INCLUDE_PATH", "LIBRARY_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX", "CCC_OVERRIDE_OPTIONS")
"""Variables of the environment by which compilers find other headers, libraries and parts of themselves."""

_SUFFIX = {"shared": ".so", "exe": "", "object": ".o"}


class BuildError(Exception):
    """The C compiler is missing, failed or hung; the message holds its command line and its output.

    Remedy: the message says which of these helps.  Install a C compiler (`apt install gcc libc6-dev`, or the extra
    `compiler`).  Or set XDG_CACHE_HOME to a folder that only you can change or replace, and from which programs may be
    run.
    """


class LimitError(BuildError):
    """The C compiler needed more time or memory than it may have."""


@dataclass(frozen=True)
class Limits:
    """Limits of each process of a C compiler: seconds of processor time, bytes of address space."""

    cpu_seconds: int
    memory: int


@dataclass(frozen=True)
class Compiler:
    """A C compiler that was seen to work: its command and what identifies this very version of it."""

    command: tuple[str, ...]
    identity: str

    def environment(self, cache_dir: Path) -> dict[str, str]:
        """Environment to run in; keeps ziglang's own cache inside ours."""
        env = dict(os.environ)
        env.setdefault("ZIG_GLOBAL_CACHE_DIR", str(cache_dir / "zig"))
        env.setdefault("ZIG_LOCAL_CACHE_DIR", str(cache_dir / "zig"))
        return env


def default_cache_dir() -> Path:
    """The folder of the cache that is written to (cache.py).  Raises BuildError."""
    return _writable(Cache())


def _writable(cache: Cache) -> Path:
    try:
        return cache.folder()
    except OSError as error:
        raise BuildError(error.strerror) from error


def build(
    sources: Sequence[Source],
    *,
    kind: Kind,
    name: str = "out",
    include: Sequence[Path] = (),
    flags: Sequence[str] = (),
    optional_flags: Sequence[str] = (),
    libs: Sequence[str] = (),
    cache_dir: Path | None = None,
    compiler: Compiler | None = None,
    limits: Limits | None = None,
) -> Path:
    """Compiles and links `sources` and returns the result's path; at once if an equal build is cached.

    sources         paths of C files or of objects that this function has made, or C text (str)
    kind            "shared" (a library for ctypes/dlopen), "exe", or "object": the files as one translation unit, which
                    reads their common headers once, compiled such that both other kinds can be linked from it
    name            stem of the result's file name, for people who look into the cache or a profile
    include         directories for #include, besides this one, which has crc32.h; every *.h directly in them is part
                    of the cache key
    flags           further flags; -O2 is always given first
    optional_flags  flags used only where the compiler takes them, for example -march=native
    libs            linker flags that follow the sources, for example -lpthread
    cache_dir       where results are kept, instead of the cache's folders (cache.py); nobody else may write there
    limits          what the compiler may take, for sources that are not ours; LimitError where it takes more
    Raises BuildError.
    """
    cache = Cache(only=cache_dir)
    with _full_disk_named(cache):
        include = [*include, HERE]
        all_flags = ["-O2", "-std=gnu11", *flags]
        all_flags += {"shared": ["-shared", "-fPIC"], "exe": [], "object": ["-c", "-fPIC"]}[kind]
        content = f"{name}-{_key(all_flags, optional_flags, sources, include, libs)}"
        try:
            cc = compiler or find_compiler(cache)
        except BuildError:
            # any compiler's, where this machine has none: an image may bring what was built elsewhere
            pattern = re.compile(re.escape(content) + "-[0-9a-f]{16}" + re.escape(_SUFFIX[kind]))
            if optional_flags or _is_native(flags) or (known := cache.find(pattern)) is None:
                raise
            return known
        accepted = [flag for flag in optional_flags if _takes_flag(cc, flag, cache)]
        result = f"{content}-{_made_by(cc, [*flags, *accepted])}{_SUFFIX[kind]}"
        if (known := cache.find(result)) is not None:
            return known
        folder = _writable(cache)
        with lock(folder / f"{result}.lock"):
            if (known := cache.find(result)) is None:
                _compile(cc, [*all_flags, *accepted], sources, include, libs, folder / result, folder, limits)
        return known or folder / result


@contextlib.contextmanager
def _full_disk_named(cache: Cache) -> Iterator[None]:
    """Turn errors of the file system into BuildError; what the cache has is still used without writing to it."""
    try:
        yield
    except OSError as error:
        raise BuildError(f"cannot write to the cache of compiled programs, {cache.places()[0]}: "
                         f"{error.strerror or error}. Make room there, or set XDG_CACHE_HOME to another folder"
                         ) from error


def find_compiler(cache: Cache | None = None) -> Compiler:
    """The compiler that `build` uses. Raises BuildError where there is none, with what was tried."""
    return _find_compiler(os.environ.get("SOFTSWITCH_CC", ""), os.environ.get("PATH", ""), cache or Cache())


@functools.lru_cache(maxsize=16)
def _find_compiler(wanted: str, _path: str, cache: Cache) -> Compiler:
    if wanted:
        command = shlex.split(wanted)
        if shutil.which(command[0]) is None:
            raise BuildError(f"SOFTSWITCH_CC={wanted!r}: no program {command[0]!r} on PATH")
        cc = Compiler(tuple(command), _identity(command))
        complaint = _probe(cc, (), cache)
        if complaint:
            raise BuildError(f"SOFTSWITCH_CC={wanted!r} does not compile a three-line program:\n{complaint}")
        return cc
    tried = []
    for command in (["gcc"], ["clang"], ["cc"], [sys.executable, "-m", "ziglang", "cc"]):
        if shutil.which(command[0]) is None:
            tried.append(f"  {command[0]}: not on PATH")
            continue
        cc = Compiler(tuple(command), _identity(command))
        complaint = _probe(cc, (), cache)
        if not complaint:
            return cc
        tried.append(f"  {shlex.join(command)}: {complaint.strip().splitlines()[-1]}")
    raise BuildError(
        "no working C compiler: apt install gcc libc6-dev, or pip install ziglang, "
        "or set SOFTSWITCH_CC; tried\n" + "\n".join(tried)
    )


def _identity(command: Sequence[str]) -> str:
    """Changes when the compiler is updated; found without running it (that would cost every start 50 ms)."""
    parts = [shlex.join(command), platform.machine()]
    for word in command:  # "ccache gcc": each of them
        if (found := shutil.which(word)) is not None:
            program = os.path.realpath(found)
            status = os.stat(program)
            parts += [program, str(status.st_size), str(status.st_mtime_ns)]
    if "ziglang" in command:
        from importlib import metadata

        with contextlib.suppress(metadata.PackageNotFoundError):
            parts.append(metadata.version("ziglang"))
    return "|".join(parts)


def _probe(cc: Compiler, flags: Sequence[str], cache: Cache) -> str:
    """Compiles a tiny file with `flags`; returns what went wrong, or "". The answer is kept in the cache."""
    key = hashlib.sha256("\0".join([cc.identity, *flags, cpu() if flags else ""]).encode()).hexdigest()[:24]
    if cache.find(f"probe-{key}") is not None:
        return ""
    folder = _writable(cache)
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        source = Path(scratch) / "probe.c"
        source.write_text(_PROBE)
        output = str(Path(scratch) / "probe.so")
        command = [*cc.command, "-O2", *flags, "-shared", "-fPIC", str(source), "-o", output]
        try:
            done = _run(command, cc.environment(folder))
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)  # not kept: may be better next time
    complaint = "" if done.returncode == 0 else (done.stderr or f"exit status {done.returncode}")
    if not complaint:  # only success is kept, so that installing a missing header helps at once
        with contextlib.suppress(OSError):  # a full disk: it is tried again next time
            (folder / f"probe-{key}").touch(0o644)
    return complaint


@functools.lru_cache(maxsize=64)
def _takes_flag(cc: Compiler, flag: str, cache: Cache) -> bool:
    return not _probe(cc, (flag,), cache)


@functools.cache
def cpu() -> str:
    """The properties that -march=native depends on: a cache on a shared home must not give one machine another's
    code."""
    try:
        with open("/proc/cpuinfo") as info:  # of the first processor: each costs the kernel time
            lines = [line for line in itertools.takewhile(str.strip, info) if line.startswith(_CPU)]
    except OSError:
        lines = []
    return platform.machine() + ("".join(lines) or platform.processor())


def _is_native(flags: Sequence[str]) -> bool:
    return any(flag in ("-march=native", "-mcpu=native", "-mtune=native") for flag in flags)


def _made_by(cc: Compiler, flags: Sequence[str]) -> str:
    """Changes with the compiler, with those of its flags that it was asked for, and with the processor they mean."""
    parts = [cc.identity, *flags, cpu() if _is_native(flags) else ""]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _key(
    flags: Sequence[str], optional_flags: Sequence[str], sources: Sequence[Source], include: Sequence[Path],
    libs: Sequence[str],
) -> str:
    """Changes with whatever enters the result but for the compiler: its environment, flags, and what sources and
    headers contain.

    Where the files lie does not matter, so that clones and installations of one version share what is built; debug
    information then names the files of the one that built it.
    """
    digest = hashlib.sha256()

    def add(*parts: str) -> None:
        for part in parts:
            data = part.encode()
            digest.update(len(data).to_bytes(8, "little") + data)

    add(platform.machine(), *flags, "--", *optional_flags, "--", *libs)
    for variable in SEARCHED:
        if value := os.environ.get(variable):
            add(variable, value)
    for source in sources:
        if isinstance(source, str):
            add("", source)
        else:  # the name of an object has the key of its content
            add(source.name, "" if source.suffix == ".o" else _read(source))
    # headers beside a source are reached by #include "..."
    beside = [source.parent for source in sources if isinstance(source, Path) and source.suffix != ".o"]
    for directory in dict.fromkeys([*include, *beside]):
        for header in sorted(directory.glob("*.h")):
            add(header.name, _read(header))
    return digest.hexdigest()[:24]


def _compile(
    cc: Compiler,
    flags: Sequence[str],
    sources: Sequence[Source],
    include: Sequence[Path],
    libs: Sequence[str],
    result: Path,
    cache: Path,
    limits: Limits | None,
) -> None:
    with tempfile.TemporaryDirectory(dir=cache, prefix="build-") as scratch:
        files = []
        for number, source in enumerate(sources):
            if isinstance(source, str):
                file = Path(scratch) / f"{result.name.rsplit('-', 2)[0]}-{number}.c"
                file.write_text(source)
                files.append(str(file))
            else:
                files.append(str(source))
        output = Path(scratch) / "result"
        if result.suffix == ".o" and len(files) > 1:
            files = [*(part for file in files for part in ("-include", file)), "-x", "c", os.devnull]
        command = [*cc.command, *flags, *(f"-I{d}" for d in include), *files, "-o", str(output), *libs]
        try:
            done = _run(command, cc.environment(cache), limits)
        except subprocess.TimeoutExpired:
            raise LimitError(
                f"C compiler took over {COMPILE_TIMEOUT:.0f} s:\n  {shlex.join(command)}"
            ) from None
        except OSError as error:
            raise BuildError(f"cannot run the C compiler: {error}\n  {shlex.join(command)}") from error
        if done.returncode != 0 and limits and _LIMITED.search(done.stderr):
            raise LimitError(
                f"the C compiler needs more than the {limits.cpu_seconds} s of processor time and "
                f"{limits.memory >> 20} MiB of memory that it may take:\n{done.stderr[-500:]}"
            )
        if done.returncode != 0:
            raise BuildError(
                f"C compiler failed (exit status {done.returncode}):\n  {shlex.join(command)}\n"
                f"{done.stderr}{done.stdout}"
            )
        with open(output, "rb") as built:  # or a power failure could leave a name without its content
            os.fchmod(built.fileno(), 0o644 if result.suffix == ".o" else 0o755)  # whatever the umask: nobody else's
            os.fsync(built.fileno())
        os.replace(output, result)


def _run(
    command: Sequence[str], environment: dict[str, str], limits: Limits | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a compiler; its own processes (cc1, ld) end with it, and have the limits each."""
    if limits is not None:  # by a shell: a function between fork and exec is unsafe where there are threads
        shell = 'ulimit -t "$1" && ulimit -v "$2" && ulimit -c 0 || exit; shift 2; exec "$@"'
        command = ["/bin/sh", "-c", shell, "sh", str(limits.cpu_seconds), str(limits.memory >> 10), *command]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
    )
    try:
        out, said = process.communicate(timeout=COMPILE_TIMEOUT)
    except BaseException:  # took too long, or Ctrl-C
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        raise
    return subprocess.CompletedProcess(command, process.returncode, out, said)


@contextlib.contextmanager
def lock(path: Path, timeout: float = LOCK_TIMEOUT) -> Iterator[None]:
    """Holds a file lock, so that of processes that start together one compiles and the rest wait for it.  Raises
    OSError, and BuildError where another one holds it for ``timeout`` seconds."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + timeout
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BuildError(
                        f"another process has held {path} for {timeout:.0f} s: end it or remove the file"
                    ) from None
                time.sleep(0.02)
        yield
    finally:
        os.close(handle)


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as error:
        raise BuildError(f"cannot read C source {path}: {error.strerror}") from error
