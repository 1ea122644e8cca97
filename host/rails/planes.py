# SPDX-License-Identifier: Apache-2.0
"""Planes and what runs on them: how a rank names its rails, opens them, and opens them again.

A plane is a fabric of its own that this machine has an address on: its own links, switches and controller.

    NETFOLD_PLANES="a=10.0.1.1@unix:/run/a.sock b=10.1.1.1@unix:/run/b.sock"      this machine's, by name
    NETFOLD_RAILS="innet@a+tcp@b"                                                 the job's, alike on all ranks

Each rail is a job of its own at its plane's controller (JOB, JOB+1, ...; JOB+1.2 in its second life), so a controller
knows nothing of rails.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast, get_args

import numpy as np

from netfold.host.collectives.elements import Reduction
from netfold.host.errors import NetFoldError, PlanError, RailDown
from netfold.host.folding.fold import FoldRail
from netfold.host.folding.jobs import JobClient
from netfold.host.folding.watcher import Watcher
from netfold.host.mesh.link import listen
from netfold.host.mesh.tcp import TcpMesh
from netfold.host.peers import Peers
from netfold.host.rails.ledger import Ledger
from netfold.host.rails.multirail import MultiRail
from netfold.host.rails.rail import Flat, Op, RailStats
from netfold.host.rails.rail_set import STALL, Track
from netfold.host.rails.sideline import TcpSideline, cookie
from netfold.host.roce.mesh import RoceMesh
from netfold.wire.jobs import Join, Plan, Report

PLANES_VARIABLE = "NETFOLD_PLANES"
RAILS_VARIABLE = "NETFOLD_RAILS"
STALL_VARIABLE = "NETFOLD_RAIL_STALL"
Kind = Literal["innet", "tcp", "roce"]
RETRY = 0.5
"""Seconds between attempts to open a dead rail again."""
REJOIN = 5.0
"""Seconds that an attempt waits for the other ranks."""
SETTLED = 10.0
"""Seconds after which a rail that is open here, and not on all ranks, is opened afresh."""
HELLO = 256
"""Elements of the first sum of a rail that was opened again: whether it carries anything."""

log = logging.getLogger("netfold")


@dataclass(frozen=True)
class Plane:
    """A fabric as this machine sees it: our address on it, its job service."""

    address: str
    controller: str


@dataclass(frozen=True)
class RailSpec:
    """A rail of a job: "innet", "tcp" or "roce" on a plane."""

    kind: Kind
    plane: Plane
    name: str = ""
    """For people; default: the kind and the address."""

    def __str__(self) -> str:
        return self.name or f"{self.kind}@{self.plane.address}"


def parse_planes(text: str) -> dict[str, Plane]:
    """NETFOLD_PLANES.  Raises ValueError."""
    planes = {}
    for word in text.split():
        name, equals, rest = word.partition("=")
        address, at, controller = rest.partition("@")
        if not (name and equals and address and at and controller):
            raise ValueError(
                f"{PLANES_VARIABLE}: {word!r}: expected NAME=ADDRESS@CONTROLLER, as in a=10.0.1.1@unix:/run/a.sock"
            )
        planes[name] = Plane(address, controller)
    return planes


def parse_rails(text: str, planes: Mapping[str, Plane]) -> list[RailSpec]:
    """NETFOLD_RAILS.  Raises ValueError."""
    specs = []
    for word in text.split("+"):
        kind, _, plane = word.strip().partition("@")
        if kind not in get_args(Kind) or plane not in planes:
            raise ValueError(
                f"rail {word!r}: expected KIND@PLANE with one of {', '.join(get_args(Kind))} and one of the planes "
                f"{', '.join(planes) or f'of {PLANES_VARIABLE}, which names none'}"
            )
        specs.append(RailSpec(cast(Kind, kind), planes[plane], word.strip()))
    return specs


class PeerRail:
    """The rails "tcp" and "roce" as one of several: allreduce between the hosts, by the cheapest algorithm."""

    def __init__(self, peers: Peers, mesh: TcpMesh, name: str) -> None:
        self.name = name
        self._peers = peers
        self._mesh = mesh

    @property
    def watch(self) -> Callable[[float], None] | None:
        """See ``multirail.Track``."""
        return self._mesh.watch

    @watch.setter
    def watch(self, watch: Callable[[float], None] | None) -> None:
        self._mesh.watch = watch

    def allreduce(self, source: Flat, out: Flat, op: Op, number: int) -> None:
        self._peers.allreduce(source, out, Reduction(op, source.dtype.name))

    @property
    def retransmissions(self) -> int:
        return 0  # the kernel's are not ours to count

    def stats(self) -> RailStats:
        peers = self._peers
        return RailStats(operations=peers.operations, bytes_reduced=peers.bytes_reduced, seconds=peers.seconds)

    def describe(self, nbytes: int) -> str:
        return self._peers.explain(nbytes)

    def close(self) -> None:
        self._peers.close()


class OpenRail:
    """A rail that has joined its job, and all that belongs to it: a ``multirail.Track``.  Raises what joining raises.

    job       the rail's own, see above
    fold      frees the plane's slots where the kind does not fold
    timeout   seconds, of its operations
    """

    def __init__(
        self, spec: RailSpec, job: str, rank: int, world: int, *, timeout: float, join_timeout: float, token: str
    ) -> None:
        self.spec = spec
        self.name = str(spec)
        self._closing = threading.Lock()
        self._closed = False
        self._client = JobClient(spec.plane.controller, token=token)
        self._watcher: Watcher | None = None
        listener: socket.socket | None = None
        try:
            listener = listen(spec.plane.address)
            self.plan = self._client.join(
                Join(
                    job=job, world=world, rank=rank, address=spec.plane.address,
                    tcp="{}:{}".format(*listener.getsockname()), path_mtu=0, timeout=join_timeout,
                    token=self._client.token, fold=spec.kind == "innet",
                )
            )  # fmt: skip
            self._watcher = self._client.watch(self.plan)
            if spec.kind != "tcp" and any(len(ranks) > 1 for ranks in self.plan.machines):
                raise PlanError(f"rail {self} needs an address for each rank on its plane; use tcp")
            if spec.kind == "innet" and not self.plan.trees:
                raise PlanError(f"rail {self}: no tree: {self.plan.reason or 'the controller gave no reason'}")
            mesh = (RoceMesh if spec.kind == "roce" else TcpMesh)(self.plan, listener, timeout=timeout)
            self.others = Peers(mesh)
            """For collectives that are not cut."""
            self._rail: Track = PeerRail(Peers(mesh, name="rail "), mesh, spec.kind)
            if spec.kind == "innet":
                try:
                    self._rail = FoldRail(self.plan, spec.plane.address, timeout=timeout, news=self.news)
                except BaseException:
                    mesh.close()
                    raise
        except BaseException as error:
            if listener is not None:
                listener.close()
            self._leave(RailStats(), str(error))
            raise

    def news(self) -> NetFoldError | None:
        """What the plane's controller says has ended the rail."""
        return None if self._watcher is None else self._watcher.news()

    @property
    def watch(self) -> Callable[[float], None] | None:
        """See ``multirail.Track``."""
        return self._rail.watch

    @watch.setter
    def watch(self, watch: Callable[[float], None] | None) -> None:
        self._rail.watch = watch

    def allreduce(self, source: Flat, out: Flat, op: Op, number: int) -> None:
        if self._closed:
            raise RailDown(f"{self} was closed")
        self._rail.allreduce(source, out, op, number)

    @property
    def retransmissions(self) -> int:
        return self._rail.retransmissions

    def stats(self) -> RailStats:
        return self._rail.stats()

    def describe(self, nbytes: int) -> str:
        return self._rail.describe(nbytes)

    def close(self) -> None:
        with self._closing:
            if self._closed:
                return
            self._closed = True
        stats = self._rail.stats()
        self._rail.close()
        self.others.close()
        self._leave(stats, "")

    def _leave(self, stats: RailStats, reason: str) -> None:
        if self._watcher is not None:
            self._watcher.leaving()
            report = Report(
                job=self.plan.job, rank=self.plan.rank, epoch=self.plan.epoch, operations=stats.operations,
                bytes_reduced=stats.bytes_reduced, packets_sent=stats.packets_sent,
                retransmissions=stats.retransmissions,
                by_tree={name: tree.bytes_reduced for name, tree in stats.by_tree.items()},
            )  # fmt: skip
            self._client.leave(report, reason)
            self._watcher.close()
        self._client.close()

    def __str__(self) -> str:
        return self.name


