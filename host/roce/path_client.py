# SPDX-License-Identifier: Apache-2.0
"""A rank's line to the controller's path service (wire/paths.py): its paths now, newer ones, and paths it suspects.

    planned = PlannedPaths(jobs, plan, order=plan.ring)
    mesh = RoceMesh(plan, listener, planned=planned, timeout=30.0)    # owns it; asks before each collective
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final, Literal

import grpc
import msgspec

from netfold.host.errors import PlanError
from netfold.host.folding.jobs import JobClient
from netfold.host.roce.ways import MOST_PAIRS
from netfold.wire.jobs import Plan
from netfold.wire.paths import SERVICE, Flow, Follow, Noted, Paths, Suspect

log = logging.getLogger("netfold")

ANSWER: Final = 10.0
"""Seconds for the controller's first answer, and for one to a suspicion."""
CLOSE: Final = 1.0
UNIT: Final = 1 << 20
"""Size of every flow that is planned: what counts is how flows compare."""
LEAF_WORLD: Final = 64
STEPS: Final = {"ring": "ring", "halving_doubling": "halving_doubling", "recursive_doubling": "halving_doubling"}
"""Which steps an algorithm takes; those of others are planned as if everybody sent to everybody."""


def all_to_all(world: int) -> list[list[Flow]]:
    """Everybody sends to everybody at once."""
    return [[Flow(a, b, UNIT) for a in range(world) for b in range(world) if a != b]]


def ring(world: int, order: Sequence[int] = ()) -> list[list[Flow]]:
    """Everybody sends to the next in this order (default: by rank): ring allreduce, ring all-gather."""
    ranks = order or range(world)
    return [[Flow(a, b, UNIT) for a, b in zip(ranks, [*ranks[1:], ranks[0]], strict=True)]]


def halving_doubling(world: int) -> list[list[Flow]]:
    """Partners at distance 1, 2, 4 ..., one distance a step; ``world`` is a power of two."""
    steps = [1 << k for k in range((world - 1).bit_length())]
    return [[Flow(a, a ^ step, UNIT) for a in range(world) if a ^ step < world] for step in steps]


PATTERNS: Final[dict[str, Callable[[int], list[list[Flow]]]]] = {
    "all_to_all": all_to_all, "halving_doubling": halving_doubling,
}  # fmt: skip


class PlannedPaths:
    """A rank's paths for each collective, asked for when it is first used.  Raises PlanError.

    order  of the ring (``Plan.ring``)
    scope  default: "leaf", up to LEAF_WORLD ranks, for all flows of a step have to be told; then "host"
    """

    def __init__(
        self, jobs: JobClient, plan: Plan, *, order: Sequence[int] = (), scope: Literal["host", "leaf"] | None = None
    ) -> None:
        self._jobs, self._plan, self._order = jobs, plan, order
        self._scope: Literal["host", "leaf"] = scope or ("leaf" if plan.world <= LEAF_WORLD else "host")
        self._clients: dict[str, PathClient] = {}
        self._adopted: tuple[str, Paths] | None = None
        self._tell: Any = jobs.channel.unary_unary(
            f"/{SERVICE}/Suspect",
            request_serializer=msgspec.json.encode,
            response_deserializer=msgspec.json.Decoder(Noted).decode,
        )
        self.ports = self._client("all_to_all").now.ports
        """Source ports of all paths that this rank may ever use."""

    @property
    def queue_pairs(self) -> int:
        """For data, to any one peer: as many as there may be paths, so that any later plan fits; alike on all ranks."""
        return max(1, min(MOST_PAIRS, len(self.ports)))

    def changed(self, algorithm: str) -> Paths | None:
        """The newest paths for a collective, unless they were the last ones that this gave."""
        steps = STEPS.get(algorithm, "all_to_all")
        now = (steps, self._client(steps).now)
        if now == self._adopted:
            return None
        self._adopted = now
        return now[1]

    def suspect(self, peer: int, port: int) -> None:
        """Tells the controller, without waiting for it."""
        plan = self._plan
        told = self._tell.future(Suspect(plan.job, plan.rank, plan.epoch, peer, port, self._jobs.token), timeout=ANSWER)
        told.add_done_callback(lambda done: self._heard(done, peer, port))

    def _heard(self, done: Any, peer: int, port: int) -> None:
        if not done.cancelled() and (error := done.exception()) is not None:
            log.warning("job %r, rank %d: the controller did not hear that source port %d to rank %d is suspect: %s",
                        self._plan.job, self._plan.rank, port, peer, error)  # fmt: skip

    def close(self) -> None:
        """Ends all streams; safe to call twice."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()

    def _client(self, steps: str) -> PathClient:
        if steps not in self._clients:
            world = self._plan.world
            flows = ring(world, self._order) if steps == "ring" else PATTERNS[steps](world)
            self._clients[steps] = PathClient(self._jobs, self._plan, flows, scope=self._scope)
        return self._clients[steps]


class PathClient:
    """Of one rank and one collective, over the channel of ``jobs``.  Raises PlanError.

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
        self._me = f"job {plan.job!r}, rank {plan.rank} of {plan.world}"
        self._first = threading.Event()
        self._now: Paths | None = None
        self._why = f"no answer within {ANSWER:g} s"
        self._call: Any = follow(request)
        self._thread = threading.Thread(target=self._listen, name="netfold-paths", daemon=True)
        self._thread.start()
        if not self._first.wait(ANSWER) or self._now is None:
            self.close()
            raise PlanError(f"{self._me}: no paths from {jobs.controller}: {self._why}")

    @property
    def now(self) -> Paths:
        """The newest plan."""
        assert self._now is not None
        return self._now

    def close(self) -> None:
        """Ends the thread."""
        self._call.cancel()
        self._thread.join(CLOSE)

    def _listen(self) -> None:
        try:
            for paths in self._call:
                self._now = paths
                self._first.set()
            self._why = "the controller ended it"
        except grpc.RpcError as error:
            self._why = f"{error.code().name}: {error.details()}"
            if error.code() is not grpc.StatusCode.CANCELLED and self._now is not None:
                log.warning("%s: no newer paths (%s): those known go on", self._me, self._why)
        self._first.set()
