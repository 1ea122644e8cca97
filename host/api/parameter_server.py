# SPDX-License-Identifier: Apache-2.0
"""A parameter server: servers hold the parameters and run the optimizer, workers push gradients and pull parameters.

    server = comm.parameter_server({"w": w, "b": b}, Adam(1e-3), servers=[0, 1])
    server.step({"w": dw, "b": db})      # on every worker: w and b are those after the step, the same bits everywhere

Steps are synchronous.  A step's result is that of one process which adds the workers' gradients in order of their
ranks, divides by their number, and runs the same optimizer on all parameters: bit for bit, for any number of servers.
A process that computes one gradient of all batches at once gets the exact mean instead, but for its own rounding: of n
workers' gradients the mean is off by n u times the mean of their absolute values at most, to first order in u, which is
2**-24 in float32 and 2**-53 in float64.

Ranks may be workers, servers, or both.  A server that is no worker calls ``serve``, which returns when the workers call
``finish``.  Ranks that disagree on tensors, roles or optimizer learn it at the first message (RankMismatch).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np

from netfold.host.api.members import Members
from netfold.host.collectives import broadcast
from netfold.host.collectives.barrier import barrier
from netfold.host.collectives.flow import run
from netfold.host.mesh.mesh import Mesh
from netfold.host.operation.arrays import Array, Flat, check_writeable
from netfold.host.parameters import exchange
from netfold.host.parameters.exchange import FINISH, PULL, PUSH, Held, Roles
from netfold.host.parameters.optimizers import Optimizer
from netfold.host.parameters.shards import Shards


class ParameterServer:
    """One rank's end of a parameter server.  Created by ``Group.parameter_server`` on all ranks at the same point of
    their operations."""

    def __init__(
        self,
        ranks: Members,
        parameters: Mapping[str, Array],
        optimizer: Optimizer,
        *,
        servers: Sequence[int] | None = None,
        workers: Sequence[int] | None = None,
    ) -> None:
        everyone = list(range(ranks.size))
        serving = everyone if servers is None else list(servers)
        working = everyone if workers is None else sorted(workers)
        for name, chosen in (("servers", serving), ("workers", working)):
            if not chosen or len(set(chosen)) != len(chosen) or not set(chosen) <= set(everyone):
                raise ValueError(f"{name}={chosen}: expected some of the ranks 0 .. {ranks.size - 1}, each once")
        if idle := set(everyone) - set(serving) - set(working):
            raise ValueError(f"ranks {sorted(idle)} are neither servers nor workers: expected a group without them")
        for name, tensor in parameters.items():
            check_writeable(tensor, name)
        self._ranks = ranks
        self._parameters = parameters
        self._shards = Shards(parameters, serving)
        self._roles = Roles(working, self._shards.held)
        self._row: Flat | None = None
        self._gradient: Flat | None = None
        self._held: Held | None = None
        self._finished = False
        self.steps = 0
        """Steps finished so far."""
        told = repr((list(self._shards.shapes.items()), serving, working, optimizer)).encode()
        # messages carry the beginning of it alone, which the checksum makes differ wherever anything does
        self._what = (f"parameter server {zlib.crc32(told):08x}: {self._shards.count} x {self._shards.dtype}, "
                      f"{optimizer}")
        row = np.empty(self._shards.count, self._shards.dtype)
        self._shards.gather(parameters, row, "parameters")
        with self._operation() as mesh:
            run(mesh, broadcast.binomial(mesh, row, root=working[0]))
            run(mesh, barrier(mesh))  # else who only sends would not learn that others disagree
        self._shards.scatter(row, parameters)
        if ranks.rank in serving:
            values = row[self._shards.held[ranks.rank]].copy()
            self._held = Held(values, optimizer.start(values))
        if ranks.rank in working:
            self._row, self._gradient = row, np.empty_like(row)

    def step(self, gradients: Mapping[str, Array]) -> None:
        """Pushes this worker's gradients, and fills the parameters with those after the step.

        gradients  parameter name -> array of its shape and dtype: the mean over this worker's part of the batch
        Raises ValueError for other names, shapes or dtypes, or on a rank that is no worker; RankMismatch, PeerLost,
        CollectiveTimeout, TransportError, Busy, Closed.
        """
        row = self._working("step")
        assert self._gradient is not None
        self._shards.gather(gradients, self._gradient, f"rank {self._ranks.rank}, gradients")
        with self._operation() as mesh:
            exchange.notify(mesh, self._roles, PUSH)
            run(mesh, exchange.step(mesh, self._roles, self._gradient, row, self._held))
        self.steps += 1
        self._shards.scatter(row, self._parameters)

    def pull(self) -> None:
        """Fills every worker's parameters with the servers' values, without a step; all workers call it.  Raises as
        ``step``."""
        row = self._working("pull")
        with self._operation() as mesh:
            exchange.notify(mesh, self._roles, PULL)
            run(mesh, exchange.pull(mesh, self._roles, row, self._held))
        self._shards.scatter(row, self._parameters)

    def finish(self) -> None:
        """Lets servers that are no workers return from ``serve``; all workers call it, as their last call."""
        self._working("finish")
        with self._operation() as mesh:
            exchange.notify(mesh, self._roles, FINISH)
        self._finished = True

    def serve(self) -> int:
        """On a server that is no worker: runs the workers' steps until they finish.  Returns the number of steps.

        The communicator's timeout is the longest wait for the next one.  Raises as ``step``, and ValueError on a
        worker.
        """
        if self._ranks.rank in self._roles.workers:
            raise ValueError(f"rank {self._ranks.rank} is a worker, which calls step(): expected one of the servers "
                             f"{self._roles.servers_alone} that are none")
        while not self._finished:
            with self._operation() as mesh:
                notice = exchange.await_notice(mesh, self._roles)
                if notice == PUSH:
                    run(mesh, exchange.step(mesh, self._roles, None, None, self._held))
                    self.steps += 1
                elif notice == PULL:
                    run(mesh, exchange.pull(mesh, self._roles, None, self._held))
            self._finished = notice == FINISH
        return self.steps

    def _working(self, name: str) -> Flat:
        """This worker's row.  Raises ValueError on a rank that is no worker, or after ``finish``."""
        if self._row is None:
            raise ValueError(f"{name} on rank {self._ranks.rank}, which is a server alone: expected one of the workers "
                             f"{list(self._roles.workers)}; call serve()")
        if self._finished:
            raise ValueError(f"{name} on rank {self._ranks.rank} after finish(): expected no more; make another one")
        return self._row

    @contextmanager
    def _operation(self) -> Iterator[Mesh]:
        """One operation of all ranks on the mesh between them."""
        nbytes = self._shards.count * self._shards.dtype.itemsize
        # the mesh's call has the number that entering the first context gives it
        with (self._ranks.operation("parameter server", nbytes, dtype=self._shards.dtype),
              self._ranks.peers.operation(self._what) as mesh):
            yield mesh
