# SPDX-License-Identifier: Apache-2.0
"""``from netfold import mpi as MPI``: mpi4py's names for buffers; see ``netfold.host.mpi``."""

from typing import Any

from netfold.host import mpi as _mpi
from netfold.host.mpi import (
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
