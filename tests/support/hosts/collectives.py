# SPDX-License-Identifier: Apache-2.0
"""Reference results of collectives, arrays to try them on, and meshes over real loopback TCP."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from netfold.host.collectives import ALLREDUCE
from netfold.host.collectives.flow import run
from netfold.host.job_secret import draw
from netfold.host.mesh.mesh import Call, Mesh
from netfold.host.mesh.planned import PathSource
from netfold.host.mesh.sockets import listen
from netfold.host.mesh.tcp import TcpMesh
from netfold.host.operation.arrays import Flat
from netfold.host.operation.reduction import NATIVE, ReduceOp, Reduction
from netfold.testing import subnet
from netfold.wire.plan import Peer, Plan


def inputs(ranks: int, size: int, element: str, seed: int) -> list[Flat]:
    """One array for each rank whose sums and products over all ranks are exact in every dtype, in any order."""
    rng = np.random.default_rng(seed)
    return [rng.choice([1, 2], size).astype(NATIVE[element]) for _ in range(ranks)]


def expected(arrays: Sequence[Flat], op: ReduceOp, element: str) -> Flat:
    """numpy's reduction, computed in a wide dtype."""
    wide = np.stack(arrays)
    if wide.dtype.kind == "f":
        wide = wide.astype(np.float64)
    function = {"sum": np.add, "average": np.add, "max": np.maximum, "min": np.minimum, "product": np.multiply}[op]
    result = function.reduce(wide, axis=0, dtype=wide.dtype)
    total = result.astype(NATIVE[element])
    Reduction(op, element).finish(total, len(arrays))
    return total


def same(results: Sequence[Any]) -> Any:
    """The one result that all ranks have, bit for bit; raises what a rank has raised."""
    for result in results:
        if isinstance(result, Exception):
            raise result
        assert result.tobytes() == results[0].tobytes()
    return results[0]


def as_bfloat16(array: Flat) -> Flat:
    """The bits of values that bfloat16 represents exactly."""
    bits = array.astype(np.float32).view(np.uint32)
    assert not (bits & 0xFFFF).any(), "a value that bfloat16 cannot hold"
    return (bits >> 16).astype(np.uint16)


class Awake:
    """A clock in seconds on which a standstill of the machine takes next to no time: each look advances it by ``LOOK``
    at most, so that what other threads did not do meanwhile does not count as their silence."""

    LOOK = 0.05

    def __init__(self) -> None:
        self._seconds, self._last = 0.0, time.monotonic()

    def __call__(self) -> float:
        now = time.monotonic()
        self._seconds += min(now - self._last, self.LOOK)
        self._last = now
        return self._seconds


class InStep:
    """Clocks of several ranks, in seconds, which advance by ``LOOK`` whenever each of the ranks has looked since they
    last did: while one stands still, time does for all, so that what it did not do meanwhile is no silence.

    ranks  those that are waited for, until they have ended
    """

    LOOK = 0.02

    def __init__(self, ranks: Iterable[int]) -> None:
        self._ranks = set(ranks)
        self._awaited = set(self._ranks)
        self._seconds = 0.0
        self._lock = threading.Lock()

    def of(self, rank: int) -> Callable[[], float]:
        """The clock of a rank."""
        return lambda: self._look(rank)

    def end(self, rank: int) -> None:
        """Nobody waits for this rank any more; once nobody waits for any, each look counts."""
        with self._lock:
            self._ranks.discard(rank)
        self._look(rank)

    def _look(self, rank: int) -> float:
        with self._lock:
            self._awaited.discard(rank)
            if not self._awaited:
                self._seconds += self.LOOK
                self._awaited = set(self._ranks)
            return self._seconds


class TcpRanks:
    """A context with the meshes of all ranks of a job over loopback TCP.

    clock  by rank
    """

    def __init__(
        self, ranks: int, *, timeout: float = 30.0, planned: Callable[[int], PathSource | None] = lambda rank: None,
        clock: Callable[[int], Callable[[], float]] = lambda rank: Awake(),
    ) -> None:
        net = subnet()
        listeners = [listen(f"{net}.{rank + 1}") for rank in range(ranks)]
        peers = [Peer(r, f"{net}.{r + 1}", "{}:{}".format(*listeners[r].getsockname())) for r in range(ranks)]
        secret = draw()
        self.meshes = [
            TcpMesh(
                Plan("loop", 1, rank, ranks, peers, [], secret=secret), listeners[rank], timeout=timeout,
                clock=clock(rank), planned=planned(rank),
            )
            for rank in range(ranks)
        ]
        for mesh in self.meshes:
            mesh.watched_by(lambda moved: None)  # it looks often, as it does where there are several rails

    def __enter__(self) -> TcpRanks:
        return self

    def __exit__(self, *_: object) -> None:
        with ThreadPoolExecutor(len(self.meshes)) as pool:  # as processes do: one that lingers holds up no other
            list(pool.map(lambda mesh: mesh.close(), self.meshes))

    def run(self, work: Callable[[Mesh], Any], *, only: Sequence[int] | None = None, timeout: float = 60) -> list[Any]:
        """Runs ``work`` on every rank at once, or on those in ``only``.  Returns results or exceptions, by rank."""
        results: list[Any] = [None] * len(self.meshes)

        def one(rank: int) -> None:
            try:
                results[rank] = work(self.meshes[rank])
            except Exception as error:
                results[rank] = error

        ranks = range(len(self.meshes)) if only is None else only
        threads = [threading.Thread(target=one, args=(rank,), daemon=True) for rank in ranks]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout)
            assert not thread.is_alive(), f"a rank hangs for {timeout} s"
        return results


def values(results: Sequence[Any]) -> list[Any]:
    """The results; fails where one of them is an exception."""
    for rank, result in enumerate(results):
        if isinstance(result, BaseException):
            raise AssertionError(f"rank {rank} failed") from result
    return list(results)


def allreduce(mesh: Mesh, data: Flat, name: str = "ring", number: int = 1) -> Flat:
    """Sums float32 in place by the algorithm of this name."""
    with mesh.operation(Call(number, f"allreduce {data.dtype} x {data.size}")):
        run(mesh, ALLREDUCE[name](mesh, data, Reduction("sum", "float32")))
    return data
