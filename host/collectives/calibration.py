# SPDX-License-Identifier: Apache-2.0
"""What the links were measured to be, kept in a file for the next run: the same figures, so the same choices.

NETFOLD_COST names the file.  Rank 0 writes it after a measurement; ranks use what they read only where all of them read
the same figures, and measure otherwise: a rank that chose another algorithm than the others would end the job.
"""

from __future__ import annotations

import zlib
from typing import Final

import msgspec
import numpy as np

from netfold.host import kept
from netfold.host.collectives import recursive_doubling
from netfold.host.collectives.elements import Reduction
from netfold.host.collectives.flow import run
from netfold.host.collectives.measure import Measured
from netfold.host.mesh.mesh import Mesh

COST_VARIABLE: Final = "NETFOLD_COST"


def load(path: str | None, world: int) -> Measured | None:
    """The figures in a file for this many ranks, or None."""
    return kept.read(path, str(world), Measured) if path else None


def save(path: str, world: int, measured: Measured) -> None:
    """Writes the figures beside those for other numbers of ranks."""
    kept.write(path, str(world), measured)


def agree(mesh: Mesh, ours: Measured | None) -> bool:
    """Whether every rank has read the same figures.  All ranks call it together, inside an operation."""
    mark = zlib.crc32(msgspec.json.encode(ours)) + 1 if ours is not None else 0
    ends = np.array([mark, -mark], np.int64)
    run(mesh, recursive_doubling.allreduce(mesh, ends, Reduction("max", "int64")))
    most, least = int(ends[0]), -int(ends[1])
    return most == least and least > 0
