# SPDX-License-Identifier: Apache-2.0
"""Builds C sources into a shared library or a program, once: results are cached by content.

    library = build([Path("fold.c"), "int answer(void) { return 42; }"], kind="shared", name="fold")

The compiler is $SOFTSWITCH_CC (a command line), else the first of gcc, clang, cc that really compiles
something here (a machine may have a gcc without headers), else the one in the `ziglang` wheel (the extra
netfold[compiler]), which needs nothing of the system.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

COMPILE_TIMEOUT = 300.0
"""Seconds a compiler may take before it is stopped (cold ziglang on a busy machine takes about 10)."""

LOCK_TIMEOUT = 330.0
"""Seconds to wait for another process that builds the same thing."""

HERE = Path(__file__).resolve().parent

_PROBE = "#include <stdint.h>\n#include <string.h>\nuint64_t probe(uint64_t x) { return x + 1; }\n"

Source = Path | str
Kind = Literal["shared", "exe"]


class BuildError(Exception):
    """The C compiler is missing, failed or hung; the message holds its command line and its output."""


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
    """$XDG_CACHE_HOME/softswitch or ~/.cache/softswitch; a per-user one under /tmp where home is read-only."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    path = Path(base) / "softswitch"
    try:
        path.mkdir(parents=True, exist_ok=True)
        if os.access(path, os.W_OK):
            return path
    except OSError:
        pass
    path = Path(tempfile.gettempdir()) / f"softswitch-{os.getuid()}"
    path.mkdir(mode=0o700, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise BuildError(f"{path} belongs to someone else: set XDG_CACHE_HOME to a directory of your own")
    return path


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
) -> Path:
    """Compiles and links `sources` and returns the result's path; at once if an equal build is cached.

    sources         paths of C files, or C text (str)
    kind            "shared" (a library for ctypes/dlopen) or "exe"
    name            stem of the result's file name, for people who look into the cache or a profile
    include         directories for #include, besides this one, which has crc32.h; every *.h directly in them is part
                    of the cache key
    flags           further flags; -O2 is always given first
    optional_flags  flags used only where the compiler takes them, for example -march=native
    libs            linker flags that follow the sources, for example -lpthread
    Raises BuildError.
    """
    cache = cache_dir or default_cache_dir()
    cache.mkdir(parents=True, exist_ok=True)
    cc = compiler or find_compiler(cache)
    include = [*include, HERE]
    accepted = [flag for flag in optional_flags if _takes_flag(cc, flag, cache)]
    all_flags = ["-O2", "-std=gnu11", *flags, *accepted]
    if kind == "shared":
        all_flags += ["-shared", "-fPIC"]

    key = _key(cc, all_flags, sources, include, libs)
    result = cache / f"{name}-{key}{'.so' if kind == 'shared' else ''}"
    if result.exists():
        return result
    with _lock(cache / f"{name}-{key}.lock"):
        if not result.exists():
            _compile(cc, all_flags, sources, include, libs, result, cache)
    return result


def find_compiler(cache_dir: Path | None = None) -> Compiler:
    """The compiler that `build` uses. Raises BuildError where there is none, with what was tried."""
    cache = cache_dir or default_cache_dir()
    return _find_compiler(os.environ.get("SOFTSWITCH_CC", ""), os.environ.get("PATH", ""), cache)


@functools.lru_cache(maxsize=16)
def _find_compiler(wanted: str, _path: str, cache: Path) -> Compiler:
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
        "no working C compiler: apt install gcc libc6-dev, or pip install ziglang (the extra netfold[compiler]), "
        "or set SOFTSWITCH_CC; tried\n" + "\n".join(tried)
    )


def _identity(command: Sequence[str]) -> str:
    """Changes when the compiler is updated; found without running it (that would cost every start 50 ms)."""
    program = os.path.realpath(shutil.which(command[0]) or command[0])
    stat = os.stat(program)
    parts = [shlex.join(command), program, str(stat.st_size), str(stat.st_mtime_ns), platform.machine()]
    if "ziglang" in command:
        from importlib import metadata

        with contextlib.suppress(metadata.PackageNotFoundError):
            parts.append(metadata.version("ziglang"))
    return "|".join(parts)


