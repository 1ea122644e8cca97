# SPDX-License-Identifier: Apache-2.0
"""Ranks of the rail "verbs" in one process, over a libibverbs that is not the system's (native/fake_verbs.c), and what
the controller and the switches of their job do."""

from __future__ import annotations

import ctypes as C
import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from cbuild import cc
from netfold.host.client.fold_control import FoldControl, Waits
from netfold.host.operation.coding import PLAIN, Coding, LaneBits
from netfold.host.operation.half_precision import dtype_name
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.host.verbs.devices import RoceGid, RocePort
from netfold.host.verbs.rail import VerbsRail
from netfold.wire.jobs import Connected, NeighbourPairs, OwnPairs
from netfold.wire.plan import Peer, Plan, RankStream, RankTree
from netfold.wire.roce import PSN_MASK, psn_age

SOURCE = Path(__file__).parent / "native" / "fake_verbs.c"
MAXIMUM = 1
"""The operation of an agreement's stream; that of a data stream is its lanes' bits."""
MTU_1024, MTU_4096 = 3, 5
"""Codes of ``enum ibv_mtu``."""


@functools.cache
def fake() -> tuple[C.CDLL, tuple[str, ...]]:
    """The library, and the linker flags that bring it."""
    path = cc.build([SOURCE], kind="shared", name="fake-verbs")
    lib = C.CDLL(str(path))
    lib.fake_messages.restype = lib.fake_violations.restype = C.c_uint64
    lib.fake_violations.argtypes = C.c_char_p, C.c_size_t
    return lib, (str(path),)


def own_address(rank: int) -> str:
    """The address of a rank's host."""
    return f"10.0.0.{rank + 1}"


def fold_address(rank: int) -> str:
    """The fold address of a rank's host."""
    return f"198.18.0.{rank + 1}"


def request(source: Any, number: int = 1) -> AllreduceRequest:
    """The request of a sum."""
    return AllreduceRequest(source, np.empty_like(source), Reduction("sum", dtype_name(source.dtype)), number)


def wait_until(seen: Callable[[], bool], within: float = 20.0) -> None:
    """Waits for something that another thread does.  Raises AssertionError where it does not."""
    end = time.monotonic() + within
    while not seen():
        assert time.monotonic() < end
        time.sleep(0.001)


