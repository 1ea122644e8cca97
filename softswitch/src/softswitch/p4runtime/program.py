# SPDX-License-Identifier: Apache-2.0
"""Makes an executable and p4info of P4 source text. Both are cached, so that a known program starts at once."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from finsy.proto import p4i, p4r

from cbuild import cc
from cbuild.cache import Cache
from softswitch.compiler.cache import pack, unpack
from softswitch.compiler.device_config import UnreadableConfigError, is_json, unwrapped
from softswitch.engine import linking
from softswitch.engine.errors import EngineError, Internal, InvalidArgument, ResourceExhausted
from softswitch.runtime import files

if TYPE_CHECKING:
    from softswitch.compiler.driver import Program

SANITIZE = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1")
"""Compiler flags for a build that stops at the first error of memory or arithmetic, for debugging."""


OTHERS_SECONDS = 60.0
"""Seconds that a switch waits for another one that compiles the same program."""
LIMITS = cc.Limits(cpu_seconds=120, memory=4 << 30)
"""Limits of the C compiler for any program."""


@dataclass(frozen=True)
class Built:
    """A program that is ready to run."""

    executable: Path
    p4info: p4i.P4Info
    json: str = ""
    """The program as BMv2's JSON, for control planes that request it from the switch (compiler/bmv2_json.py)."""
    trace: str = ""
    """The description of the packet trace, if the program was compiled for it (compiler/trace_sites.py)."""


class Builder(Protocol):
    """Builds a program from the p4_device_config that a controller has pushed."""

    def __call__(self, device_config: bytes) -> Built:
        """Builds the program. Raises InvalidArgument, with the compiler's messages, for one that is not valid."""


