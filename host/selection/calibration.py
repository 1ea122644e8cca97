# SPDX-License-Identifier: Apache-2.0
"""Keeps the measured figures of links in a file for the next run, so that the same figures lead to the same choices.

NETFOLD_COST names the file.  Rank 0 writes it after a measurement; the figures of the first rank that could read any
are sent to all, because a rank that chose another algorithm than the others would end the job.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np

from netfold.host.collectives import recursive_doubling
from netfold.host.collectives.broadcast import binomial
from netfold.host.collectives.flow import run
from netfold.host.mesh.mesh import Mesh
from netfold.host.operation.reduction import Reduction
from netfold.host.selection import saved_figures
from netfold.host.selection.measure import Measured

COST_VARIABLE: Final = "NETFOLD_COST"


def load(path: str, key: str) -> Measured | None:
    """The figures in a file for these links, or None."""
    return saved_figures.read(path, key, Measured)


def save(path: str, key: str, measured: Measured) -> None:
    """Writes the figures into the file, beside those of other links."""
    saved_figures.write(path, key, measured)


def share(mesh: Mesh, ours: Measured | None) -> Measured | None:
    """The figures of the first rank that has any, on every rank; None where no rank has.  All ranks call it together,
    inside an operation."""
    data = np.frombuffer(b"" if ours is None else msgspec.json.encode(ours), np.uint8)
    sizes = np.zeros(mesh.size, np.int64)
    sizes[mesh.rank] = data.size
    run(mesh, recursive_doubling.allreduce(mesh, sizes, Reduction("max", "int64")))
    if not sizes.any():
        return None
    first = int(sizes.nonzero()[0][0])
    encoded = data.copy() if mesh.rank == first else np.empty(sizes[first], np.uint8)
    run(mesh, binomial(mesh, encoded, root=first))
    return msgspec.json.decode(encoded.tobytes(), type=Measured)
