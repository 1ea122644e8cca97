# SPDX-License-Identifier: Apache-2.0
"""``from netfold import mpi as MPI``: mpi4py's names for buffers; see ``netfold.host.api.mpi``."""

from typing import Any

from netfold.host.api import mpi as _mpi
from netfold.host.api.mpi import (
    BYTE,
    DOUBLE,
    FLOAT,
    IN_PLACE,
    INT,
    INT32_T,
    INT64_T,
    MAX,
    MIN,
    PROD,
    SUM,
    UNSIGNED_CHAR,
    Comm,
    Request,
)

__all__ = [
    "BYTE",
    "DOUBLE",
    "FLOAT",
    "INT",
    "INT32_T",
    "INT64_T",
    "IN_PLACE",
    "MAX",
    "MIN",
    "PROD",
    "SUM",
    "UNSIGNED_CHAR",
    "Comm",
    "Request",
]


def __getattr__(name: str) -> Any:
    return getattr(_mpi, name)  # COMM_WORLD, which joins the job at first use
