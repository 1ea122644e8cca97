# SPDX-License-Identifier: Apache-2.0
"""Keeps measured figures in a JSON file for the next run, by key.

A file that cannot be read or written is logged as a warning, and the figures are measured again.
"""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any, TypeVar

import msgspec

from netfold.disk import files

T = TypeVar("T")

log = logging.getLogger("netfold")


def read(path: str, key: str, kind: type[T]) -> T | None:
    """The figures under ``key``, or None."""
    if not os.path.exists(path):
        return None
    try:
        figures = msgspec.json.decode(files.read(path), type=dict[str, msgspec.Raw]).get(key)
        return None if figures is None else msgspec.json.decode(figures, type=kind)
    except (OSError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        log.warning("%s: no figures of links (%s); measuring, and writing it anew", path, error)
        return None


def write(path: str, key: str, figures: object) -> None:
    """Writes the figures under ``key``, beside those under other keys."""
    others: dict[str, Any] = {}
    # none yet, or none that anyone could use
    with contextlib.suppress(OSError, ValueError, RecursionError, msgspec.MsgspecError):
        others = msgspec.json.decode(files.read(path), type=dict[str, Any])
    try:
        files.replace(path, msgspec.json.format(msgspec.json.encode({**others, key: figures}), indent=1) + b"\n")
    except OSError as error:
        log.warning("%s: cannot be written (%s); the next run measures again", path, error)
