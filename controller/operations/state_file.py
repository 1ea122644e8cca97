# SPDX-License-Identifier: Apache-2.0
"""What operators have chosen, in a file: so that a controller which starts anew goes on as the last one did."""

from __future__ import annotations

import contextlib
import logging
import os
from pathlib import Path

import msgspec

from netfold.controller.health.drains import Drains, UnknownName
from netfold.fabric.graph import FabricError

log = logging.getLogger("netfold.controller")


class Kept(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The file's content, JSON."""

    drained: list[str] = []
    """Names of switches, and of links by an end."""


def load(path: Path) -> Kept:
    """What was kept; nothing where there is no file yet.  Raises FabricError."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    except FileNotFoundError:
        return Kept()
    except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
        raise FabricError(f"fabric.state: cannot read {path}: {error}. Correct the file, or remove it to start with "
                          "nothing drained") from error


def restore(drains: Drains, file: str | None) -> None:
    """Drain what was drained when the last controller ended.  Raises FabricError."""
    if file is None:
        return
    for name in load(Path(file)).drained:
        try:
            drains.mark(drains.known(name), True)
        except UnknownName as error:
            raise FabricError(f"fabric.state: {file}: drained: {error}") from error
    if names := drains.names:
        log.warning("drained, as %s says: %s", file, ", ".join(names))


def save(path: Path, kept: Kept) -> None:
    """Replace the file as a whole, on the disk: a crash leaves the old one or the new one.  Raises FabricError."""
    beside = path.with_name(path.name + ".new")
    try:
        with beside.open("wb") as file:
            file.write(msgspec.json.encode(kept) + b"\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise FabricError(f"fabric.state: cannot write {path}: {error}") from error
