# SPDX-License-Identifier: Apache-2.0
"""Compiles the fold program for an engine: p4info, and the device configuration that the switch loads.

softswitch takes the preprocessed P4 source and compiles it itself; BMv2 takes the JSON of p4c-bm2-ss, made cheaper to
run (bmv2_json/lighten.py), which is cached by content.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import resources
from pathlib import Path
from typing import Final

from finsy.proto import p4i
from google.protobuf import text_format

from cbuild.cache import Cache
from netfold.bmv2_json import lighten
from netfold.controller.switch.codec import Codec
from netfold.disk import files
from netfold.fabric.folding import trees
from netfold.fabric.graph import Engine, Fabric
from netfold.wire.roce import PATH_MTU

log = logging.getLogger("netfold.controller")

Defines = Mapping[str, str]

P4C: Final = "p4c-bm2-ss"
BMV2_DEFINES: Final[Defines] = {"ROOM_TO_GROW": "0", "UDP_CHECKSUMS": "0"}
"""Preprocessor definitions with which the program is compiled for BMv2: no packet may grow there, since BMv2 keeps
512 bytes of room before a packet, and UDP checksums are 0 (p4src/sizes.p4)."""
P4C_TIMEOUT: Final = 120.0
"""Seconds that p4c may take; it usually takes 2."""


class PipelineError(Exception):
    """The program cannot be compiled; the message names program and compiler and has the compiler's output.

    Remedy: correct the P4 program at the place that the message shows.  For the engine bmv2 install p4c, or use
    softswitch.
    """


@dataclass(frozen=True)
class Pipeline:
    """The compiled program, as SetForwardingPipelineConfig sends it."""

    p4info: p4i.P4Info
    device_config: bytes

    @cached_property
    def codec(self) -> Codec:
        """Encodes and decodes this program's entities, for the sessions with all switches."""
        return Codec(self.p4info)

    @cached_property
    def cookie(self) -> int:
        """A hash of the pipeline, by which a switch that runs it already is recognised."""
        digest = hashlib.sha256(self.p4info.SerializeToString(deterministic=True) + b"\0" + self.device_config)
        return int.from_bytes(digest.digest()[:8], "big")


def program() -> Path:
    """Path of the installed p4src/netfold.p4."""
    return Path(str(resources.files("netfold.p4src") / "netfold.p4"))


def of_fabric(fabric: Fabric) -> Pipeline:
    """Compile the fold program for a fabric: for its engine and path MTU, with faults where any link has some, and with
    room for as many children as a switch has neighbours.  Raises PipelineError."""
    return build(fabric.engine, path_mtu=fabric.path_mtu, faults=fabric.faulty, children=trees.children_of(fabric))


def build(
    engine: Engine, source: Path | None = None, *, path_mtu: int = PATH_MTU, faults: bool = False,
    children: int = trees.FEW_CHILDREN,
) -> Pipeline:
    """Compile ``source`` (the fold program by default) for an engine and a path MTU, able to inject faults or not, and
    with bitmaps of so many children.  Raises PipelineError."""
    defines = {"PATH_MTU": str(path_mtu), "FAULTS": str(int(faults)), "MAX_CHILDREN": str(children)}
    return _BUILDERS[engine](source or program(), defines)


def _softswitch(source: Path, defines: Defines) -> Pipeline:
    from softswitch.compiler.diagnostics import CompileError
    from softswitch.compiler.driver import compile_file

    try:
        # a switch runs the same program wherever the controller that loaded it is installed (Pipeline.cookie)
        program = compile_file(source, defines=defines, root=source.parent)
    except (CompileError, OSError) as error:
        raise PipelineError(f"softswitch cannot compile {source}:\n{error}") from error
    return Pipeline(program.p4info, program.preprocessed.encode())


def _bmv2(source: Path, defines: Defines) -> Pipeline:
    if shutil.which(P4C) is None:
        raise PipelineError(f"{P4C} is not on PATH: install p4c (https://github.com/p4lang/p4c), or use the engine "
                            "softswitch, which needs no compiler of its own")
    flags = [f"-D{name}={value}" for name, value in {**defines, **BMV2_DEFINES}.items()]
    key = _digest([*sorted(source.parent.glob("*.p4")), *sorted(Path(lighten.__file__).parent.glob("*.py"))], flags)
    cache, name = Cache("netfold"), f"{source.stem}-{key}"
    json, p4info = cache.find(f"{name}.json"), cache.find(f"{name}.p4info.txtpb")
    if json is not None and p4info is not None:
        return Pipeline(text_format.Parse(p4info.read_text(), p4i.P4Info()), json.read_bytes())
    return _p4c(source, flags, cache, name)


def _p4c(source: Path, flags: Sequence[str], cache: Cache, name: str) -> Pipeline:
    """Compile into a temporary folder, and keep what was made where there is a cache.  What cannot be made cheaper to
    run is not kept, so that the log says so each time."""
    with tempfile.TemporaryDirectory() as scratch:
        made_json, made_info = Path(scratch, "program.json"), Path(scratch, "program.p4info.txtpb")
        command = [P4C, *flags, str(source), "-o", str(made_json), "--p4runtime-files", str(made_info)]
        try:
            run = subprocess.run(command, capture_output=True, text=True, timeout=P4C_TIMEOUT, stdin=subprocess.DEVNULL)
        except subprocess.TimeoutExpired as error:
            raise PipelineError(f"{' '.join(command)}: not done after {P4C_TIMEOUT:g} s") from error
        if run.returncode != 0:
            raise PipelineError(f"{' '.join(command)}: exit status {run.returncode}\n{run.stderr}")
        info = text_format.Parse(made_info.read_text(), p4i.P4Info())
        light = lightened(source, made_json.read_text())
        if light is None:
            return Pipeline(info, made_json.read_bytes())
        with contextlib.suppress(OSError):  # without a writable cache it is only compiled again
            folder = cache.folder(lasting=True)
            files.replace(folder / f"{name}.p4info.txtpb", made_info.read_bytes(), mode=0o644)
            files.replace(folder / f"{name}.json", light, mode=0o644)
        return Pipeline(info, light.encode())


def _digest(sources: Iterable[Path], flags: Sequence[str]) -> str:
    version = subprocess.run([P4C, "--version"], capture_output=True, timeout=P4C_TIMEOUT, stdin=subprocess.DEVNULL)
    digest = hashlib.sha256(version.stdout + "\0".join(flags).encode())
    for path in sources:
        digest.update(path.name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:16]


_BUILDERS: Final[dict[Engine, Callable[[Path, Defines], Pipeline]]] = {"softswitch": _softswitch, "bmv2": _bmv2}


def lightened(source: Path, made: str) -> str | None:
    """p4c's output, changed so that it runs faster; None if its form is that of another version of p4c."""
    try:
        return lighten.lighten(made)
    except (AttributeError, LookupError, RecursionError, StopIteration, TypeError, ValueError) as error:
        log.warning("%s: %s writes programs of a form that is not known here (%r): BMv2 runs this one as it is, and "
                    "takes half as long again for each packet", source, P4C, error)
        return None
