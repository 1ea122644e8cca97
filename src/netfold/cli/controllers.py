# SPDX-License-Identifier: Apache-2.0
"""Which controller a command asks, and with which token.

In this order: --controller ADDRESS; a fabric file, or the name of a fabric that runs here; NETFOLD_CONTROLLER; the
fabric that this user runs here, where it is one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from netfold.cli.common import CANNOT, fail, load
from netfold.cli.local_fabric import file_of, planes_of
from netfold.rpc.channel import CONTROLLER_VARIABLE


class AskedController(NamedTuple):
    """Where a controller answers, and the caller's token for it."""

    address: str
    """gRPC address; several with commas."""
    token: str
    """Empty if there is none."""


def controller_of(fabric: Path | None, controller: str | None) -> AskedController:
    """The controller that a command asks; without one the command ends with what there is.

    fabric      as the user has named it: a fabric file, or the name or folder of a fabric that runs here
    controller  the address that the user has given
    """
    file = None if fabric is None else file_of(fabric)
    if controller:
        return AskedController(controller, _token(file))
    if file is not None:
        found = load(file)
        return AskedController(found.controllers, _token(file))
    if address := os.environ.get(CONTROLLER_VARIABLE):
        return AskedController(address, _token(None))
    planes = planes_of(None)
    if not planes:
        fail(CANNOT, "which controller? No fabric of this user runs here. Give a FABRIC.toml (slots, paths: --fabric "
                     f"FABRIC.toml), --controller ADDRESS, or set {CONTROLLER_VARIABLE}")
    if len(planes) > 1:
        fail(CANNOT, f"which controller? The fabric that runs here has {len(planes)} planes: give the file of one, "
                     f"{' or '.join(plane.file for plane in planes)}")
    return AskedController(planes[0].controller, _token(Path(planes[0].file)))


def _token(file: Path | None) -> str:
    """The caller's token: that of the environment, else the one with the widest scope whose file, of those that the
    fabric file names, this user may read; empty if there is none."""
    from netfold.rpc import tokens

    try:
        if (said := tokens.given()) or file is None:
            return said
        fabric, problems = load(file), []
        for name in ("operator_token_file", "viewer_token_file", "job_token_file"):
            if (path := getattr(fabric, name)) is not None:
                try:
                    return tokens.read(Path(path), f"fabric.{name}")
                except tokens.TokenError as error:
                    problems.append(str(error))
    except tokens.TokenError as error:
        fail(CANNOT, str(error))
    if problems:
        fail(CANNOT, "\n".join([*problems, f"Name a token file of yours in {tokens.TOKEN_FILE_VARIABLE}"]))
    return ""
