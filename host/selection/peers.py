# SPDX-License-Identifier: Apache-2.0
"""The collectives of a group of ranks on flat arrays: picks an algorithm, counts operations, keeps totals.

The call that each message carries (the operation's number in this group, its kind, algorithm and elements) must be the
same on all ranks; the first message of a rank where it is not raises RankMismatch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager

from netfold.host.collectives import (
    ALLREDUCE,
    BROADCAST,
    REDUCE,
    all_to_all,
    broadcast,
    byteps,
    gather,
    hierarchical,
    mesh2d,
    parameter_server,
    ring,
    scatter,
    tidalmesh,
)
from netfold.host.collectives.barrier import barrier
from netfold.host.collectives.flow import Strand, run
from netfold.host.collectives.machines import Machines
from netfold.host.collectives.tidalmesh import TIDALMESH
from netfold.host.mesh.mesh import Call, Mesh, Pending, Subset
from netfold.host.operation.arrays import Flat, held
from netfold.host.operation.coding import PLAIN, Coding, LaneBits
from netfold.host.operation.rail import RailStats
from netfold.host.operation.reduction import Reduction
from netfold.host.operation.request import AllreduceRequest
from netfold.host.selection import cost
from netfold.host.selection.choice import INNET, Choice, Collective
from netfold.host.selection.chooser import HIERARCHICAL, Chooser
from netfold.host.selection.measure import Measured

ALGORITHM_VARIABLE = "NETFOLD_ALGO"
AUTO = "auto"
KNOWN = (AUTO, *sorted([*ALLREDUCE, HIERARCHICAL]))
SEGMENT = 64 << 10
"""Bytes of a chain's segments if the links have not been measured."""
HELPED = ("byteps", "parameter_server")


