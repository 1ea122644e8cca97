# SPDX-License-Identifier: Apache-2.0
"""Training steps without computing, in `netfold bench collectives`: by servers that hold the parameters and run Adam,
or by an allreduce and Adam on every rank.

Tensors are uneven, one of them as large as all others together.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import numpy as np

from netfold.host.parameters.optimizers import Adam
from netfold.topo.processes.rank_program import check_data

ADAM: Final = Adam(1e-3)
"""The optimizer, at the servers or on every rank."""
SEED: Final = 5
"""Seed of parameters and gradients."""
TOLERANCE: Final = 1e-5
"""How far a parameter may be from that of a single process after as many steps: sums are added in other orders, and
Adam divides small numbers by small numbers."""
ALL, HALF, ONE = "all serve", "half serve", "one serves"
"""Ways in which ranks serve, which are workers as well."""


def uneven(nbytes: int) -> list[int]:
    """Elements of tensors of float32: half of the bytes in one, a quarter in the next, and so on."""
    left, sizes = nbytes // 4, []
    while left > 64:
        sizes.append(left // 2)
        left -= left // 2
    return [*sizes, left]


class ParametersSteps:
    """A rank's parameters and gradients, and its steps by one way: an algorithm of allreduce, or how many serve."""

    def __init__(self, comm: Any, nbytes: int, way: str) -> None:
        self._comm, self._way = comm, way
        sizes = uneven(nbytes)
        names = [f"tensor {number}" for number in range(len(sizes))]
        cuts = np.cumsum(sizes)[:-1]
        self.row = np.random.default_rng(SEED).standard_normal(sum(sizes)).astype(np.float32)
        self._right = self.row.copy()
        every = [np.random.default_rng(SEED + 1 + rank).standard_normal(self.row.size).astype(np.float32)
                 for rank in range(comm.size)]
        self._gradient, self._mean = every[comm.rank], np.asarray(np.mean(every, axis=0, dtype=np.float32))
        self._parameters = dict(zip(names, np.split(self.row, cuts), strict=True))
        self._gradients = dict(zip(names, np.split(self._gradient, cuts), strict=True))
        self._alone = ADAM.start(self._right)
        servers = {ALL: comm.size, HALF: comm.size // 2, ONE: 1}.get(way, 0)
        self._server = comm.parameter_server(
            self._parameters, ADAM, servers=[number * comm.size // servers for number in range(servers)],
        ) if servers else None
        self._state, self._total = ADAM.start(self.row), np.empty_like(self._gradient)

    def step(self) -> None:
        """Make one step."""
        if self._server is not None:
            self._server.step(self._gradients)
        else:
            self._comm.allreduce(self._gradient, self._total, op="average", algorithm=self._way)
            self._state.begin()
            self._state.update(self.row, self._total, slice(0, self.row.size))

    def check(self) -> None:
        """Compare the parameters with those of a single process, and with the other ranks', which must be the same to
        the last bit.  Raises WrongData."""
        self._alone.begin()
        self._alone.update(self._right, self._mean, slice(0, self._right.size))
        end = np.concatenate([*self._parameters.values()])
        what = f"a step by {self._way}"
        check_data(end, self._right, rank=self._comm.rank, operation=what, tolerance=TOLERANCE)
        digest = np.frombuffer(hashlib.sha256(end.tobytes()).digest(), np.int32)
        every = np.empty(digest.size * self._comm.size, np.int32)
        self._comm.all_gather(digest, every)
        check_data(every, np.tile(digest, self._comm.size), rank=self._comm.rank, operation=f"{what}, of all ranks")