class VerbsJob:
    """A job of RC ranks, one a thread, with what a controller is to them.

    trees    number of trees, all of weight 1
    slots    of each data stream; an agreement stream has a quarter of them
    patience seconds without progress after which a rank gives up
    """

    def __init__(
        self, world: int, *, trees: int = 1, slots: int = 64, path_mtu: int = 1024, patience: float = 20.0,
        first_psn: int = 0xFFFFF0, lane_bits: LaneBits = 32, halts: bool = True,
    ) -> None:
        self.lib, libs = fake()
        self.lib.fake_reset(MTU_4096)
        self.world, self.halts, self._bits = world, halts, lane_bits
        self.broken: list[str] = []
        """The ranks' reports of queue pairs in error."""
        self.connections = 0
        """How often all ranks have connected."""
        self._barrier = threading.Barrier(world, timeout=60)
        self._pairs: dict[int, list[OwnPairs]] = {}
        self._missing: dict[int, Waits] = {}
        self._round = 0
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(world)
        peers = [Peer(rank, own_address(rank), "127.0.0.1:1") for rank in range(world)]
        self.plans = [
            Plan(
                "job", 1, rank, world, peers,
                [
                    RankTree(f"s{tree}", 1.0, *(
                        RankStream(
                            fold_address((rank + 1) % world), 0, 0, 0, (first_psn + 100 * tree + kind) & PSN_MASK,
                            size, own_address((rank - 1) % world), 0,
                        )
                        for kind, size in enumerate((slots, slots // 4))
                    ))
                    for tree in range(trees)
                ],
                path_mtu=path_mtu, fold_address=fold_address(rank), verb="send", message=slots // 4,
            )
            for rank in range(world)
        ]
        self.rails: list[VerbsRail] = []

        def join(rank: int) -> VerbsRail:
            return VerbsRail(
                self.plans[rank], own_address(rank), self.port(rank), timeout=patience, control=self._control(rank),
                libs=libs, lane_bits=lane_bits,
            )

        self.rails = self.on_all(join)

    def port(self, rank: int) -> RocePort:
        """The port of a rank's device."""
        own, fold = own_address(rank), fold_address(rank)
        return RocePort("fake0", 1, {own: RoceGid(own, 1, "eth0"), fold: RoceGid(fold, 2, "eth0")}, Path("/none"))

    def on_all(self, call: Callable[[int], Any]) -> list[Any]:
        """The value of ``call`` for each rank, all at the same time; raises the first error."""
        return [future.result() for future in [self._pool.submit(call, rank) for rank in range(self.world)]]

    def allreduce(
        self, sources: Sequence[Any], op: str = "sum", *, number: int = 1, coding: Coding = PLAIN,
        in_place: bool = False,
    ) -> list[Any]:
        """The result of each rank."""

        def call(rank: int) -> Any:
            source = sources[rank]
            out = source if in_place else np.empty_like(source)
            reduction = Reduction(op, dtype_name(source.dtype))  # type: ignore[arg-type]
            self.rails[rank].allreduce(AllreduceRequest(source, out, reduction, number, coding))
            return out

        return self.on_all(call)

    def violations(self) -> str:
        """What an end point did that it must not; empty if nothing."""
        last = C.create_string_buffer(256)
        return last.value.decode() if self.lib.fake_violations(last, len(last)) else ""

    def pairs(self, rank: int) -> list[OwnPairs]:
        """A rank's queue pairs, by stream."""
        return self._pairs[rank]

    def close(self) -> None:
        """Closes all ranks, once none is in an operation any more, as where another one has failed in it."""
        self._pool.shutdown()
        for rail in self.rails:
            rail.close()

    def _control(self, rank: int) -> FoldControl:
        return FoldControl(
            connect=functools.partial(self._connect, rank), broken=self._hear,
            resume=lambda missing, begun, stand_in: self._resume(rank, missing),
        )

    def _connect(self, rank: int, plan: Plan, pairs: list[OwnPairs]) -> Connected:
        self._pairs[rank] = pairs
        if self._barrier.wait() == 0:
            self.connections += 1
            self.lib.fake_forget()
            numbers = C.c_uint32 * self.world
            for place in range(len(pairs)):
                out = numbers(*(self._pairs[r][place].out_qp for r in range(self.world)))
                into = numbers(*(self._pairs[r][place].in_qp for r in range(self.world)))
                self.lib.fake_stream(self.world, out, into, MAXIMUM if place % 2 else self._bits)
        self._barrier.wait()
        after, before = self._pairs[(rank + 1) % self.world], self._pairs[(rank - 1) % self.world]
        return Connected([
            NeighbourPairs(peer_qp=a.in_qp, predecessor_qp=b.out_qp, peer_address=0, peer_rkey=0)
            for a, b in zip(after, before, strict=True)
        ])

    def _hear(self, waits: Waits, why: str) -> None:
        with self._lock:
            self.broken.append(why)
            if not self.halts:
                return
            self._round += 1
        for rail in self.rails:
            rail.halt(self._round)

    def _resume(self, rank: int, missing: Waits) -> Plan:
        """A plan that begins where the rank that lacks the most does."""
        self._missing[rank] = missing
        self._barrier.wait()
        plan = self.plans[rank]
        trees = []
        for number, tree in enumerate(plan.trees):
            first = [
                min((self._missing[r][2 * number + kind] for r in range(self.world)),
                    key=lambda psn, base=stream.psn: psn_age(psn, base))
                for kind, stream in enumerate((tree.data, tree.agreement))
            ]
            trees.append(structs.replace(
                tree, data=structs.replace(tree.data, psn=first[0]),
                agreement=structs.replace(tree.agreement, psn=first[1]),
            ))
        self._barrier.wait()
        self.plans[rank] = structs.replace(plan, trees=trees, round=self._round)
        return self.plans[rank]


@contextmanager
def verbs_job(world: int, **settings: Any) -> Iterator[VerbsJob]:
    """A job of RC ranks, closed at the end; raises AssertionError where an end point did what it must not."""
    job = VerbsJob(world, **settings)
    try:
        yield job
        assert job.violations() == ""
    finally:
        job.close()