def _probe(cc: Compiler, flags: Sequence[str], cache: Path) -> str:
    """Compiles a tiny file with `flags`; returns what went wrong, or "". The answer is kept in the cache."""
    key = hashlib.sha256("\0".join([cc.identity, *flags, _cpu() if flags else ""]).encode()).hexdigest()[:24]
    known = cache / f"probe-{key}"
    if known.exists():
        return known.read_text()
    with tempfile.TemporaryDirectory(dir=cache) as scratch:
        source = Path(scratch) / "probe.c"
        source.write_text(_PROBE)
        output = str(Path(scratch) / "probe.so")
        command = [*cc.command, "-O2", *flags, "-shared", "-fPIC", str(source), "-o", output]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT, env=cc.environment(cache)
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)  # not kept: may be better next time
    complaint = "" if done.returncode == 0 else (done.stderr or f"exit status {done.returncode}")
    if not complaint:  # only success is kept, so that installing a missing header helps at once
        _write_atomically(known, "")
    return complaint


@functools.lru_cache(maxsize=64)
def _takes_flag(cc: Compiler, flag: str, cache: Path) -> bool:
    return not _probe(cc, (flag,), cache)


@functools.cache
def _cpu() -> str:
    """What -march=native would look at: a cache on a shared home must not hand one machine another's code."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return "".join(line for line in lines if line.startswith(("flags", "Features", "model name")))[:8192]


def _key(
    cc: Compiler, flags: Sequence[str], sources: Sequence[Source], include: Sequence[Path], libs: Sequence[str]
) -> str:
    """Changes with whatever enters the result: compiler, flags, and the contents of sources and headers.

    Where the files lie does not matter, so that clones and installations of one version share what is built; debug
    information then names the files of the one that built it.
    """
    digest = hashlib.sha256()

    def add(*parts: str) -> None:
        for part in parts:
            data = part.encode()
            digest.update(len(data).to_bytes(8, "little") + data)

    add(cc.identity, *flags, "--", *libs)
    if any(flag in ("-march=native", "-mcpu=native", "-mtune=native") for flag in flags):
        add(_cpu())
    for source in sources:
        add(*(("", source) if isinstance(source, str) else (source.name, _read(source))))
    # headers beside a source are reached by #include "..."
    for directory in [*include, *(source.parent for source in sources if isinstance(source, Path))]:
        for header in sorted(directory.glob("*.h")):
            add(header.name, _read(header))
    return digest.hexdigest()[:32]


def _compile(
    cc: Compiler,
    flags: Sequence[str],
    sources: Sequence[Source],
    include: Sequence[Path],
    libs: Sequence[str],
    result: Path,
    cache: Path,
) -> None:
    with tempfile.TemporaryDirectory(dir=cache, prefix="build-") as scratch:
        files = []
        for number, source in enumerate(sources):
            if isinstance(source, str):
                file = Path(scratch) / f"{result.stem.rpartition('-')[0]}-{number}.c"
                file.write_text(source)
                files.append(str(file))
            else:
                files.append(str(source))
        output = Path(scratch) / "result"
        command = [*cc.command, *flags, *(f"-I{d}" for d in include), *files, "-o", str(output), *libs]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=COMPILE_TIMEOUT, env=cc.environment(cache)
            )
        except subprocess.TimeoutExpired:
            raise BuildError(
                f"C compiler took over {COMPILE_TIMEOUT:.0f} s:\n  {shlex.join(command)}"
            ) from None
        except OSError as error:
            raise BuildError(f"cannot run the C compiler: {error}\n  {shlex.join(command)}") from error
        if done.returncode != 0:
            raise BuildError(
                f"C compiler failed (exit status {done.returncode}):\n  {shlex.join(command)}\n"
                f"{done.stderr}{done.stdout}"
            )
        os.replace(output, result)


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """Holds a file lock, so that of processes that start together one compiles and the rest wait for it."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        deadline = time.monotonic() + LOCK_TIMEOUT
        while True:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise BuildError(
                        f"another process has held {path} for {LOCK_TIMEOUT:.0f} s: end it or remove the file"
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


def _write_atomically(path: Path, text: str) -> None:
    handle, temporary = tempfile.mkstemp(dir=path.parent)
    with os.fdopen(handle, "w") as file:
        file.write(text)
    os.replace(temporary, path)
