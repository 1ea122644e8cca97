# SPDX-License-Identifier: Apache-2.0
"""A rank's line to the controller's path service (wire/paths.py): its paths now, newer ones, and paths it suspects.

    with PathClient(jobs, plan, flows.all_to_all(plan.world)) as paths:
        mesh = RoceMesh(plan, listener, ports=paths.now.ports, queue_pairs=paths.queue_pairs, timeout=30.0)
        mesh.adopt(paths.now)
        mesh.on_suspect = paths.suspect
        ...
        if newer := paths.newer():          # between operations
            mesh.adopt(newer)
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from typing import Any, Final, Literal

import grpc
import msgspec

from netfold.host.errors import PlanError
from netfold.host.jobs import JobClient
from netfold.host.roce import MOST_PAIRS
from netfold.wire.jobs import Plan
from netfold.wire.paths import SERVICE, Flow, Follow, Noted, Paths, Suspect

log = logging.getLogger("netfold")

ANSWER: Final = 10.0
"""Seconds for the controller's first answer, and for one to a suspicion."""
CLOSE: Final = 1.0
UNIT: Final = 1 << 20
"""Size of every flow that is planned: what counts is how flows compare."""


def all_to_all(world: int) -> list[list[Flow]]:
    """Everybody sends to everybody at once."""
    return [[Flow(a, b, UNIT) for a in range(world) for b in range(world) if a != b]]


def ring(world: int) -> list[list[Flow]]:
    """Everybody sends to the next: ring allreduce, ring all-gather."""
    return [[Flow(a, (a + 1) % world, UNIT) for a in range(world)]]


def halving_doubling(world: int) -> list[list[Flow]]:
    """Partners at distance 1, 2, 4 ..., one distance a step; ``world`` is a power of two."""
    steps = [1 << k for k in range((world - 1).bit_length())]
    return [[Flow(a, a ^ step, UNIT) for a in range(world) if a ^ step < world] for step in steps]


class PathClient:
    """Of one rank of a job.  Owns nothing of ``jobs`` but its address and token.  Raises PlanError.

    steps  flows of all ranks, by step
    scope  "leaf": the controller cuts all flows between two leaves together; "host": each host's by themselves
    """

    def __init__(
        self, jobs: JobClient, plan: Plan, steps: Sequence[Sequence[Flow]], *, scope: Literal["host", "leaf"] = "leaf"
    ) -> None:
        self._jobs, self._plan = jobs, plan
        own = [[f for f in step if scope == "leaf" or f.source == plan.rank] for step in steps]
        request = Follow(plan.job, plan.rank, plan.epoch, own, scope, jobs.token)
        follow = jobs.channel.unary_stream(
            f"/{SERVICE}/Follow",
            request_serializer=msgspec.json.encode,
            response_deserializer=msgspec.json.Decoder(Paths).decode,
        )
        self._tell = jobs.channel.unary_unary(
            f"/{SERVICE}/Suspect",
            request_serializer=msgspec.json.encode,
            response_deserializer=msgspec.json.Decoder(Noted).decode,
        )
        self._me = f"job {plan.job!r}, rank {plan.rank} of {plan.world}"
        self._lock = threading.Lock()
        self._first = threading.Event()
        self._now: Paths | None = None
        self._fresh = False
        self._why = f"no answer within {ANSWER:g} s"
        self._call: Any = follow(request)
        self._suspicions: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=target, name=f"netfold-paths-{what}", daemon=True)
                         for what, target in (("follow", self._listen), ("suspect", self._speak))]
        for thread in self._threads:
            thread.start()
        if not self._first.wait(ANSWER) or self._now is None:
            self.close()
            raise PlanError(f"{self._me}: no paths from {jobs.controller}: {self._why}")

    @property
    def now(self) -> Paths:
        """The newest plan."""
        assert self._now is not None
        return self._now

    @property
    def queue_pairs(self) -> int:
        """For data, to any one peer: as many as there may be paths, so that any later plan fits; alike on all ranks."""
        return max(1, min(MOST_PAIRS, len(self.now.ports)))

    def newer(self) -> Paths | None:
        """The newest plan, if it came after the last one that was taken."""
        with self._lock:
            fresh, self._fresh = self._fresh, False
            return self._now if fresh else None

    def suspect(self, peer: int, port: int) -> None:
        """Tells the controller, without waiting for it."""
        self._suspicions.put((peer, port))

    def close(self) -> None:
        """Ends both threads."""
        self._call.cancel()
        self._suspicions.put(None)
        for thread in self._threads:
            thread.join(CLOSE)

    def __enter__(self) -> PathClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _listen(self) -> None:
        try:
            for paths in self._call:
                with self._lock:
                    self._fresh = self._now is not None
                    self._now = paths
                self._first.set()
            self._why = "the controller ended it"
        except grpc.RpcError as error:
            self._why = f"{error.code().name}: {error.details()}"
            if error.code() is not grpc.StatusCode.CANCELLED and self._now is not None:
                log.warning("%s: no newer paths (%s): those known go on", self._me, self._why)
        self._first.set()

    def _speak(self) -> None:
        plan = self._plan
        while (suspicion := self._suspicions.get()) is not None:
            peer, port = suspicion
            try:
                self._tell(Suspect(plan.job, plan.rank, plan.epoch, peer, port, self._jobs.token), timeout=ANSWER)
            except grpc.RpcError as error:
                log.warning("%s: the controller did not hear that port %d to rank %d is suspect: %s", self._me, port,
                            peer, error.details())  # fmt: skip
