# SPDX-License-Identifier: Apache-2.0
"""What the links were measured to be, kept in a file for the next run: the same figures, so the same choices.

NETFOLD_COST names the file.  Rank 0 writes it after a measurement; ranks use what they read only where all of them read
the same figures, and measure otherwise: a rank that chose another algorithm than the others would end the job.
"""

from __future__ import annotations

import contextlib
import logging
import os
import zlib
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from netfold.host.collectives import recursive_doubling
from netfold.host.collectives.elements import Reduction
from netfold.host.collectives.flow import run
from netfold.host.collectives.measure import Measured
from netfold.host.mesh.mesh import Mesh

COST_VARIABLE: Final = "NETFOLD_COST"

log = logging.getLogger("netfold")


def load(path: str | None, world: int) -> Measured | None:
    """The figures in a file for this many ranks, or None; a file that cannot be read is a warning."""
    if not path or not os.path.exists(path):
        return None
    try:
        return msgspec.json.decode(Path(path).read_bytes(), type=dict[str, Measured]).get(str(world))
    except (OSError, ValueError, msgspec.MsgspecError) as error:
        log.warning("%s=%s: no figures of links (%s); measuring, and writing it anew", COST_VARIABLE, path, error)
        return None


def save(path: str, world: int, measured: Measured) -> None:
    """Writes the figures beside those for other numbers of ranks.  A file that cannot be written is a warning."""
    kept: dict[str, Measured] = {}
    with contextlib.suppress(OSError, ValueError, msgspec.MsgspecError):  # none yet, or none that anyone could use
        kept = msgspec.json.decode(Path(path).read_bytes(), type=dict[str, Measured])
    try:
        ours = Path(f"{path}.{os.getpid()}")
        text = msgspec.json.encode({**kept, str(world): measured})
        ours.write_bytes(msgspec.json.format(text, indent=1) + b"\n")
        ours.replace(path)
    except OSError as error:
        log.warning("%s=%s: cannot be written (%s); the next run measures again", COST_VARIABLE, path, error)


def agree(mesh: Mesh, ours: Measured | None) -> bool:
    """Whether every rank has read the same figures.  All ranks call it together, inside an operation."""
    mark = zlib.crc32(msgspec.json.encode(ours)) + 1 if ours is not None else 0
    ends = np.array([mark, -mark], np.int64)
    run(mesh, recursive_doubling.allreduce(mesh, ends, Reduction("max", "int64")))
    most, least = int(ends[0]), -int(ends[1])
    return most == least and least > 0
