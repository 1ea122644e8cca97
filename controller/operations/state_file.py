# SPDX-License-Identifier: Apache-2.0
"""The state file: what operators have drained, so that a controller that is restarted goes on as before."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec

from netfold.controller.health.drains import Drains, UnknownName
from netfold.disk import files
from netfold.fabric.graph import FabricError

log = logging.getLogger("netfold.controller")


class SavedState(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of the state file, in JSON."""

    drained: list[str] = []
    """Names of switches, and of links by one end."""


def load(path: Path) -> SavedState:
    """Read the state file; the default state if there is no file yet.  Raises FabricError."""
    try:
        return msgspec.json.decode(files.read(path), type=SavedState)
    except FileNotFoundError:
        return SavedState()
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise FabricError(f"fabric.state: cannot read {path}: {error}. Correct the file, or remove it to start with "
                          "nothing drained") from error


def restore(drains: Drains, file: str | None) -> None:
    """Drain what the state file names; does nothing without a file.  Raises FabricError."""
    if file is None:
        return
    for name in load(Path(file)).drained:
        try:
            drains.mark(drains.canonical(name), True)
        except UnknownName as error:
            raise FabricError(f"fabric.state: {file}: drained: {error}") from error
    if names := drains.names:
        log.warning("drained, as %s says: %s", file, ", ".join(names))


def save(path: Path, saved: SavedState) -> None:
    """Replace the file atomically: after a crash there is the old one or the new one.  Raises FabricError."""
    try:
        files.replace(path, msgspec.json.encode(saved) + b"\n")
    except OSError as error:
        raise FabricError(f"fabric.state: cannot write {path}: {error}") from error
