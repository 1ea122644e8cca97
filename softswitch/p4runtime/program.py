# SPDX-License-Identifier: Apache-2.0
"""Makes an executable and p4info of P4 source text. Both are cached, so that a known program starts at once."""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from finsy.proto import p4i, p4r

from cbuild import cc, files
from softswitch.engine import linking
from softswitch.engine.errors import EngineError, Internal, InvalidArgument, ResourceExhausted

SANITIZE = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer", "-O1")
"""Compiler flags for a build that stops at the first error of memory or arithmetic, for debugging."""


LIMITS = cc.Limits(cpu_seconds=120, memory=4 << 30)
"""What the C compiler may take for a program, whoever wrote it."""


@dataclass(frozen=True)
class Built:
    """A program that is ready to run."""

    executable: Path
    p4info: p4i.P4Info


class Builder(Protocol):
    """Builds a program from the p4_device_config that a controller has pushed."""

    def __call__(self, device_config: bytes) -> Built:
        """Builds the program. Raises InvalidArgument, with the compiler's messages, for one that is not valid."""


class Compiler:
    """The Builder that the switch uses: device_config is preprocessed P4 source text (Program.preprocessed)."""

    def __init__(self, *, flags: Sequence[str] = (), cache_dir: Path | None = None) -> None:
        self._flags = tuple(flags)
        self._cache_dir = cache_dir

    def __call__(self, device_config: bytes) -> Built:
        try:
            text = device_config.decode()
        except UnicodeDecodeError as error:
            raise InvalidArgument(
                "p4_device_config: expected P4 source text in UTF-8 (what `softswitch compile "
                f"--preprocessed` prints): {error}"
            ) from None
        if not text.strip():
            raise InvalidArgument("p4_device_config is empty: expected P4 source text")
        cache = self._cache_dir or cc.default_cache_dir()
        known = cache / f"program-{self._key(text)}"
        built = _recall(known)
        if built is None:
            built = self._compile(text)
            _remember(known, built)
        return built

    def file(
        self, path: Path, *, include: Sequence[Path] = (), defines: Mapping[str, str] | None = None
    ) -> p4r.ForwardingPipelineConfig:
        """The configuration to push for a P4 file. Raises CompileError, InvalidArgument, EngineError."""
        from softswitch.compiler.preprocess import preprocess, read

        text = preprocess(read(path), str(path), include=include, defines=defines).encode()
        return p4r.ForwardingPipelineConfig(p4info=self(text).p4info, p4_device_config=text)

    def _key(self, text: str) -> str:
        """The cache key: text, flags, C compiler, and this package's files, so that a newer softswitch recompiles."""
        digest = hashlib.sha256(text.encode() + b"\0" + " ".join(self._flags).encode() + b"\0")
        digest.update(f"{os.environ.get('SOFTSWITCH_CC')}\0{os.environ.get('PATH')}\0".encode())
        root = Path(__file__).resolve().parent.parent
        for folder in (cc.HERE, root, *(root / name for name in ("compiler", "engine", "runtime", "include"))):
            for file in sorted(folder.iterdir()):
                if file.suffix in (".py", ".c", ".h", ".p4"):
                    stat = file.stat()
                    digest.update(f"{file.name}\0{stat.st_size}\0{stat.st_mtime_ns}\0".encode())
        return digest.hexdigest()[:32]

    def _compile(self, text: str) -> Built:
        from softswitch.compiler import confined

        begin(flags=self._flags, cache_dir=self._cache_dir)
        try:
            program = confined.compile_program(text)
        except confined.TooCostly as error:
            raise ResourceExhausted(f"p4_device_config: {error}") from error
        except confined.CompilerFailed as error:
            raise Internal(f"p4_device_config: {error}") from error
        except confined.NotCompiled as error:
            raise InvalidArgument(f"p4_device_config does not compile:\n{error}") from error
        return Built(build_executable(program.c_source, flags=self._flags, cache_dir=self._cache_dir), program.p4info)


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


def _recall(known: Path) -> Built | None:
    try:
        path, _, p4info = known.read_bytes().partition(b"\0")
        executable = Path(path.decode())
        return Built(executable, p4i.P4Info.FromString(p4info)) if executable.is_file() else None
    except Exception:  # missing, or written by a process that was killed: compile again
        return None


def _remember(known: Path, built: Built) -> None:
    with contextlib.suppress(OSError):  # without a writable cache, builds only take longer
        files.replace(known, str(built.executable).encode() + b"\0" + built.p4info.SerializeToString())