class Compiler:
    """The Builder that the switch uses: the configuration is preprocessed P4 source text (Program.preprocessed), or
    BMv2's JSON with that text inside (Program.bmv2_json)."""

    def __init__(
        self, *, flags: Sequence[str] = (), cache_dir: Path | None = None, trace: bool = False
    ) -> None:
        """flags: further ones of the C compiler; trace: builds programs for the packet trace."""
        self._flags = (*flags, linking.TRACE) if trace else tuple(flags)
        self._trace = trace
        self._cache_dir = cache_dir
        self._cache = Cache(only=cache_dir)

    def __call__(self, device_config: bytes) -> Built:
        try:
            data = unwrapped(device_config)
        except UnreadableConfigError as error:
            raise InvalidArgument(f"p4_device_config: {error}") from None
        if not data.strip():
            raise InvalidArgument("p4_device_config is empty: expected P4 source text, or JSON with it")
        name = f"program-{self.key(data)}"
        built = _recall(self._cache, name)
        if built is None:
            with _alone(self._cache, name):
                built = _recall(self._cache, name)
                if built is None:
                    built = self._compile(data)
                    _remember(self._cache, name, built)
        return built

    def keep(self, config: bytes, program: Program) -> None:
        """Builds what the front end has made of a configuration, so that the switch which is given it starts at once.
        Raises EngineError."""
        name = f"program-{self.key(config)}"
        if _recall(self._cache, name) is None and bool(program.trace) == self._trace:
            executable = build_executable(program.c_source, flags=self._flags, cache_dir=self._cache_dir)
            _remember(self._cache, name, Built(executable, program.p4info, program.bmv2_json, program.trace))

    def file(
        self, path: Path, *, include: Sequence[Path] = (), defines: Mapping[str, str] | None = None
    ) -> p4r.ForwardingPipelineConfig:
        """The configuration to push for a P4 file, or for a file of JSON. Raises CompileError, InvalidArgument,
        EngineError."""
        from softswitch.compiler.preprocess import preprocess, read

        text = read(path)
        data = text.encode()
        if not is_json(data):
            data = preprocess(text, str(path), include=include, defines=defines).encode()
        return p4r.ForwardingPipelineConfig(p4info=self(data).p4info, p4_device_config=data)

    def key(self, config: bytes) -> str:
        """The cache key: configuration, flags, C compiler, processor, and the files of this package: a newer softswitch
        compiles again, and so does another machine with the same home."""
        digest = hashlib.sha256(config + b"\0" + " ".join(self._flags).encode() + b"\0")
        digest.update(f"{os.environ.get('SOFTSWITCH_CC')}\0{os.environ.get('PATH')}\0".encode())
        root = Path(__file__).resolve().parent.parent
        digest.update(f"{cc.cpu()}\0{root}\0".encode())
        for folder in (cc.HERE, root, *(root / name for name in ("compiler", "engine", "runtime", "include"))):
            with os.scandir(folder) as entries:  # a switch that starts waits for this
                for file in sorted(entries, key=lambda entry: entry.name):
                    if file.name.endswith((".py", ".c", ".h", ".p4")):
                        stat = file.stat()
                        digest.update(f"{file.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        return digest.hexdigest()[:32]

    def _compile(self, config: bytes) -> Built:
        from softswitch.compiler import confined

        begin(flags=self._flags, cache_dir=self._cache_dir)
        try:
            program = confined.compile_program(config, trace=self._trace)
        except confined.NotAProgram as error:
            raise InvalidArgument(f"p4_device_config: {error}") from error
        except confined.TooCostly as error:
            raise ResourceExhausted(f"p4_device_config: {error}") from error
        except confined.CompilerFailed as error:
            raise Internal(f"p4_device_config: {error}") from error
        except confined.NotCompiled as error:
            raise InvalidArgument(f"p4_device_config does not compile:\n{error}") from error
        executable = build_executable(program.c_source, flags=self._flags, cache_dir=self._cache_dir)
        return Built(executable, program.p4info, program.json, program.trace)


def begin(*, flags: Sequence[str] = (), cache_dir: Path | None = None) -> None:
    """Starts to build what the executables of all programs share, so that it is done when the first one needs it."""
    with contextlib.suppress(cc.BuildError):  # which build_executable raises
        linking.begin("exe", flags=flags, cache_dir=cache_dir)


def build_executable(c_source: str | Path, *, flags: Sequence[str] = (), cache_dir: Path | None = None) -> Path:
    """Builds one executable of a program, the runtime and packet I/O. Raises EngineError where the C compiler fails."""
    try:
        return linking.build(c_source, kind="exe", flags=flags, cache_dir=cache_dir, limits=LIMITS)
    except cc.LimitError as error:
        raise ResourceExhausted(f"cannot build the program: {error}") from error
    except cc.BuildError as error:
        raise EngineError(f"cannot build the program: {error}") from error


@contextlib.contextmanager
def _alone(cache: Cache, name: str) -> Iterator[None]:
    """While one switch compiles a program, others that were given the same one wait, and find it in the cache: those of
    a fabric start together.  Where the cache cannot be locked, or whoever has locked it stands still, each compiles."""
    with contextlib.ExitStack() as held:
        with contextlib.suppress(OSError, cc.BuildError):
            held.enter_context(cc.lock(cache.folder() / f"{name}.lock", OTHERS_SECONDS))
        yield


def _recall(cache: Cache, name: str) -> Built | None:
    try:
        known = cache.find(name)
        if known is None:
            return None
        file, p4info, json, trace = unpack(known.read_bytes())
        executable = cache.find(file.decode())
        if executable is None:
            return None
        return Built(executable, p4i.P4Info.FromString(p4info), json.decode(), trace.decode())
    except Exception:  # written by a process that was killed: compile again
        return None


def _remember(cache: Cache, name: str, built: Built) -> None:
    with contextlib.suppress(OSError):  # without a writable cache, builds only take longer
        parts = (built.executable.name.encode(), built.p4info.SerializeToString(), built.json.encode(),
                 built.trace.encode())
        files.replace(cache.folder() / name, pack(*parts), mode=0o644)