class Peers:
    """A group of ranks over a mesh.  All ranks call the same operations in the same order, from one thread at a time.

    label      of the group, part of every call; default: all ranks of the job
    algorithm  of allreduce: one of ``KNOWN``; "auto": by cost; default $NETFOLD_ALGO, or "auto"
    order      of rings, chains and meshes: ranks under one switch side by side (``Plan.ring``); default: by rank
    helpers    ranks that have no data and only add for the others, by "byteps" (default) or "parameter_server"; they
               call every allreduce with an array that gives the size
    measured   links of an earlier run; default: measured at the first operation that has a choice
    machines   ranks by machine, for "hierarchical"; default: found out when it is first used
    fabric     that the ranks are on, as the file of measured links calls it
    places     ranks by row and column of the mesh that they are on (``Plan.places``), for "tidalmesh"; default: on none
    remembered what the links were measured to be, if this rank knows: one rank that does is enough
    """

    def __init__(
        self,
        mesh: Mesh,
        *,
        label: str = "",
        algorithm: str | None = None,
        order: Sequence[int] | None = None,
        helpers: Sequence[int] = (),
        measured: Measured | None = None,
        machines: Sequence[Sequence[int]] = (),
        fabric: str = "",
        note: Callable[[str], None] = lambda path: None,
        remembered: Measured | None = None,
        places: Sequence[Sequence[int]] = (),
    ) -> None:
        if not set(helpers) < set(range(mesh.size)) or len(set(helpers)) != len(helpers):
            raise ValueError(f"helpers={list(helpers)}: expected some of 0 .. {mesh.size - 1}, not all, each once")
        self.mesh = mesh
        self.rank, self.size = mesh.rank, mesh.size
        self.label = label
        self.called = label.strip()
        """The group's name; empty: all ranks."""
        self.order = order
        self.helpers = tuple(helpers)
        self.places = places
        self.algorithm = self.check(algorithm or os.environ.get(ALGORITHM_VARIABLE) or AUTO)
        self.fabric = fabric
        self.machines = Machines(mesh, machines)
        self.chooser = Chooser(mesh, self.machines, self._allreduce, fabric=fabric, measured=measured,
                               remembered=remembered, grid=(len(places), len(places[0])) if places else None)
        self.operations = 0
        self.bytes_reduced = 0
        self.seconds = 0.0
        """Wall-clock seconds inside operations."""
        self.note = note
        self.number = 1
        """Number of the next operation, the same on all ranks."""

    def count_from(self, number: int) -> None:
        """Sets the number of the next operation, for an owner that has operations elsewhere too."""
        self.number = number

    def group(self, ranks: Sequence[int]) -> Peers:
        """Some of the ranks, in this order, with operations and numbers of their own."""
        subset = Subset(self.mesh, ranks)
        order = None if self.order is None else [ranks.index(rank) for rank in self.order if rank in ranks]
        label = f"ranks {','.join(map(str, ranks))} "
        fabric = self.fabric and f"{self.fabric}, {label.strip()}"
        algorithm = AUTO if self.algorithm == TIDALMESH else self.algorithm  # some of a mesh are no mesh
        return Peers(subset, label=label, algorithm=algorithm, order=order, fabric=fabric, note=self.note)

    # ---- operations --------------------------------------------------------------------------------------------------
    def allreduce(self, request: AllreduceRequest) -> int:
        """Carries a request (``Rail``) by the request's algorithm, else the group's, else the cheapest."""
        out, reduction = request.out, request.reduction
        if request.number:
            self.number = request.number
        if not request.in_place:
            out[...] = request.source
        if self.size > 1:
            what = f"{reduction.op} of {out.size} x {reduction.said}"
            name = self.pick(out.nbytes, request.algorithm, what)
            self.note(f"{self.mesh.kind}, {name}")
            strand = self._allreduce(name, out, reduction)
            begin = time.monotonic()
            with self.operation(f"{what} by {name}"):
                run(self.mesh, strand if out.nbytes else barrier(self.mesh))
            self.seconds += time.monotonic() - begin
        self.operations += 1
        self.bytes_reduced += out.nbytes
        reduction.finish(out, self.size - len(self.helpers))
        return 0

    def how(self, collective: Collective, nbytes: int, reduction: Reduction) -> str:
        """The way that such a collective other than an allreduce takes, in words."""
        return f"{collective} of {nbytes} bytes goes over {self.mesh.kind}"

    @property
    def joins(self) -> bool:
        """True if ``exchange`` may run both at once."""
        return False

    def exchange(
        self, data: Flat, pieces: Sequence[slice], reduction: Reduction, gathered: Flat, rows: Sequence[slice],
        coding: Coding = PLAIN,
    ) -> bool:
        """A ``reduce_scatter`` of ``data`` and an ``all_gather`` of ``gathered`` at the same time, where that can be.
        Returns whether it could: one mesh does one thing at a time."""
        return False

    def reduce_scatter(
        self, data: Flat, pieces: Sequence[slice], reduction: Reduction, *, algorithm: str | None = None,
        coding: Coding = PLAIN,
    ) -> None:
        """Leaves in ``data[pieces[rank]]`` the reduction over all ranks; the rest of ``data`` then holds partial
        results.

        algorithm  "ring", which a mesh takes in any case
        coding     in lanes, where switches fold; a mesh carries elements as they are
        """
        what = f"reduce_scatter, {reduction.op} of {data.size} x {reduction.said}"
        self.note(f"{self.mesh.kind}, ring")
        self.mesh.expect("ring", ranks=self.order or ())
        self._run(what, ring.reduce_scatter(self.mesh, data, pieces, reduction, order=self.order), data.nbytes)
        self.bytes_reduced += data.nbytes
        reduction.finish(data[pieces[self.rank]], self.size)

    def all_gather(self, data: Flat, pieces: Sequence[slice], *, algorithm: str | None = None) -> None:
        """Fills ``data`` with every rank's ``data[pieces[rank]]``.

        algorithm  as of ``reduce_scatter``
        """
        strand = ring.all_gather(self.mesh, data, pieces, order=self.order)
        self.note(f"{self.mesh.kind}, ring")
        self.mesh.expect("ring", ranks=self.order or ())
        self._run(f"all_gather of {data.size} bytes of {held(data)}", strand, data.nbytes)

    def broadcast(self, data: Flat, root: int, *, algorithm: str | None = None) -> None:
        """Fills ``data`` with that of the root.

        algorithm  one of ``collectives.BROADCAST``; default: the cheapest.  Ranks take their places by ``order``
        """
        what = f"broadcast from {root} of {data.size} bytes of {held(data)}"
        n, p = data.nbytes, self.size
        link = self._link(n, what) if algorithm is None else self.chooser.seen.link
        segment = max(4096, min(1 << 20, int(cost.chain_segment(n, p, link)))) if link.beta else SEGMENT
        seconds = {
            "binomial": cost.broadcast_binomial(n, p, link),
            "chain": cost.broadcast_chain(n, p, link, segment),
            "scatter_all_gather": cost.broadcast_scatter_all_gather(n, p, link),
        }
        name = named(algorithm, BROADCAST) or min(seconds, key=lambda name: (seconds[name], name))
        placed = self.mesh if self.order is None else Subset(self.mesh, self.order)
        start = root if self.order is None else self.order.index(root)
        if name == "chain":
            strand = broadcast.chain(placed, data, root=start, segment=segment)
        else:
            strand = BROADCAST[name](placed, data, root=start)
        self.note(f"{self.mesh.kind}, {name}")
        placed.expect(name, root=start)
        self._run(f"{what} by {name}", strand, n)

    def reduce(
        self, data: Flat, reduction: Reduction, root: int, *, algorithm: str | None = None, coding: Coding = PLAIN
    ) -> None:
        """Leaves the reduction over all ranks in the root's ``data``; that of the others then holds partial results.

        algorithm  one of ``collectives.REDUCE``; default: the cheapest
        coding     as of ``reduce_scatter``
        """
        what = f"reduce to {root}, {reduction.op} of {data.size} x {reduction.said}"
        n = data.nbytes
        name = named(algorithm, REDUCE)
        if name is None:
            link = self._link(n, what)
            straight = cost.broadcast_binomial(n, self.size, link)  # the same tree, the other way
            twice = cost.reduce_scatter(n, self.size, link) + link.alpha + n * link.beta
            name = "binomial" if straight <= twice else "reduce_scatter_gather"
        self.note(f"{self.mesh.kind}, {name}")
        self.mesh.expect("binomial_reduce" if name == "binomial" else name, root=root)
        self._run(f"{what} by {name}", REDUCE[name](self.mesh, data, reduction, root=root), n)
        self.bytes_reduced += n
        if self.rank == root:
            reduction.finish(data, self.size)

    def gather(self, data: Flat, pieces: Sequence[slice], root: int) -> None:
        """Fills the root's ``data`` with every rank's ``data[pieces[rank]]``."""
        self.mesh.expect("gather", root=root)
        self._run(f"gather to {root}, {held(data)}", gather.gather(self.mesh, data, pieces, root=root), 1)

    def scatter(self, data: Flat, pieces: Sequence[slice], root: int) -> None:
        """Fills each rank's ``data[pieces[rank]]`` from the root's ``data``."""
        self.mesh.expect("scatter", root=root)
        self._run(f"scatter from {root}, {held(data)}", scatter.scatter(self.mesh, data, pieces, root=root), 1)

    def all_to_all(self, source: Flat, given: Sequence[slice], out: Flat, taken: Sequence[slice]) -> None:
        """Fills ``out[taken[r]]`` with rank r's ``source[given[this rank]]``."""
        self.mesh.expect("all_to_all")
        self._run(f"all_to_all of {held(out)}", all_to_all.all_to_all(self.mesh, source, given, out, taken), 1)

    def barrier(self) -> None:
        """Returns once every rank has called it."""
        self._run("barrier", barrier(self.mesh), 1)

    def send(self, data: Flat, peer: int, tag: int) -> None:
        """Returns once ``data`` has been handed to the kernel; ``peer`` must call ``receive``."""
        self._alone(f"message of {data.size} x {data.dtype}, tag {tag}", lambda: self.mesh.send(peer, data, tag=tag))

    def receive(self, into: Flat, peer: int, tag: int) -> None:
        """Returns once the peer's next ``send``, which must have the size of ``into``, is in ``into``."""
        self._alone(f"message of {into.size} x {into.dtype}, tag {tag}", lambda: self.mesh.receive(peer, into, tag=tag))

    # ---- as a rail ---------------------------------------------------------------------------------------------------
    narrows = False
    retransmissions = 0
    """Always 0: the kernel's retransmissions are not counted."""

    @property
    def name(self) -> str:
        """Name of the transport between the ranks, or "self" where there is one rank alone."""
        return self.mesh.rail if self.size > 1 else "self"

    def takes(self, reduction: Reduction, coding: Coding) -> bool:
        """Always true: hosts reduce every dtype, and nothing is narrowed."""
        return True

    def describe(self, nbytes: int, lane_bits: LaneBits = 32) -> str:
        """How it would carry a tensor of ``nbytes`` bytes."""
        return self.explain(nbytes)

    def watched_by(self, watch: Callable[[float], bool] | None) -> None:
        """Sets the mesh's ``watch`` (``Mesh.watched_by``)."""
        self.mesh.watched_by(watch)

    def stats(self) -> RailStats:
        """Totals of all operations so far, of every kind."""
        return RailStats(operations=self.operations, bytes_reduced=self.bytes_reduced, seconds=self.seconds)

    # ---- choosing ----------------------------------------------------------------------------------------------------
    @property
    def known(self) -> tuple[str, ...]:
        """Names of allreduce algorithms that can be asked for."""
        if self.helpers:
            return (AUTO, *HELPED)
        return (*KNOWN, TIDALMESH) if self.places else KNOWN

    def check(self, algorithm: str) -> str:
        """The algorithm's name; raises ValueError with the known names for an unknown one."""
        if algorithm == TIDALMESH and not self.helpers:
            if self.places or self.size == 1:
                return algorithm
            raise ValueError(f"algorithm={algorithm!r}: expected one rank at each place of a mesh of linked switches "
                             "(place, in the fabric's file), and no group of some ranks; use mesh2d elsewhere")
        if algorithm not in self.known:
            why = f" with helpers {list(self.helpers)}" if self.helpers else f" (argument or {ALGORITHM_VARIABLE})"
            raise ValueError(f"algorithm={algorithm!r}{why}: expected one of {', '.join(self.known)}")
        return algorithm

    def pick(self, nbytes: int, algorithm: str | None = None, what: str = "") -> str:
        """The allreduce algorithm for this size: as asked for, or the cheapest.  May measure: all ranks call it alike.

        what  the operation that needs to know, for errors
        """
        name = self.check(algorithm or self.algorithm)
        if self.helpers and name == AUTO:
            return HELPED[0]
        return name if name != AUTO else self.choice(nbytes, what).algorithm

    def choice(
        self, nbytes: int, what: str = "", *, folded: int | None = None, collective: Collective = "allreduce"
    ) -> Choice:
        """The choice of ``Chooser.choice`` for the next operation."""
        return self.chooser.choice(nbytes, Call(self.number, self.label + what), folded=folded, collective=collective)

    def explain(self, nbytes: int, *, folded: int | None = None) -> str:
        """Which algorithm an allreduce of this size takes, and why.  Sends nothing.

        folded  as for ``choice``
        """
        if self.size == 1:
            return f"{nbytes} bytes stay on this rank"
        way = f"{nbytes} bytes go over {self.mesh.kind}"
        if self.helpers:
            return f"{way} by {self.pick(nbytes)}; ranks {list(self.helpers)} only add"
        if self.algorithm != AUTO:
            return f"{way} by {self.algorithm}, as asked for (argument or {ALGORITHM_VARIABLE})"
        chosen = self.chooser.known(nbytes, folded=folded)
        if chosen is None:
            if folded is not None:
                way = f"{nbytes} bytes fold in the network or go over {self.mesh.kind}"
            return f"{way} by the cheapest way once the first operation has measured the links"
        return f"{'' if chosen.algorithm == INNET else f'over {self.mesh.kind}, '}{chosen}"

    def _link(self, nbytes: int, what: str) -> cost.LinkCost:
        return self.chooser.link(nbytes, Call(self.number, self.label + what))

    # ---- algorithms that need to know more than the mesh -------------------------------------------------------------
    def _allreduce(self, name: str, data: Flat, reduction: Reduction) -> Strand:
        if name == TIDALMESH:
            self.mesh.expect("all_to_all")  # between neighbours there is one path, in whatever plan
            return tidalmesh.allreduce(self.mesh, data, reduction, places=self.places)
        self.mesh.expect(name, ranks=self.order or () if name in ("ring", "mesh2d") else ())
        if name == "ring":
            return ring.allreduce(self.mesh, data, reduction, order=self.order)
        if name == "mesh2d":
            return mesh2d.allreduce(self.mesh, data, reduction, order=self.order)
        if name == HIERARCHICAL:
            return self._hierarchical(data, reduction)
        if self.helpers and name == "byteps":
            return byteps.allreduce(self.mesh, data, reduction, helpers=self.helpers)
        if self.helpers:
            workers = [rank for rank in range(self.size) if rank not in self.helpers]
            layout = parameter_server.shares(data.size, workers, self.helpers)
            return parameter_server.allreduce(self.mesh, data, reduction, layout=layout)
        return ALLREDUCE[name](self.mesh, data, reduction)

    def _hierarchical(self, data: Flat, reduction: Reduction) -> Strand:
        """Hierarchical allreduce, over shared memory within a machine."""
        groups = self.machines.find()
        yield from hierarchical.allreduce(self.mesh, data, reduction, groups=groups, rows=self.machines.rows())

    def close(self) -> None:
        """Releases shared memory, and closes the mesh."""
        self.machines.close()
        self.mesh.close()

    # ---- inside ------------------------------------------------------------------------------------------------------
    @contextmanager
    def operation(self, what: str) -> Iterator[Mesh]:
        """One more operation on the mesh, which all ranks begin alike; the caller keeps the totals."""
        number, self.number = self.number, self.number + 1
        with self.mesh.operation(Call(number, self.label + what)):
            yield self.mesh

    def _run(self, what: str, strand: Strand, nbytes: int) -> None:
        begin = time.monotonic()
        with self.operation(what):
            # Without elements no message would tell ranks that call something else: a barrier does.
            run(self.mesh, strand if nbytes else barrier(self.mesh))
        self.operations += 1
        self.seconds += time.monotonic() - begin

    def _alone(self, what: str, post: Callable[[], Pending]) -> None:
        """A message between two ranks, which the others do not count, so it has no number."""
        with self.mesh.operation(Call(0, self.label + what)):
            self.mesh.wait([post()])
        self.operations += 1


def named(algorithm: str | None, known: Collection[str]) -> str | None:
    """Checks the algorithm's name, where one is given.  Raises ValueError."""
    if algorithm is not None and algorithm not in known:
        raise ValueError(f"algorithm={algorithm!r}: expected one of {', '.join(known)}")
    return algorithm