class Reopening:
    """A dead rail being opened again, on a thread of its own, until it is open on all ranks: a ``multirail.Revival``.

    open_   joins with all ranks; raises NetFoldError where that fails
    """

    def __init__(self, open_: Callable[[], OpenRail], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._open = open_
        self._clock = clock
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._rail: OpenRail | None = None
        self._taken = False
        self.mark = 0
        threading.Thread(target=self._run, name="netfold-rail-open", daemon=True).start()

    def _run(self) -> None:
        while not self._over.wait(RETRY):
            try:
                rail = self._open()
            except NetFoldError as error:
                log.debug("not yet: %s", error)
                continue
            try:
                some = np.ones(HELLO, np.int32)
                rail.allreduce(some, some, "sum", 0)  # plans can be had where no packet gets through
            except NetFoldError as error:
                log.debug("%s is open and carries nothing: %s", rail, error)
                rail.close()
                continue
            with self._lock:
                self._rail, self.mark = rail, rail.plan.epoch
            if self._over.wait(SETTLED):
                return
            with self._lock:
                if self._taken:
                    return
                self.mark = 0
                rail.close()

    def take(self) -> Track:
        with self._lock:
            assert self._rail is not None, "nothing was open"
            self._taken = True
        self._over.set()
        return self._rail  # closed a moment ago, it says so at its first use, and dies again

    def cancel(self) -> None:
        self._over.set()
        with self._lock:
            if self._rail is not None and not self._taken:
                self._rail.close()


@dataclass(frozen=True)
class Joined:
    """Several rails that make one job.  ``plan`` is the first rail's."""

    plan: Plan
    rails: MultiRail

    def peers(self) -> Peers:
        """For what is no allreduce that folds: over the plane of the first rail that is up."""
        first = self.rails.track(self.rails.live[0])
        assert isinstance(first, OpenRail)
        return first.others


def specs_of(rails: str | Sequence[RailSpec] | None, *, asked: bool) -> list[RailSpec]:
    """The rails of an argument, or of the environment where there is none; none where neither names any.

    asked  one rail was asked for by name: the environment does not matter then.  Raises ValueError.
    """
    if rails is not None and asked:
        raise ValueError("rail= and rails= both given: expected one of them")
    text = rails if rails is not None else "" if asked else os.environ.get(RAILS_VARIABLE, "")
    if not isinstance(text, str):
        return list(text)
    return parse_rails(text, parse_planes(os.environ.get(PLANES_VARIABLE, ""))) if text else []


def join_rails(
    specs: Sequence[RailSpec],
    job: str,
    rank: int,
    world: int,
    *,
    timeout: float,
    join_timeout: float,
    token: str = "",
    start: Literal["hot", "cold"] = "hot",
    stall: float | None = None,
) -> Joined:
    """Joins all rails' jobs with all ranks, and makes them one.  Raises JoinRefused, PlanError, TransportError."""
    stall = float(os.environ.get(STALL_VARIABLE, STALL)) if stall is None else stall
    rails: list[OpenRail] = []
    sideline: TcpSideline | None = None

    def open_rail(index: int, life: int, patience: float, seconds: float) -> OpenRail:
        name = (job if index == 0 else f"{job}+{index}") + (f".{life + 1}" if life else "")
        return OpenRail(
            specs[index], name, rank, world, timeout=seconds, join_timeout=patience, token=token
        )

    def revive(index: int, deaths: int) -> Reopening:
        return Reopening(lambda: open_rail(index, deaths, REJOIN, timeout))

    def news() -> NetFoldError | None:
        told = [error for rail in rails if (error := rail.news()) is not None]
        return told[0] if len(told) == len(rails) else None  # a rank is gone where all planes say so

    try:
        rails += [open_rail(index, 0, join_timeout, timeout) for index in range(len(specs))]
        ledger = Ledger()
        sideline = TcpSideline(
            [listen(spec.plane.address) for spec in specs], ledger.answer, cookie(job, rails[0].plan.epoch)
        )
        _meet(sideline, rails, rank, world)
        multi = MultiRail(
            rails, [str(spec) for spec in specs], rank, world, ledger=ledger, sideline=sideline, revive=revive,
            start=start, stall=stall, timeout=timeout, news=news,
        )  # fmt: skip
        return Joined(rails[0].plan, multi)
    except BaseException:
        if sideline is not None:
            sideline.close()
        for rail in rails:
            rail.close()
        raise


def _meet(sideline: TcpSideline, rails: Sequence[OpenRail], rank: int, world: int) -> None:
    """Tells all ranks where this one's sideline listens."""
    ports = np.zeros((world, len(rails)), np.int32)
    ports[rank] = sideline.ports()
    flat = ports.reshape(-1)
    width = len(rails) * ports.itemsize
    pieces = [slice(r * width, (r + 1) * width) for r in range(world)]
    rails[0].others.all_gather(flat.view(np.uint8), pieces)
    addresses = [{peer.rank: peer.address for peer in rail.plan.peers} for rail in rails]
    sideline.meet(
        {
            r: [(where[r], int(port)) for where, port in zip(addresses, ports[r], strict=True)]
            for r in range(world)
            if r != rank
        }
    )
