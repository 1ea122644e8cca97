# SPDX-License-Identifier: Apache-2.0
"""Which of this user's local fabrics a command is for: those of `netfold up --topo`, `run` and `demo`."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from netfold.cli.common import CANNOT, FAILED, fail, load
from netfold.wire import faults

WhichFabric = Annotated[str | None, typer.Option("--fabric", metavar="FABRIC.toml|NAME",
    help="The running fabric, by its name, file or folder; default: the only one, or the one of this prompt.")]

NAME_SECONDS = 5.0
"""Seconds for a fabric to say its name."""
NAMELESS = "starting"
"""Placeholder for the name of a fabric that is still starting and does not report its name."""


def socket_of(which: str | None) -> Path:
    """The socket of a running fabric's fault service; without exactly one the command ends with what there is."""
    if (found := _socket_of(which)) is not None:
        return found
    called = "" if which is None else f" called {which}"
    fail(CANNOT, f"no fabric of this user{called} runs here: expected one "
                 "that `netfold up --topo`, `netfold run --topo` or `netfold demo` has started, in another terminal")


def planes_of(which: str | None) -> list[faults.PlaneOf]:
    """The planes of a running fabric; none where no fabric runs, or it is not up yet.  Where several run, and none is
    named, the command ends with what there is."""
    path = _socket_of(which)
    said = None if path is None else _active(path)
    return [] if said is None else said.planes


def file_of(said: Path) -> Path:
    """The file that a user means who has named a fabric: the file itself, or that of the fabric of this name, or in
    this folder, that runs here.  Without exactly one the command ends with what there is."""
    if said.suffix or said.is_file():
        return said
    planes = planes_of(str(said))
    if len(planes) == 1:
        return Path(planes[0].file)
    if planes:
        fail(CANNOT, f"{said} has {len(planes)} planes: give the file of one, {' or '.join(p.file for p in planes)}")
    fail(CANNOT, f"there is no file {said}, and no fabric of this user called {said} runs here: expected the name of a "
                 "file, or of a fabric that `netfold up --topo`, `netfold run --topo` or `netfold demo` has started")


def _socket_of(which: str | None) -> Path | None:
    """The socket of the running fabric that is named, or of the only one; None where there is none.  Where there are
    several, the command ends with what there is."""
    from netfold.topo.network import rundir

    if which is None and (said := os.environ.get(faults.FAULTS_VARIABLE)):
        return Path(said)
    found = [folder / faults.SOCKET for folder in rundir.in_use() if (folder / faults.SOCKET).is_socket()]
    if which is not None:
        here = [path for path in found if which in (str(path.parent), path.parent.name)]
        found = here or [path for path in found if _is_called(path, which)]
    if len(found) > 1:
        there = ", ".join(f"{_name(path)} ({path.parent})" for path in found)
        fail(CANNOT, f"{len(found)} fabrics run here: {there}: say which one, by its name or folder")
    return found[0] if found else None


def ask(path: Path, request: Any, timeout: float = 15.0) -> tuple[Any, list[int]]:
    """The answer of a fabric's fault service, and open files; what is refused ends the command with its message."""
    from netfold.rpc import local
    from netfold.rpc.rpc import Unreachable

    try:
        said: tuple[Any, list[int]] = local.call(path, request, faults.Answer, timeout)
    except Unreachable as error:
        fail(FAILED, str(error))
    if isinstance(said[0], faults.Refused):
        fail(FAILED if said[0].conflict else CANNOT, said[0].why)
    return said


def seconds(text: str, option: str) -> float:
    """Seconds of a duration such as 5s, 500ms or 2m; a number alone is in seconds."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)(ms|s|m|h|)", text.strip(), re.ASCII)
    if match is None or float(match[1]) == 0:
        fail(CANNOT, f"{option} {text!r}: expected a duration above 0, such as 500ms, 5s or 2m")
    return float(match[1]) * {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}[match[2]]


def _is_called(path: Path, which: str) -> bool:
    """True if the fabric at a socket has this name, or this file."""
    said = _active(path)
    if said is None:
        return False
    file = Path(which)
    if not file.is_file():
        return which == said.fabric
    return any(Path(plane.file).exists() and file.samefile(plane.file) for plane in said.planes) or (
        load(file).name == said.fabric)


def _name(path: Path) -> str:
    """Name of the fabric at a socket; "starting" where it does not say."""
    said = _active(path)
    return NAMELESS if said is None else said.fabric


def _active(path: Path) -> faults.ActiveFaults | None:
    """The report of the fabric at a socket; None if it does not answer, which does not concern a command for another
    fabric."""
    from netfold.rpc import local
    from netfold.rpc.rpc import CallRefused, Unreachable

    try:
        said: Any = local.call(path, faults.Active(), faults.Answer, NAME_SECONDS)[0]
    except (Unreachable, CallRefused):
        return None
    return said if isinstance(said, faults.ActiveFaults) else None
